//! Cluster state: one linearizable record with compare-and-swap.

use atoll_base::records::{PgRecord, RECORD_FORMAT};
use atoll_base::{Epoch, OsdId};

pub struct ClusterState {
    pub record: PgRecord,
    /// What a reader that lags may see.
    pub previous: PgRecord,
    /// Counts every change.
    pub revision: u64,
}

impl ClusterState {
    pub fn new(members: Vec<OsdId>) -> Self {
        let record = PgRecord {
            format: RECORD_FORMAT,
            epoch: Epoch(1),
            primary: members[0],
            last_active_members: members.clone(),
            members,
            activated_epoch: Epoch(0),
        };
        ClusterState { previous: record.clone(), record, revision: 1 }
    }

    /// Whether the swap was done.
    pub fn compare_and_swap(&mut self, expected: &PgRecord, record: PgRecord) -> bool {
        if self.record != *expected {
            return false;
        }
        self.previous = std::mem::replace(&mut self.record, record);
        self.revision += 1;
        true
    }
}
