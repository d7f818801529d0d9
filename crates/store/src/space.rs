//! The blocks of the data region: which are free, which will be once a checkpoint is in force, and how many
//! are reserved so that recovery and deletes always have room.

use atoll_buffers::BLOCK_BYTES;

use crate::allocator::{Allocator, Run, Zone};
use crate::discards::Discards;

/// Share of the device, in percent, that clients may not fill, unless it is set.
const RESERVE_PERCENT: u32 = 5;
const RESERVE_BLOCKS_MIN: u32 = (96 << 20) / BLOCK_BYTES as u32;

/// The allocator, and the blocks that will return to it.
pub(crate) struct Space {
    allocator: Allocator,
    /// Blocks that nothing refers to since the last checkpoint began: the one before still does.
    freed: Vec<u32>,
    /// Blocks that become free when the checkpoint that runs is in force.
    reclaiming: Vec<u32>,
    /// Number of these, the first ones, that were objects' data. Places of pages are rewritten at the next
    /// checkpoint.
    reclaiming_data: usize,
    pub(crate) discards: Discards,
    reserve_percent: u32,
}

impl Space {
    pub fn new(allocator: Allocator, freed: Vec<u32>) -> Self {
        Space {
            allocator,
            freed,
            reclaiming: Vec::new(),
            reclaiming_data: 0,
            discards: Discards::new(),
            reserve_percent: RESERVE_PERCENT,
        }
    }

    /// Clients may fill the device up to this share, in percent.
    pub fn set_full_percent(&mut self, percent: u32) {
        self.reserve_percent = 100 - percent.min(100);
    }

    /// The allocator, to find places for data.
    pub fn allocator(&mut self) -> &mut Allocator {
        &mut self.allocator
    }

    /// Places for metadata, in few runs; all of them or none.
    pub fn allocate_metadata(&mut self, count: u32) -> Option<Vec<Run>> {
        self.allocator.allocate(count, Zone::Metadata)
    }

    /// Nothing refers to these blocks any more but the checkpoint in force.
    pub fn give_up(&mut self, blocks: &[u32]) {
        self.freed.extend(blocks);
    }

    /// A checkpoint begins: blocks released before are free once it is in force.
    pub fn freeze(&mut self) {
        assert!(self.reclaiming.is_empty(), "the previous checkpoint has freed its blocks");
        self.reclaiming = std::mem::take(&mut self.freed);
        self.reclaiming_data = self.reclaiming.len();
    }

    /// The checkpoint that runs does not refer to a block that the one before did.
    pub fn give_up_with_checkpoint(&mut self, block: u32) {
        self.reclaiming.push(block);
    }

    /// The checkpoint is in force.
    pub fn reclaim(&mut self) {
        let mut blocks = std::mem::take(&mut self.reclaiming);
        for &block in &blocks {
            self.allocator.release(block);
        }
        blocks.truncate(self.reclaiming_data);
        self.discards.freed(blocks, &self.allocator);
    }

    /// Claims the next blocks to give back.
    pub fn begin_discard(&mut self) -> Option<Run> {
        self.discards.begin(&mut self.allocator)
    }

    /// Returns true if a checkpoint would free blocks.
    pub fn has_freed(&self) -> bool {
        !self.freed.is_empty()
    }

    // ---- figures ----------------------------------------------------------------------------

    pub fn block_count(&self) -> u32 {
        self.allocator.block_count()
    }

    pub fn used_count(&self) -> u32 {
        self.allocator.block_count()
            - self.allocator.free_count()
            - self.freed.len() as u32
            - self.discards.under_way().1
    }

    fn reserve_blocks(&self) -> u32 {
        // Small devices need room for checkpoints, too, whatever the share.
        let least =
            if self.reserve_percent < RESERVE_PERCENT { RESERVE_BLOCKS_MIN / 2 } else { RESERVE_BLOCKS_MIN };
        self.share(self.reserve_percent).max(least)
    }

    fn share(&self, percent: u32) -> u32 {
        (u64::from(self.allocator.block_count()) * u64::from(percent) / 100) as u32
    }

    /// Returns true if only the reserve is left. Blocks that the next checkpoint will free count as free.
    pub fn is_full(&self) -> bool {
        self.free_soon() <= self.reserve_blocks() as usize
    }

    fn free_soon(&self) -> usize {
        self.allocator.free_count() as usize
            + self.freed.len()
            + self.reclaiming.len()
            + self.discards.under_way().1 as usize
    }

    /// Returns true if `count` free blocks may be kept from others for a moment.
    pub fn can_spare(&self, count: u32) -> bool {
        self.allocator.free_count() > self.reserve_blocks().saturating_mul(2).saturating_add(count)
    }

    /// Returns true if only the reserve is left until a checkpoint frees blocks.
    pub fn is_low(&self) -> bool {
        self.allocator.free_count() <= self.reserve_blocks()
    }

    /// Returns true if a part of the reserve is gone: the rest is for checkpoints.
    pub fn is_exhausted(&self) -> bool {
        self.allocator.free_count() <= self.share(RESERVE_PERCENT).max(RESERVE_BLOCKS_MIN) / 2
    }

    /// Returns true if a part of the reserve is gone that clients should not have taken.
    pub fn is_reserve_used(&self) -> bool {
        let exhausted = self.share(RESERVE_PERCENT).max(RESERVE_BLOCKS_MIN) / 2;
        self.free_soon() <= (exhausted + exhausted / 4) as usize
    }

    /// Returns true if hardly more is left than checkpoints need.
    pub fn is_spent(&self) -> bool {
        self.allocator.free_count() <= self.share(RESERVE_PERCENT).max(RESERVE_BLOCKS_MIN) / 4
    }

    /// Returns true if a checkpoint is needed for the sake of space.
    pub fn must_be_reclaimed(&self) -> bool {
        !self.freed.is_empty() && self.allocator.free_count() <= self.reserve_blocks() * 2
    }

    /// Checks that a block belongs to one of `holders`, or to the blocks that a checkpoint will free, and to one
    /// of them only. All others are free, and the allocator says so. `all_free` has the same blocks, all of them
    /// free.
    pub fn check_invariants(&self, mut all_free: Allocator, holders: impl Iterator<Item = u32>) {
        let (first, count) = self.discards.under_way();
        let to_be_free = self.freed.iter().chain(&self.reclaiming).copied().chain(first..first + count);
        for block in holders.chain(to_be_free) {
            assert!(all_free.claim(block), "block {block} has one holder");
        }
        assert!(self.allocator.has_same_blocks(&all_free), "blocks without a holder are free, and no others");
    }
}
