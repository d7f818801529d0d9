//! The values behind the keys of objects: headers, and chunks of 16 blocks with their seals.

use atoll_buffers::BLOCK_BYTES;
use atoll_codec::CodecError;
use atoll_types::limits::{OBJECT_BYTES_MAX, SEAL_BYTES_MAX};
use atoll_types::{Epoch, Seals, Version};

pub(crate) const OBJECT_BLOCKS_MAX: usize = (OBJECT_BYTES_MAX / BLOCK_BYTES as u64) as usize;
/// Blocks per chunk: the largest range of one small write, and one seal of the largest unit.
pub(crate) const CHUNK_BLOCKS: usize = 16;
pub(crate) const CHUNK_BYTES: u64 = (CHUNK_BLOCKS * BLOCK_BYTES) as u64;

const _: () = assert!(CHUNK_BYTES == atoll_types::limits::SEAL_UNIT_BYTES_MAX as u64);
const _: () = assert!(CHUNK_BLOCKS * (8 + SEAL_BYTES_MAX) < super::page::VALUE_BYTES_MAX);

/// Where a block of an object is on the device, and the CRC-32C of its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockMeta {
    /// Device block; 0 means that the block is a hole.
    pub device_block: u32,
    pub crc: u32,
}

impl BlockMeta {
    fn decode(bytes: [u8; 8]) -> Self {
        let [a, b, c, d, crc @ ..] = bytes;
        let device_block = u32::from_le_bytes([a, b, c, d]);
        BlockMeta { device_block, crc: if device_block == 0 { 0 } else { u32::from_le_bytes(crc) } }
    }

    /// Returns true if the other block is `count` blocks behind this one on the device.
    pub fn is_before(&self, count: usize, other: BlockMeta) -> bool {
        u64::from(self.device_block) + count as u64 == u64::from(other.device_block)
    }
}

pub(crate) const HOLE: BlockMeta = BlockMeta { device_block: 0, crc: 0 };

/// Properties of an object as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObjectInfo {
    /// Size in bytes.
    pub size_bytes: u64,
    /// Size of the whole object, if this one is a shard of it.
    pub whole_bytes: Option<u64>,
    /// Version of the last change.
    pub version: Version,
    /// Bytes of data per seal; 0 while the object has no seals.
    pub(crate) seal_unit_bytes: u32,
    pub(crate) seal_bytes: u16,
    /// True if blocks of this object may also belong to others.
    pub(crate) may_share: bool,
}

const HEADER_BYTES: usize = 31;
/// Bits of a header's flags.
const MAY_SHARE: u8 = 1;
/// The size of a whole object follows.
const IS_SHARD: u8 = 2;

impl ObjectInfo {
    /// Bytes of data per seal and bytes per seal, if the object has seals.
    pub fn seal_shape(&self) -> Option<(u32, u16)> {
        (self.seal_unit_bytes != 0).then_some((self.seal_unit_bytes, self.seal_bytes))
    }

