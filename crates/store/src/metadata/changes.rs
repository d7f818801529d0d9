//! The changes of a transaction, prepared beside the tree: later mutations see the results of earlier ones, and
//! the tree does not change before everything needed is known to be in memory.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use atoll_codec::CodecError;

use super::bitmap::Bitmap;
use super::keys::{self, PART_BYTES, SHARED_BLOCKS_PER_ENTRY};
use super::page::KEY_BYTES_MAX;
use super::pages::PageError;
use super::records::{BlockMeta, CHUNK_BLOCKS, Chunk, HOLE, ObjectInfo};
use super::{Metadata, Unready};

struct Slot {
    value: Option<Vec<u8>>,
    /// The leaf where it was found, or would have been.
    leaf: Option<u32>,
    is_changed: bool,
}

/// The header of the object that is being changed: most mutations look at it and change it.
struct Header {
    object: Vec<u8>,
    info: Option<ObjectInfo>,
    leaf: Option<u32>,
    is_changed: bool,
}

/// The changes of one transaction.
pub(crate) struct Changes<'a> {
    metadata: &'a Metadata,
    slots: BTreeMap<Vec<u8>, Slot>,
    /// The object's header, which counts in place of its slot.
    header: Option<Header>,
    /// The leaf that was found last. The way to it is in memory.
    leaf: Option<u32>,
    /// Device blocks that nothing refers to any more.
    pub freed: Vec<u32>,
    /// Device blocks that an object refers to now.
    pub referenced: Vec<u32>,
    object_delta: i64,
}

/// A key's new value; `None` removes it.
pub(super) struct Entry {
    pub key: Vec<u8>,
    pub value: Option<Vec<u8>>,
    /// Where it was when the change was prepared, if it was looked for.
    pub leaf: Option<u32>,
}

/// Changes that are ready to be applied.
pub(crate) struct Prepared {
    pub(super) entries: Vec<Entry>,
    pub freed: Vec<u32>,
    pub(super) referenced: Vec<u32>,
    pub(super) object_delta: i64,
}

const COUNT_BYTES: usize = 2;

/// Blocks of a chunk are written to, freed and counted: all must be in the device.
fn checked(blocks: [BlockMeta; CHUNK_BLOCKS], bitmap: Bitmap) -> Result<[BlockMeta; CHUNK_BLOCKS], CodecError> {
    match blocks.iter().find(|block| **block != HOLE && !bitmap.covers(block.device_block)) {
        Some(block) => Err(CodecError::Invalid { what: "block", value: block.device_block.into() }),
        None => Ok(blocks),
    }
}

impl<'a> Changes<'a> {
    pub fn new(metadata: &'a Metadata) -> Self {
        let (slots, freed, referenced) = (BTreeMap::new(), Vec::new(), Vec::new());
        Changes { metadata, slots, header: None, leaf: None, freed, referenced, object_delta: 0 }
    }

