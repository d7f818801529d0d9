//! Blocks whose newest bytes are in memory: small writes that wait in the log to be applied to
//! their place, and large writes that are on their way to the device.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::sync::Arc;

use atoll_base::{BLOCK_BYTES, BlockBuffer};

/// The newest bytes of one device block.
#[derive(Clone)]
pub(crate) struct PendingBlock {
    pub buffer: Arc<BlockBuffer>,
    pub index: usize,
    /// Whether the bytes are in the log and must be applied by a checkpoint.
    pub in_log: bool,
}

impl PendingBlock {
    pub fn bytes(&self) -> &[u8] {
        &self.buffer.as_slice()[self.index * BLOCK_BYTES..][..BLOCK_BYTES]
    }
}

#[derive(Default)]
pub(crate) struct Overlay {
    blocks: HashMap<u32, PendingBlock, BuildHasherDefault<DefaultHasher>>,
}

impl Overlay {
    pub fn get(&self, device_block: u32) -> Option<&PendingBlock> {
        self.blocks.get(&device_block)
    }

    pub fn insert(&mut self, device_block: u32, pending: PendingBlock) {
        self.blocks.insert(device_block, pending);
    }

    pub fn remove(&mut self, device_block: u32) {
        self.blocks.remove(&device_block);
    }

    /// Forgets a block if its newest bytes are still those of `buffer`.
    pub fn remove_if_from(&mut self, device_block: u32, buffer: &Arc<BlockBuffer>) {
        if self.blocks.get(&device_block).is_some_and(|pending| Arc::ptr_eq(&pending.buffer, buffer)) {
            self.blocks.remove(&device_block);
        }
    }

    /// All blocks that a checkpoint must apply, by their place on the device.
    pub fn in_log_sorted(&self) -> Vec<(u32, PendingBlock)> {
        let in_log = self.blocks.iter().filter(|(_, pending)| pending.in_log);
        let mut blocks: Vec<_> = in_log.map(|(&block, pending)| (block, pending.clone())).collect();
        blocks.sort_unstable_by_key(|(block, _)| *block);
        blocks
    }
}