    /// Changes the version in an encoded header.
    pub(crate) fn patch_version(bytes: &mut [u8], version: Version) {
        bytes[8..16].copy_from_slice(&version.epoch.0.to_le_bytes());
        bytes[16..24].copy_from_slice(&version.sequence.to_le_bytes());
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER_BYTES + 8);
        bytes.extend(self.size_bytes.to_le_bytes());
        bytes.extend(self.version.epoch.0.to_le_bytes());
        bytes.extend(self.version.sequence.to_le_bytes());
        bytes.extend(self.seal_unit_bytes.to_le_bytes());
        bytes.extend(self.seal_bytes.to_le_bytes());
        let is_shard = if self.whole_bytes.is_some() { IS_SHARD } else { 0 };
        bytes.push(if self.may_share { MAY_SHARE } else { 0 } | is_shard);
        bytes.extend(self.whole_bytes.iter().flat_map(|whole_bytes| whole_bytes.to_le_bytes()));
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, CodecError> {
        let truncated = CodecError::Truncated { what: "object header" };
        let Some((bytes, behind)) = bytes.split_first_chunk::<HEADER_BYTES>() else { return Err(truncated) };
        let (numbers, rest) = bytes.as_chunks::<8>();
        let [size_bytes, epoch, sequence] = [0, 1, 2].map(|index| u64::from_le_bytes(numbers[index]));
        let &[u0, u1, u2, u3, s0, s1, flags] = rest else { unreachable!("a header has 31 bytes") };
        let (seal_unit_bytes, seal_bytes) = (u32::from_le_bytes([u0, u1, u2, u3]), u16::from_le_bytes([s0, s1]));
        let version = Version { epoch: Epoch(epoch), sequence };
        let may_share = flags & MAY_SHARE != 0;
        let whole_bytes = match (flags & IS_SHARD != 0, behind) {
            (false, []) => None,
            (true, behind) => Some(u64::from_le_bytes(behind.try_into().map_err(|_| truncated)?)),
            (false, _) => return Err(CodecError::Invalid { what: "object header", value: u64::from(flags) }),
        };
        let is_valid_seal = seal_unit_bytes == 0
            || seal_unit_bytes >= BLOCK_BYTES as u32
                && CHUNK_BYTES.is_multiple_of(u64::from(seal_unit_bytes))
                && usize::from(seal_bytes) <= SEAL_BYTES_MAX;
        if !is_valid_seal || size_bytes.max(whole_bytes.unwrap_or(0)) > OBJECT_BYTES_MAX {
            return Err(CodecError::Invalid { what: "object header", value: size_bytes });
        }
        Ok(ObjectInfo { size_bytes, whole_bytes, version, seal_unit_bytes, seal_bytes, may_share })
    }
}

/// A chunk's value as it is in its leaf.
pub(crate) struct ChunkValue<B> {
    bytes: B,
    block_count: usize,
}

impl<B: AsRef<[u8]>> ChunkValue<B> {
    /// `None` if it is none.
    pub fn parse(bytes: B) -> Option<Self> {
        let (&count, rest) = bytes.as_ref().split_first()?;
        let block_count = usize::from(count);
        let is_sound = block_count <= CHUNK_BLOCKS && rest.len() >= 8 * block_count;
        is_sound.then_some(ChunkValue { bytes, block_count })
    }

    pub fn block(&self, index: usize) -> BlockMeta {
        let bytes = self.bytes.as_ref().get(1 + 8 * index..).and_then(<[u8]>::first_chunk::<8>);
        bytes.filter(|_| index < self.block_count).map_or(HOLE, |bytes| BlockMeta::decode(*bytes))
    }

    fn seals_start(&self) -> usize {
        1 + 8 * self.block_count
    }

    /// Returns true if consecutive seals from the `first` one on have their places, and unset ones at the end
    /// would be left out as they are.
    pub fn has_room_for_seals(&self, first: usize, seals: &Seals) -> bool {
        let end = self.seals_start() + first * usize::from(seals.seal_bytes) + seals.bytes.len();
        let stored_end = self.bytes.as_ref().len();
        end < stored_end || end == stored_end && seals.bytes.last().is_some_and(|&byte| byte != 0)
    }
}

impl ChunkValue<&mut [u8]> {
    /// Sets the checks of consecutive blocks from the `first` one on, which are no holes.
    pub fn set_crcs(&mut self, first: usize, crcs: &[u32]) {
        for (index, crc) in (first..).zip(crcs) {
            self.bytes[1 + 8 * index + 4..][..4].copy_from_slice(&crc.to_le_bytes());
        }
    }

    /// Sets consecutive seals from the `first` one on, which have their places.
    pub fn set_seals(&mut self, first: usize, seals: &Seals) {
        let start = self.seals_start() + first * usize::from(seals.seal_bytes);
        self.bytes[start..][..seals.bytes.len()].copy_from_slice(&seals.bytes);
    }
}

/// 16 consecutive blocks of an object: `count u8 | (device block u32, crc u32) ... | seals`. Holes
/// and unset seals at the end are left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Chunk {
    pub blocks: [BlockMeta; CHUNK_BLOCKS],
    /// The seals of the units that begin in the chunk, one after the other; may end early.
    pub seals: Vec<u8>,
}

