//! Turning a transaction into changes of the device and of the metadata: finding places for its data, and
//! preparing its changes. Replay prepares the same way, with the places that the log remembers.

use std::sync::Arc;

use atoll_buffers::{BLOCK_BYTES, BlockBuffer};
use atoll_codec::{CodecError, Reader, Writer, crc32c};
use atoll_types::limits::OBJECT_BYTES_MAX;
use atoll_types::operation::PG_META_OBJECT;
use atoll_types::{Mutation, ObjectName, PgId, Transaction};
use bytes::Bytes;

use crate::allocator::{Allocator, Run, Zone, push_run};
use crate::error::StoreError;
use crate::metadata::{
    BlockMeta, CHUNK_BLOCKS, CHUNK_BYTES, Changes, HOLE, Metadata, OBJECT_BLOCKS_MAX, ObjectInfo, ObjectKey,
    Prepared, Split, Unready, keys,
};
use crate::validate::validate;

/// Data up to this size (in whole blocks) is written in the log; more goes straight to fresh
/// blocks.
pub(crate) const INLINE_BYTES_MAX: usize = 64 << 10;

/// Where the blocks of one `Write` mutation go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BlockPlacement {
    pub runs: Vec<Run>,
    pub crcs: Vec<u32>,
    /// Those of the blocks that were free before; the log does not repeat them.
    fresh_blocks: Vec<u32>,
}

/// The payload, each write padded to whole blocks.
pub(crate) enum Data {
    /// It is written in the log, and a checkpoint applies it to its place.
    Inline(Arc<BlockBuffer>),
    /// It goes straight to its place. These are the client's own bytes, unless they had to be padded:
    /// they are copied only once, on their way to the device.
    Direct(Bytes),
}

impl Data {
    fn new(transaction: &Transaction, block_count: usize) -> Self {
        let payload = &transaction.payload;
        if block_count * BLOCK_BYTES <= INLINE_BYTES_MAX {
            return Data::Inline(Arc::new(padded(transaction, block_count)));
        }
        if payload.len() == block_count * BLOCK_BYTES {
            return Data::Direct(payload.clone());
        }
        Data::Direct(Bytes::from_owner(padded(transaction, block_count)))
    }

    fn as_slice(&self) -> &[u8] {
        match self {
            Data::Inline(buffer) => buffer.as_slice(),
            Data::Direct(bytes) => bytes,
        }
    }
}

pub(crate) fn padded(transaction: &Transaction, block_count: usize) -> BlockBuffer {
    let mut data = BlockBuffer::for_overwriting(block_count);
    let (mut rest, mut output) = (&transaction.payload[..], data.as_mut_slice());
    for mutation in &transaction.mutations {
        let Mutation::Write { length, .. } = mutation else { continue };
        let (bytes, after) = rest.split_at(*length as usize);
        let (blocks, blocks_after) = output.split_at_mut(bytes.len().next_multiple_of(BLOCK_BYTES));
        blocks[..bytes.len()].copy_from_slice(bytes);
        blocks[bytes.len()..].fill(0);
        (rest, output) = (after, blocks_after);
    }
    data
}

/// A transaction's data and its places.
pub(crate) struct Plan {
    pub data: Data,
    /// One for each `Write` mutation.
    pub placements: Vec<BlockPlacement>,
}

impl Plan {
    /// The device blocks of all writes, in the order of the data.
    pub fn blocks(&self) -> impl Iterator<Item = u32> + '_ {
        self.placements.iter().flat_map(BlockPlacement::blocks)
    }

    /// The runs of all writes, in the order of the data.
    pub fn runs(&self) -> impl Iterator<Item = Run> + '_ {
        self.placements.iter().flat_map(|placement| placement.runs.iter().copied())
    }

    /// The data that is written in the log.
    pub fn inline_data(&self) -> Option<&Arc<BlockBuffer>> {
        match &self.data {
            Data::Inline(buffer) => Some(buffer),
            Data::Direct(_) => None,
        }
    }
}

pub(crate) const BLOCK: u64 = BLOCK_BYTES as u64;

