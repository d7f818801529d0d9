//! Buffers aligned to the block size, as `O_DIRECT` wants them. Their memory is kept and reused: fresh pages from
//! the system cost more than the work with them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytemuck::{Pod, Zeroable};
use bytes::Bytes;

/// Size of a device block, in bytes: the unit of allocation, of checksums and of `O_DIRECT`.
pub const BLOCK_BYTES: usize = 4096;

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(4096))]
struct Block([u8; BLOCK_BYTES]);

/// Memory that a process keeps for its next buffers, at most, unless [`keep_at_most`] says otherwise.
const KEPT_BYTES_MAX: usize = 128 << 20;

/// Memory from the system, which is never divided or joined.
#[derive(Default)]
struct Memory {
    blocks: Vec<Block>,
    number: u64,
}

impl Memory {
    fn new(block_count: usize) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Memory { blocks: bytemuck::zeroed_vec(block_count), number: NEXT.fetch_add(1, Ordering::Relaxed) }
    }
}

struct Kept {
    /// By the blocks that there is memory for.
    buffers: BTreeMap<usize, Vec<Memory>>,
    block_count: usize,
    block_count_max: usize,
}

/// One for all threads: buffers are often filled by one and dropped by another.
static KEPT: Mutex<Kept> =
    Mutex::new(Kept { buffers: BTreeMap::new(), block_count: 0, block_count_max: KEPT_BYTES_MAX / BLOCK_BYTES });

fn kept() -> MutexGuard<'static, Kept> {
    KEPT.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Kept {
    /// Returns memory for `block_count` blocks or up to an eighth more.
    fn take(&mut self, block_count: usize) -> Option<Memory> {
        let mut fitting = self.buffers.range_mut(block_count..=block_count + block_count / 8);
        let memory = fitting.find_map(|(_, buffers)| buffers.pop())?;
        self.block_count -= memory.blocks.len();
        Some(memory)
    }

    /// Keeps memory, or returns it if there is no room for it.
    fn keep(&mut self, memory: Memory) -> Option<Memory> {
        let block_count = memory.blocks.len();
        if self.block_count + block_count > self.block_count_max {
            return Some(memory);
        }
        self.block_count += block_count;
        self.buffers.entry(block_count).or_default().push(memory);
        None
    }
}

/// Sets how much memory this process keeps for its next buffers, at most, in bytes.
pub fn keep_at_most(bytes: usize) {
    kept().block_count_max = bytes / BLOCK_BYTES;
}

/// A byte buffer whose address and length are multiples of [`BLOCK_BYTES`].
#[derive(Default)]
pub struct BlockBuffer {
    /// Memory for the blocks, perhaps for more.
    memory: Memory,
    block_count: usize,
}

impl BlockBuffer {
    /// A zeroed buffer of `block_count` blocks.
    pub fn zeroed(block_count: usize) -> Self {
        let mut buffer = BlockBuffer::for_overwriting(block_count);
        buffer.as_mut_slice().fill(0);
        buffer
    }

    /// A buffer of `block_count` blocks with arbitrary content, for callers that overwrite all of
    /// them.
    pub fn for_overwriting(block_count: usize) -> Self {
        let kept = kept().take(block_count);
        BlockBuffer { memory: kept.unwrap_or_else(|| Memory::new(block_count)), block_count }
    }

