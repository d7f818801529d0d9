//! Cluster state: one linearizable record of each PG, with compare-and-swap. Watchers may lag.

use atoll_types::records::{PgRecord, RECORD_FORMAT};
use atoll_types::{Epoch, OsdId, PgId};

use crate::state::PG;

/// State of a PG in cluster state; of the first one, also that of all others.
#[derive(Clone)]
pub struct ClusterState {
    pub record: PgRecord,
    /// The record before, which a watcher that lags may see.
    pub previous: PgRecord,
    /// The members that the PG should have.
    pub target: Vec<OsdId>,
    /// The epoch of its first record.
    pub first_epoch: Epoch,
    /// The PG that was split off, if the split is done.
    pub split_off: Option<Box<ClusterState>>,
    /// The other PGs that the pool began with.
    others: Vec<ClusterState>,
}

impl ClusterState {
    /// Returns PGs with these members; the pool begins with the first one.
    pub fn new(mut members_of: impl Iterator<Item = Vec<OsdId>>, is_coded: bool) -> Self {
        let of_one = |members: Vec<OsdId>| {
            let record = PgRecord {
                format: RECORD_FORMAT,
                epoch: Epoch(1),
                primary: members[0],
                last_active_members: Vec::new(),
                pg_num: 0,
                shards: if is_coded { (0..members.len() as u8).collect() } else { Vec::new() },
                last_active_shards: Vec::new(),
                accepted: None,
                members: members.clone(),
                activated_epoch: Epoch(0),
            };
            ClusterState {
                previous: record.clone(),
                record,
                target: members,
                first_epoch: Epoch(1),
                split_off: None,
                others: Vec::new(),
            }
        };
        let mut first = of_one(members_of.next().expect("a pool has a PG"));
        first.others = members_of.map(of_one).collect();
        first
    }

    /// The number of different shards that members hold.
    pub fn shards(&self) -> usize {
        self.record.shards.iter().collect::<std::collections::BTreeSet<_>>().len()
    }

    /// PGs that the pool began with.
    pub fn pg_num_first(&self) -> u32 {
        1 + self.others.len() as u32
    }

    /// The pool's number of PGs as of a PG's last split.
    pub fn pg_num_of(&self, pg: PgId) -> u32 {
        let first = self.pg_num_first();
        let split_off = PgId { index: pg.index % first + first, ..pg };
        if self.of(split_off).is_some() { 2 * first } else { first }
    }

    pub fn of(&self, pg: PgId) -> Option<&ClusterState> {
        let first = self.pg_num_first();
        let state = match pg.index % first {
            0 => self,
            index => &self.others[index as usize - 1],
        };
        if pg.index < first { Some(state) } else { state.split_off.as_deref() }
    }

    pub fn of_mut(&mut self, pg: PgId) -> Option<&mut ClusterState> {
        let first = self.pg_num_first();
        let state = match pg.index % first {
            0 => self,
            index => &mut self.others[index as usize - 1],
        };
        if pg.index < first { Some(state) } else { state.split_off.as_deref_mut() }
    }

    /// The PGs in cluster state.
    pub fn pgs(&self) -> Vec<PgId> {
        let all = (0..2 * self.pg_num_first()).map(|index| PgId { index, ..PG });
        all.filter(|pg| self.of(*pg).is_some()).collect()
    }

    /// Returns true if the swap was done.
    pub fn compare_and_swap(
        &mut self,
        expected: &PgRecord,
        record: PgRecord,
        split_off: Option<PgRecord>,
    ) -> bool {
        if self.record != *expected {
            return false;
        }
        if let Some(record) = split_off {
            assert!(self.split_off.is_none(), "each PG is split once");
            // The target does not depend on the members at the time.
            let target = self.target.clone();
            let (previous, first_epoch) = (record.clone(), record.epoch);
            let (split_off, others) = (None, Vec::new());
            let new = ClusterState { previous, record, target, first_epoch, split_off, others };
            self.split_off = Some(Box::new(new));
        }
        self.previous = std::mem::replace(&mut self.record, record);
        true
    }

    /// Returns true if all PGs are active and on target.
    pub fn is_clean(&self) -> bool {
        let is_clean = |pg: PgId| {
            let ClusterState { record, target, .. } = self.of(pg).expect("it is listed");
            record.members == *target && record.primary == target[0] && record.activated_epoch == record.epoch
        };
        self.pgs().into_iter().all(is_clean)
    }
}
