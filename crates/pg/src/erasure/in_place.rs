//! Small overwrites while members are full: they are done if every full member can do its part of them in place.
//! Only the members know that, each of its own shard, so they say it with the old bytes.

use std::collections::BTreeMap;

use atoll_buffers::BLOCK_BYTES;
use atoll_types::{Mutation, ObjectName, OsdId, WriteRequest};

use super::Erasure;
use super::fetch::Purpose;
use super::shape::Span;
use super::update::{INLINE_PRE_IMAGE_BYTES_MAX, ShardChange, Update};
use crate::actions::ObjectView;
use crate::group::Pg;

/// Which blocks of spans of shards their members could overwrite in place: a bit for each of a span's first
/// blocks.
#[derive(Clone, Debug, Default)]
pub(crate) struct InPlace {
    by_shard: BTreeMap<u8, (Span, u32)>,
}

impl InPlace {
    /// The member with a shard has answered.
    pub fn insert(&mut self, shard: u8, span: Span, blocks: u32) {
        self.by_shard.insert(shard, (span, blocks));
    }

    /// Returns true if a shard's write stays in place.
    fn covers(&self, shard: u8, mutation: &Mutation) -> bool {
        let (Mutation::Write { offset, length, .. }, Some((span, bits))) = (mutation, self.by_shard.get(&shard))
        else {
            return false;
        };
        let first = offset.checked_sub(span.start).map(|start| start / BLOCK_BYTES as u64);
        let count = u64::from(*length).div_ceil(BLOCK_BYTES as u64);
        first.is_some_and(|first| {
            (first..first + count).all(|block| block < u64::from(u32::BITS) && bits >> block & 1 == 1)
        })
    }
}

/// Space for a write on the members that are full.
pub(super) enum Space {
    Enough,
    /// The members must be asked, or asked again.
    Unknown,
    /// This member has none.
    Lacking(OsdId),
}

/// Returns true if a member needs no space for its part of a write.
fn needs_none(shard: u8, change: &ShardChange, in_place: &InPlace) -> bool {
    // What only frees blocks needs none. With writes beside it, the store would find new places for them.
    let only_frees = change.mutations.iter().all(|mutation| matches!(mutation, Mutation::Zero { .. }));
    only_frees || change.mutations.iter().all(|mutation| in_place.covers(shard, mutation))
}

impl Erasure {
    /// Members' answers about an object's blocks are no longer valid: a later write has them share the blocks with
    /// a clone.
    pub(super) fn forget_in_place(&mut self, object: &ObjectName) {
        let writes = self.operations.values_mut().filter(|operation| operation.object == *object);
        for operation in writes.filter(|operation| matches!(operation.purpose, Purpose::Write(_))) {
            operation.fetch.in_place = None;
        }
    }
}

impl Pg {
    /// Returns true if members must be asked for the places of a write's blocks, because some are full.
    pub(super) fn must_ask_for_places(&self, update: &Update, view: &impl ObjectView) -> bool {
        update.may_stay_in_place() && self.config.record.members.iter().any(|member| view.is_full(*member))
    }

    /// Returns true if a write in flight clones an object as its pre-image. Until that is forgotten no block of
    /// the object can be overwritten in place.
    pub(super) fn pre_image_shares_blocks(&self, object: &ObjectName) -> bool {
        let mut in_flight = self.log.in_flight().filter(|write| write.object == *object);
        in_flight.any(|write| write.span.is_none_or(|span| span.length() > INLINE_PRE_IMAGE_BYTES_MAX))
    }

    /// Checks if the full members have the space for their parts of a write.
    pub(super) fn space_for(
        &self,
        write: &WriteRequest,
        may_stay_in_place: bool,
        changes: &[ShardChange],
        in_place: Option<&InPlace>,
        view: &impl ObjectView,
    ) -> Space {
        use Mutation::{Remove, Truncate, Zero};
        let frees = |mutation: &Mutation| matches!(mutation, Remove | Truncate { .. } | Zero { .. });
        if write.mutations.iter().all(frees) {
            // Deletes and trims go on. What parity and pre-images take is free again soon.
            return Space::Enough;
        }
        let unknown = InPlace::default();
        let lacks = |member: &&OsdId| {
            let shard = self.config.record.shard_of(**member).expect("members hold shards");
            let change = &changes[usize::from(shard)];
            view.is_full(**member) && !needs_none(shard, change, in_place.unwrap_or(&unknown))
        };
        match self.config.record.members.iter().find(lacks) {
            None => Space::Enough,
            Some(_) if may_stay_in_place && in_place.is_none() => Space::Unknown,
            Some(osd) => Space::Lacking(*osd),
        }
    }
}