/// Finds places for a transaction's data and prepares its changes. Nothing is allocated after an error.
pub(crate) fn plan(
    transaction: &Transaction,
    metadata: &Metadata,
    allocator: &mut Allocator,
) -> Result<(Plan, Prepared), StoreError> {
    let object = object_of(transaction, metadata);
    let mut changes = Changes::new(metadata);
    let info = changes.info(&object)?;
    let block_count = validate(&transaction.mutations, transaction.payload.len(), info.as_ref())?;
    let is_inline = block_count as usize * BLOCK_BYTES <= INLINE_BYTES_MAX;
    // Blocks that the transaction itself frees, or shares with another object, must not be written in
    // place.
    let frees = |mutation: &Mutation| {
        use Mutation::{ClonePreImage, Remove, Truncate, Zero};
        matches!(mutation, Remove | Zero { .. } | Truncate { .. } | ClonePreImage { .. })
    };
    let may_reuse = is_inline && info.is_some() && !transaction.mutations.iter().any(frees);
    let may_share = info.is_some_and(|info| info.may_share);
    // Before anything costly is done: it would have to be done again if metadata must be loaded.
    for mutation in &transaction.mutations {
        let Mutation::Write { offset, length, .. } = mutation else { continue };
        let end = (offset + u64::from(*length)).div_ceil(CHUNK_BYTES);
        changes.look_at_chunks(&object, (offset / CHUNK_BYTES) as usize, end as usize)?;
    }
    let data = Data::new(transaction, block_count as usize);
    let mut blocks = data.as_slice().chunks_exact(BLOCK_BYTES);
    let mut places = Vec::new();
    for mutation in &transaction.mutations {
        let Mutation::Write { offset, length, .. } = mutation else { continue };
        let count = (*length as usize).div_ceil(BLOCK_BYTES);
        let crcs: Vec<u32> = blocks.by_ref().take(count).map(crc32c).collect();
        let reused = match may_reuse {
            true => blocks_to_reuse(&mut changes, &object, (offset / BLOCK) as usize, count, may_share)?,
            false => vec![None; count],
        };
        places.push((reused, crcs));
    }
    let placements = allocate(places, allocator)?;
    let plan = Plan { data, placements };
    match change(transaction, &object, &plan.placements, changes) {
        Ok(prepared) => Ok((plan, prepared)),
        Err(unready) => {
            plan.placements.iter().for_each(|placement| release_fresh(placement, allocator));
            Err(unready.into())
        }
    }
}

fn object_of(transaction: &Transaction, metadata: &Metadata) -> Vec<u8> {
    metadata.parts.object(transaction.pg, &transaction.object)
}

/// Small overwrites stay in place, unless the block is shared.
fn blocks_to_reuse(
    changes: &mut Changes,
    object: &[u8],
    first: usize,
    count: usize,
    may_share: bool,
) -> Result<Vec<Option<u32>>, Unready> {
    let mut blocks = Vec::with_capacity(count);
    let mut chunk = [HOLE; CHUNK_BLOCKS];
    for index in first..first + count {
        if index == first || index.is_multiple_of(CHUNK_BLOCKS) {
            chunk = changes.blocks(object, index / CHUNK_BLOCKS)?;
        }
        let meta = chunk[index % CHUNK_BLOCKS];
        if meta != HOLE && !changes.is_in_use(meta.device_block) {
            // The block may belong to another object, or be allocated to one.
            let damage = CodecError::Invalid { what: "a block of an object", value: meta.device_block.into() };
            return Err(damage.into());
        }
        let is_shared = meta != HOLE && may_share && changes.further_references(meta.device_block)? > 0;
        blocks.push((meta != HOLE && !is_shared).then_some(meta.device_block));
    }
    Ok(blocks)
}

/// Allocates missing places, for all writes or for none.
fn allocate(
    places: Vec<(Vec<Option<u32>>, Vec<u32>)>,
    allocator: &mut Allocator,
) -> Result<Vec<BlockPlacement>, StoreError> {
    let missing = places.iter().flat_map(|(blocks, _)| blocks).filter(|block| block.is_none()).count();
    let fresh = allocator.allocate(missing as u32, Zone::Data).ok_or(StoreError::NoSpace)?;
    let mut fresh = fresh.into_iter().flat_map(|(start, length)| start..start + length);
    let place = |(blocks, crcs): (Vec<Option<u32>>, Vec<u32>)| {
        let (mut runs, mut fresh_blocks): (Vec<Run>, Vec<u32>) = (Vec::new(), Vec::new());
        for block in blocks {
            let block = block.unwrap_or_else(|| {
                let block = fresh.next().expect("as many blocks were allocated as are missing");
                fresh_blocks.push(block);
                block
            });
            push_run(&mut runs, (block, 1));
        }
        BlockPlacement { runs, crcs, fresh_blocks }
    };
    Ok(places.into_iter().map(place).collect())
}

