//! The metadata of one object: size, version, where each 4 KiB block is, its CRC-32C, the seals
//! and the omap.

use atoll_base::limits::{OBJECT_BYTES_MAX, OMAP_KEY_BYTES_MAX, OMAP_VALUE_BYTES_MAX, SEAL_BYTES_MAX};
use atoll_base::{BLOCK_BYTES, CodecError, Reader, Seals, Version, Writer};
use bytes::Bytes;
use imbl::OrdMap;

pub(crate) const OBJECT_BLOCKS_MAX: usize = (OBJECT_BYTES_MAX / BLOCK_BYTES as u64) as usize;

/// Where a block of an object is on the device, and the CRC-32C of its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockMeta {
    /// Device block; 0 means that the block is a hole.
    pub device_block: u32,
    pub crc: u32,
}

pub(crate) const HOLE: BlockMeta = BlockMeta { device_block: 0, crc: 0 };

/// The metadata of one object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Onode {
    pub(crate) size_bytes: u64,
    pub(crate) version: Version,
    pub(crate) blocks: Vec<BlockMeta>,
    /// Bytes of data per seal; 0 while the object has no seals.
    pub(crate) seal_unit_bytes: u32,
    pub(crate) seal_bytes: u16,
    pub(crate) seals: Vec<u8>,
    pub(crate) omap: OrdMap<Bytes, Bytes>,
}

impl Onode {
    /// Size of the object in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Version of the last change.
    pub fn version(&self) -> Version {
        self.version
    }

    /// The omap.
    pub fn omap(&self) -> &OrdMap<Bytes, Bytes> {
        &self.omap
    }

    /// Bytes of data per seal and bytes per seal, if the object has seals.
    pub fn seal_shape(&self) -> Option<(u32, u16)> {
        (self.seal_unit_bytes != 0).then_some((self.seal_unit_bytes, self.seal_bytes))
    }

    pub(crate) fn block(&self, index: usize) -> BlockMeta {
        self.blocks.get(index).copied().unwrap_or(HOLE)
    }

    /// Maps a block and returns what it was mapped to before.
    pub(crate) fn set_block(&mut self, index: usize, meta: BlockMeta) -> BlockMeta {
        if self.blocks.len() <= index {
            self.blocks.resize(index + 1, HOLE);
        }
        std::mem::replace(&mut self.blocks[index], meta)
    }

    /// The seals of all units that overlap `length` bytes from `offset` on.
    pub fn seals(&self, offset: u64, length: u64) -> Option<Seals> {
        let (unit_bytes, seal_bytes) = self.seal_shape()?;
        let first = (offset / u64::from(unit_bytes)) as usize;
        let end = (offset + length).div_ceil(u64::from(unit_bytes)) as usize;
        let width = usize::from(seal_bytes);
        let mut bytes = vec![0; (end - first) * width];
        let stored = self.seals.get(first * width..).unwrap_or(&[]);
        let count = stored.len().min(bytes.len());
        bytes[..count].copy_from_slice(&stored[..count]);
        Some(Seals { unit_bytes, seal_bytes, bytes: bytes.into() })
    }

    /// Stores seals from the unit at `offset` on.
    pub(crate) fn set_seals(&mut self, offset: u64, seals: &Seals) {
        self.seal_unit_bytes = seals.unit_bytes;
        self.seal_bytes = seals.seal_bytes;
        let start = (offset / u64::from(seals.unit_bytes)) as usize * usize::from(seals.seal_bytes);
        let end = start + seals.bytes.len();
        if self.seals.len() < end {
            self.seals.resize(end, 0);
        }
        self.seals[start..end].copy_from_slice(&seals.bytes);
    }

    /// Forgets the seals of the units from `offset` on, `length` bytes long.
    pub(crate) fn clear_seals(&mut self, offset: u64, length: u64) {
        let Some((unit_bytes, seal_bytes)) = self.seal_shape() else { return };
        let width = usize::from(seal_bytes);
        let start = (offset / u64::from(unit_bytes)) as usize * width;
        let end = ((offset + length).div_ceil(u64::from(unit_bytes)) as usize * width).min(self.seals.len());
        if start < end {
            self.seals[start..end].fill(0);
        }
    }

