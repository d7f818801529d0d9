//! Which data blocks are free: a bitmap with a next-fit cursor. It is not stored: opening a store
//! rebuilds it from the metadata.

/// A run of blocks: first block and length.
pub(crate) type Run = (u32, u32);

pub(crate) struct Allocator {
    /// One bit per block, set when the block is in use.
    words: Vec<u64>,
    first_block: u32,
    block_count: u32,
    free_count: u32,
    cursor: u32,
}

impl Allocator {
    /// All of `block_count` blocks from `first_block` on are free.
    pub fn new(first_block: u64, block_count: u64) -> Self {
        let first_block = u32::try_from(first_block).expect("the layout keeps block numbers in 32 bits");
        let block_count = u32::try_from(block_count).expect("the layout keeps block numbers in 32 bits");
        let words = vec![0; (block_count as usize).div_ceil(64)];
        Allocator { words, first_block, block_count, free_count: block_count, cursor: 0 }
    }

    pub fn free_count(&self) -> u32 {
        self.free_count
    }

    pub fn block_count(&self) -> u32 {
        self.block_count
    }

    fn is_used(&self, index: u32) -> bool {
        self.words[index as usize / 64] >> (index % 64) & 1 == 1
    }

    fn index(&self, block: u32) -> Option<u32> {
        block.checked_sub(self.first_block).filter(|&index| index < self.block_count)
    }

    /// Marks one block as used while the bitmap is rebuilt. False when the block is outside the
    /// data region or used already: then the metadata is damaged.
    pub fn claim(&mut self, block: u32) -> bool {
        let Some(index) = self.index(block) else { return false };
        if self.is_used(index) {
            return false;
        }
        self.words[index as usize / 64] |= 1 << (index % 64);
        self.free_count -= 1;
        true
    }

    /// Allocates `count` blocks in as few runs as next-fit finds, or nothing at all.
    pub fn allocate(&mut self, count: u32) -> Option<Vec<Run>> {
        if count > self.free_count {
            return None;
        }
        let mut runs = Vec::new();
        let mut missing = count;
        while missing > 0 {
            let start = self.next_free(self.cursor).or_else(|| self.next_free(0));
            let start = start.expect("the free count says that a block is free");
            let mut length = 0;
            while length < missing && start + length < self.block_count && !self.is_used(start + length) {
                let index = start + length;
                self.words[index as usize / 64] |= 1 << (index % 64);
                length += 1;
            }
            runs.push((self.first_block + start, length));
            self.cursor = start + length;
            missing -= length;
        }
        self.free_count -= count;
        Some(runs)
    }

    fn next_free(&self, from: u32) -> Option<u32> {
        let mut word_index = from as usize / 64;
        let mut mask = u64::MAX << (from % 64);
        while word_index < self.words.len() {
            let free = !self.words[word_index] & mask;
            if free != 0 {
                let index = word_index as u32 * 64 + free.trailing_zeros();
                return (index < self.block_count).then_some(index);
            }
            word_index += 1;
            mask = u64::MAX;
        }
        None
    }

    /// Makes a used block free.
    pub fn release(&mut self, block: u32) {
        let index = self.index(block).expect("only allocated blocks are released");
        assert!(self.is_used(index), "block {block} is released twice");
        self.words[index as usize / 64] &= !(1 << (index % 64));
        self.free_count += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn allocation_matches_a_set(steps in proptest::collection::vec((any::<bool>(), 1u32..40), 1..80)) {
            let mut allocator = Allocator::new(10, 200);
            let mut used = BTreeSet::new();
            for (allocate, amount) in steps {
                if allocate {
                    match allocator.allocate(amount) {
                        Some(runs) => {
                            let blocks: Vec<u32> = runs.iter().flat_map(|&(b, n)| b..b + n).collect();
                            prop_assert_eq!(blocks.len() as u32, amount);
                            for block in blocks {
                                prop_assert!((10..210).contains(&block));
                                prop_assert!(used.insert(block), "given out twice");
                            }
                        }
                        None => prop_assert!(used.len() as u32 + amount > 200),
                    }
                } else {
                    for block in used.iter().copied().take(amount as usize).collect::<Vec<_>>() {
                        used.remove(&block);
                        allocator.release(block);
                    }
                }
                prop_assert_eq!(allocator.free_count(), 200 - used.len() as u32);
            }
        }
    }
}