fn release_fresh(placement: &BlockPlacement, allocator: &mut Allocator) {
    placement.fresh_blocks.iter().for_each(|&block| allocator.release(block));
}

impl BlockPlacement {
    /// Blocks that are overwritten.
    pub fn in_place(runs: Vec<Run>, crcs: Vec<u32>) -> Self {
        BlockPlacement { runs, crcs, fresh_blocks: Vec::new() }
    }

    pub fn blocks(&self) -> impl Iterator<Item = u32> + '_ {
        self.runs.iter().flat_map(|&(start, length)| start..start + length)
    }

    /// Length of the encoding in bytes.
    pub fn encoded_bytes(&self) -> usize {
        8 + 8 * self.runs.len() + 4 * self.crcs.len()
    }

    pub fn encode(&self, writer: &mut Writer) {
        writer.u32(self.crcs.len() as u32);
        writer.u32(self.runs.len() as u32);
        for (start, length) in &self.runs {
            writer.u32(*start);
            writer.u32(*length);
        }
        self.crcs.iter().for_each(|crc| writer.u32(*crc));
    }

    pub fn decode(reader: &mut Reader) -> Result<Self, CodecError> {
        let count = reader.count(OBJECT_BLOCKS_MAX, "placed blocks")?;
        let mut runs = Vec::new();
        let mut placed: usize = 0;
        for _ in 0..reader.count(count, "runs")? {
            let (start, length) = (reader.u32("run start")?, reader.u32("run length")?);
            if length as usize > OBJECT_BLOCKS_MAX || start.checked_add(length).is_none() {
                return Err(CodecError::Invalid { what: "run length", value: length.into() });
            }
            runs.push((start, length));
            placed += length as usize;
        }
        if placed != count {
            return Err(CodecError::Invalid { what: "placed blocks", value: placed as u64 });
        }
        let crcs = (0..count).map(|_| reader.u32("block check")).collect::<Result<_, _>>()?;
        Ok(BlockPlacement::in_place(runs, crcs))
    }
}

/// Prepares the changes of a checked transaction.
pub(crate) fn prepare_logged(
    transaction: &Transaction,
    placements: &[BlockPlacement],
    metadata: &Metadata,
) -> Result<Prepared, Unready> {
    change(transaction, &object_of(transaction, metadata), placements, Changes::new(metadata))
}

