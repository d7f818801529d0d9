//! An image that goes back to where it was before it was moved. Writes made in the other place are ahead of this
//! place, and the other place is read where they were not brought here yet: an object at a time, before a client
//! changes the object, or in the background. The other place has no writer any more.
//!
//! A brought object is marked by its state that is kept for the number of the return, which is the highest until
//! it is over: later writers need not bring it again, and would not overwrite newer writes of clients.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use atoll_client::PoolClient;
use atoll_types::{Condition, Mutation};
use bytes::Bytes;
use futures::{StreamExt, stream};

use crate::ImageError;
use crate::difference::{Contents, Difference};
use crate::flatten::{CopyControl, OBJECTS_OF_STATES_AT_ONCE};
use crate::keeping::keep_state;
use crate::names::{Part, object_name};
use crate::objects::{ignore_absent, list_parts};
use crate::pieces::{BLOCK, Piece, runs};
use crate::range_locks::RangeLocks;
use crate::state::{Parent, State, below};
use crate::volume::Volume;

/// How often one looks whether the other place is still being read.
const POLL: Duration = Duration::from_millis(10);

/// The image in the other place.
pub(crate) struct Ahead<C> {
    /// It reads this place, as its parent, where the image was not written in the other place.
    state: Rc<State<C>>,
    /// The number of the going back.
    number: u64,
    /// The objects that are still to be brought.
    pending: RefCell<BTreeSet<u64>>,
    /// By object: the task that brings it.
    locks: RangeLocks,
}

impl<C: PoolClient> Ahead<C> {
    /// The parent of `state` is this place. Neither place may have another writer any more.
    pub async fn find(state: Rc<State<C>>, number: u64) -> Result<Self, ImageError> {
        state.list().await?;
        let here = state.parent.as_ref().expect("this place is the parent");
        let is_brought = |part: &Part| part.kept_for >= Some(number);
        let brought = list_parts(&state.client, here.state.pool, &here.state.image_id, is_brought).await?;
        let mut pending = state.known_objects();
        pending.retain(|object| !brought.contains_key(object));
        // Who only reads brings nothing, and may find what clients wrote here since.
        state.show_only(&pending);
        Ok(Ahead { state, number, pending: pending.into(), locks: RangeLocks::default() })
    }

    fn here(&self) -> &Parent<C> {
        self.state.parent.as_ref().expect("this place is the parent")
    }

    /// The parent of the image itself, if it is a clone.
    pub fn parent(&self) -> Option<Parent<C>> {
        let parent = self.here().state.parent.as_ref()?;
        Some(Parent { state: Rc::clone(&parent.state), overlap_bytes: parent.overlap_bytes })
    }

    pub fn is_pending(&self, object: u64) -> bool {
        self.pending.borrow().contains(&object)
    }

    pub fn state(&self) -> &State<C> {
        &self.state
    }
}

impl<C: PoolClient> Volume<C> {
    /// Brings everything that the other place has otherwise, while this is being read and written. False if it was
    /// stopped.
    pub async fn bring_all(&self, control: &dyn CopyControl) -> Result<bool, ImageError> {
        let Some(ahead) = self.ahead() else { return Ok(true) };
        let objects: Vec<u64> = ahead.pending.borrow().iter().copied().collect();
        let all = objects.len() as u64 * self.object_bytes;
        let goes_on = Cell::new(true);
        let brought = objects.into_iter().take_while(|_| goes_on.get()).map(|object| async move {
            let bytes = self.bring_in_background(object).await?;
            self.pause_after(bytes, control).await;
            Ok::<_, ImageError>(())
        });
        let mut brought = pin!(stream::iter(brought).buffer_unordered(OBJECTS_OF_STATES_AT_ONCE));
        let (mut done, mut result) = (0, Ok(()));
        while let Some(one) = brought.next().await {
            done += self.object_bytes;
            control.looked_at(done, all);
            result = result.and(one);
            // What has begun must end: what is under way must not overwrite what is written after this.
            goes_on.set(result.is_ok() && control.is_wanted());
        }
        result.map(|()| ahead.pending.borrow().is_empty())
    }

    async fn bring_in_background(&self, object: u64) -> Result<u64, ImageError> {
        let _in_flight = self.begin().await?;
        self.bring(object).await
    }

    /// Everything was brought. Returns when the other place has no reader any more.
    pub async fn drop_ahead(&self) {
        let Some(ahead) = self.take_ahead() else { return };
        while Rc::strong_count(&ahead) > 1 {
            self.client.sleep(POLL).await;
        }
    }

    /// Brings one object here, unless it is. Returns how many bytes were written. It must not be dropped before
    /// its end: its pending writes must not overwrite later ones.
    pub(crate) async fn bring(&self, object: u64) -> Result<u64, ImageError> {
        let Some(ahead) = self.ahead_of(object) else { return Ok(0) };
        let _guard = ahead.locks.lock(object..object + 1, true).await;
        if !ahead.is_pending(object) {
            return Ok(0);
        }
        // Snapshots show it, and so does whoever reads the other place.
        let number = ahead.number - 1;
        let kept = keep_state(&self.client, self.pool, &self.image_id, object, number, Some(&self.fence)).await;
        kept.map_err(|error| self.explain_image(error))?;
        let whole = Piece { object, offset: 0, length: self.object_bytes };
        let before = Contents::of(&ahead.here().state, whole).await?;
        let difference = Difference::between(&before, &Contents::of(&ahead.state, whole).await?);
        for (offset, data) in &difference.writes {
            self.put_without_zeros(object, *offset, data).await?;
        }
        self.keep(object).await?;
        ahead.pending.borrow_mut().remove(&object);
        Ok(difference.written_bytes())
    }

    /// Writes blocks of an object, and frees those that are zeros unless they would show the parent's data then.
    async fn put_without_zeros(&self, object: u64, offset: u64, data: &Bytes) -> Result<(), ImageError> {
        let has_parent = below(self.parent().as_deref(), object * self.object_bytes + offset).is_some();
        let block = |block: &[u8]| has_parent || block.iter().any(|byte| *byte != 0);
        let is_data: Vec<bool> = data.chunks(BLOCK as usize).map(block).collect();
        for is_wanted in [true, false] {
            for (first, count) in runs(&is_data, is_wanted) {
                let (at, length) = (first as u64 * BLOCK, count as u64 * BLOCK);
                let piece = Piece { object, offset: offset + at, length };
                let data = data.slice(at as usize..(at + length) as usize);
                // As long as it is unknown whether it is done, nothing else may be written there.
                while let Err(error) = self.put(piece, data.clone(), is_wanted).await {
                    if !error.is_undecided() {
                        return Err(error);
                    }
                }
            }
        }
        Ok(())
    }

    async fn put(&self, piece: Piece, data: Bytes, is_data: bool) -> Result<(), ImageError> {
        if is_data {
            return self.put_piece(piece, data)?.await;
        }
        let zero = Mutation::Zero { offset: piece.offset, length: piece.length };
        let conditions = vec![self.fence.clone(), Condition::ObjectExists];
        let object = object_name(&self.image_id, piece.object);
        let zeroed = self.client.change(self.pool, object, conditions, vec![zero]).await;
        ignore_absent(zeroed).map_err(|error| self.explain_image(error))
    }
}