impl Default for Chunk {
    fn default() -> Self {
        Chunk { blocks: [HOLE; CHUNK_BLOCKS], seals: Vec::new() }
    }
}

impl Chunk {
    pub fn is_empty(&self) -> bool {
        self.blocks.iter().all(|block| *block == HOLE) && self.seals.iter().all(|&byte| byte == 0)
    }

    pub fn encode(&self) -> Vec<u8> {
        let count = self.blocks.iter().rposition(|block| *block != HOLE).map_or(0, |last| last + 1);
        let seal_bytes = self.seals.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
        let mut bytes = Vec::with_capacity(1 + 8 * count + seal_bytes);
        bytes.push(count as u8);
        for block in &self.blocks[..count] {
            bytes.extend(block.device_block.to_le_bytes());
            bytes.extend(block.crc.to_le_bytes());
        }
        bytes.extend_from_slice(&self.seals[..seal_bytes]);
        bytes
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, CodecError> {
        let (blocks, seals) = Chunk::decode_blocks(bytes)?;
        Ok(Chunk { blocks, seals: seals.to_vec() })
    }

    /// The blocks, and the bytes of the seals.
    pub fn decode_blocks(bytes: &[u8]) -> Result<([BlockMeta; CHUNK_BLOCKS], &[u8]), CodecError> {
        let mut decoded = [HOLE; CHUNK_BLOCKS];
        let (&count, rest) = bytes.split_first().ok_or(CodecError::Truncated { what: "chunk" })?;
        let count = usize::from(count);
        let blocks_and_seals = rest.split_at_checked(8 * count).filter(|_| count <= CHUNK_BLOCKS);
        let (blocks, seals) = blocks_and_seals.ok_or(CodecError::Truncated { what: "chunk" })?;
        if seals.len() > CHUNK_BLOCKS * SEAL_BYTES_MAX {
            return Err(CodecError::Invalid { what: "length of a chunk's seals", value: seals.len() as u64 });
        }
        for (block, bytes) in decoded.iter_mut().zip(blocks.as_chunks::<8>().0) {
            *block = BlockMeta::decode(*bytes);
        }
        Ok((decoded, seals))
    }

    /// Stores consecutive seals from the `first` one of the chunk on.
    pub fn set_seals(&mut self, first: usize, seal_bytes: usize, seals: &[u8]) {
        let (start, end) = (first * seal_bytes, first * seal_bytes + seals.len());
        if self.seals.len() < end {
            self.seals.resize(end, 0);
        }
        self.seals[start..end].copy_from_slice(seals);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn chunks_round_trip(
            blocks in proptest::collection::vec((0u32..3, 1u32..9), 16), seals in proptest::collection::vec(1u8..9, 0..64),
        ) {
            let mut chunk = Chunk { seals, ..Chunk::default() };
            for (block, (device_block, crc)) in chunk.blocks.iter_mut().zip(blocks) {
                *block = if device_block == 0 { HOLE } else { BlockMeta { device_block, crc } };
            }
            prop_assert_eq!(Chunk::decode(&chunk.encode()).unwrap(), chunk);
        }

        #[test]
        fn headers_round_trip(
            size in 0u64..OBJECT_BYTES_MAX, whole in proptest::option::of(0u64..OBJECT_BYTES_MAX), epoch: u64, sequence: u64,
            may_share: bool,
        ) {
            let version = Version { epoch: Epoch(epoch), sequence };
            let (seal_unit_bytes, seal_bytes) = (4096, 28);
            let info =
                ObjectInfo { size_bytes: size, whole_bytes: whole, version, seal_unit_bytes, seal_bytes, may_share };
            prop_assert_eq!(ObjectInfo::decode(&info.encode()).unwrap(), info);
        }

        #[test]
        fn random_bytes_never_panic(bytes: Vec<u8>) {
            let _ = ObjectInfo::decode(&bytes);
            let _ = Chunk::decode(&bytes);
        }
    }
}