fn change(
    transaction: &Transaction,
    object: &[u8],
    placements: &[BlockPlacement],
    mut changes: Changes,
) -> Result<Prepared, Unready> {
    let mut placements = placements.iter();
    let metadata = changes.metadata();
    for mutation in &transaction.mutations {
        match mutation {
            Mutation::Remove => {
                if metadata.parts.is_of(transaction.pg, &transaction.object) {
                    changes.remove_object(object)?;
                }
                continue;
            }
            Mutation::CloneFrom { source } => {
                let source = metadata.parts.object(transaction.pg, source);
                clone(&mut changes, &source, object)?;
                continue;
            }
            Mutation::ClonePreImage { copy } => {
                keep(&mut changes, object, &metadata.parts.object(transaction.pg, copy))?;
                continue;
            }
            Mutation::RemoveOther { object: other } => {
                if metadata.parts.is_of(transaction.pg, other) {
                    remove_other(&mut changes, object, &metadata.parts.object(transaction.pg, other))?;
                }
                continue;
            }
            Mutation::Split { pg_num_before, pg_num, is_whole } => {
                let split = metadata.parts.split(transaction.pg, *pg_num_before, *pg_num, *is_whole)?;
                split_own_object(&mut changes, &split, object, *is_whole)?;
                continue;
            }
            _ => {}
        }
        let info = match changes.info(object)? {
            Some(info) => info,
            None => {
                changes.set_info(object, &ObjectInfo::default())?;
                ObjectInfo::default()
            }
        };
        match mutation {
            Mutation::Write { offset, length, seals } => {
                let placement = placements.next().expect("every write has a placement");
                write(&mut changes, object, info, *offset, *length, seals.as_ref(), placement)?;
            }
            Mutation::Zero { offset, length } => zero(&mut changes, object, &info, *offset, *length)?,
            Mutation::Truncate { size_bytes } => {
                let size_bytes = info.size_bytes.min(*size_bytes);
                let end = size_bytes.next_multiple_of(BLOCK).min(OBJECT_BYTES_MAX);
                zero(&mut changes, object, &info, end, OBJECT_BYTES_MAX - end)?;
                changes.set_info(object, &ObjectInfo { size_bytes, ..info })?;
            }
            Mutation::Create | Mutation::ResetLog { .. } => {}
            Mutation::SetShardOf { object_bytes, shard_bytes, seal_unit_bytes, seal_bytes } => {
                let (seal_unit_bytes, seal_bytes) = (*seal_unit_bytes, *seal_bytes);
                let (size_bytes, whole_bytes) = (*shard_bytes, Some(*object_bytes));
                let changed = ObjectInfo { size_bytes, whole_bytes, seal_unit_bytes, seal_bytes, ..info };
                if changed.seal_shape() != info.seal_shape() {
                    clear_seals(&mut changes, object)?;
                }
                changes.set_info(object, &changed)?;
            }
            Mutation::SetVersion { version } => {
                changes.set_info(object, &ObjectInfo { version: *version, ..info })?;
            }
            Mutation::Remove
            | Mutation::CloneFrom { .. }
            | Mutation::ClonePreImage { .. }
            | Mutation::RemoveOther { .. }
            | Mutation::Split { .. } => unreachable!("handled above"),
            Mutation::OmapSet { key, value } => set_omap(&mut changes, object, key, Some(value))?,
            Mutation::OmapRemove { key } => set_omap(&mut changes, object, key, None)?,
            Mutation::OmapReplace { key, value, displaced_to } => {
                let old = changes.omap_value(object, key)?;
                set_omap(&mut changes, object, key, value.as_deref())?;
                if let Some(old) = old {
                    set_omap(&mut changes, object, displaced_to, Some(&old))?;
                }
            }
        }
    }
    set_versions(transaction, object, &mut changes)?;
    changes.finish()
}

/// Checks beyond [`validate`]: mutations that depend on other objects, and keys that are too long once they are
/// stored. Its metadata is in memory.
pub(crate) fn check_prepared(key: &ObjectKey, mutations: &[Mutation], metadata: &Metadata) -> Result<(), Unready> {
    let object = metadata.parts.object(key.pg, &key.name);
    for mutation in mutations {
        match mutation {
            Mutation::CloneFrom { .. } => look_at(key.pg, &object, mutations, Changes::new(metadata))?,
            Mutation::OmapSet { key, .. } | Mutation::OmapRemove { key } => check_omap_key(&object, key)?,
            Mutation::OmapReplace { key, displaced_to, .. } => {
                check_omap_key(&object, key)?;
                check_omap_key(&object, displaced_to)?;
            }
            _ => {}
        }
    }
    Ok(())
}

fn check_omap_key(object: &[u8], key: &[u8]) -> Result<(), Unready> {
    if keys::omap_key_fits(object, key) {
        return Ok(());
    }
    Err(Unready::Invalid(format!("an omap key of {} bytes with too many zeros in it", key.len())))
}

fn clone(changes: &mut Changes, source: &[u8], object: &[u8]) -> Result<(), Unready> {
    if source == object {
        return Err(Unready::Invalid("an object cannot be a clone of itself".into()));
    }
    changes.remove_object(object)?;
    if changes.clone_object(source, object)? {
        return Ok(());
    }
    Err(Unready::Invalid("the object to clone does not exist".into()))
}

fn keep(changes: &mut Changes, object: &[u8], copy: &[u8]) -> Result<(), Unready> {
    remove_other(changes, object, copy)?;
    changes.clone_object(object, copy).map(drop)
}

fn remove_other(changes: &mut Changes, object: &[u8], other: &[u8]) -> Result<(), Unready> {
    if other == object {
        return Err(Unready::Invalid("the other object must have another name".into()));
    }
    changes.remove_object(other)
}

