//! Flattening: a clone gets copies of the blocks that it reads from its parent, and needs the parent no more.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::pin::pin;
use std::time::Duration;

use atoll_client::PoolClient;
use atoll_types::ObjectName;
use futures::{StreamExt, stream};

use crate::ImageError;
use crate::names::object_name;
use crate::pieces::{BLOCK, Piece, runs};
use crate::sealing::written_blocks;
use crate::state::{Parent, State};
use crate::volume::Volume;

/// Objects that are copied at once.
const OBJECTS_AT_ONCE: usize = 8;
/// The same where whole objects are in memory, in several states.
pub(crate) const OBJECTS_OF_STATES_AT_ONCE: usize = 2;
/// Bytes that are copied under one lock, for which writes wait.
const LOCKED_BYTES_MAX: u64 = 1 << 20;
/// How long it may take until a change of the rate is noticed.
const PAUSE_AT_MOST: Duration = Duration::from_millis(200);

/// Control of the copying.
pub(crate) trait CopyControl {
    /// Returns true if it is to continue.
    fn is_wanted(&self) -> bool;
    /// Returns the largest number of bytes to copy per second.
    fn bytes_per_second(&self) -> Option<u64>;
    /// Reports progress: `done_bytes` of `all_bytes` were processed.
    fn looked_at(&self, done_bytes: u64, all_bytes: u64);
}

impl<C: PoolClient> Volume<C> {
    /// Writes the blocks that this reads from its parent into its own objects, while it is being read and written.
    /// A repetition copies only missing blocks. False if it was stopped.
    pub async fn copy_from_parent(&self, control: &dyn CopyControl) -> Result<bool, ImageError> {
        let Some(parent) = self.parent() else { return Ok(true) };
        let parent = &*parent;
        self.list_objects().await?;
        parent.state.list_all().await?;
        let moved = match self.moved_states.is_empty() {
            true => None,
            false => Some(self.list_moved(parent).await?),
        };
        let moved = moved.as_ref();
        let objects = match moved {
            Some(moved) => self.objects_moved(parent, moved),
            None => objects_below(parent, self.object_bytes),
        };
        let all = objects.len() as u64 * self.object_bytes;
        let goes_on = Cell::new(true);
        let copies = objects.into_iter().take_while(|_| goes_on.get()).map(|object| async move {
            match moved {
                Some(moved) => self.copy_states(parent, moved, object, control).await,
                None => self.copy_object(parent, object, control).await,
            }
        });
        let mut copies = pin!(stream::iter(copies).buffer_unordered(self.objects_at_once()));
        let (mut done, mut result) = (0, Ok(true));
        while let Some(copied) = copies.next().await {
            done += self.object_bytes;
            match copied {
                Err(error) => result = Err(error),
                Ok(is_whole) if matches!(result, Ok(true)) => {
                    control.looked_at(done, all);
                    result = Ok(is_whole && control.is_wanted());
                }
                Ok(_) => {}
            }
            // What has begun must end: what is under way must not overwrite what is written after this.
            goes_on.set(matches!(result, Ok(true)));
        }
        result
    }

    fn objects_at_once(&self) -> usize {
        let has_states = !self.moved_states.is_empty() || self.ahead().is_some();
        if has_states { OBJECTS_OF_STATES_AT_ONCE } else { OBJECTS_AT_ONCE }
    }

    /// Copies the missing blocks of one object. False if it was stopped before the end.
    pub(crate) async fn copy_object(
        &self,
        parent: &Parent<C>,
        object: u64,
        control: &dyn CopyControl,
    ) -> Result<bool, ImageError> {
        let length = self.object_bytes.min(parent.overlap_bytes.saturating_sub(object * self.object_bytes));
        let mut offset = 0;
        while offset < length {
            if !control.is_wanted() {
                return Ok(false);
            }
            let piece = Piece { object, offset, length: LOCKED_BYTES_MAX.min(length - offset) };
            let copied = self.copy_piece(parent, piece).await?;
            self.pause_after(copied, control).await;
            offset += piece.length;
        }
        Ok(true)
    }

    /// Keeps to the rate, which may change meanwhile.
    pub(crate) async fn pause_after(&self, copied: u64, control: &dyn CopyControl) {
        let mut left_bytes = copied * self.objects_at_once() as u64;
        while left_bytes > 0 && control.is_wanted() {
            let Some(rate) = control.bytes_per_second() else { return };
            let pause = PAUSE_AT_MOST.min(Duration::from_secs_f64(left_bytes as f64 / rate.max(1) as f64));
            self.client.sleep(pause).await;
            left_bytes = left_bytes.saturating_sub((pause.as_secs_f64() * rate as f64).ceil() as u64);
        }
    }

    /// Copies the missing blocks of a part of an object; returns the number of their bytes.
    async fn copy_piece(&self, parent: &Parent<C>, piece: Piece) -> Result<u64, ImageError> {
        let (start, length) = (piece.start(self.object_bytes), piece.length);
        let _guard = self.locks.lock(start / BLOCK..(start + length).div_ceil(BLOCK), true).await;
        let lacks = self.lacking(&parent.state, object_name(&self.image_id, piece.object), piece).await?;
        let mut copied = 0;
        for (first, count) in runs(&lacks, true) {
            let (offset, length) = (first as u64 * BLOCK, count as u64 * BLOCK);
            let data = parent.state.read_blocks(start + offset, length).await?;
            // As long as it is unknown whether it is written, nothing else may be written there.
            while let Err(error) = self.write_blocks(start + offset, &data).await {
                if !error.is_undecided() {
                    return Err(error);
                }
            }
            copied += length;
        }
        Ok(copied)
    }

    /// Which blocks of a piece hold data in a state and are not written in the object of this name.
    pub(crate) async fn lacking(
        &self,
        state: &State<C>,
        name: ObjectName,
        piece: Piece,
    ) -> Result<Vec<bool>, ImageError> {
        let mut lacks = state.mapped(piece).await?;
        match self.client.read(self.pool, name, piece.offset, piece.length as u32).await {
            Ok(extent) => {
                let written = written_blocks(piece.block_count(), &extent);
                lacks.iter_mut().zip(written).for_each(|(lacks, written)| *lacks &= !written);
            }
            Err(error) if error.is_no_such_object() => {}
            Err(error) => return Err(error.into()),
        }
        Ok(lacks)
    }
}

/// The objects that a parent, or one behind it, has within the overlap.
pub(crate) fn objects_below<C: PoolClient>(parent: &Parent<C>, object_bytes: u64) -> BTreeSet<u64> {
    let mut objects = parent.state.known_objects();
    if let Some(behind) = &parent.state.parent {
        objects.extend(objects_below(behind, object_bytes));
    }
    objects.retain(|object| object * object_bytes < parent.overlap_bytes);
    objects
}
