//! Submissions that wait for room in the log or for metadata: in order per PG, and among PGs in the order in which they came.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use atoll_pg::Token;
use atoll_types::{PgId, PoolId, SharedTransaction};

use crate::invariants;

struct Waiting {
    /// Number of the next waiting submission.
    arrival: u64,
    token: Token,
    transaction: SharedTransaction,
}

/// Waiting submissions.
#[derive(Default)]
pub(super) struct Backlog {
    by_pg: BTreeMap<PgId, VecDeque<Waiting>>,
    /// The first of each PG that waits for nothing but room, by its arrival.
    ready: BTreeSet<(u64, PgId)>,
    arrivals: u64,
}

impl Backlog {
    /// Returns true if a submission of this PG would have to wait behind others.
    pub fn is_before(&self, pg: PgId) -> bool {
        !self.ready.is_empty() || self.by_pg.contains_key(&pg)
    }

    /// Returns true if nothing waits for room alone.
    pub fn is_ready_for_nothing(&self) -> bool {
        self.ready.is_empty()
    }

    /// How many of a PG wait.
    pub fn count_of(&self, pg: PgId) -> usize {
        self.by_pg.get(&pg).map_or(0, VecDeque::len)
    }

    pub fn push(&mut self, pg: PgId, token: Token, transaction: SharedTransaction) {
        self.arrivals += 1;
        let arrival = self.arrivals;
        let queue = self.by_pg.entry(pg).or_default();
        if queue.is_empty() {
            self.ready.insert((arrival, pg));
        }
        queue.push_back(Waiting { arrival, token, transaction });
    }

    /// Returns the submission that has waited longest for room.
    pub fn next(&self) -> Option<(PgId, Token, SharedTransaction)> {
        let (_, pg) = self.ready.first()?;
        let first = self.by_pg.get(pg)?.front()?;
        Some((*pg, first.token, first.transaction.clone()))
    }

    /// The first of a PG was submitted.
    pub fn submitted(&mut self, pg: PgId) {
        self.defer(pg);
        let Some(queue) = self.by_pg.get_mut(&pg) else { return };
        queue.pop_front();
        match queue.front() {
            Some(next) => drop(self.ready.insert((next.arrival, pg))),
            None => drop(self.by_pg.remove(&pg)),
        }
    }

    /// The first of a PG waits for metadata.
    pub fn defer(&mut self, pg: PgId) {
        if let Some(first) = self.by_pg.get(&pg).and_then(VecDeque::front) {
            self.ready.remove(&(first.arrival, pg));
        }
    }

    /// Marks the first submission of a PG as ready: its metadata is there. It keeps its place.
    pub fn resume(&mut self, pg: PgId) {
        if let Some(first) = self.by_pg.get(&pg).and_then(VecDeque::front) {
            self.ready.insert((first.arrival, pg));
        }
    }

    /// A pool was removed.
    pub fn forget_pool(&mut self, pool: PoolId) {
        self.by_pg.retain(|pg, _| pg.pool != pool);
        self.ready.retain(|(_, pg)| pg.pool != pool);
    }

    /// Checks invariants between the turns of the loop.
    pub fn check(&self) {
        invariants::backlogs_hold_something(self.by_pg.values().map(|queue| queue.len()));
        let is_first = |(arrival, pg): &(u64, PgId)| {
            let first = self.by_pg.get(pg).and_then(VecDeque::front);
            first.is_some_and(|first| first.arrival == *arrival)
        };
        invariants::what_waits_for_room_is_there(self.ready.iter().all(is_first));
    }
}

#[cfg(test)]
mod tests {
    use atoll_types::{ObjectName, Transaction};

    use super::*;

    fn pg(index: u32) -> PgId {
        PgId { pool: PoolId(1), index }
    }

    fn push(backlog: &mut Backlog, index: u32, token: u64) {
        let object = ObjectName::new("object").unwrap();
        let (mutations, log) = (Vec::new(), Vec::new());
        let payload = bytes::Bytes::new();
        let transaction = Transaction { pg: pg(index), object, mutations, payload, payload_sealed: false, log };
        backlog.push(pg(index), Token(token), transaction.into());
    }

    fn next(backlog: &mut Backlog) -> Option<u64> {
        let (pg, token, _) = backlog.next()?;
        backlog.submitted(pg);
        backlog.check();
        Some(token.0)
    }

    /// One PG with many small writes beside another, of a later pool, with one.
    #[test]
    fn requests_keep_their_order() {
        let mut backlog = Backlog::default();
        for (index, token) in [(1, 1), (1, 2), (9, 3), (1, 4), (0, 5), (9, 6), (1, 7)] {
            push(&mut backlog, index, token);
        }
        assert!(backlog.is_before(pg(5)), "nobody overtakes");
        assert_eq!(std::iter::from_fn(|| next(&mut backlog)).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6, 7]);
        assert!(!backlog.is_before(pg(1)) && backlog.is_ready_for_nothing());
    }

    #[test]
    fn waiting_for_metadata_blocks_its_pg_only_and_keeps_the_order() {
        let mut backlog = Backlog::default();
        for (index, token) in [(1, 1), (2, 2), (1, 3), (2, 4)] {
            push(&mut backlog, index, token);
        }
        backlog.defer(pg(1));
        assert_eq!(next(&mut backlog), Some(2));
        push(&mut backlog, 1, 5);
        backlog.resume(pg(1));
        assert_eq!(std::iter::from_fn(|| next(&mut backlog)).collect::<Vec<_>>(), [1, 3, 4, 5]);
        push(&mut backlog, 1, 6);
        backlog.defer(pg(1));
        assert!(backlog.is_before(pg(1)) && !backlog.is_before(pg(2)));
        backlog.forget_pool(PoolId(1));
        backlog.resume(pg(1));
        assert!(!backlog.is_before(pg(1)));
        backlog.check();
    }
}
