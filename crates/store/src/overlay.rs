//! Blocks whose newest bytes are not at their place yet: small writes that are in the log, and large writes that
//! are on their way to the device. Their places are known in order, too, so that a checkpoint applies them sorted.
//! When they take too much memory, the bytes of those in the log are dropped and read back from there. Large
//! writes are kept as runs: a run of blocks lasts until its data is durable, and changes by small writes meanwhile
//! come first.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use atoll_buffers::{BLOCK_BYTES, BlockBuffer};
use bytes::Bytes;
use rustc_hash::FxBuildHasher;

use crate::allocator::Run;
use crate::places::Places;

/// Place of the newest bytes of a block, beside memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Home {
    /// On their way to their place.
    Place,
    /// Accepted, in no record yet.
    NoRecord,
    /// In this record of the log, at this block of the ring.
    Log { sequence: u64, block: u64 },
}

/// A block of a buffer: the buffer and the block's index in it.
pub(crate) type BufferBlock = (Arc<BlockBuffer>, usize);

/// The newest bytes of one device block.
#[derive(Clone)]
pub(crate) struct PendingBlock {
    /// The bytes. `None` when they were dropped.
    pub buffer: Option<BufferBlock>,
    /// The transaction that wrote them.
    pub number: u64,
    pub home: Home,
}

/// A block's newest bytes and their place.
pub(crate) struct Newest<'a> {
    /// The bytes. `None` when they were dropped.
    pub bytes: Option<&'a [u8]>,
    pub home: Home,
}

#[derive(Default)]
pub(crate) struct Overlay {
    /// No stranger chooses a place, so a plain hash suffices.
    blocks: HashMap<u32, PendingBlock, FxBuildHasher>,
    /// The same places in order.
    places: Places,
    /// Data of large writes by its first block.
    runs: BTreeMap<u32, Bytes>,
    runs_bytes: usize,
    /// Blocks with bytes in memory and in this record of the log, oldest first; some may be gone since.
    droppable: VecDeque<(u32, u64)>,
    in_memory: usize,
}

impl Overlay {
    pub fn get(&self, device_block: u32) -> Option<Newest<'_>> {
        if let Some(PendingBlock { buffer, home, .. }) = self.blocks.get(&device_block) {
            let bytes =
                buffer.as_ref().map(|(buffer, index)| &buffer.as_slice()[index * BLOCK_BYTES..][..BLOCK_BYTES]);
            return Some(Newest { bytes, home: *home });
        }
        let (first, run) = self.runs.range(..=device_block).next_back()?;
        let bytes = run.get((device_block - first) as usize * BLOCK_BYTES..)?.get(..BLOCK_BYTES)?;
        Some(Newest { bytes: Some(bytes), home: Home::Place })
    }

    /// Shows a large write's data that goes to these fresh blocks.
    pub fn insert_run(&mut self, (first, length): Run, bytes: Bytes) {
        let other = self.places.next_from(first).filter(|&block| block < first + length);
        assert!(other.is_none(), "fresh blocks have no other bytes");
        self.runs_bytes += bytes.len();
        let before = self.runs.insert(first, bytes);
        assert!(before.is_none(), "fresh blocks have no other bytes");
    }

    /// The data of a large write is at its place.
    pub fn remove_run(&mut self, (first, _): Run) {
        let bytes = self.runs.remove(&first).expect("a run is shown until its data is written");
        self.runs_bytes -= bytes.len();
    }

    pub fn insert(&mut self, device_block: u32, pending: PendingBlock) {
        self.in_memory += usize::from(pending.buffer.is_some());
        if let (Some(_), Home::Log { sequence, .. }) = (&pending.buffer, pending.home) {
            self.droppable.push_back((device_block, sequence));
        }
        match self.blocks.insert(device_block, pending) {
            Some(old) => self.in_memory -= usize::from(old.buffer.is_some()),
            None => self.places.insert(device_block),
        }
    }

    pub fn remove(&mut self, device_block: u32) {
        if let Some(old) = self.blocks.remove(&device_block) {
            self.in_memory -= usize::from(old.buffer.is_some());
            self.places.remove(device_block);
        }
    }

    /// Forgets all blocks but some.
    pub fn retain(&mut self, keep: impl Fn(u32) -> bool) {
        let gone: Vec<u32> = self.blocks.keys().copied().filter(|block| !keep(*block)).collect();
        gone.into_iter().for_each(|block| self.remove(block));
    }

    /// Forgets a block if its newest bytes are still those of this transaction.
    pub fn remove_if_from(&mut self, device_block: u32, number: u64) {
        if self.blocks.get(&device_block).is_some_and(|pending| pending.number == number) {
            self.remove(device_block);
        }
    }

    /// The bytes that this transaction wrote to the block went into a record. When it wrote the block
    /// twice, the last bytes count.
    pub fn logged(&mut self, device_block: u32, number: u64, sequence: u64, log_block: u64) {
        if let Some(pending) = self.blocks.get_mut(&device_block)
            && pending.number == number
        {
            if pending.home == Home::NoRecord {
                self.droppable.push_back((device_block, sequence));
            }
            pending.home = Home::Log { sequence, block: log_block };
        }
    }

    /// Checks that the counted memory is correct.
    pub fn check_invariants(&self) {
        let in_memory = self.blocks.values().filter(|pending| pending.buffer.is_some()).count();
        assert!(self.in_memory == in_memory, "blocks in memory are counted");
        let places = self.places.range_from(0).collect::<Vec<_>>();
        let has_all =
            places.len() == self.blocks.len() && places.iter().all(|block| self.blocks.contains_key(block));
        assert!(has_all, "the places of all blocks are known");
        assert!(
            self.runs_bytes == self.runs.values().map(Bytes::len).sum::<usize>(),
            "bytes of large writes are counted"
        );
    }

    #[cfg(test)]
    pub fn miscount(&mut self) {
        self.in_memory += 1;
    }

    #[cfg(test)]
    pub fn forget_places(&mut self) {
        self.places = Places::default();
    }

    /// Number of blocks that small writes have changed.
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Those blocks from a place on, in order.
    pub fn range_from(&self, from: u32) -> impl Iterator<Item = (u32, &PendingBlock)> {
        self.places.range_from(from).map(|block| (block, &self.blocks[&block]))
    }

    /// Bytes of data in memory.
    pub fn memory_bytes(&self) -> u64 {
        (self.in_memory * BLOCK_BYTES + self.runs_bytes) as u64
    }

    /// Drops the oldest bytes that are durable in the log until the rest fits.
    pub fn drop_down_to(&mut self, budget_bytes: u64, durable_through: u64) {
        while self.memory_bytes() > budget_bytes
            && let Some(&(device_block, sequence)) = self.droppable.front()
            && sequence <= durable_through
        {
            self.droppable.pop_front();
            if let Some(pending) = self.blocks.get_mut(&device_block)
                && matches!(pending.home, Home::Log { sequence: newest, .. } if newest == sequence)
                && pending.buffer.take().is_some()
            {
                self.in_memory -= 1;
            }
        }
    }

    /// The log has no records before this one any more: their data is at its place.
    pub fn trimmed(&mut self, below: u64) {
        while self.droppable.front().is_some_and(|(_, sequence)| *sequence < below) {
            self.droppable.pop_front();
        }
    }
}
