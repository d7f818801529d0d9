//! Cluster state: one linearizable record with compare-and-swap. Whoever watches it may lag.

use atoll_base::records::{PgRecord, RECORD_FORMAT};
use atoll_base::{Epoch, OsdId};

pub struct ClusterState {
    pub record: PgRecord,
    /// What a reader that lags may see.
    pub previous: PgRecord,
    /// The members that the group should have.
    pub target: Vec<OsdId>,
}

impl ClusterState {
    pub fn new(members: Vec<OsdId>) -> Self {
        let record = PgRecord {
            format: RECORD_FORMAT,
            epoch: Epoch(1),
            primary: members[0],
            last_active_members: Vec::new(),
            members: members.clone(),
            activated_epoch: Epoch(0),
        };
        ClusterState { previous: record.clone(), record, target: members }
    }

    /// Whether the swap was done.
    pub fn compare_and_swap(&mut self, expected: &PgRecord, record: PgRecord) -> bool {
        if self.record != *expected {
            return false;
        }
        self.previous = std::mem::replace(&mut self.record, record);
        true
    }

    /// Whether the group is where it should be, and active.
    pub fn is_clean(&self) -> bool {
        let record = &self.record;
        record.members == self.target && record.primary == self.target[0] && record.activated_epoch == record.epoch
    }
}
