//! Erasure-coded PGs: every member holds a shard of each object. This folder has the differences from replicated
//! PGs: the assignment of shards to members, reads and writes of shards, rolling writes back, and rebuilding
//! shards.
//!
//! All members have the whole history and the same objects with the same versions; only the bytes differ. So
//! peering, backfill and scrubs work as in replicated PGs, with two differences. A write that fewer than `data`
//! electors have is rolled back, because they cannot give it to the others. And data that a member lacks is
//! computed from the shards of others.
//!
//! [`Erasure`] decides by itself on reads and roll-backs; `effects` passes it its events and carries its effects
//! out.

mod backfill;
mod effects;
mod fetch;
mod in_place;
mod overwrites;
mod parts;
mod peering;
mod pre_images;
mod quiet;
mod requests;
mod roll_back;
mod scrub;
mod shape;
mod update;

use std::collections::{BTreeMap, VecDeque};

use atoll_ec::Code;
use atoll_types::ObjectName;

pub(crate) use backfill::ShardPartRequest;
pub(crate) use fetch::Fetch;
use fetch::{Asked, Operation};
use overwrites::Overwrites;
pub(crate) use overwrites::Replaced;
pub(crate) use pre_images::PreImages;
pub(crate) use quiet::QuietNote;
pub(crate) use requests::{ClientRead, pre_image_of_fence};
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
    /// Writes from the primary that arrive while this member reads replaced data.
    pub overwrites: Overwrites,
    /// Objects whose replaced data a member could not read, oldest first. Their writes bring all bytes.
    suspects: VecDeque<ObjectName>,
    /// The roll back under way.
    roll_back: Option<RollBack>,
    /// Newest write that is noted as committed.
    pub quiet: QuietNote,
}

/// Objects whose shards count as suspect, at most.
const SUSPECTS_MAX: usize = 256;

impl Erasure {
    /// Returns true if clients' requests, or a backfill, read shards.
    pub fn has_operations(&self) -> bool {
        !self.operations.is_empty()
    }

    pub fn new(shape: CodeShape, pre_images: PreImages, quiet: QuietNote) -> Self {
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
            overwrites: Overwrites::default(),
            suspects: VecDeque::new(),
            roll_back: None,
            quiet,
        }
    }

    /// A shard of an object is damaged: writes of it bring all bytes from now on.
    pub fn suspect(&mut self, object: ObjectName) {
        if !self.suspects.contains(&object) {
            if self.suspects.len() == SUSPECTS_MAX {
                self.suspects.pop_front();
            }
            self.suspects.push_back(object);
        }
    }

    /// A load is done: takes the part of a shard that waits for it, if there is one.
    pub fn loaded(&mut self, token: Token) -> Option<ShardPartRequest> {
        self.backfills_loading.remove(&token)
    }

    /// Returns true if no shards are read, nothing is rolled back, no pre-images are left anywhere, and the
    /// committed sequence is noted.
    pub fn is_idle(&self, config: &Configuration, log: &Log) -> bool {
        let reads_nothing = self.operations.is_empty() && self.asked.is_empty() && self.ready.is_empty();
        reads_nothing
            && self.backfills_loading.is_empty()
            && self.roll_back.is_none()
            && self.pre_images.are_idle(config, log)
            && !self.quiet.is_due(log)
    }
}

impl Pg {
    /// Returns the components of an erasure-coded PG.
    fn erasure(&self) -> &Erasure {
        self.erasure.as_ref().expect("the PG is erasure-coded")
    }
}
