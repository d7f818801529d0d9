//! The data of one object: each block from its newest place, with its checksum compared.

use atoll_buffers::BLOCK_BYTES;
use atoll_codec::crc32c;
use atoll_types::{Mutation, Seals};
use bytes::Bytes;

use crate::disk::{Device, Disk, read_device};
use crate::layout::Layout;
use crate::metadata::{Bitmap, BlockMeta, CHUNK_BLOCKS, Chunk, HOLE, ObjectInfo};
use crate::overlay::{Home, Overlay};

/// Blocks in one read.
const RUN_BLOCKS: usize = 256;

/// Where blocks are.
pub(super) struct Source<'a> {
    pub overlay: &'a Overlay,
    pub bitmap: &'a Bitmap,
    pub layout: Layout,
}

/// The data of an object as far as it is readable.
pub(super) struct ObjectData {
    pub mutations: Vec<Mutation>,
    pub payload: Bytes,
    pub lost_blocks: usize,
}

/// The bytes of a block; none of a hole, and of one that is lost.
type Block = Option<Vec<u8>>;

impl Source<'_> {
    /// Reads an object, as mutations that make it.
    pub fn read(&self, disk: &mut dyn Disk, info: &ObjectInfo, chunks: &[(usize, Chunk)]) -> ObjectData {
        let count = info.size_bytes.div_ceil(BLOCK_BYTES as u64) as usize;
        let mut metas = vec![HOLE; count];
        let mut seals: Vec<&[u8]> = vec![&b""[..]; count.div_ceil(CHUNK_BLOCKS)];
        for (index, chunk) in chunks {
            let places = metas.iter_mut().skip(index * CHUNK_BLOCKS);
            places.zip(chunk.blocks).for_each(|(place, meta)| *place = meta);
            seals.get_mut(*index).into_iter().for_each(|place| *place = &chunk.seals);
        }
        let blocks = self.blocks(disk, &metas);
        let first = match info.whole_bytes {
            None => Mutation::Create,
            Some(object_bytes) => Mutation::SetShardOf {
                object_bytes,
                shard_bytes: info.size_bytes,
                seal_unit_bytes: info.seal_unit_bytes,
                seal_bytes: info.seal_bytes,
            },
        };
        let is_lost = |(meta, block): &(&BlockMeta, &Block)| **meta != HOLE && block.is_none();
        let lost_blocks = metas.iter().zip(&blocks).filter(is_lost).count();
        let mut writes = Writes { info, seals: &seals, mutations: vec![first], payload: Vec::new() };
        writes.add_units(&metas, &blocks);
        ObjectData { mutations: writes.mutations, payload: writes.payload.into(), lost_blocks }
    }

    fn blocks(&self, disk: &mut dyn Disk, metas: &[BlockMeta]) -> Vec<Block> {
        let mut blocks: Vec<Block> = Vec::with_capacity(metas.len());
        while let Some(meta) = metas.get(blocks.len()).copied() {
            if meta == HOLE || !self.bitmap.covers(meta.device_block) {
                blocks.push(None);
            } else if let Some(newest) = self.overlay.get(meta.device_block) {
                let bytes = match (newest.bytes, newest.home) {
                    (Some(bytes), _) => Some(bytes.to_vec()),
                    (None, Home::Log { block, .. }) => {
                        self.one(disk, self.layout.wal_device, self.layout.wal_start + block)
                    }
                    (None, _) => self.one(disk, Device::Data, u64::from(meta.device_block)),
                };
                blocks.push(bytes.filter(|bytes| crc32c(bytes) == meta.crc));
            } else {
                let rest = &metas[blocks.len()..];
                let is_next = |(count, other): &(usize, &BlockMeta)| {
                    (*count == 0 || meta.is_before(*count, **other))
                        && self.bitmap.covers(other.device_block)
                        && self.overlay.get(other.device_block).is_none()
                };
                let run = rest.iter().enumerate().take(RUN_BLOCKS).take_while(is_next).count().max(1);
                blocks.extend(self.run(disk, &rest[..run]));
            }
        }
        blocks
    }

    /// Blocks that lie one after the other.
    fn run(&self, disk: &mut dyn Disk, metas: &[BlockMeta]) -> Vec<Block> {
        let first = u64::from(metas[0].device_block);
        let read = read_device(disk, Device::Data, first, metas.len());
        let bytes_of = |(index, meta): (usize, &BlockMeta)| {
            let bytes = match &read {
                Ok(buffer) => Some(buffer.as_slice()[index * BLOCK_BYTES..][..BLOCK_BYTES].to_vec()),
                // One bad sector must not hide its neighbours.
                Err(_) => self.one(disk, Device::Data, first + index as u64),
            };
            bytes.filter(|bytes| crc32c(bytes) == meta.crc)
        };
        metas.iter().enumerate().map(bytes_of).collect()
    }

    fn one(&self, disk: &mut dyn Disk, device: Device, block: u64) -> Block {
        read_device(disk, device, block, 1).ok().map(|buffer| buffer.as_slice().to_vec())
    }
}

