//! Invariants between PGs and their store, a sentence and a check each. Data from devices is never asserted.
//! docs/internals/invariants-osd.md lists them.

use atoll_types::PgId;

/// Every commit of the store belongs to one submission.
pub(crate) const EVERY_COMMIT_HAS_A_SUBMITTER: &str = "every commit belongs to one submission";
/// Every read of the store has one reader, which gets its result once.
pub(crate) const EVERY_READ_HAS_A_READER: &str = "every result belongs to one read";
/// Every load of metadata has one loader, which is informed once.
pub(crate) const EVERY_LOAD_HAS_A_LOADER: &str = "every load belongs to whom it was begun for";
/// Every examination of an object was asked for by one PG, which gets its finding once.
pub(crate) const EVERY_SCRUB_HAS_AN_ASKER: &str = "every finding belongs to one scrub";

/// The store gives each submission, read, load and scrub a number that nothing else in flight has.
pub(crate) fn ids_are_fresh(what: &str, was_taken: bool) {
    assert!(!was_taken, "a {what} has the number of another one in flight");
}

/// A PG's submissions become durable in their order, so that an acknowledgement, which follows the commit, covers
/// everything before it.
pub(crate) fn commits_come_in_order(pg: PgId, has_overtaken: bool) {
    assert!(!has_overtaken, "pg {pg}: a submission became durable before an earlier one");
}

/// A PG's submissions overtake none of its own: a backlog that exists holds something.
pub(crate) fn backlogs_hold_something(lengths: impl Iterator<Item = usize>) {
    assert!(lengths.min() != Some(0), "a PG has an empty backlog, behind which its submissions wait for ever");
}

/// The submission that waits for room in the log is the first of its PG, and there: it is submitted when its turn
/// comes.
pub(crate) fn what_waits_for_room_is_there(is_there: bool) {
    assert!(is_there, "a PG's turn for room in the log is not that of its first submission");
}

/// Tests of invariants: each line is a deliberate violation, and its message.
#[doc(hidden)]
#[macro_export]
macro_rules! violations {
    ($($name:ident: $violation:expr => $message:literal;)+) => {$(
        #[test]
        #[should_panic(expected = $message)]
        fn $name() {
            $violation;
        }
    )+};
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_types::PoolId;

    const PG: PgId = PgId { pool: PoolId(1), index: 7 };

    #[test]
    fn what_holds_passes() {
        ids_are_fresh("read", false);
        commits_come_in_order(PG, false);
        backlogs_hold_something([1, 2].into_iter());
        backlogs_hold_something([].into_iter());
        what_waits_for_room_is_there(true);
    }

    crate::violations! {
        a_number_that_is_taken: ids_are_fresh("read", true) => "the number of another one";
        a_commit_that_overtakes: commits_come_in_order(PG, true) => "pg 1.7: a submission";
        an_empty_backlog: backlogs_hold_something([2, 0].into_iter()) => "an empty backlog";
        a_turn_that_is_not_the_first: what_waits_for_room_is_there(false) => "not that of its first";
    }
}
