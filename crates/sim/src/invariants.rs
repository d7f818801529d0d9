//! Invariants between the members of a PG, which none of them can see alone.

use atoll_pg::PgState;
use atoll_types::{Epoch, LogEntry, ObjectName, OsdId, PgId, RequestId, Transaction, Version};

use crate::view::View;
use crate::world::{Member, World, osd};

impl Member {
    /// A client's write has come in. A retry keeps its place, and ordered writes do not wait.
    pub fn write_comes_in(&mut self, pg: PgId, id: RequestId, object: &ObjectName) {
        let is_ordered = self.store.visible.of(pg).log.iter().any(|entry| entry.request == Some(id));
        let is_known =
            self.answered_writes.contains(&id) || self.waiting_writes.iter().any(|(_, other, _)| *other == id);
        if !is_ordered && !is_known {
            self.waiting_writes.push((pg, id, object.clone()));
        }
    }
}

impl World {
    /// Histories of electors are prefixes of each other: if two of them have a write of one
    /// sequence, it is the same write. Compares the newest write that is durable at `at`.
    pub fn histories_of_electors_are_prefixes(&self, pg: PgId, at: usize) {
        // Those of a restored cluster state are electors of an earlier time.
        let Some(state) = self.cluster.of(pg).filter(|_| !self.has_open_restore()) else { return };
        let electors = state.record.last_active_members.iter().map(|osd| osd.0 as usize - 1);
        let activated = state.record.activated_epoch;
        // A device that has lost something may have what was rolled back.
        let counts = |at: &usize| self.counts_as_elector(pg, *at, activated) && !self.has_open_loss(*at);
        let electors: Vec<usize> = electors.filter(counts).collect();
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
        let histories = self.members.iter().filter_map(|member| member.store.history.get(&pg));
        let mut entries = histories.flat_map(|history| history.values());
        let place = entries.find(|entry| entry.request == Some(request)).map(|entry| entry.version.sequence);
        let is_durable = |osd: &OsdId| {
            let store = &self.members[osd.0 as usize - 1].store;
            // A copy that was made later has its effect, and a log that begins after it.
            let begins = store.durable.of(pg).log.front().map(|first| first.version.sequence);
            store.requests.contains(&request) || place.is_some_and(|place| Some(place) < begins)
        };
        assert!(members.iter().all(is_durable), "acknowledged_write_is_durable: {request:?} on {members:?}");
    }

    /// A request whose outcome is unknown was first sent before the primary's log begins, if the memory of retries
    /// covers the log: within the log every retry gets its exact answer.
    pub fn unknown_outcome_is_older_than_the_log(&self, pg: PgId, at: usize, request: RequestId) {
        let known = self.clients.ops.iter().find(|op| op.id == request).and_then(|op| op.known);
        let log = &self.members[at].store.visible.of(pg).log;
        let (Some(known), Some(first), None) = (known, log.front(), self.options.retry_memory_bytes) else {
            return;
        };
        assert!(
            known.sequence.saturating_add(1) < first.version.sequence || known.epoch < first.version.epoch,
            "unknown_outcome_is_older_than_the_log: {request:?} of {known}, and the log begins with {}",
            first.version
        );
    }

    /// A primary orders the writes of an object as they came in. In an erasure-coded PG those of other
    /// spans may overtake.
    pub fn writes_start_in_order(&mut self, at: usize, transaction: &Transaction) {
        let [LogEntry { version, request: Some(request), object, .. }] = &transaction.log[..] else { return };
        let record = self.members[at].pgs[&transaction.pg].record();
        let leads = record.primary == osd(at) && record.epoch == version.epoch;
        // It may catch up with the primary of a record that it has not heard of.
        let has_promised_more = self.members[at].store.promised.get(&transaction.pg) > Some(&record.epoch);
        if self.options.shape.is_some() || !leads || has_promised_more {
            return;
        }
        let waiting = &mut self.members[at].waiting_writes;
        let Some(place) = waiting.iter().position(|(_, id, _)| id == request) else { return };
        let is_of_object =
            |(pg, _, other): &&(PgId, RequestId, ObjectName)| *pg == transaction.pg && other == object;
        let first = waiting[..place].iter().find(is_of_object);
        assert!(first.is_none(), "writes_start_in_order: {request:?} before {first:?}");
        waiting.remove(place);
    }

    /// While the primary at `at` may answer reads, no other OSD may.
    pub fn one_primary_reads(&self, pg: PgId, at: usize) {
        if !self.may_read(pg, at) {
            return;
        }
        let other = (0..self.members.len()).find(|other| *other != at && self.may_read(pg, *other));
        assert!(other.is_none(), "one_primary_reads: osd.{} and index {other:?} of pg {pg}", at + 1);
    }

    fn may_read(&self, pg: PgId, at: usize) -> bool {
        let member = &self.members[at];
        let view =
            View { store: &member.store, leases: &member.leases, full: &member.full, now_ms: self.local_ms(at) };
        // While its clock stands still it does nothing, and it looks at its leases anew before it does.
        let is_awake = member.is_up && !member.clock.is_news();
        is_awake && member.pgs.get(&pg).is_some_and(|pg| pg.may_read(&view))
    }

    /// Each member of an active configuration has promised its epoch durably: it takes no more
    /// writes of a former primary.
    pub fn members_of_an_active_pg_have_promised(&self, pg: PgId, at: usize) {
        let found = &self.members[at].pgs[&pg];
        if *found.state() != PgState::Active {
            return;
        }
        let record = found.record();
        for osd in &record.members {
            let promised = self.members[osd.0 as usize - 1].store.promised.get(&pg);
            assert!(
                promised.is_some_and(|promised| *promised >= record.epoch),
                "members_of_an_active_pg_have_promised: {osd} promised {promised:?} of {record:?}"
            );
        }
    }

    /// Returns true if an OSD would report that its copy is complete: it is not marked otherwise, and has durably
    /// promised the last active epoch.
    pub fn counts_as_elector(&self, pg: PgId, at: usize, activated: Epoch) -> bool {
        let state = self.members[at].store.durable.of(pg);
        !state.is_incomplete() && state.promised() >= activated
    }

    /// The version of the write with a sequence in an OSD's durable log, as far as that reaches
    /// back.
    fn durable_version(&self, pg: PgId, at: usize, sequence: u64) -> Option<Version> {
        let log = &self.members[at].store.durable.of(pg).log;
        let index = log.binary_search_by_key(&sequence, |entry: &LogEntry| entry.version.sequence).ok()?;
        Some(log[index].version)
    }
}
