//! Copying an image that is being moved with its snapshots. Each object is copied state by state, the oldest
//! first: a state is a clone of the one before with the blocks that are different, and the object itself comes
//! last. So data that snapshots share is copied once, and is shared again.
//!
//! A state appears as a whole, so an existing one need not be copied again after an interruption. Snapshots are
//! read in the old place until all of them are here.

use std::collections::BTreeSet;
use std::rc::Rc;

use atoll_client::PoolClient;
use atoll_types::records::ImageRecord;
use atoll_types::{Condition, Mutation, ObjectName, WriteRequest};
use bytes::BytesMut;

use crate::ImageError;
use crate::ancestry::Generation;
use crate::difference::{Contents, Difference};
use crate::flatten::{CopyControl, objects_below};
use crate::names::{kept_name, object_name};
use crate::objects::{ObjectsByIndex, list_parts};
use crate::pieces::{BLOCK, Piece};
use crate::state::Parent;
use crate::volume::Volume;

/// Number of drafts: snapshots have higher ones, so an object kept for this one is the state of none.
const DRAFT_NUMBER: u64 = 0;

/// A snapshot of an image before its move.
#[derive(Clone, Copy)]
pub(crate) struct MovedState {
    pub number: u64,
    /// Bytes that it reads from its parent where it was not written.
    pub overlap_bytes: u64,
}

/// The states that are to be copied, the oldest first and the image itself last. None if it has no snapshots, or is
/// not being moved.
pub(crate) fn moved_states(record: &ImageRecord, ancestors: &[Generation]) -> Vec<MovedState> {
    let Some(old) = ancestors.first().filter(|_| record.shows_moved_snapshots() && !record.snapshots().is_empty())
    else {
        return Vec::new();
    };
    let moved = old.record.snapshots().iter().filter(|snapshot| Some(snapshot.number) <= old.number);
    moved.map(|snapshot| MovedState { number: snapshot.number, overlap_bytes: snapshot.overlap_bytes }).collect()
}

/// The objects of an image and of its previous place.
pub(crate) struct MovedObjects {
    before: ObjectsByIndex,
    here: ObjectsByIndex,
}

/// States in which an object of the old place was the same.
struct Group {
    /// The newest snapshot among them; `None` if there is only the image itself.
    snapshot: Option<u64>,
    /// One of them.
    state: MovedState,
    /// For which number it is kept; `None` for the object itself.
    kept_for: Option<u64>,
    shown_bytes: u64,
}

/// One object on its way.
struct ObjectMove<'a, C> {
    volume: &'a Volume<C>,
    parent: &'a Parent<C>,
    object: u64,
    /// True if the object was here when the objects were listed, and the numbers whose states were kept.
    has_object: bool,
    kept: &'a [u64],
    control: &'a dyn CopyControl,
}

/// A state that is here, with its content if that is known.
struct Made {
    name: ObjectName,
    state: MovedState,
    contents: Option<Contents>,
}

impl<C: PoolClient> Volume<C> {
    /// Lists the objects of both places.
    pub(crate) async fn list_moved(&self, parent: &Parent<C>) -> Result<MovedObjects, ImageError> {
        let old = &parent.state;
        Ok(MovedObjects {
            before: list_parts(&self.client, old.pool, &old.image_id, |_| true).await?,
            here: list_parts(&self.client, self.pool, &self.image_id, |_| true).await?,
        })
    }

    /// Returns the objects that have something to copy.
    pub(crate) fn objects_moved(&self, parent: &Parent<C>, moved: &MovedObjects) -> BTreeSet<u64> {
        let mut objects: BTreeSet<u64> = moved.before.keys().copied().collect();
        if let Some(behind) = &parent.state.parent {
            let overlap_bytes = self.moved_states.iter().map(|state| state.overlap_bytes).max().unwrap_or(0);
            let most = Parent { state: Rc::clone(&behind.state), overlap_bytes };
            objects.extend(objects_below(&most, self.object_bytes));
        }
        objects
    }

