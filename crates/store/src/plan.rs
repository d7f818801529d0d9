//! Turning a transaction into changes of the device and of the metadata: checking it, finding
//! places for its data, and applying it. Replay applies the same way, with the places that the
//! log remembers.

use std::sync::Arc;

use atoll_base::limits::OBJECT_BYTES_MAX;
use atoll_base::{BLOCK_BYTES, BlockBuffer, CodecError, Mutation, Reader, Transaction, Writer, crc32c};

use crate::allocator::{Allocator, Run, Zone};
use crate::error::StoreError;
use crate::metadata::{Metadata, ObjectKey};
use crate::onode::{BlockMeta, HOLE, OBJECT_BLOCKS_MAX, Onode};

/// Data up to this size (in whole blocks) rides in the log; more goes straight to fresh places.
pub(crate) const INLINE_BYTES_MAX: usize = 64 << 10;

/// Where the blocks of one `Write` mutation go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Placement {
    pub runs: Vec<Run>,
    pub crcs: Vec<u32>,
}

/// A transaction's data and its places.
pub(crate) struct Plan {
    /// The payload, each write padded to whole blocks.
    pub data: Arc<BlockBuffer>,
    /// Whether the data rides in the log.
    pub is_inline: bool,
    /// One for each `Write` mutation.
    pub placements: Vec<Placement>,
}

const BLOCK: u64 = BLOCK_BYTES as u64;

fn invalid(detail: impl Into<String>) -> StoreError {
    StoreError::Invalid { detail: detail.into() }
}

/// Checks what can be checked of a transaction without allocating. Returns the number of data
/// blocks that it needs at most.
pub(crate) fn validate(
    mutations: &[Mutation],
    payload_bytes: usize,
    onode: Option<&Onode>,
) -> Result<u32, StoreError> {
    let mut size_bytes = onode.map_or(0, Onode::size_bytes);
    let mut seal_shape = onode.and_then(Onode::seal_shape);
    let (mut written_bytes, mut block_count) = (0, 0);
    for mutation in mutations {
        match mutation {
            Mutation::Write { offset, length, seals } => {
                let end = validate_write(*offset, *length, size_bytes)?;
                if let Some(seals) = seals {
                    validate_seals(*offset, *length, seals, &mut seal_shape)?;
                }
                size_bytes = size_bytes.max(end);
                written_bytes += *length as usize;
                block_count += u64::from(*length).div_ceil(BLOCK) as u32;
            }
            Mutation::Zero { offset, length } => {
                let unit = seal_shape.map_or(BLOCK, |(unit, _)| u64::from(unit));
                let end = offset.checked_add(*length).filter(|&end| end <= OBJECT_BYTES_MAX);
                if !offset.is_multiple_of(unit) || end.is_none_or(|end| !end.is_multiple_of(unit)) {
                    return Err(invalid(format!(
                        "zeroing {length} bytes at {offset}: both must be multiples of {unit} within the object"
                    )));
                }
            }
            Mutation::Remove => (size_bytes, seal_shape) = (0, None),
            Mutation::Create
            | Mutation::OmapSet { .. }
            | Mutation::OmapRemove { .. }
            | Mutation::OmapReplace { .. } => {}
        }
    }
    if block_count as usize > OBJECT_BLOCKS_MAX {
        return Err(invalid(format!("writes of {block_count} blocks at once; an object has {OBJECT_BLOCKS_MAX}")));
    }
    if written_bytes != payload_bytes {
        return Err(invalid(format!("writes of {written_bytes} bytes with a payload of {payload_bytes}")));
    }
    Ok(block_count)
}

fn validate_write(offset: u64, length: u32, size_bytes: u64) -> Result<u64, StoreError> {
    let end = offset.saturating_add(u64::from(length));
    if length == 0 || end > OBJECT_BYTES_MAX {
        return Err(invalid(format!(
            "a write of {length} bytes at {offset}; objects have up to {OBJECT_BYTES_MAX}"
        )));
    }
    if !offset.is_multiple_of(BLOCK) || (!end.is_multiple_of(BLOCK) && end < size_bytes) {
        return Err(invalid(format!(
            "a write of {length} bytes at {offset}: it must cover whole blocks of {BLOCK} bytes up to the object's end"
        )));
    }
    Ok(end)
}

