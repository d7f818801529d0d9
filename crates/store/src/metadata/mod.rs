//! Object metadata: sizes, versions, where blocks are, their checksums and seals, omaps, placement PGs' logs, all
//! in one ordered key space (`keys`) on a copy-on-write B+tree (`tree`) of 4 KiB pages (`page`), only some of them
//! in memory (`pages`). A checkpoint writes the changed pages to fresh places and then the page table
//! (`page_table`) that says where each page is.

mod bitmap;
mod changes;
mod hints;
pub(crate) mod keys;
mod listing;
pub(crate) mod page;
pub(crate) mod page_table;
mod pages;
mod parts;
mod pool_counts;
mod records;
pub(crate) mod tree;

#[cfg(test)]
mod tests;

use std::ops::{ControlFlow, Range};

use atoll_buffers::BLOCK_BYTES;
use atoll_codec::CodecError;
use atoll_types::Seals;
use bytes::Bytes;

pub(crate) use bitmap::Bitmap;
use changes::Entry;
pub(crate) use changes::{Changes, Prepared};
pub use keys::ObjectKey;
pub use listing::ObjectsPage;
pub(crate) use page::{PageKind, fuzz_page};
pub use pages::Cold;
pub(crate) use pages::{Location, PageError, Pages};
pub(crate) use parts::{Part, Parts, Split};
pub(crate) use pool_counts::{PoolCount, PoolCounts};
pub use records::ObjectInfo;
pub(crate) use records::{BlockMeta, CHUNK_BLOCKS, CHUNK_BYTES, Chunk, ChunkValue, HOLE, OBJECT_BLOCKS_MAX};
pub(crate) use tree::Tree;

/// Why something cannot be looked up or prepared now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Unready {
    /// Pages must be loaded first.
    Cold(Cold),
    /// An entry of the tree makes no sense.
    Damaged(CodecError),
    /// The request is invalid.
    Invalid(String),
}

impl From<PageError> for Unready {
    fn from(error: PageError) -> Self {
        match error {
            PageError::Cold(cold) => Unready::Cold(cold),
            PageError::Contradiction { page } => Unready::Damaged(CodecError::Invalid {
                what: "a reference to a metadata page",
                value: page.into(),
            }),
        }
    }
}

impl From<CodecError> for Unready {
    fn from(error: CodecError) -> Self {
        Unready::Damaged(error)
    }
}

/// Omap entries in key order, and whether more follow.
pub type OmapPage = (Vec<(Bytes, Bytes)>, bool);

/// The metadata of a store.
pub(crate) struct Metadata {
    pub tree: Tree,
    pub bitmap: Bitmap,
    pub object_count: u64,
    /// None if the store was not counted from its beginning.
    pub pool_counts: Option<PoolCounts>,
    pub parts: Parts,
}

impl Metadata {
    /// Returns the properties of an object as a whole.
    pub fn info(&self, object: &[u8]) -> Result<Option<ObjectInfo>, Unready> {
        let value = self.tree.get(&keys::header(object))?;
        Ok(value.map(ObjectInfo::decode).transpose()?)
    }

    /// Where `count` blocks of an object from `first` on are.
    pub fn blocks(&self, object: &[u8], first: usize, count: usize) -> Result<Vec<BlockMeta>, Unready> {
        let mut blocks = vec![HOLE; count];
        self.for_each_chunk(object, first, count, |index, chunk, _| {
            copy_blocks(index, chunk, first, &mut blocks)
        })?;
        Ok(blocks)
    }

    /// Where the blocks that hold `length` bytes from `offset` on are, and the seals of all units that
    /// overlap them.
    pub fn blocks_and_seals(
        &self,
        object: &[u8],
        info: &ObjectInfo,
        offset: u64,
        length: u64,
    ) -> Result<(Vec<BlockMeta>, Option<Seals>), Unready> {
        let first = (offset / BLOCK_BYTES as u64) as usize;
        let mut blocks = vec![HOLE; length.div_ceil(BLOCK_BYTES as u64) as usize];
        let Some(mut seals) = SealRange::new(info, offset, length) else {
            return Ok((self.blocks(object, first, blocks.len())?, None));
        };
        // A unit is not longer than a chunk, so that these are the chunks of the blocks too.
        let (first_block, block_count) = seals.blocks();
        self.for_each_chunk(object, first_block, block_count, |index, chunk, chunk_seals| {
            copy_blocks(index, chunk, first, &mut blocks);
            seals.copy(index, chunk_seals);
        })?;
        Ok((blocks, Some(seals.finish())))
    }