/// Seals of one shape mean nothing to an object that has another.
fn clear_seals(changes: &mut Changes, object: &[u8]) -> Result<(), Unready> {
    for index in changes.chunks_between(object, 0, OBJECT_BLOCKS_MAX / CHUNK_BLOCKS)? {
        let mut chunk = changes.chunk(object, index)?;
        chunk.seals.clear();
        changes.set_chunk(object, index, &chunk)?;
    }
    Ok(())
}

/// A PG that is split off begins with a copy of the PG's own object, as far as that is known; a PG
/// that is merged back loses its own.
fn split_own_object(changes: &mut Changes, split: &Split, object: &[u8], is_whole: bool) -> Result<(), Unready> {
    let own_of = |pg: PgId| {
        let name = ObjectName::new(PG_META_OBJECT).expect("the name is short");
        keys::object(pg, &name)
    };
    for pg in &split.merged_back {
        changes.remove_object(&own_of(*pg))?;
    }
    for (pg, _) in &split.made {
        changes.remove_object(&own_of(*pg))?;
        if is_whole {
            changes.clone_object(object, &own_of(*pg))?;
        }
    }
    Ok(())
}

/// Reads all metadata that the mutations would read.
pub(crate) fn look_at(
    pg: PgId,
    object: &[u8],
    mutations: &[Mutation],
    mut changes: Changes,
) -> Result<(), Unready> {
    let may_share = changes.info(object)?.is_some_and(|info| info.may_share);
    for mutation in mutations {
        match mutation {
            Mutation::Write { offset, length, .. } => {
                let first = (offset / BLOCK) as usize;
                let count = (u64::from(*length).div_ceil(BLOCK) as usize).min(OBJECT_BLOCKS_MAX);
                if first < OBJECT_BLOCKS_MAX {
                    blocks_to_reuse(&mut changes, object, first, count, may_share)?;
                }
            }
            Mutation::Zero { offset, length } => {
                let info = changes.info(object)?.unwrap_or_default();
                zero(&mut changes, object, &info, *offset, *length)?;
            }
            Mutation::Truncate { .. } => {
                let info = changes.info(object)?.unwrap_or_default();
                zero(&mut changes, object, &info, 0, OBJECT_BYTES_MAX)?;
            }
            Mutation::Remove => changes.remove_object(object)?,
            Mutation::CloneFrom { source } => {
                let source = changes.metadata().parts.object(pg, source);
                clone(&mut changes, &source, object)?;
            }
            Mutation::ClonePreImage { copy } => {
                let copy = changes.metadata().parts.object(pg, copy);
                keep(&mut changes, object, &copy)?;
            }
            Mutation::RemoveOther { object: other } => {
                let other = changes.metadata().parts.object(pg, other);
                remove_other(&mut changes, object, &other)?;
            }
            Mutation::SetShardOf { seal_unit_bytes, seal_bytes, .. } => {
                let shape = (*seal_unit_bytes != 0).then_some((*seal_unit_bytes, *seal_bytes));
                if changes.info(object)?.unwrap_or_default().seal_shape() != shape {
                    clear_seals(&mut changes, object)?;
                }
            }
            Mutation::Split { pg_num_before, pg_num, is_whole } => {
                let split = changes.metadata().parts.split(pg, *pg_num_before, *pg_num, *is_whole)?;
                split_own_object(&mut changes, &split, object, *is_whole)?;
            }
            Mutation::Create | Mutation::SetVersion { .. } | Mutation::ResetLog { .. } => {}
            Mutation::OmapSet { key, .. } | Mutation::OmapRemove { key } => {
                changes.omap_value(object, key)?;
                set_omap(&mut changes, object, key, None)?;
            }
            Mutation::OmapReplace { key, displaced_to, .. } => {
                changes.omap_value(object, key)?;
                set_omap(&mut changes, object, key, None)?;
                set_omap(&mut changes, object, displaced_to, None)?;
            }
        }
    }
    Ok(())
}