    /// The state before the changes.
    pub fn metadata(&self) -> &'a Metadata {
        self.metadata
    }

    /// Returns the changes to apply; an error if they contradict the state that they were prepared from.
    pub fn finish(mut self) -> Result<Prepared, Unready> {
        self.put_header_back();
        self.check_blocks()?;
        let object_count = self.metadata.object_count;
        if object_count.checked_add_signed(self.object_delta).is_none() {
            return Err(CodecError::Invalid { what: "the number of objects", value: object_count }.into());
        }
        let tree = &self.metadata.tree;
        // A key that does not exist must not be removed: its leaf may be gone by then, and the leaf
        // before need not be in memory.
        let is_effective = |key: &[u8], slot: &Slot| slot.value.is_some() || tree.get(key) != Ok(None);
        let changed = self.slots.into_iter().filter(|(key, slot)| slot.is_changed && is_effective(key, slot));
        let entries = changed.map(|(key, slot)| Entry { key, value: slot.value, leaf: slot.leaf }).collect();
        let (freed, referenced, object_delta) = (self.freed, self.referenced, self.object_delta);
        Ok(Prepared { entries, freed, referenced, object_delta })
    }

    /// Checks that blocks to be freed are in use and freed once, and that blocks to be taken are free.
    /// Chunks and counts that were read from a disk may say otherwise.
    fn check_blocks(&self) -> Result<(), CodecError> {
        if self.freed.is_empty() && self.referenced.is_empty() {
            return Ok(());
        }
        let mut freed = self.freed.clone();
        freed.sort_unstable();
        let twice = freed.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0]);
        let is_unknown = |block: &u32| !self.is_in_use(*block) && !self.referenced.contains(block);
        let unknown = || freed.iter().copied().find(is_unknown);
        if let Some(block) = twice.or_else(unknown) {
            return Err(CodecError::Invalid { what: "a block that becomes free", value: block.into() });
        }
        match self.referenced.iter().find(|block| self.is_in_use(**block)) {
            Some(block) => Err(CodecError::Invalid { what: "a block that is taken", value: (*block).into() }),
            None => Ok(()),
        }
    }

    /// Returns true if objects refer to a block before the changes. It is one of the data region.
    pub fn is_in_use(&self, block: u32) -> bool {
        self.metadata.bitmap.is_referenced(&self.metadata.tree.pages, block)
    }

    fn get(&mut self, key: &[u8]) -> Result<Option<&[u8]>, PageError> {
        if !self.slots.contains_key(key) {
            let (value, leaf) = self.find(key)?;
            let value = value.map(<[u8]>::to_vec);
            self.slots.insert(key.to_vec(), Slot { value, leaf: Some(leaf), is_changed: false });
        }
        Ok(self.slots[key].value.as_deref())
    }

    /// The value of a key before the changes, and its leaf.
    fn find(&mut self, key: &[u8]) -> Result<(Option<&'a [u8]>, u32), PageError> {
        let tree = &self.metadata.tree;
        let near = self.leaf.and_then(|leaf| Some((tree.get_in(leaf, key)?, leaf)));
        let (value, leaf) = near.map_or_else(|| tree.get_with_leaf(key), Ok)?;
        self.leaf = Some(leaf);
        Ok((value, leaf))
    }

    fn set(&mut self, key: Vec<u8>, value: Option<Vec<u8>>) -> Result<(), PageError> {
        match self.slots.get_mut(&key) {
            Some(slot) => *slot = Slot { value, is_changed: true, ..*slot },
            None => {
                let (_, leaf) = self.find(&key)?;
                self.slots.insert(key, Slot { value, leaf: Some(leaf), is_changed: true });
            }
        }
        Ok(())
    }

    /// The keys from `from` to `to` that exist now.
    fn keys_between(&self, from: &[u8], to: &[u8]) -> Result<Vec<Vec<u8>>, PageError> {
        let mut found = BTreeMap::new();
        self.metadata.tree.scan(from, to, |key, _| {
            found.insert(key.to_vec(), true);
            ControlFlow::Continue(())
        })?;
        for (key, slot) in self.slots.range(from.to_vec()..to.to_vec()) {
            found.insert(key.clone(), slot.value.is_some());
        }
        Ok(found.into_iter().filter(|(_, exists)| *exists).map(|(key, _)| key).collect())
    }

    /// The object's header, which stands in for its slot from now on.
    fn header(&mut self, object: &[u8]) -> Result<&mut Header, Unready> {
        if self.header.as_ref().is_none_or(|header| header.object != object) {
            self.put_header_back();
            let key = keys::header(object);
            let (info, leaf) = match self.slots.get(&key) {
                Some(slot) => (slot.value.as_deref().map(ObjectInfo::decode).transpose()?, slot.leaf),
                None => {
                    let (value, leaf) = self.find(&key)?;
                    (value.map(ObjectInfo::decode).transpose()?, Some(leaf))
                }
            };
            self.header = Some(Header { object: object.to_vec(), info, leaf, is_changed: false });
        }
        Ok(self.header.as_mut().expect("it was set above"))
    }

    fn put_header_back(&mut self) {
        let Some(Header { object, info, leaf, is_changed: true }) = self.header.take() else { return };
        let value = info.map(|info| info.encode());
        self.slots.insert(keys::header(&object), Slot { value, leaf, is_changed: true });
    }

    pub fn info(&mut self, object: &[u8]) -> Result<Option<ObjectInfo>, Unready> {
        Ok(self.header(object)?.info)
    }

    pub fn set_info(&mut self, object: &[u8], info: &ObjectInfo) -> Result<(), Unready> {
        let header = self.header(object)?;
        header.is_changed = true;
        let before = header.info.replace(*info);
        self.object_delta += i64::from(before.is_none());
        Ok(())
    }

    /// Reads the chunks from `first` to `end` in one pass, so that later lookups of single ones find
    /// them in memory.
    pub fn look_at_chunks(&mut self, object: &[u8], first: usize, end: usize) -> Result<(), Unready> {
        if end == first + 1 {
            self.get(&keys::chunk(object, first))?;
            return Ok(());
        }
        let mut found: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
        self.metadata.tree.scan(&keys::chunk(object, first), &keys::chunk(object, end), |key, value| {
            found.insert(key.to_vec(), value.to_vec());
            ControlFlow::Continue(())
        })?;
        for index in first..end {
            let key = keys::chunk(object, index);
            let value = found.remove(&key);
            self.slots.entry(key).or_insert(Slot { value, leaf: None, is_changed: false });
        }
        Ok(())
    }

    pub fn chunk(&mut self, object: &[u8], index: usize) -> Result<Chunk, Unready> {
        let bitmap = self.metadata.bitmap;
        let value = self.get(&keys::chunk(object, index))?;
        let chunk = value.map(Chunk::decode).transpose()?.unwrap_or_default();
        Ok(Chunk { blocks: checked(chunk.blocks, bitmap)?, ..chunk })
    }

    /// A chunk without its seals.
    pub fn blocks(&mut self, object: &[u8], index: usize) -> Result<[BlockMeta; CHUNK_BLOCKS], Unready> {
        let bitmap = self.metadata.bitmap;
        let value = self.get(&keys::chunk(object, index))?;
        let blocks = value.map(Chunk::decode_blocks).transpose()?.map(|(blocks, _)| blocks);
        Ok(checked(blocks.unwrap_or([HOLE; CHUNK_BLOCKS]), bitmap)?)
    }

    pub fn set_chunk(&mut self, object: &[u8], index: usize, chunk: &Chunk) -> Result<(), Unready> {
        let value = (!chunk.is_empty()).then(|| chunk.encode());
        Ok(self.set(keys::chunk(object, index), value)?)
    }

    /// Numbers of the object's chunks from `first` to `end`.
    pub fn chunks_between(&self, object: &[u8], first: usize, end: usize) -> Result<Vec<usize>, Unready> {
        let found = self.keys_between(&keys::chunk(object, first), &keys::chunk(object, end))?;
        Ok(found.iter().map(|key| keys::chunk_index(object, key)).collect::<Result<_, _>>()?)
    }

    // ---- omap -------------------------------------------------------------------------------

    pub fn omap_value(&mut self, object: &[u8], omap_key: &[u8]) -> Result<Option<Vec<u8>>, Unready> {
        let parts = self.parts_of(&keys::omap_entry(object, omap_key))?;
        if parts.is_empty() {
            return Ok(None);
        }
        let mut value = Vec::new();
        for key in parts {
            match self.slots.get(&key) {
                Some(slot) => value.extend_from_slice(slot.value.as_deref().unwrap_or(&[])),
                None => value.extend_from_slice(self.metadata.tree.get(&key)?.unwrap_or(&[])),
            }
        }
        if value.len() > keys::PARTS_BYTES_MAX {
            return Err(CodecError::Invalid { what: "length of an omap value", value: value.len() as u64 }.into());
        }
        Ok(Some(value))
    }

    pub fn set_omap(&mut self, object: &[u8], omap_key: &[u8], value: Option<&[u8]>) -> Result<(), Unready> {
        self.set_parts(&keys::omap_entry(object, omap_key), value)
    }

    /// The keys of the parts that a value has now.
    fn parts_of(&mut self, entry: &[u8]) -> Result<Vec<Vec<u8>>, PageError> {
        let first = keys::part(entry, 0);
        match self.get(&first)?.map(<[u8]>::len) {
            None => Ok(Vec::new()),
            // Only the last part is shorter.
            Some(0..PART_BYTES) => Ok(vec![first]),
            Some(_) => self.keys_between(entry, &keys::end_of(entry)),
        }
    }

    /// Sets a value that may be long, in parts.
    pub fn set_parts(&mut self, entry: &[u8], value: Option<&[u8]>) -> Result<(), Unready> {
        for key in self.parts_of(entry)? {
            self.set(key, None)?;
        }
        let Some(value) = value else { return Ok(()) };
        if value.is_empty() {
            return Ok(self.set(keys::part(entry, 0), Some(Vec::new()))?);
        }
        for (index, part) in value.chunks(PART_BYTES).enumerate() {
            self.set(keys::part(entry, index), Some(part.to_vec()))?;
        }
        Ok(())
    }

    pub fn set_value(&mut self, key: Vec<u8>, value: Vec<u8>) -> Result<(), Unready> {
        Ok(self.set(key, Some(value))?)
    }

    pub fn remove_value(&mut self, key: Vec<u8>) -> Result<(), Unready> {
        Ok(self.set(key, None)?)
    }

    // ---- whole objects ----------------------------------------------------------------------

    /// Removes everything of an object.
    pub fn remove_object(&mut self, object: &[u8]) -> Result<(), Unready> {
        let Some(info) = self.info(object)? else { return Ok(()) };
        for index in self.chunks_between(object, 0, usize::from(u16::MAX))? {
            let chunk = self.chunk(object, index)?;
            for block in chunk.blocks.iter().filter(|block| **block != HOLE) {
                self.release(block.device_block, info.may_share)?;
            }
        }
        self.put_header_back();
        for key in self.keys_between(object, &keys::end_of(object))? {
            self.set(key, None)?;
        }
        self.object_delta -= 1;
        Ok(())
    }

    /// Makes `target` a copy of `source` that refers to the same blocks.
    pub fn clone_object(&mut self, source: &[u8], target: &[u8]) -> Result<bool, Unready> {
        let Some(info) = self.info(source)? else { return Ok(false) };
        let shared = ObjectInfo { may_share: true, ..info };
        self.set_info(source, &shared)?;
        self.set_info(target, &shared)?;
        for index in self.chunks_between(source, 0, usize::from(u16::MAX))? {
            let chunk = self.chunk(source, index)?;
            for block in chunk.blocks.iter().filter(|block| **block != HOLE) {
                self.add_reference(block.device_block)?;
            }
            self.set_chunk(target, index, &chunk)?;
        }
        let omap = keys::omap(source);
        for key in self.keys_between(&omap, &keys::end_of(&omap))? {
            let value = self.get(&key)?.map(<[u8]>::to_vec);
            let target_key = [&keys::omap(target), &key[omap.len()..]].concat();
            if target_key.len() > KEY_BYTES_MAX {
                let detail = format!("an omap key of {} bytes for a clone with a longer name", target_key.len());
                return Err(Unready::Invalid(detail));
            }
            self.set(target_key, value)?;
        }
        Ok(true)
    }

    // ---- blocks -----------------------------------------------------------------------------

    /// Number of references to a block beyond the first.
    pub fn further_references(&mut self, block: u32) -> Result<u16, Unready> {
        let counts = self.shared_counts(block)?;
        Ok(counts[(block % SHARED_BLOCKS_PER_ENTRY) as usize])
    }

    fn shared_counts(&mut self, block: u32) -> Result<[u16; SHARED_BLOCKS_PER_ENTRY as usize], Unready> {
        Ok(further_references(self.get(&keys::shared(block))?))
    }

    fn set_shared_count(&mut self, block: u32, count: u16) -> Result<(), Unready> {
        let mut counts = self.shared_counts(block)?;
        counts[(block % SHARED_BLOCKS_PER_ENTRY) as usize] = count;
        let is_empty = counts.iter().all(|&count| count == 0);
        let value = (!is_empty).then(|| counts.iter().flat_map(|count| count.to_le_bytes()).collect());
        Ok(self.set(keys::shared(block), value)?)
    }

    fn add_reference(&mut self, block: u32) -> Result<(), Unready> {
        let count = self.further_references(block)?.checked_add(1);
        let count = count.ok_or(Unready::Invalid("an object has too many clones".into()))?;
        self.set_shared_count(block, count)
    }

    /// An object does not refer to the block any more.
    pub fn release(&mut self, block: u32, may_share: bool) -> Result<(), Unready> {
        if may_share && let count @ 1.. = self.further_references(block)? {
            return self.set_shared_count(block, count - 1);
        }
        self.freed.push(block);
        Ok(())
    }

    /// Maps a block of an object and releases the device block that it was mapped to before.
    pub fn map_block(
        &mut self,
        chunk: &mut Chunk,
        index: usize,
        meta: BlockMeta,
        may_share: bool,
    ) -> Result<(), Unready> {
        let old = std::mem::replace(&mut chunk.blocks[index], meta);
        if old.device_block == meta.device_block {
            return Ok(());
        }
        if meta != HOLE {
            self.referenced.push(meta.device_block);
        }
        if old != HOLE { self.release(old.device_block, may_share) } else { Ok(()) }
    }
}

/// The further references to the blocks of one entry, by its value.
pub(super) fn further_references(value: Option<&[u8]>) -> [u16; SHARED_BLOCKS_PER_ENTRY as usize] {
    let mut counts = [0; SHARED_BLOCKS_PER_ENTRY as usize];
    for (count, bytes) in counts.iter_mut().zip(value.unwrap_or(&[]).as_chunks::<COUNT_BYTES>().0) {
        *count = u16::from_le_bytes(*bytes);
    }
    counts
}
