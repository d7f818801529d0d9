//! Invariants of a store: one sentence, one function.
//!
//! These are cheap. They are asserted in every build where the state changes, mostly on both sides of an interface.
//! [`crate::Store::check_invariants`] looks at everything in memory; tests call it after every step of random
//! histories. Invariants that only the device shows are checked by `check`, which [`crate::Store::examine`] applies to
//! a store in use.
//!
//! All of this is about the store's own actions. Bytes from a disk are checked where they are read, and are
//! errors. `docs/internals/store-invariants.md` lists the sentences.

/// The log never overwrites untrimmed records.
#[inline]
pub(crate) fn log_keeps_what_is_not_trimmed(used_blocks: u64, ring_blocks: u64) {
    assert!(used_blocks <= ring_blocks, "the log never overwrites untrimmed records");
}

/// The log is trimmed forward only, and not beyond its end.
#[inline]
pub(crate) fn log_is_trimmed_forward(trimmed_blocks: u64, trim_to: u64, appended_blocks: u64) {
    assert!(trimmed_blocks <= trim_to && trim_to <= appended_blocks, "the log is trimmed forward only");
}

/// A transaction takes as much room in the log as was set aside for it.
#[inline]
pub(crate) fn record_fits_its_reservation(record_blocks: u64, reserved_blocks: u64) {
    assert!(record_blocks <= reserved_blocks, "a record takes no more room than was set aside for it");
}

/// The log mentions data of large writes only when it is durable at its place.
#[inline]
pub(crate) fn log_mentions_durable_data_only(data_writes_left: usize) {
    assert!(data_writes_left == 0, "the log mentions data only when it is durable at its place");
}

/// Transactions that share objects go into the log in the order in which they were accepted.
#[inline]
pub(crate) fn queue_keeps_the_order(newest: Option<u64>, number: u64) {
    assert!(newest.is_none_or(|newest| newest < number), "transactions are queued in the order of their numbers");
}

/// Records count as durable one after the other, without a gap.
#[inline]
pub(crate) fn records_become_durable_in_order(durable_through: u64, sequence: u64) {
    assert!(sequence == durable_through + 1, "records count as durable without a gap");
}

/// Nothing is acknowledged once the device has failed.
#[inline]
pub(crate) fn nothing_is_acknowledged_after_a_failure(is_poisoned: bool) {
    assert!(!is_poisoned, "nothing is acknowledged after a failure of the device");
}

/// A checkpoint applies only durable records of the log: a crash may lose the rest.
#[inline]
pub(crate) fn checkpoint_applies_durable_records_only(durable_through: u64, trims_below: u64) {
    assert!(durable_through + 1 >= trims_below, "a checkpoint applies only durable records of the log");
}

/// A superblock is written when all transactions are durable that may have replaced data that it refers to.
#[inline]
pub(crate) fn superblock_comes_after_the_fence(oldest_uncommitted: Option<u64>, fence_number: u64) {
    assert!(
        oldest_uncommitted.is_none_or(|number| number >= fence_number),
        "a superblock waits for writes that replaced its data"
    );
}

/// A superblock is written when every page of its checkpoint is.
#[inline]
pub(crate) fn superblock_comes_after_all_pages(frozen_left: usize, table_is_stale: bool) {
    assert!(frozen_left == 0 && !table_is_stale, "a superblock waits for all pages and their table");
}

/// Generations follow each other, so that the two copies of the superblock are written in turn.
#[inline]
pub(crate) fn generations_follow_each_other(before: u64, after: u64) {
    assert!(after == before + 1, "generations of the superblock follow each other");
}

#[cfg(test)]
pub(crate) mod violations;