    /// Looks at the chunks of a range of blocks; an error if they are not in memory.
    pub fn look_at_blocks(&self, object: &[u8], first_block: usize, block_count: usize) -> Result<(), PageError> {
        let Range { start: first, end } = chunks_of(first_block, block_count);
        if end == first + 1 {
            return self.tree.get(&keys::chunk(object, first)).map(drop);
        }
        let (from, to) = (keys::chunk(object, first), keys::chunk(object, end));
        self.tree.scan(&from, &to, |_, _| ControlFlow::Continue(()))
    }

    fn for_each_chunk(
        &self,
        object: &[u8],
        first_block: usize,
        block_count: usize,
        mut visit: impl FnMut(usize, &[BlockMeta; CHUNK_BLOCKS], &[u8]),
    ) -> Result<(), Unready> {
        let Range { start: first, end } = chunks_of(first_block, block_count);
        if end == first + 1 {
            if let Some(value) = self.tree.get(&keys::chunk(object, first))? {
                let (blocks, seals) = Chunk::decode_blocks(value)?;
                visit(first, &blocks, seals);
            }
            return Ok(());
        }
        let mut damage = None;
        self.tree.scan(&keys::chunk(object, first), &keys::chunk(object, end), |key, value| {
            match keys::chunk_index(object, key).and_then(|index| Ok((index, Chunk::decode_blocks(value)?))) {
                Ok((index, (blocks, seals))) => {
                    visit(index, &blocks, seals);
                    ControlFlow::Continue(())
                }
                Err(error) => {
                    damage = Some(error);
                    ControlFlow::Break(())
                }
            }
        })?;
        damage.map_or(Ok(()), |error| Err(error.into()))
    }

    /// The seals of all units that overlap `length` bytes from `offset` on.
    pub fn seals(
        &self,
        object: &[u8],
        info: &ObjectInfo,
        offset: u64,
        length: u64,
    ) -> Result<Option<Seals>, Unready> {
        let Some(mut seals) = SealRange::new(info, offset, length) else { return Ok(None) };
        let (first_block, block_count) = seals.blocks();
        self.for_each_chunk(object, first_block, block_count, |index, _, chunk| seals.copy(index, chunk))?;
        Ok(Some(seals.finish()))
    }

    /// The value of an omap entry.
    pub fn omap_value(&self, object: &[u8], omap_key: &[u8]) -> Result<Option<Bytes>, Unready> {
        Ok(self.value_in_parts(&keys::omap_entry(object, omap_key))?.map(Bytes::from))
    }

    /// A value that may be stored in parts.
    pub fn value_in_parts(&self, entry: &[u8]) -> Result<Option<Vec<u8>>, PageError> {
        let first = self.tree.get(&keys::part(entry, 0))?;
        // Only the last part is shorter.
        if first.is_none_or(|first| first.len() < keys::PART_BYTES) {
            return Ok(first.map(<[u8]>::to_vec));
        }
        let mut value: Option<Vec<u8>> = None;
        self.tree.scan(entry, &keys::end_of(entry), |_, part| {
            value.get_or_insert_default().extend_from_slice(part);
            ControlFlow::Continue(())
        })?;
        Ok(value)
    }

    /// Omap entries with this prefix from this key on, up to `limit` of them and about `bytes_max`
    /// bytes.
    pub fn omap_page(
        &self,
        object: &[u8],
        prefix: &[u8],
        from: &[u8],
        limit: usize,
        bytes_max: usize,
    ) -> Result<OmapPage, Unready> {
        let omap = keys::omap(object);
        let start = keys::omap_from(object, from.max(prefix));
        let mut entries: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
        let (mut bytes, mut more) = (0, false);
        self.tree.scan(&start, &keys::end_of(&omap), |key, part| {
            let Some((omap_key, _)) = keys::parse_omap(&omap, key) else { return ControlFlow::Continue(()) };
            if !omap_key.starts_with(prefix) {
                return ControlFlow::Break(());
            }
            if let Some((last, value)) = entries.last_mut()
                && *last == omap_key
            {
                bytes += part.len();
                value.extend_from_slice(part);
                return ControlFlow::Continue(());
            }
            if entries.len() == limit || bytes >= bytes_max {
                more = true;
                return ControlFlow::Break(());
            }
            bytes += omap_key.len() + part.len();
            entries.push((omap_key, part.to_vec()));
            ControlFlow::Continue(())
        })?;
        Ok((entries.into_iter().map(|(key, value)| (key.into(), value.into())).collect(), more))
    }

