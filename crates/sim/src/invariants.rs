//! What must hold between the members of a PG, and none of them can see alone.

use atoll_types::{LogEntry, OsdId, PgId, RequestId, Version};

use crate::world::World;

impl World {
    /// Histories of electors are prefixes of each other: if two of them have a write of one
    /// sequence, it is the same write. Compares the newest write that is durable at `at`.
    pub fn histories_of_electors_are_prefixes(&self, pg: PgId, at: usize) {
        let Some(state) = self.cluster.of(pg) else { return };
        let electors: Vec<usize> = state.record.last_active_members.iter().map(|osd| osd.0 as usize - 1).collect();
        if !electors.contains(&at) {
            return;
        }
        let Some(newest) = self.members[at].store.durable.of(pg).log.back().map(|entry| entry.version) else {
            return;
        };
        for other in electors.into_iter().filter(|other| *other != at) {
            let theirs = self.durable_version(pg, other, newest.sequence);
            assert!(
                theirs.is_none_or(|theirs| theirs == newest),
                "histories_of_electors_are_prefixes: osd.{} has {newest}, osd.{} has {theirs:?} of pg {pg}",
                at + 1,
                other + 1,
            );
        }
    }

    /// A write is acknowledged when it is durable on all members of the last active configuration,
    /// as the primary at `at` knows it.
    pub fn acknowledged_write_is_durable(&self, pg: PgId, at: usize, request: RequestId) {
        let members = &self.members[at].pgs[&pg].record().last_active_members;
        let is_durable = |osd: &OsdId| self.members[osd.0 as usize - 1].store.requests.contains(&request);
        assert!(members.iter().all(is_durable), "acknowledged_write_is_durable: {request:?} on {members:?}");
    }

    /// The version of the write with a sequence in an OSD's durable log, as far as that reaches
    /// back.
    fn durable_version(&self, pg: PgId, at: usize, sequence: u64) -> Option<Version> {
        let log = &self.members[at].store.durable.of(pg).log;
        let index = log.binary_search_by_key(&sequence, |entry: &LogEntry| entry.version.sequence).ok()?;
        Some(log[index].version)
    }
}
