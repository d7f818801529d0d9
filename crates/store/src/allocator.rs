//! Which blocks are free: bitmaps in memory with a small index that finds long runs. They are not
//! stored: opening a store rebuilds them from the metadata.
//!
//! The last sixteenth of the region is for metadata pages, by preference: they are rewritten at
//! every checkpoint, one block each, and would leave holes all over the data. Data goes to the front
//! by preference. Either spills to the other part when its own is full: when no block is free, or
//! when few are free, no free run is long enough, and the other part has more.
//!
//! Memory: one bit for each block and, for each group of 4096 blocks, a byte and an entry in a set:
//! 32 MiB and about 0.6 MiB for each TiB.

mod part;

use part::Part;
pub(crate) use part::push_run;

/// A run of blocks: first block and length.
pub type Run = (u32, u32);

/// Purpose of an allocation; decides which part of the region is preferred.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Zone {
    /// The bytes of objects.
    Data,
    /// Pages that are rewritten at every checkpoint.
    Metadata,
}

/// The metadata part takes this share of the region.
const METADATA_SHARE: u64 = 16;

/// The allocator of one device's blocks.
pub struct Allocator {
    data: Part,
    metadata: Part,
}

impl Allocator {
    /// All of `block_count` blocks from `first_block` on are free.
    pub fn new(first_block: u64, block_count: u64) -> Self {
        let end = first_block.saturating_add(block_count);
        assert!(end <= u64::from(u32::MAX), "the layout keeps block numbers in 32 bits");
        let split = end - block_count / METADATA_SHARE;
        Allocator { data: Part::new(first_block..split), metadata: Part::new(split..end) }
    }

    /// How many blocks are free.
    pub fn free_count(&self) -> u32 {
        self.data.free_count() + self.metadata.free_count()
    }

    /// How many blocks there are.
    pub fn block_count(&self) -> u32 {
        self.data.block_count() + self.metadata.block_count()
    }

    /// Returns true if the same blocks are free, and the index finds all of them.
    pub fn has_same_blocks(&self, other: &Allocator) -> bool {
        self.data.check_invariants();
        self.metadata.check_invariants();
        self.data.has_same_blocks(&other.data) && self.metadata.has_same_blocks(&other.metadata)
    }

    #[cfg(test)]
    pub fn miscount(&mut self) {
        self.data.miscount();
    }

    /// Claims a block as if it had been looked at and found free.
    #[cfg(test)]
    pub fn claim_in_use(&mut self, block: u32) {
        self.data.claim((block, 1));
    }

    /// Returns true if a block is in use; none for a block outside the region.
    pub fn is_used(&self, block: u32) -> Option<bool> {
        let run = (block, 1);
        (self.covered(run) == 1).then(|| !self.data.is_free(run) || !self.metadata.is_free(run))
    }

    /// Marks one block as used while the bitmap is rebuilt. False when the block is outside the
    /// region or used already: then the metadata is damaged.
    pub fn claim(&mut self, block: u32) -> bool {
        self.claim_run(block, 1)
    }

    /// Like [`Allocator::claim`] for a run; claims all of it or nothing.
    pub fn claim_run(&mut self, first: u32, count: u32) -> bool {
        let run = (first, count);
        let is_free = self.data.is_free(run) && self.metadata.is_free(run);
        if self.covered(run) != count || !is_free {
            return false;
        }
        self.data.claim(run);
        self.metadata.claim(run);
        true
    }

    /// To be called after the last claim: makes the index exact, so that the first allocations do not
    /// have to do it on their way. It reads the whole bitmap.
    pub fn finish_claims(&mut self) {
        self.data.index_groups();
        self.metadata.index_groups();
    }

    /// Returns true if all blocks of a run are in the region, and free.
    pub fn is_free_run(&self, run: Run) -> bool {
        self.covered(run) == run.1 && self.data.is_free(run) && self.metadata.is_free(run)
    }

    /// Allocates `count` blocks in few runs, or nothing at all.
    pub fn allocate(&mut self, count: u32, zone: Zone) -> Option<Vec<Run>> {
        if count > self.free_count() {
            return None;
        }
        let (own, other) = match zone {
            Zone::Data => (&mut self.data, &mut self.metadata),
            Zone::Metadata => (&mut self.metadata, &mut self.data),
        };
        // The last few holes of a part would cut a request to pieces while the other part has room.
        let is_own_full = own.is_nearly_full() && !own.fits(count);
        let (first, second) = if is_own_full && !other.is_nearly_full() { (other, own) } else { (own, other) };
        let from_first = count.min(first.free_count());
        let mut runs = Vec::new();
        first.allocate(from_first, &mut runs);
        second.allocate(count - from_first, &mut runs);
        Some(runs)
    }

    /// Makes a used block free.
    pub fn release(&mut self, block: u32) {
        self.release_run(block, 1);
    }

    /// Makes a run of used blocks free.
    pub fn release_run(&mut self, first: u32, count: u32) {
        let run = (first, count);
        assert_eq!(self.covered(run), count, "only allocated blocks are released");
        self.data.release(run);
        self.metadata.release(run);
    }

    /// How many blocks of a run lie in the region.
    fn covered(&self, run: Run) -> u32 {
        self.data.covered(run) + self.metadata.covered(run)
    }
}

#[cfg(test)]
mod tests;