fn validate_seals(
    offset: u64,
    length: u32,
    seals: &atoll_base::Seals,
    shape: &mut Option<(u32, u16)>,
) -> Result<(), StoreError> {
    let new_shape = (seals.unit_bytes, seals.seal_bytes);
    if *shape.get_or_insert(new_shape) != new_shape {
        return Err(invalid("seals of another shape than the object's"));
    }
    let unit_count = length.div_ceil(seals.unit_bytes) as usize;
    let fits = offset.is_multiple_of(u64::from(seals.unit_bytes))
        && seals.bytes.len() == unit_count * usize::from(seals.seal_bytes);
    if fits { Ok(()) } else { Err(invalid("seals that do not match the range written")) }
}

/// Finds places for a transaction's data. Nothing is allocated after an error.
pub(crate) fn plan(
    transaction: &Transaction,
    onode: Option<&Onode>,
    allocator: &mut Allocator,
) -> Result<Plan, StoreError> {
    let block_count = validate(&transaction.mutations, transaction.payload.len(), onode)?;
    let is_inline = block_count as usize * BLOCK_BYTES <= INLINE_BYTES_MAX;
    // What the transaction itself frees must not be written in place.
    let frees = |mutation: &Mutation| matches!(mutation, Mutation::Remove | Mutation::Zero { .. });
    let reuse = onode.filter(|_| is_inline && !transaction.mutations.iter().any(frees));
    let mut data = BlockBuffer::zeroed(block_count as usize);
    let mut placements = Vec::new();
    let (mut payload_position, mut first_block) = (0, 0);
    for mutation in &transaction.mutations {
        let Mutation::Write { offset, length, .. } = mutation else { continue };
        let length = *length as usize;
        let count = length.div_ceil(BLOCK_BYTES);
        let blocks = &mut data.as_mut_slice()[first_block * BLOCK_BYTES..(first_block + count) * BLOCK_BYTES];
        blocks[..length].copy_from_slice(&transaction.payload[payload_position..payload_position + length]);
        let crcs = blocks.chunks_exact(BLOCK_BYTES).map(crc32c).collect();
        match runs_for((offset / BLOCK) as usize, count, reuse, allocator) {
            Some(runs) => placements.push(Placement { runs, crcs }),
            None => {
                release_fresh(&placements, transaction, reuse, allocator);
                return Err(StoreError::NoSpace);
            }
        }
        payload_position += length;
        first_block += count;
    }
    Ok(Plan { data: Arc::new(data), is_inline, placements })
}

/// Small overwrites keep their place; everything else gets a fresh one.
fn runs_for(first: usize, count: usize, reuse: Option<&Onode>, allocator: &mut Allocator) -> Option<Vec<Run>> {
    let Some(onode) = reuse else { return allocator.allocate(count as u32, Zone::Data) };
    let fresh_count = (first..first + count).filter(|&index| onode.block(index) == HOLE).count();
    let fresh = allocator.allocate(fresh_count as u32, Zone::Data)?;
    let mut fresh = fresh.into_iter().flat_map(|(start, length)| start..start + length);
    let mut runs: Vec<Run> = Vec::new();
    for index in first..first + count {
        let block = match onode.block(index) {
            HOLE => fresh.next().expect("as many blocks were allocated as there are holes"),
            meta => meta.device_block,
        };
        match runs.last_mut() {
            Some((start, length)) if *start + *length == block => *length += 1,
            _ => runs.push((block, 1)),
        }
    }
    Some(runs)
}

