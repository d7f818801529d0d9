//! Erasure-coded PGs: every member holds a shard of each object. This folder has what differs from
//! replicated PGs: which member holds which shard, how reads and writes work on shards, how writes
//! are rolled back, and how shards are rebuilt.
//!
//! All members have the whole history and the same objects with the same versions; only the bytes
//! differ. So peering, backfill and scrubs work as in replicated PGs, with two differences. A write
//! that some elector lacks is rolled back, because fewer than `data` shards of it cannot give it to
//! the others. And what a member lacks is computed from the shards of others.

mod backfill;
mod effects;
mod fetch;
mod parts;
mod peering;
mod pre_images;
mod requests;
mod roll_back;
mod scrub;
mod shape;
mod update;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use atoll_ec::Code;
use atoll_types::OsdId;

pub(crate) use backfill::ShardPartRequest;
pub(crate) use fetch::{Asked, Fetch, Operation};
pub(crate) use pre_images::PreImages;
pub(crate) use requests::ClientRead;
use roll_back::RollBack;
pub use roll_back::is_hidden;
pub(crate) use scrub::{Examination, Examined};
pub(crate) use shape::Span;

use crate::actions::Token;
use crate::config::{CodeShape, Configuration};
use crate::group::Pg;
use crate::replication::log::Log;

/// The state that only an erasure-coded PG has.
pub(crate) struct Erasure {
    shape: CodeShape,
    code: Code,
    /// Operations that read shards, by number.
    operations: BTreeMap<u64, Operation>,
    /// Spans that were asked for, by tag.
    asked: BTreeMap<u64, Asked>,
    /// Operations of writes whose old bytes have come, and which wait until they can be ordered.
    ready: VecDeque<u64>,
    /// Parts of learners' shards that wait for the object's metadata.
    backfills_loading: BTreeMap<Token, ShardPartRequest>,
    pub pre_images: PreImages,
    /// The roll back under way.
    roll_back: Option<RollBack>,
}

impl Erasure {
    pub fn new(shape: CodeShape, pre_images: PreImages) -> Self {
        let code =
            Code::new(shape.data.into(), shape.parity.into()).expect("a pool's code was checked when it was made");
        Erasure {
            shape,
            code,
            operations: BTreeMap::new(),
            asked: BTreeMap::new(),
            ready: VecDeque::new(),
            backfills_loading: BTreeMap::new(),
            pre_images,
            roll_back: None,
        }
    }

    /// A load is done: takes the part of a shard that waits for it, if there is one.
    pub fn loaded(&mut self, token: Token) -> Option<ShardPartRequest> {
        self.backfills_loading.remove(&token)
    }

    /// Whether no shards are read, nothing is rolled back, and no pre-images are left anywhere.
    pub fn is_idle(&self, config: &Configuration, log: &Log) -> bool {
        let reads_nothing = self.operations.is_empty() && self.asked.is_empty() && self.ready.is_empty();
        reads_nothing
            && self.backfills_loading.is_empty()
            && self.roll_back.is_none()
            && self.pre_images.are_idle(config, log)
    }
}

impl Pg {
    /// What only an erasure-coded PG has.
    fn erasure(&self) -> &Erasure {
        self.erasure.as_ref().expect("the PG is erasure-coded")
    }

    /// The shard that an OSD holds as a member, or gets as a learner.
    fn shard_of(&self, osd: OsdId) -> Option<u8> {
        self.learners.shard_of(osd).or_else(|| self.config.record.shard_of(osd))
    }

    /// The shards of members, for a record; empty in a replicated PG.
    pub(crate) fn shards_of(&self, members: &[OsdId]) -> Vec<u8> {
        match self.erasure {
            None => Vec::new(),
            Some(_) => members.iter().map(|osd| self.shard_of(*osd).expect("members hold shards")).collect(),
        }
    }

    /// The shard that a learner gets: one that no member holds, or else that of a member that is to
    /// leave; if possible the shard that it has already.
    pub(crate) fn shard_to_backfill(&self, osd: OsdId, has: Option<u8>) -> Option<u8> {
        let erasure = self.erasure.as_ref()?;
        let stays = |member: &OsdId| self.config.target.contains(member);
        let members = || self.config.record.members.iter().zip(&self.config.record.shards);
        let staying = members().filter(|(member, _)| stays(member)).map(|(_, shard)| *shard);
        let taken: BTreeSet<u8> = staying.chain(self.learners.shards_but_of(osd)).collect();
        let free: Vec<u8> = (0..erasure.shape.shards()).filter(|shard| !taken.contains(shard)).collect();
        let is_missing = |shard: &u8| members().all(|(_, held)| held != shard);
        let had = has.filter(|shard| free.contains(shard));
        // A shard that no member holds is more urgent than one that moves.
        let missing: Vec<u8> = free.iter().copied().filter(is_missing).collect();
        let had = had.filter(|shard| missing.is_empty() || missing.contains(shard));
        had.or(missing.first().copied()).or(free.first().copied())
    }
}
