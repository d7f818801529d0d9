//! Buffers aligned to the block size, as `O_DIRECT` wants them.

use bytemuck::{Pod, Zeroable};

/// Size of a device block, in bytes: the unit of allocation, of checksums and of `O_DIRECT`.
pub const BLOCK_BYTES: usize = 4096;

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(4096))]
struct Block([u8; BLOCK_BYTES]);

/// A zero-initialised byte buffer whose address and length are multiples of [`BLOCK_BYTES`].
#[derive(Clone, Default)]
pub struct BlockBuffer {
    blocks: Vec<Block>,
}

impl BlockBuffer {
    /// A zeroed buffer of `block_count` blocks.
    pub fn zeroed(block_count: usize) -> Self {
        BlockBuffer { blocks: bytemuck::zeroed_vec(block_count) }
    }

    /// A buffer that holds `bytes`, padded with zeros to a whole block.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let mut buffer = BlockBuffer::zeroed(bytes.len().div_ceil(BLOCK_BYTES));
        buffer.as_mut_slice()[..bytes.len()].copy_from_slice(bytes);
        buffer
    }

    /// A buffer of `block_count` blocks, each as `fill` makes it. That gets the block's number and must
    /// write all of its bytes; what it finds there is noise. Memory is written once, where filling a
    /// zeroed buffer would write it twice.
    pub fn filled(block_count: usize, mut fill: impl FnMut(usize, &mut [u8])) -> Self {
        let mut scratch = Block::zeroed();
        let make = |number| {
            fill(number, &mut scratch.0);
            scratch
        };
        BlockBuffer { blocks: (0..block_count).map(make).collect() }
    }

    /// Length in blocks.
    pub fn block_count(&self) -> usize {
        self.blocks.len()
    }

    /// Length in bytes, a multiple of [`BLOCK_BYTES`].
    pub fn len(&self) -> usize {
        self.blocks.len() * BLOCK_BYTES
    }

    /// Whether the buffer has no blocks.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        bytemuck::cast_slice(&self.blocks)
    }

    /// The bytes, writable.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        bytemuck::cast_slice_mut(&mut self.blocks)
    }
}

impl std::fmt::Debug for BlockBuffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "BlockBuffer({} blocks)", self.blocks.len())
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
}
