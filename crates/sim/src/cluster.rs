//! Cluster state: one linearizable record with compare-and-swap. Watchers may lag.

use atoll_types::records::{PgRecord, RECORD_FORMAT};
use atoll_types::{Epoch, OsdId, PgId};

use crate::state::{PG, SPLIT_PG};

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
}

impl ClusterState {
    pub fn new(members: Vec<OsdId>, is_coded: bool) -> Self {
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
        ClusterState { previous: record.clone(), record, target: members, first_epoch: Epoch(1), split_off: None }
    }

    /// The number of different shards that members hold.
    pub fn shards(&self) -> usize {
        self.record.shards.iter().collect::<std::collections::BTreeSet<_>>().len()
    }

    pub fn of(&self, pg: PgId) -> Option<&ClusterState> {
        if pg == PG { Some(self) } else { self.split_off.as_deref() }
    }

    pub fn of_mut(&mut self, pg: PgId) -> Option<&mut ClusterState> {
        if pg == PG { Some(self) } else { self.split_off.as_deref_mut() }
    }

    /// The PGs in cluster state.
    pub fn pgs(&self) -> Vec<PgId> {
        [Some(PG), self.split_off.is_some().then_some(SPLIT_PG)].into_iter().flatten().collect()
    }

    /// Whether the swap was done.
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
            assert!(self.split_off.is_none(), "there is one split");
            // The target does not depend on the members at the time.
            let target = self.target.clone();
            let (previous, first_epoch) = (record.clone(), record.epoch);
            let new = ClusterState { previous, record, target, first_epoch, split_off: None };
            self.split_off = Some(Box::new(new));
        }
        self.previous = std::mem::replace(&mut self.record, record);
        true
    }

    /// Whether the PG is active and on target.
    pub fn is_clean(&self) -> bool {
        let record = &self.record;
        let is_clean = record.members == self.target
            && record.primary == self.target[0]
            && record.activated_epoch == record.epoch;
        is_clean && self.split_off.as_ref().is_none_or(|other| other.is_clean())
    }
}
