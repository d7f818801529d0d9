//! Freeing places under the device: in a file system (holes in a file) or on a disk (TRIM).
//!
//! A discard is a write to free blocks: it begins when the checkpoint that freed them is in force, and the blocks
//! are not allocated before it has ended. So it touches nothing that a reader, a clone, the log or an older
//! checkpoint may still need, for the same reason for which fresh data may be written there.

use std::collections::VecDeque;

use crate::allocator::{Allocator, Run};

/// Blocks of the pieces that are discarded, each wholly free: smaller ones would cut files to pieces, and serve
/// the next small writes.
const CHUNK_BLOCKS: u32 = 16;
/// Chunks in one request.
const REQUEST_CHUNKS_MAX: u32 = 512;
/// Chunks that are looked at before others get their turn.
const LOOKED_AT_MAX: u32 = 1 << 16;
/// Runs that wait. Runs beyond it are found when the store is opened again.
const WAITING_MAX: usize = 1 << 16;

/// Free places that are to be given back.
pub(crate) struct Discards {
    is_on: bool,
    /// Chunks that were free when they came here: first one and how many.
    waiting: VecDeque<Run>,
    /// Run that is being discarded; the allocator has it as used.
    under_way: Option<Run>,
}

impl Discards {
    pub fn new() -> Self {
        Discards { is_on: true, waiting: VecDeque::new(), under_way: None }
    }

    /// Blocks became free.
    pub fn freed(&mut self, mut blocks: Vec<u32>, allocator: &Allocator) {
        if !self.is_on {
            return;
        }
        blocks.iter_mut().for_each(|block| *block /= CHUNK_BLOCKS);
        blocks.sort_unstable();
        blocks.dedup();
        for chunk in blocks.into_iter().filter(|&chunk| is_free(allocator, chunk)) {
            let has_room = self.waiting.len() < WAITING_MAX;
            match self.waiting.back_mut() {
                Some((first, count)) if *first + *count == chunk => *count += 1,
                _ if has_room => self.waiting.push_back((chunk, 1)),
                _ => return,
            }
        }
    }

    /// All places that are free are to be looked at.
    pub fn add_all(&mut self, (first, count): Run) {
        if self.is_on {
            self.waiting.push_back((first / CHUNK_BLOCKS, count / CHUNK_BLOCKS));
        }
    }

    /// Sets if places are given back. Places that wait are forgotten otherwise.
    pub fn set(&mut self, is_on: bool) {
        self.is_on = is_on;
        if !is_on {
            self.waiting.clear();
        }
    }

    /// The next blocks to give back, which are claimed.
    pub fn begin(&mut self, allocator: &mut Allocator) -> Option<Run> {
        if self.under_way.is_some() {
            return None;
        }
        let mut left = LOOKED_AT_MAX;
        while left > 0
            && let Some((mut chunk, mut count)) = self.waiting.pop_front()
        {
            while left > 0 && count > 0 && !is_free(allocator, chunk) {
                (chunk, count, left) = (chunk + 1, count - 1, left - 1);
            }
            let most = if left > 0 { count.min(REQUEST_CHUNKS_MAX) } else { 0 };
            let free = (0..most).take_while(|index| is_free(allocator, chunk + index)).count() as u32;
            if count > free {
                self.waiting.push_front((chunk + free, count - free));
            }
            if free > 0 {
                let run = blocks_of((chunk, free));
                assert!(allocator.claim_run(run.0, run.1), "these blocks were free");
                self.under_way = Some(run);
                return Some(run);
            }
        }
        None
    }

    pub fn ended(&mut self) -> Run {
        self.under_way.take().expect("a discard was under way")
    }

    /// Blocks that are free but for a discard.
    pub fn under_way(&self) -> Run {
        self.under_way.unwrap_or_default()
    }
}

/// The most blocks that one discard keeps from others.
pub(crate) const DISCARD_BLOCKS_MAX: u32 = REQUEST_CHUNKS_MAX * CHUNK_BLOCKS;

fn blocks_of((chunk, count): Run) -> Run {
    (chunk * CHUNK_BLOCKS, count * CHUNK_BLOCKS)
}

fn is_free(allocator: &Allocator, chunk: u32) -> bool {
    allocator.is_free_run(blocks_of((chunk, 1)))
}
