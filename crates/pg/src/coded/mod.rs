//! Erasure-coded groups: every member holds a shard of each object (DESIGN section 6, "EC"). What is
//! different from replicated groups is in here: which member holds which shard, how reads and writes
//! are put together from shards, how writes are taken back, and how shards are rebuilt.
//!
//! All members have the whole history and the same objects, with the same versions; only the bytes
//! differ. So peering, filling and scrubs work as in replicated groups, but that a write which not
//! all have is taken back (the shards of fewer than `data` members cannot give it to the others), and
//! that what a member lacks is computed from what others have.

mod fetch;
mod filling;
mod parts;
mod peering;
mod requests;
mod scrub;
mod shape;
mod undo;
mod update;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use atoll_base::{ObjectName, OsdId, Version};
use atoll_ec::Code;

pub(crate) use fetch::{Asked, Operation};
pub(crate) use filling::FillOrder;
pub(crate) use requests::ClientRead;
pub(crate) use shape::Span;
use undo::RollBack;
pub use undo::is_hidden;
pub(crate) use undo::kept_clones;

use crate::actions::Token;
use crate::group::{CodeShape, Pg, PgState};

/// The key in a group's own object under which an OSD keeps which shard its objects are of.
pub const SHARD_KEY: &[u8] = b"shard";

/// In place of a shard's number under that key: objects of several shards, while they are replaced.
pub(crate) const MIXED_SHARDS: u8 = 254;

/// What only an erasure-coded group has.
pub(crate) struct Coded {
    pub shape: CodeShape,
    pub code: Code,
    /// Reads of shards under way, and for what.
    pub operations: BTreeMap<u64, Operation>,
    pub asked: BTreeMap<u64, Asked>,
    /// Writes whose old bytes are there, which wait until they can get their place in the history.
    pub ready: VecDeque<u64>,
    /// Parts of shards for others that wait until it is known what object they are of.
    pub fills_loading: BTreeMap<Token, FillOrder>,
    /// Clones that are kept until their writes are known to be everywhere.
    pub kept: VecDeque<(Version, ObjectName)>,
    /// Up to here nobody will take anything back.
    pub committed: Version,
    /// Up to here it is forgotten how writes are undone.
    pub forgotten: Version,
    /// Up to here the members have been told so.
    pub told: Version,
    /// What is being taken back.
    pub roll_back: Option<RollBack>,
}

impl Coded {
    pub fn new(shape: CodeShape, kept: VecDeque<(Version, ObjectName)>) -> Self {
        let code =
            Code::new(shape.data.into(), shape.parity.into()).expect("a pool's code was checked when it was made");
        Coded {
            shape,
            code,
            operations: BTreeMap::new(),
            asked: BTreeMap::new(),
            ready: VecDeque::new(),
            fills_loading: BTreeMap::new(),
            kept,
            committed: Version::default(),
            forgotten: Version::default(),
            told: Version::default(),
            roll_back: None,
        }
    }

    /// Nothing is read, taken back, or left of what was kept to be able to.
    pub fn is_at_rest(&self) -> bool {
        let is_idle = self.operations.is_empty() && self.asked.is_empty() && self.ready.is_empty();
        is_idle && self.fills_loading.is_empty() && self.roll_back.is_none() && self.committed == self.forgotten
    }
}

impl Pg {
    /// Of how many members, or shards, there must be one each for nothing to be lost.
    pub(crate) fn copies_needed(&self) -> usize {
        self.coded.as_ref().map_or(1, |coded| coded.shape.data.into())
    }

    /// How many copies some OSDs have: different shards, in an erasure-coded group.
    pub(crate) fn copies_on<'a>(&self, osds: impl IntoIterator<Item = &'a OsdId>) -> usize {
        let osds = osds.into_iter();
        match self.coded {
            None => osds.count(),
            Some(_) => osds.filter_map(|osd| self.record.shard_of(*osd)).collect::<BTreeSet<u8>>().len(),
        }
    }

    /// The shard that an OSD holds, or will when it has been filled: then it may be another one than it
    /// had when the group was last active.
    fn shard_of(&self, osd: OsdId) -> Option<u8> {
        self.learners.shard_of(osd).or_else(|| self.record.shard_of(osd))
    }

    /// The shards of members, for a record; none in a replicated group.
    pub(crate) fn shards_of(&self, members: &[OsdId]) -> Vec<u8> {
        match self.coded {
            None => Vec::new(),
            Some(_) => members.iter().map(|osd| self.shard_of(*osd).expect("members hold shards")).collect(),
        }
    }

    /// The member to ask for a shard: this OSD if it holds it. While the group peers, only members
    /// with this one's history count.
    pub(crate) fn holder(&self, shard: u8, excluded: &BTreeSet<OsdId>) -> Option<OsdId> {
        let is_level = |osd: OsdId| {
            self.state != PgState::Peering
                || osd == self.me
                || self.peering.heads.get(&osd).is_some_and(|head| head.sequence == self.last_sequence)
        };
        let members = self.record.members.iter().zip(&self.record.shards);
        let holders = members.filter(|(osd, held)| **held == shard && !excluded.contains(osd) && is_level(**osd));
        let holders: Vec<OsdId> = holders.map(|(osd, _)| *osd).collect();
        holders.iter().find(|osd| **osd == self.me).or(holders.first()).copied()
    }

    /// The shard that an OSD shall be filled with, which may have objects of one already: one that
    /// nobody has, or else that of a member that is to go.
    pub(crate) fn shard_to_fill(&self, osd: OsdId, has: Option<u8>) -> Option<u8> {
        let coded = self.coded.as_ref()?;
        let stays = |member: &OsdId| self.target.contains(member);
        let members = || self.record.members.iter().zip(&self.record.shards);
        let staying = members().filter(|(member, _)| stays(member)).map(|(_, shard)| *shard);
        let taken: BTreeSet<u8> = staying.chain(self.learners.shards_but_of(osd)).collect();
        let free: Vec<u8> = (0..coded.shape.shards()).filter(|shard| !taken.contains(shard)).collect();
        let is_missing = |shard: &u8| members().all(|(_, held)| held != shard);
        let had = has.filter(|shard| free.contains(shard));
        // What is missing is more urgent than what is only to move.
        let missing: Vec<u8> = free.iter().copied().filter(is_missing).collect();
        let had = had.filter(|shard| missing.is_empty() || missing.contains(shard));
        had.or(missing.first().copied()).or(free.first().copied())
    }

    /// A member that should stay and whose shard another one that should stay has, too: it must take
    /// another one, as a learner.
    pub(crate) fn surplus_member(&self) -> Option<OsdId> {
        self.coded.as_ref()?;
        let members = || self.record.members.iter().zip(&self.record.shards);
        let staying = || members().filter(|(osd, _)| self.target.contains(osd));
        let is_double = |osd: &OsdId, shard: &u8| staying().any(|(other, held)| other != osd && held == shard);
        let surplus = staying().find(|(osd, shard)| **osd != self.record.primary && is_double(osd, shard));
        surplus.map(|(osd, _)| *osd)
    }
}