/// The writes that make an object, of whole seal units.
struct Writes<'a> {
    info: &'a ObjectInfo,
    /// The seals of each chunk; may end early.
    seals: &'a [&'a [u8]],
    mutations: Vec<Mutation>,
    payload: Vec<u8>,
}

impl Writes<'_> {
    /// Adds all units with data that is not lost, and the last one, which gives the object its size.
    fn add_units(&mut self, metas: &[BlockMeta], blocks: &[Block]) {
        let unit_blocks = self.info.seal_shape().map_or(1, |(unit, _)| (unit as usize / BLOCK_BYTES).max(1));
        let units = metas.len().div_ceil(unit_blocks);
        let range = |unit: usize| unit * unit_blocks..metas.len().min((unit + 1) * unit_blocks);
        let has_data = |unit: usize| metas[range(unit)].iter().any(|meta| *meta != HOLE);
        let is_lost = |unit: usize| range(unit).any(|index| metas[index] != HOLE && blocks[index].is_none());
        let is_wanted = |unit: usize| (has_data(unit) || unit + 1 == units) && !is_lost(unit);
        let mut unit = 0;
        while unit < units {
            let end = (unit..units).find(|unit| !is_wanted(*unit)).unwrap_or(units);
            if end > unit {
                self.write(unit..end, unit_blocks, &blocks[range(unit).start..range(end - 1).end]);
            }
            unit = end.max(unit + 1);
        }
    }

    fn write(&mut self, units: std::ops::Range<usize>, unit_blocks: usize, blocks: &[Block]) {
        let offset = (units.start * unit_blocks * BLOCK_BYTES) as u64;
        let end = self.info.size_bytes.min(offset + (blocks.len() * BLOCK_BYTES) as u64);
        let start = self.payload.len();
        for block in blocks {
            match block {
                Some(bytes) => self.payload.extend_from_slice(bytes),
                None => self.payload.resize(self.payload.len() + BLOCK_BYTES, 0),
            }
        }
        self.payload.truncate(start + (end - offset) as usize);
        let seals = self.info.seal_shape().map(|(unit_bytes, seal_bytes)| {
            let bytes: Vec<u8> = units.flat_map(|unit| self.seal(unit, unit_blocks, seal_bytes)).collect();
            Seals { unit_bytes, seal_bytes, bytes: bytes.into() }
        });
        self.mutations.push(Mutation::Write { offset, length: (end - offset) as u32, seals });
    }

    /// The seal of a unit; zeros if it has none.
    fn seal(&self, unit: usize, unit_blocks: usize, seal_bytes: u16) -> Vec<u8> {
        let units_per_chunk = CHUNK_BLOCKS / unit_blocks;
        let width = usize::from(seal_bytes);
        let stored = self.seals.get(unit / units_per_chunk).copied().unwrap_or_default();
        let at = unit % units_per_chunk * width;
        let mut seal = stored.get(at..).unwrap_or_default().to_vec();
        seal.resize(width, 0);
        seal
    }
}
