//! Invariants of a store: one sentence, one function.
//!
//! The first part is cheap. It is asserted in every build where the state changes, mostly on both sides of an
//! interface. The second part looks at everything in memory, by [`Store::check_invariants`]; tests call it after
//! every step of random histories. Invariants that only the device shows are checked by `check`, which
//! [`Store::examine`] applies to a store in use.
//!
//! All of this is about the store's own actions. Bytes from a disk are checked where they are read, and are
//! errors. `docs/internals/store-invariants.md` lists the sentences.

use std::collections::BTreeSet;

use crate::allocator::Allocator;
use crate::check::{Finding, examine};
use crate::disk::Disk;
use crate::outbox::Purpose;
use crate::store::Store;

// ---- cheap: asserted where the state changes ------------------------------------------------

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

// ---- expensive: everything that is in memory ------------------------------------------------

impl Store {
    /// Asserts everything that can be seen in memory. It takes time in proportion to the size of the store.
    #[doc(hidden)]
    pub fn check_invariants(&self) {
        if self.poisoned.is_some() {
            // What was under way when the store failed stays half done.
            return;
        }
        self.blocks_have_one_holder();
        self.metadata.tree.pages.check_invariants();
        self.overlay.check_invariants();
        self.overlay_is_of_objects();
        self.log.covers(&self.overlay, self.usage.checkpoint_count == 0);
        self.log
            .check_invariants(self.checkpoint.as_ref().and_then(|checkpoint| checkpoint.trims_to()), &self.outbox);
        self.requests_are_waited_for();
        self.pgs.check_invariants();
    }

    /// Problems with the metadata of the store in use, whatever of it is in memory, as `check` finds them.
    #[doc(hidden)]
    pub fn examine(&self, disk: &mut dyn Disk) -> Vec<Finding> {
        examine(disk, &self.metadata, &self.page_table, &self.layout)
    }

    /// A block belongs to objects, to a page, to the page table or to the blocks that a checkpoint will free, and
    /// to one of them only; all others are free, and the allocator has them as free.
    fn blocks_have_one_holder(&self) {
        let all_free = Allocator::new(self.layout.data_start, self.layout.data_blocks);
        let pages = &self.metadata.tree.pages;
        let mut holders = Vec::new();
        self.metadata.bitmap.for_each(pages, |block| holders.push(block));
        let of_pages = (0..pages.count()).map(|number| pages.location(number).block).filter(|&block| block != 0);
        holders.extend(of_pages.chain(self.page_table.blocks()));
        self.space.check_invariants(all_free, holders.into_iter());
    }

    /// Bytes of small writes are of blocks that objects refer to.
    fn overlay_is_of_objects(&self) {
        for (block, _) in self.overlay.range_from(0) {
            let is_in_use = self.metadata.bitmap.is_referenced(&self.metadata.tree.pages, block);
            assert!(is_in_use, "the newest bytes of block {block} are an object's");
        }
    }

    /// Something waits for every request to the device, and nothing waits for a request that was not made.
    fn requests_are_waited_for(&self) {
        let mut of_checkpoint = BTreeSet::new();
        for (id, purpose) in self.outbox.purposes() {
            match purpose {
                Purpose::Checkpoint => assert!(of_checkpoint.insert(id), "requests have different ids"),
                Purpose::Page { number, .. } => {
                    assert!(self.metadata.tree.pages.is_loading(number), "page {number} is read once, on demand");
                }
                // The log looks at those for itself.
                Purpose::Data { .. } | Purpose::Wal { .. } => {}
                Purpose::Read(_) | Purpose::Scrub(_) | Purpose::DamageNote | Purpose::Discard => {}
            }
        }
        let wanted: BTreeSet<u64> =
            self.checkpoint.iter().flat_map(|checkpoint| checkpoint.request_ids()).collect();
        assert!(wanted == of_checkpoint, "the checkpoint waits for its requests");
    }
}

#[cfg(test)]
pub(crate) mod violations;