    /// Appends everything but the omap.
    pub(crate) fn encode(&self, writer: &mut Writer) {
        writer.u64(self.size_bytes);
        self.version.encode(writer);
        writer.u32(self.blocks.len() as u32);
        let mut index = 0;
        while index < self.blocks.len() {
            let start = self.blocks[index];
            let mut count = 1;
            while index + count < self.blocks.len() && continues(start, self.blocks[index + count], count) {
                count += 1;
            }
            writer.u32(start.device_block);
            writer.u32(count as u32);
            if start.device_block != 0 {
                self.blocks[index..index + count].iter().for_each(|block| writer.u32(block.crc));
            }
            index += count;
        }
        writer.u32(self.seal_unit_bytes);
        writer.u16(self.seal_bytes);
        writer.bytes(&self.seals);
    }

    pub(crate) fn decode(reader: &mut Reader) -> Result<Self, CodecError> {
        let mut onode = Onode {
            size_bytes: reader.u64("object size")?,
            version: Version::decode(reader)?,
            ..Onode::default()
        };
        let block_count = reader.count(OBJECT_BLOCKS_MAX, "block count")?;
        while onode.blocks.len() < block_count {
            let device_block = reader.u32("device block")?;
            let count = reader.count(block_count - onode.blocks.len(), "run length")?;
            if count == 0 {
                return Err(CodecError::Invalid { what: "run length", value: 0 });
            }
            for offset in 0..count as u32 {
                onode.blocks.push(if device_block == 0 {
                    HOLE
                } else {
                    let device_block = device_block
                        .checked_add(offset)
                        .ok_or(CodecError::Invalid { what: "device block", value: device_block.into() })?;
                    BlockMeta { device_block, crc: reader.u32("block check")? }
                });
            }
        }
        onode.seal_unit_bytes = reader.u32("seal unit")?;
        onode.seal_bytes = reader.u16("seal length")?;
        onode.seals = reader.bytes(OBJECT_BLOCKS_MAX * SEAL_BYTES_MAX, "seals")?.to_vec();
        Ok(onode)
    }
}

fn continues(start: BlockMeta, next: BlockMeta, distance: usize) -> bool {
    if start.device_block == 0 {
        next.device_block == 0
    } else {
        u64::from(next.device_block) == u64::from(start.device_block) + distance as u64
    }
}

/// Reads one omap entry.
pub(crate) fn decode_omap_entry(reader: &mut Reader) -> Result<(Bytes, Bytes), CodecError> {
    // Copied, so that a small entry does not keep a whole checkpoint chunk in memory.
    let key = Bytes::copy_from_slice(&reader.bytes(OMAP_KEY_BYTES_MAX, "omap key")?);
    let value = Bytes::copy_from_slice(&reader.bytes(OMAP_VALUE_BYTES_MAX, "omap value")?);
    Ok((key, value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn onodes_round_trip(
            blocks in proptest::collection::vec((0u32..20, any::<u32>()), 0..50),
            seals in proptest::collection::vec(any::<u8>(), 0..100),
        ) {
            let blocks = blocks.into_iter().map(|(device_block, crc)| {
                if device_block == 0 { HOLE } else { BlockMeta { device_block, crc } }
            }).collect();
            let onode = Onode { size_bytes: 9, blocks, seal_unit_bytes: 4096, seal_bytes: 28, seals, ..Onode::default() };
            let mut writer = Writer::default();
            onode.encode(&mut writer);
            let mut reader = Reader::new(writer.finish());
            prop_assert_eq!(Onode::decode(&mut reader).unwrap(), onode);
            prop_assert_eq!(reader.remaining(), 0);
        }

        #[test]
        fn random_bytes_never_panic(bytes: Vec<u8>) {
            let _ = Onode::decode(&mut Reader::new(bytes.into()));
        }
    }
}