/// A client's write has one log entry, for its object. Entries that come without their writes, to a
/// member during a backfill, change no object.
fn set_versions(transaction: &Transaction, object: &[u8], changes: &mut Changes) -> Result<(), Unready> {
    if !changes.metadata().parts.is_of(transaction.pg, &transaction.object) {
        return Ok(());
    }
    for entry in transaction.log.iter().filter(|entry| entry.object == transaction.object) {
        if let Some(info) = changes.info(object)? {
            changes.set_info(object, &ObjectInfo { version: entry.version, ..info })?;
        }
    }
    Ok(())
}

fn set_omap(changes: &mut Changes, object: &[u8], key: &[u8], value: Option<&[u8]>) -> Result<(), Unready> {
    check_omap_key(object, key)?;
    changes.set_omap(object, key, value)
}

fn write(
    changes: &mut Changes,
    object: &[u8],
    info: ObjectInfo,
    offset: u64,
    length: u32,
    seals: Option<&atoll_types::Seals>,
    placement: &BlockPlacement,
) -> Result<(), Unready> {
    let first = (offset / BLOCK) as usize;
    let end = first + placement.crcs.len();
    let mut blocks = placement.blocks().zip(&placement.crcs);
    for index in first / CHUNK_BLOCKS..end.div_ceil(CHUNK_BLOCKS) {
        let mut chunk = changes.chunk(object, index)?;
        let from = first.max(index * CHUNK_BLOCKS);
        let to = end.min((index + 1) * CHUNK_BLOCKS);
        for (block, (device_block, &crc)) in (from..to).zip(&mut blocks) {
            let meta = BlockMeta { device_block, crc };
            changes.map_block(&mut chunk, block % CHUNK_BLOCKS, meta, info.may_share)?;
        }
        if let Some(seals) = seals {
            set_chunk_seals(&mut chunk, index, offset, seals);
        }
        changes.set_chunk(object, index, &chunk)?;
    }
    let mut info = ObjectInfo { size_bytes: info.size_bytes.max(offset + u64::from(length)), ..info };
    if let Some(seals) = seals {
        (info.seal_unit_bytes, info.seal_bytes) = (seals.unit_bytes, seals.seal_bytes);
    }
    changes.set_info(object, &info)
}

/// Stores those of the seals whose units begin in the chunk; the first of all seals is of the unit at
/// `offset`.
fn set_chunk_seals(chunk: &mut crate::metadata::Chunk, index: usize, offset: u64, seals: &atoll_types::Seals) {
    let unit = u64::from(seals.unit_bytes);
    let width = usize::from(seals.seal_bytes);
    let units_per_chunk = (CHUNK_BYTES / unit) as usize;
    let first = (offset / unit) as usize;
    let end = first + seals.bytes.len() / width.max(1);
    let chunk_first = index * units_per_chunk;
    let (from, to) = (first.max(chunk_first), end.min(chunk_first + units_per_chunk));
    if from < to {
        chunk.set_seals(from - chunk_first, width, &seals.bytes[(from - first) * width..(to - first) * width]);
    }
}

fn zero(changes: &mut Changes, object: &[u8], info: &ObjectInfo, offset: u64, length: u64) -> Result<(), Unready> {
    let first = (offset / BLOCK) as usize;
    let end = ((offset + length).div_ceil(BLOCK) as usize).min(OBJECT_BLOCKS_MAX);
    for index in changes.chunks_between(object, first / CHUNK_BLOCKS, end.div_ceil(CHUNK_BLOCKS))? {
        let mut chunk = changes.chunk(object, index)?;
        let from = first.max(index * CHUNK_BLOCKS);
        let to = end.min((index + 1) * CHUNK_BLOCKS);
        for block in from..to {
            changes.map_block(&mut chunk, block % CHUNK_BLOCKS, HOLE, info.may_share)?;
        }
        if let Some((unit_bytes, seal_bytes)) = info.seal_shape() {
            let blocks_per_unit = unit_bytes as usize / BLOCK_BYTES;
            let width = usize::from(seal_bytes);
            let unit_from = (from - index * CHUNK_BLOCKS) / blocks_per_unit;
            let unit_end = (to - index * CHUNK_BLOCKS).div_ceil(blocks_per_unit);
            chunk.set_seals(unit_from, width, &vec![0; (unit_end - unit_from) * width]);
        }
        changes.set_chunk(object, index, &chunk)?;
    }
    Ok(())
}