    /// Applies changes that were prepared from this very state.
    ///
    /// After an error a part of them is applied, and nothing must be changed or written any more. It
    /// means that pages contradict each other: the same key leads to different leaves.
    pub fn apply(&mut self, prepared: &Prepared) -> Result<(), Unready> {
        self.apply_entries(&prepared.entries).map_err(|error| match error {
            // Preparing has looked at the leaf of every key.
            PageError::Cold(Cold(pages)) => PageError::Contradiction { page: pages[0] },
            error => error,
        })?;
        self.object_count =
            self.object_count.checked_add_signed(prepared.object_delta).expect("preparing has counted, too");
        for &block in &prepared.referenced {
            self.bitmap.set(&mut self.tree.pages, block, true);
        }
        for &block in &prepared.freed {
            self.bitmap.set(&mut self.tree.pages, block, false);
        }
        Ok(())
    }

    fn apply_entries(&mut self, entries: &[Entry]) -> Result<(), PageError> {
        // First what is put: a leaf that loses all its entries leaves the tree, and then its keys
        // belong to the leaf before, which need not be in memory.
        for Entry { key, value, leaf } in entries {
            match (value, leaf) {
                (Some(value), Some(leaf)) => self.tree.put_in(*leaf, key, value)?,
                (Some(value), None) => self.tree.put(key, value)?,
                (None, _) => {}
            }
        }
        for Entry { key, .. } in entries.iter().filter(|entry| entry.value.is_none()) {
            self.tree.remove(key)?;
        }
        Ok(())
    }
}

/// The chunks of a range of blocks. No object has more than some, whatever the range.
fn chunks_of(first_block: usize, block_count: usize) -> Range<usize> {
    let chunks_max = OBJECT_BLOCKS_MAX / CHUNK_BLOCKS;
    let first = (first_block / CHUNK_BLOCKS).min(chunks_max);
    if block_count == 0 {
        return first..first;
    }
    first..first_block.saturating_add(block_count).div_ceil(CHUNK_BLOCKS).min(chunks_max)
}

/// Copies a chunk's metadata of the blocks from `first` on.
fn copy_blocks(chunk_index: usize, blocks: &[BlockMeta; CHUNK_BLOCKS], first: usize, output: &mut [BlockMeta]) {
    let chunk_first = chunk_index * CHUNK_BLOCKS;
    let end = (first + output.len()).min(chunk_first + CHUNK_BLOCKS);
    let from = first.max(chunk_first);
    if from < end {
        output[from - first..end - first].copy_from_slice(&blocks[from - chunk_first..end - chunk_first]);
    }
}

/// The seals of the units that overlap a range, as they are gathered from chunks.
struct SealRange {
    unit_bytes: u32,
    seal_bytes: u16,
    first: usize,
    end: usize,
    bytes: Vec<u8>,
}

impl SealRange {
    fn new(info: &ObjectInfo, offset: u64, length: u64) -> Option<Self> {
        let (unit_bytes, seal_bytes) = info.seal_shape()?;
        let unit = u64::from(unit_bytes);
        let (first, end) = ((offset / unit) as usize, offset.saturating_add(length).div_ceil(unit) as usize);
        let bytes = vec![0; (end - first) * usize::from(seal_bytes)];
        Some(SealRange { unit_bytes, seal_bytes, first, end, bytes })
    }

    /// The first of the units' blocks, and their number.
    fn blocks(&self) -> (usize, usize) {
        let blocks_per_unit = self.unit_bytes as usize / BLOCK_BYTES;
        (self.first * blocks_per_unit, (self.end - self.first) * blocks_per_unit)
    }

    fn copy(&mut self, chunk_index: usize, seals: &[u8]) {
        let width = usize::from(self.seal_bytes);
        let units_per_chunk = (CHUNK_BYTES / u64::from(self.unit_bytes)) as usize;
        let chunk_first = chunk_index * units_per_chunk;
        let (from, to) = (chunk_first.max(self.first), (chunk_first + units_per_chunk).min(self.end));
        if from < to {
            let output = &mut self.bytes[(from - self.first) * width..(to - self.first) * width];
            // Unset ones stay as they are.
            let stored = seals.get((from - chunk_first) * width..).unwrap_or(&[]);
            let length = stored.len().min(output.len());
            output[..length].copy_from_slice(&stored[..length]);
        }
    }

    fn finish(self) -> Seals {
        Seals { unit_bytes: self.unit_bytes, seal_bytes: self.seal_bytes, bytes: self.bytes.into() }
    }
}
