//! The configuration of a PG as this OSD knows it: record, target, pool, and derived values.

use std::collections::BTreeSet;

use atoll_types::limits::PG_NUM_MAX;
use atoll_types::operation::PG_META_OBJECT;
use atoll_types::records::PgRecord;
use atoll_types::{Epoch, ObjectName, OsdId, PgId};

use crate::actions::ObjectView;
use crate::own_object::{PG_NUM_KEY, own_object};

/// Activity of a PG, as this OSD sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PgState {
    /// Another OSD is the primary; this one is a member, or holds a stray copy.
    Member,
    /// This OSD is the primary; it waits for members that it cannot reach, or for cluster state to
    /// accept a new configuration.
    Inactive,
    /// This OSD is the primary and has the members agree on one history.
    Peering,
    /// This OSD is the primary and backfills others, but there are too few members to serve.
    Recovering,
    /// This OSD is the primary and serves.
    Active,
}

/// The pool's settings for its PGs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolPolicy {
    /// PGs that the pool should have.
    pub pg_num: u32,
    /// PGs that the pool was made with.
    pub pg_num_first: u32,
    /// Copies, or shards, that each PG should have.
    pub size: u32,
    /// A PG with fewer copies, or shards, serves nothing.
    pub min_size: u32,
    /// True if OSDs that are not members yet are backfilled.
    pub may_backfill: bool,
    /// How objects are cut into shards, if the pool is erasure-coded.
    pub shape: Option<CodeShape>,
}

/// How objects of an erasure-coded pool are cut into shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodeShape {
    /// Data shards.
    pub data: u8,
    /// Parity shards.
    pub parity: u8,
    /// Size of a chunk, in bytes.
    pub chunk_bytes: u32,
}

/// The configuration in force, from the point of view of `me`.
pub(crate) struct Configuration {
    pub id: PgId,
    pub me: OsdId,
    pub policy: PoolPolicy,
    /// The members that the PG should have, the primary first.
    pub target: Vec<OsdId>,
    pub record: PgRecord,
    pub state: PgState,
    /// The pool's number of PGs as this OSD noted it; 0 if it has not. The record may be older: one that was put back.
    pub pg_num_noted: u32,
    /// The newest epoch in which another OSD knows the PG to have been active without it.
    pub elsewhere: Epoch,
}

impl Configuration {
    pub fn is_primary(&self) -> bool {
        self.record.primary == self.me
    }

    pub fn is_active(&self) -> bool {
        self.state == PgState::Active
    }

    /// All members but this OSD.
    pub fn others(&self) -> Vec<OsdId> {
        self.record.members.iter().copied().filter(|member| *member != self.me).collect()
    }

    /// The members of the last configuration that was active: each of them has everything that was
    /// ever acknowledged.
    pub fn electors(&self) -> &[OsdId] {
        if self.record.activated_epoch == Epoch(0) {
            &self.record.members
        } else {
            &self.record.last_active_members
        }
    }

    /// Returns true if the members are the PG's targets.
    pub fn is_on_target(&self) -> bool {
        self.record.members == self.target && self.target.first() == Some(&self.record.primary)
    }

    /// Returns true if an object is stored in shards: all are in an erasure-coded PG, except its own.
    pub fn is_erasure_coded(&self, object: &ObjectName) -> bool {
        self.policy.shape.is_some() && object.as_str() != PG_META_OBJECT
    }

    /// Returns true if the leases of all other members are valid.
    pub fn holds_leases(&self, view: &impl ObjectView) -> bool {
        self.others().iter().all(|member| view.now_ms() < view.lease_held_until_ms(*member))
    }

    /// How objects are cut into shards; the PG is erasure-coded.
    pub fn shape(&self) -> CodeShape {
        self.policy.shape.expect("the PG is erasure-coded")
    }

    /// The number of copies, or of different shards, needed to reconstruct every object.
    pub fn copies_needed(&self) -> usize {
        self.policy.shape.map_or(1, |shape| shape.data.into())
    }

    /// The number of copies, or of different shards, that these OSDs hold.
    pub fn copies_on<'a>(&self, osds: impl IntoIterator<Item = &'a OsdId>) -> usize {
        let osds = osds.into_iter();
        match self.policy.shape {
            None => osds.count(),
            Some(_) => osds.filter_map(|osd| self.record.shard_of(*osd)).collect::<BTreeSet<u8>>().len(),
        }
    }

    /// Returns true if there are enough members to serve.
    pub fn may_serve(&self) -> bool {
        self.copies_on(&self.record.members) >= self.policy.min_size as usize
    }

    /// The member to ask for a shard, of those that count: preferably this OSD.
    pub fn holder(&self, shard: u8, counts: impl Fn(OsdId) -> bool) -> Option<OsdId> {
        let members = self.record.members.iter().copied().zip(&self.record.shards);
        let mut holders = members.filter(|(osd, held)| **held == shard && counts(*osd)).map(|(osd, _)| osd);
        let first = holders.next()?;
        if first == self.me { Some(first) } else { Some(holders.find(|osd| *osd == self.me).unwrap_or(first)) }
    }

    /// The pool's number of PGs from this PG's view, by cluster state: it doubles with each split.
    pub fn pg_num(&self) -> u32 {
        self.record.pg_num_of(self.id, self.policy.pg_num_first)
    }

    /// A member on target that holds the same shard as another member on target: it must take a
    /// different shard, as a learner. `None` in a replicated PG.
    pub fn surplus_member(&self) -> Option<OsdId> {
        self.policy.shape?;
        let members = || self.record.members.iter().zip(&self.record.shards);
        let staying = || members().filter(|(osd, _)| self.target.contains(osd));
        let is_double = |osd: &OsdId, shard: &u8| staying().any(|(other, held)| other != osd && held == shard);
        let may_go = |(osd, shard): &(&OsdId, &u8)| **osd != self.record.primary && is_double(osd, shard);
        // An elector has what was acknowledged, whatever becomes of this configuration.
        let other = staying().filter(may_go).find(|(osd, _)| !self.electors().contains(osd));
        other.or_else(|| staying().find(may_go)).map(|(osd, _)| *osd)
    }

    /// The members to have once all targets are members: the targets, the primary first. If the
    /// CRUSH tree has no place for all copies, those that exist stay where they are.
    pub fn members_wanted(&self) -> Vec<OsdId> {
        let mut wanted = self.target.clone();
        for member in self.record.members.iter().filter(|member| !self.target.contains(member)) {
            let has_room = self.policy.shape.is_some() || wanted.len() < self.policy.size as usize;
            if has_room && self.copies_on(wanted.iter().chain([member])) > self.copies_on(&wanted) {
                wanted.push(*member);
            }
        }
        wanted
    }
}

/// The pool's number of PGs that an OSD has noted in its copy of a PG; 0 if it has noted none.
pub(crate) fn noted_pg_num(pg: PgId, view: &impl ObjectView) -> u32 {
    let value = view.omap_value(pg, &own_object(), PG_NUM_KEY).ok().flatten();
    let pg_num = value.and_then(|value| Some(u32::from_be_bytes(value[..].try_into().ok()?)));
    let is_number = |pg_num: &u32| pg_num.is_power_of_two() && *pg_num <= PG_NUM_MAX && pg.index < *pg_num;
    pg_num.filter(is_number).unwrap_or(0)
}