    /// Copies all states of one object. False if it was stopped before the end.
    pub(crate) async fn copy_states(
        &self,
        parent: &Parent<C>,
        moved: &MovedObjects,
        object: u64,
        control: &dyn CopyControl,
    ) -> Result<bool, ImageError> {
        let kept_before = moved.before.get(&object).map_or(&[][..], |(_, kept)| kept);
        let groups = groups(&self.moved_states, kept_before, object * self.object_bytes, self.object_bytes);
        let (has_object, kept) = moved.here.get(&object).map_or((false, &[][..]), |(has, kept)| (*has, kept));
        ObjectMove { volume: self, parent, object, has_object, kept, control }.copy(groups).await
    }
}

impl<C: PoolClient> ObjectMove<'_, C> {
    async fn copy(&self, mut groups: Vec<Group>) -> Result<bool, ImageError> {
        let may_draft = groups.len() > 1;
        let head = groups.pop().expect("the image itself is a state");
        let mut before: Option<Made> = None;
        for group in groups {
            if !self.control.is_wanted() {
                return Ok(false);
            }
            let number = group.snapshot.expect("only the last group has none");
            let mut made = Made { name: self.kept_name(number), state: group.state, contents: None };
            if !self.kept.contains(&number) {
                let contents = self.contents(group.state).await?;
                let difference = self.difference(before.as_mut(), &contents).await?;
                self.make(made.name.clone(), before.as_ref(), &difference).await?;
                self.volume.pause_after(difference.written_bytes(), self.control).await;
                made.contents = Some(contents);
            }
            before = Some(made);
        }
        let is_whole = self.copy_head(before, &head).await?;
        if may_draft {
            self.change(self.kept_name(DRAFT_NUMBER), &[Condition::ObjectExists], Mutation::Remove).await?;
        }
        Ok(is_whole)
    }

    /// Makes the object itself, which clients write meanwhile. False if it was stopped before the end.
    async fn copy_head(&self, mut before: Option<Made>, group: &Group) -> Result<bool, ImageError> {
        let volume = self.volume;
        // What a client changes first keeps what was there: nothing, or the whole object.
        let newest = volume.moved_states.last().map_or(0, |state| state.number);
        if self.has_object && !self.kept.contains(&newest) {
            return Ok(true);
        }
        let contents = self.contents(group.state).await?;
        let difference = self.difference(before.as_mut(), &contents).await?;
        if self.make_head(newest, before.as_ref(), &difference).await? {
            volume.pause_after(difference.written_bytes(), self.control).await;
            return Ok(true);
        }
        if let Some(number) = group.snapshot.filter(|number| !self.kept.contains(number)) {
            // It is no more what its snapshots show, and what was kept for them may be from before it was made.
            let state = self.parent.state.at(group.state.number, group.state.overlap_bytes);
            if volume.lacking(&state, self.kept_name(newest), self.whole()).await?.contains(&true) {
                self.make(self.kept_name(number), before.as_ref(), &difference).await?;
            }
        }
        volume.copy_object(self.parent, self.object, self.control).await
    }

    /// Makes the object itself as a whole. False if a client has changed it before, or is about to.
    async fn make_head(
        &self,
        newest: u64,
        before: Option<&Made>,
        difference: &Difference,
    ) -> Result<bool, ImageError> {
        let volume = self.volume;
        if !difference.has_data {
            return Ok(true);
        }
        let whole = self.whole();
        let first_block = whole.start(volume.object_bytes) / BLOCK;
        // Between what a client keeps of the object and what it writes then, the object must not be made.
        let _guard = volume.locks.lock(first_block..first_block + whole.block_count() as u64, true).await;
        match volume.client.stat(volume.pool, self.kept_name(newest)).await {
            Ok(_) => return Ok(false),
            Err(error) if error.is_no_such_object() => {}
            Err(error) => return Err(error.into()),
        }
        volume.expect_object(self.object);
        self.make(object_name(&volume.image_id, self.object), before, difference).await
    }

    fn whole(&self) -> Piece {
        Piece { object: self.object, offset: 0, length: self.volume.object_bytes }
    }

    fn kept_name(&self, number: u64) -> ObjectName {
        kept_name(&self.volume.image_id, self.object, number)
    }

    /// Returns the object's content in a state of the old place.
    async fn contents(&self, state: MovedState) -> Result<Contents, ImageError> {
        let state = self.parent.state.at(state.number, state.overlap_bytes);
        Contents::of(&state, self.whole()).await
    }

    async fn difference(&self, before: Option<&mut Made>, after: &Contents) -> Result<Difference, ImageError> {
        let Some(made) = before else { return Ok(Difference::between(&Contents::none(), after)) };
        let before = match made.contents.take() {
            Some(contents) => contents,
            None => self.contents(made.state).await?,
        };
        Ok(Difference::between(&before, after))
    }

    /// Makes a state out of the one before, unless it is there. False if it is.
    async fn make(
        &self,
        name: ObjectName,
        before: Option<&Made>,
        difference: &Difference,
    ) -> Result<bool, ImageError> {
        let absent = [Condition::ObjectAbsent];
        let before = before.filter(|_| difference.had_data && difference.has_data);
        let Some(Made { name: source, .. }) = before else {
            return self.send(name, &absent, self.writes(difference)?).await;
        };
        if difference.is_none() {
            return self.change(name, &absent, Mutation::CloneFrom { source: source.clone() }).await;
        }
        let draft = self.kept_name(DRAFT_NUMBER);
        self.change(draft.clone(), &[], Mutation::CloneFrom { source: source.clone() }).await?;
        self.send(draft.clone(), &[], self.writes(difference)?).await?;
        self.change(name, &absent, Mutation::CloneFrom { source: draft }).await
    }

    /// Returns the mutations that make a difference, and their data.
    fn writes(&self, difference: &Difference) -> Result<(Vec<Mutation>, BytesMut, bool), ImageError> {
        let volume = self.volume;
        let start = self.whole().start(volume.object_bytes);
        let (mut mutations, mut payload, mut is_sealed) = (Vec::new(), BytesMut::new(), false);
        for (offset, data) in &difference.writes {
            let (bytes, seals) = volume.sealing.close((start + offset) / BLOCK, data.clone())?;
            is_sealed = seals.as_ref().is_some_and(|seals| seals.are_of_ciphertext());
            payload.extend_from_slice(&bytes);
            mutations.push(Mutation::Write { offset: *offset, length: data.len() as u32, seals });
        }
        let zeros = difference.zeros.iter().filter(|_| difference.has_data);
        mutations.extend(zeros.map(|(offset, length)| Mutation::Zero { offset: *offset, length: *length }));
        if mutations.is_empty() {
            mutations.push(Mutation::Create);
        }
        Ok((mutations, payload, is_sealed))
    }

    async fn change(
        &self,
        name: ObjectName,
        conditions: &[Condition],
        mutation: Mutation,
    ) -> Result<bool, ImageError> {
        self.send(name, conditions, (vec![mutation], BytesMut::new(), false)).await
    }

    /// Changes an object all at once. False if a condition does not hold.
    async fn send(
        &self,
        object: ObjectName,
        conditions: &[Condition],
        (mutations, payload, payload_sealed): (Vec<Mutation>, BytesMut, bool),
    ) -> Result<bool, ImageError> {
        let volume = self.volume;
        let conditions = [std::slice::from_ref(&volume.fence), conditions].concat();
        let request = WriteRequest { object, conditions, mutations, payload: payload.freeze(), payload_sealed };
        match volume.client.send_write(volume.pool, request).await {
            Ok(()) => Ok(true),
            Err(error) if error.failed_condition().is_some() => Ok(false),
            Err(error) => Err(volume.explain_image(error.into())),
        }
    }
}

/// States one after the other in which an object was the same, the oldest first.
fn groups(states: &[MovedState], kept_before: &[u64], start: u64, object_bytes: u64) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for (index, state) in states.iter().enumerate() {
        let kept_for = kept_before.iter().find(|number| **number >= state.number).copied();
        let shown_bytes = state.overlap_bytes.saturating_sub(start).min(object_bytes);
        let snapshot = (index + 1 < states.len()).then_some(state.number);
        match groups.last_mut() {
            Some(last) if (last.kept_for, last.shown_bytes) == (kept_for, shown_bytes) => {
                (last.state, last.snapshot) = (*state, snapshot.or(last.snapshot));
            }
            _ => groups.push(Group { snapshot, state: *state, kept_for, shown_bytes }),
        }
    }
    groups
}
