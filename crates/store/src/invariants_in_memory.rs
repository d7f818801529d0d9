//! Invariants of everything that a store has in memory. [`Store::check_invariants`] takes time in proportion to it.

use std::collections::BTreeSet;

use crate::allocator::Allocator;
use crate::check::{Finding, examine};
use crate::disk::Disk;
use crate::outbox::Purpose;
use crate::store::Store;

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