    /// A buffer that holds `bytes`, padded with zeros to a whole block.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let mut buffer = BlockBuffer::for_overwriting(bytes.len().div_ceil(BLOCK_BYTES));
        let (data, padding) = buffer.as_mut_slice().split_at_mut(bytes.len());
        data.copy_from_slice(bytes);
        padding.fill(0);
        buffer
    }

    /// A buffer of `block_count` blocks, each as `fill` makes it. `fill` gets the block's number and must write
    /// all of its bytes; their previous content is noise.
    pub fn filled(block_count: usize, mut fill: impl FnMut(usize, &mut [u8])) -> Self {
        let mut buffer = BlockBuffer::for_overwriting(block_count);
        let blocks = buffer.as_mut_slice().chunks_exact_mut(BLOCK_BYTES);
        blocks.enumerate().for_each(|(number, block)| fill(number, block));
        buffer
    }

    /// The first `length_bytes` bytes, to be shared without a copy.
    pub fn into_bytes(self, length_bytes: usize) -> Bytes {
        Bytes::from_owner(self).slice(..length_bytes)
    }

    /// Names the memory under this buffer, which other buffers had before and will have after it. As long as a
    /// holder remembers the number, no other memory gets it, not even at the same address. 0: it has none.
    pub fn memory_number(&self) -> u64 {
        self.memory.number
    }

    /// All of the memory under this buffer, which may be more than its blocks.
    pub fn whole_memory(&self) -> &[u8] {
        bytemuck::cast_slice(&self.memory.blocks)
    }

    /// Length in blocks.
    pub fn block_count(&self) -> usize {
        self.block_count
    }

    /// Length in bytes, a multiple of [`BLOCK_BYTES`].
    pub fn len(&self) -> usize {
        self.block_count * BLOCK_BYTES
    }

    /// Returns true if the buffer has no blocks.
    pub fn is_empty(&self) -> bool {
        self.block_count == 0
    }

    /// The bytes.
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        bytemuck::cast_slice(&self.memory.blocks[..self.block_count])
    }

    /// The bytes, writable.
    #[inline]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        bytemuck::cast_slice_mut(&mut self.memory.blocks[..self.block_count])
    }
}

impl Clone for BlockBuffer {
    fn clone(&self) -> Self {
        BlockBuffer::from_bytes(self.as_slice())
    }
}

impl Drop for BlockBuffer {
    fn drop(&mut self) {
        let memory = std::mem::take(&mut self.memory);
        if !memory.blocks.is_empty() {
            // What is not kept is freed behind the lock.
            drop(kept().keep(memory));
        }
    }
}

impl std::fmt::Debug for BlockBuffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "BlockBuffer({} blocks)", self.block_count)
    }
}

impl AsRef<[u8]> for BlockBuffer {
    fn as_ref(&self) -> &[u8] {
        self.as_slice()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_and_padded() {
        let buffer = BlockBuffer::from_bytes(&[7; 5000]);
        assert_eq!(buffer.len(), 8192);
        assert_eq!(buffer.as_slice().as_ptr() as usize % BLOCK_BYTES, 0);
        assert!(buffer.as_slice()[..5000].iter().all(|&byte| byte == 7));
        assert!(buffer.as_slice()[5000..].iter().all(|&byte| byte == 0));
        let numbered = BlockBuffer::filled(3, |number, block| block.fill(number as u8));
        assert!(numbered.as_slice().iter().enumerate().all(|(at, &byte)| byte as usize == at / BLOCK_BYTES));
    }

    /// In a pool of its own: other tests use that of the process.
    #[test]
    fn memory_is_used_again_where_it_fits() {
        let memory = Memory::new;
        let mut kept = Kept { buffers: BTreeMap::new(), block_count: 0, block_count_max: 20 };
        assert!(kept.keep(memory(9)).is_none() && kept.keep(memory(3)).is_none());
        assert!(kept.take(7).is_none(), "too much memory would lie idle");
        assert_eq!(kept.take(8).map(|memory| memory.blocks.len()), Some(9));
        assert!(kept.take(8).is_none());
        assert!(kept.keep(memory(17)).is_none(), "there is room for 20");
        assert_eq!(kept.keep(memory(1)).map(|memory| memory.blocks.len()), Some(1));
        assert_eq!(kept.block_count, 20);
    }

    #[test]
    fn zeroed_buffers_and_padding_are_zero() {
        for _ in 0..4 {
            let mut buffer = BlockBuffer::zeroed(3);
            assert!(buffer.as_slice().iter().all(|&byte| byte == 0));
            buffer.as_mut_slice().fill(9);
        }
        let copy = BlockBuffer::from_bytes(&[7; 2 * BLOCK_BYTES + 1]);
        assert!(copy.as_slice()[2 * BLOCK_BYTES + 1..].iter().all(|&byte| byte == 0));
        assert_eq!(copy.into_bytes(5)[..], [7; 5]);
    }
}