fn release_fresh(
    placements: &[Placement],
    transaction: &Transaction,
    reuse: Option<&Onode>,
    allocator: &mut Allocator,
) {
    let writes = transaction.mutations.iter().filter_map(|mutation| match mutation {
        Mutation::Write { offset, .. } => Some((offset / BLOCK) as usize),
        _ => None,
    });
    for (first, placement) in writes.zip(placements) {
        for (index, block) in placement.blocks().enumerate() {
            let was_mapped = reuse.is_some_and(|onode| onode.block(first + index).device_block == block);
            if !was_mapped {
                allocator.release(block);
            }
        }
    }
}

impl Placement {
    pub fn blocks(&self) -> impl Iterator<Item = u32> + '_ {
        self.runs.iter().flat_map(|&(start, length)| start..start + length)
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
        Ok(Placement { runs, crcs })
    }
}

/// Applies a checked transaction to the metadata. `freed` takes the device blocks that nothing
/// refers to any more.
pub(crate) fn apply(
    transaction: &Transaction,
    placements: &[Placement],
    metadata: &mut impl Metadata,
    freed: &mut Vec<u32>,
) {
    let key = ObjectKey { pg: transaction.pg, name: transaction.object.clone() };
    let mut placements = placements.iter();
    for mutation in &transaction.mutations {
        if let Mutation::Remove = mutation {
            let removed = metadata.remove(&key);
            let blocks = removed.iter().flat_map(|onode| &onode.blocks).filter(|meta| **meta != HOLE);
            freed.extend(blocks.map(|meta| meta.device_block));
            continue;
        }
        let onode = metadata.edit(&key);
        match mutation {
            Mutation::Write { offset, length, seals } => {
                let placement = placements.next().expect("every write has a placement");
                apply_write(onode, *offset, *length, seals.as_ref(), placement, freed);
            }
            Mutation::Zero { offset, length } => apply_zero(onode, *offset, *length, freed),
            Mutation::Create => {}
            Mutation::Remove => unreachable!("handled above"),
            Mutation::OmapSet { key, value } => {
                onode.omap.insert(compact(key), compact(value));
            }
            Mutation::OmapRemove { key } => {
                onode.omap.remove(key);
            }
            Mutation::OmapReplace { key, value, displaced_to } => {
                let old = match value {
                    Some(value) => onode.omap.insert(compact(key), compact(value)),
                    None => onode.omap.remove(key),
                };
                if let Some(old) = old {
                    onode.omap.insert(compact(displaced_to), old);
                }
            }
        }
    }
    // A client's write has one entry, for this object; the entries that bring a lagging member level
    // are for the objects that were sent before them.
    for entry in &transaction.log {
        let key = ObjectKey { pg: transaction.pg, name: entry.object.clone() };
        if metadata.get(&key).is_some() {
            metadata.edit(&key).version = entry.version;
        }
    }
}

/// A copy of its own, so that a small value does not keep a whole network buffer in memory.
fn compact(bytes: &bytes::Bytes) -> bytes::Bytes {
    bytes::Bytes::copy_from_slice(bytes)
}

fn apply_write(
    onode: &mut Onode,
    offset: u64,
    length: u32,
    seals: Option<&atoll_base::Seals>,
    placement: &Placement,
    freed: &mut Vec<u32>,
) {
    let first = (offset / BLOCK) as usize;
    for (index, (device_block, &crc)) in placement.blocks().zip(&placement.crcs).enumerate() {
        let old = onode.set_block(first + index, BlockMeta { device_block, crc });
        if old != HOLE && old.device_block != device_block {
            freed.push(old.device_block);
        }
    }
    if let Some(seals) = seals {
        onode.set_seals(offset, seals);
    }
    onode.size_bytes = onode.size_bytes.max(offset + u64::from(length));
}

fn apply_zero(onode: &mut Onode, offset: u64, length: u64, freed: &mut Vec<u32>) {
    let first = (offset / BLOCK) as usize;
    let end = ((offset + length).div_ceil(BLOCK) as usize).min(onode.blocks.len());
    for index in first..end {
        let old = onode.set_block(index, HOLE);
        if old != HOLE {
            freed.push(old.device_block);
        }
    }
    onode.clear_seals(offset, length);
}
