//! Every assertion about the log fires.

use crate::check::tests::Fixture;
use crate::invariants::violations::{Violation, assert_noticed, dropped};
use crate::overlay::Home;

/// Transactions that [`Fixture::busy`] leaves in the log's queue.
const QUEUED: usize = 2;

fn write_batch(fixture: &mut Fixture) {
    let store = &mut fixture.store;
    store.log.write_batch(1, &mut store.overlay, &mut store.outbox);
}

const VIOLATIONS: &[Violation] = &[
    // Small writes on their way.
    ("stay in memory until the log has them", |fixture| {
        let (block, log) = (fixture.device_block("small", 3), &fixture.store.log);
        let home = Home::Log { sequence: log.next_sequence - 1, block: log.position - 1 };
        fixture.store.overlay.insert(block, dropped(home));
    }),
    ("in the log as long as they are not applied", |fixture| {
        let log = &mut fixture.store.log;
        log.trimmed_blocks = log.appended_blocks;
    }),
    // Transactions.
    ("waits in one place", |fixture| {
        let log = &mut fixture.store.log;
        log.queue.push_back(log.in_flight[0].numbers[0]);
    }),
    ("keeps its place in the order of its queue", |fixture| fixture.store.log.queue.swap(0, QUEUED - 1)),
    ("every transaction that is not durable waits somewhere", |fixture| {
        fixture.store.log.queue.pop_back();
    }),
    ("room in the log is reserved for waiting transactions", |fixture| fixture.store.log.reserved_blocks += 1),
    ("wait for as many writes as are under way", |fixture| {
        let accepted = &mut fixture.store.log.accepted;
        let (number, _) = accepted.iter().next_back().unwrap();
        accepted.get_mut(number).unwrap().data_writes_left += 1;
    }),
    ("transactions are queued in the order of their numbers", |fixture| {
        fixture.store.log.waiting.values_mut().next().unwrap().push_back(u64::MAX);
        fixture.accept_write("small", 3, 1);
    }),
    // Records.
    ("the log mentions data only when it is durable", |fixture| {
        let log = &mut fixture.store.log;
        let waiting = *log.waiting.values().next().unwrap().front().unwrap();
        log.queue.push_front(waiting);
        write_batch(fixture);
    }),
    ("a record takes no more room than was set aside", |fixture| {
        let log = &mut fixture.store.log;
        log.queue.truncate(1);
        log.accepted.get_mut(log.queue[0]).unwrap().reserved_blocks = 0;
        write_batch(fixture);
    }),
    ("the log never overwrites untrimmed records", |fixture| {
        let log = &mut fixture.store.log;
        log.appended_blocks = log.trimmed_blocks + log.layout.wal_blocks;
        write_batch(fixture);
    }),
    ("the log is trimmed forward only", |fixture| {
        let log = &mut fixture.store.log;
        log.trim(log.appended_blocks + 1);
    }),
    ("records in flight are those that do not count as durable", |fixture| {
        fixture.store.log.durable_through += 1;
    }),
    ("records in flight are being written", |fixture| fixture.store.log.in_flight[0].is_durable = true),
    ("records count as durable without a gap", |fixture| {
        let store = &mut fixture.store;
        store.log.in_flight[0].sequence += 1;
        store.log.written(store.log.in_flight[0].sequence, &mut store.outbox);
    }),
    ("nothing is acknowledged after a failure", |fixture| {
        fixture.store.poison("a test".into());
        let sequence = fixture.store.log.in_flight[0].sequence;
        fixture.store.record_written(sequence);
    }),
];

#[test]
fn every_violation_is_noticed() {
    assert_noticed(VIOLATIONS);
}
