//! Checks of a transaction before places are found for its data: sizes, alignment, seals.

use atoll_codec::CodecError;
use atoll_types::Mutation;
use atoll_types::limits::{OBJECT_BYTES_MAX, SEAL_BYTES_MAX};

use crate::error::StoreError;
use crate::metadata::{CHUNK_BYTES, OBJECT_BLOCKS_MAX, ObjectInfo};
use crate::plan::BLOCK;

fn invalid(detail: impl Into<String>) -> StoreError {
    StoreError::Invalid { detail: detail.into() }
}

/// Checks a transaction without allocating. Returns the number of data blocks that it needs at most.
pub(crate) fn validate(
    mutations: &[Mutation],
    payload_bytes: usize,
    info: Option<&ObjectInfo>,
) -> Result<u32, StoreError> {
    let size_bytes = info.map_or(0, |info| info.size_bytes);
    validate_shapes(mutations, payload_bytes, size_bytes, info.and_then(ObjectInfo::seal_shape))
}

/// The same, for an object of this size, whose seals cover units of this size and have this length. A simulated
/// store checks writes by it, too.
///
/// ```
/// use atoll_store::validate_shapes;
/// use atoll_types::Mutation;
///
/// assert!(validate_shapes(&[Mutation::Zero { offset: 1, length: 1 }], 0, 4096, None).is_err());
/// ```
pub fn validate_shapes(
    mutations: &[Mutation],
    payload_bytes: usize,
    mut size_bytes: u64,
    mut seal_shape: Option<(u32, u16)>,
) -> Result<u32, StoreError> {
    let (mut written_bytes, mut block_count) = (0, 0);
    // A roll back that an earlier release left half done is done again, and may find less of an object
    // than was there to be truncated the first time.
    let is_for_clients = mutations.iter().all(Mutation::is_for_clients);
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
            Mutation::Truncate { size_bytes: new_bytes } => {
                let unit = seal_shape.map_or(BLOCK, |(unit, _)| u64::from(unit));
                let new_bytes = if is_for_clients { *new_bytes } else { size_bytes.min(*new_bytes) };
                if new_bytes > size_bytes || !new_bytes.is_multiple_of(unit) && new_bytes != size_bytes {
                    return Err(invalid(format!(
                        "truncating {size_bytes} bytes to {new_bytes}: it must be less and a multiple of {unit}"
                    )));
                }
                size_bytes = new_bytes;
            }
            Mutation::CloneFrom { .. }
                if mutations.iter().filter(|mutation| !leaves_object_alone(mutation)).count() > 1 =>
            {
                return Err(invalid("a clone together with other changes"));
            }
            Mutation::CloneFrom { .. } | Mutation::ClonePreImage { .. } | Mutation::RemoveOther { .. } => {}
            Mutation::Remove => (size_bytes, seal_shape) = (0, None),
            Mutation::SetShardOf { object_bytes, shard_bytes, seal_unit_bytes, seal_bytes } => {
                let has_seals = *seal_unit_bytes != 0;
                let is_unit = seal_unit_bytes.is_multiple_of(BLOCK as u32)
                    && CHUNK_BYTES.is_multiple_of(u64::from((*seal_unit_bytes).max(1)));
                if has_seals && !(is_unit && (1..=SEAL_BYTES_MAX).contains(&usize::from(*seal_bytes))) {
                    return Err(invalid(format!("seals of {seal_bytes} bytes for {seal_unit_bytes} of data")));
                }
                seal_shape = has_seals.then_some((*seal_unit_bytes, *seal_bytes));
                let fits =
                    *object_bytes <= OBJECT_BYTES_MAX && (size_bytes..=OBJECT_BYTES_MAX).contains(shard_bytes);
                if !fits || !shard_bytes.is_multiple_of(BLOCK) {
                    return Err(invalid(format!(
                        "a shard of {shard_bytes} bytes of an object of {object_bytes}; it has {size_bytes}"
                    )));
                }
                size_bytes = *shard_bytes;
            }
            Mutation::Create
            | Mutation::SetVersion { .. }
            | Mutation::ResetLog { .. }
            | Mutation::Split { .. }
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

/// Checks that ranges and shapes of a mutation that was read from the log allow its preparation. Transactions in
/// the log were checked before they came there; this is for bytes that only look like a transaction.
pub(crate) fn check_logged(mutation: &Mutation) -> Result<(), CodecError> {
    let is_unit = |unit_bytes: u32| {
        unit_bytes.is_multiple_of(BLOCK as u32) && unit_bytes > 0 && CHUNK_BYTES.is_multiple_of(unit_bytes.into())
    };
    let (is_sound, value) = match mutation {
        Mutation::Zero { offset, length } => {
            (offset.checked_add(*length).is_some_and(|end| end <= OBJECT_BYTES_MAX), *offset)
        }
        Mutation::Write { seals: Some(seals), .. } => (is_unit(seals.unit_bytes), seals.unit_bytes.into()),
        Mutation::SetShardOf { seal_unit_bytes, .. } => {
            (*seal_unit_bytes == 0 || is_unit(*seal_unit_bytes), (*seal_unit_bytes).into())
        }
        _ => (true, 0),
    };
    if is_sound { Ok(()) } else { Err(CodecError::Invalid { what: "a mutation in the log", value }) }
}

/// Returns true if a mutation changes something other than its transaction's object.
fn leaves_object_alone(mutation: &Mutation) -> bool {
    matches!(mutation, Mutation::ClonePreImage { .. } | Mutation::RemoveOther { .. } | Mutation::ResetLog { .. })
}

/// Bytes of payload that the mutations take.
pub(crate) fn written_bytes(mutations: &[Mutation]) -> usize {
    let length =
        |mutation: &Mutation| if let Mutation::Write { length, .. } = mutation { *length as usize } else { 0 };
    mutations.iter().map(length).sum()
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
    seals: &atoll_types::Seals,
    shape: &mut Option<(u32, u16)>,
) -> Result<(), StoreError> {
    let new_shape = (seals.unit_bytes, seals.seal_bytes);
    if *shape.get_or_insert(new_shape) != new_shape {
        return Err(invalid("seals of another shape than the object's"));
    }
    if !CHUNK_BYTES.is_multiple_of(u64::from(seals.unit_bytes)) {
        return Err(invalid(format!(
            "seals of {} bytes each; the unit must divide {CHUNK_BYTES}",
            seals.unit_bytes
        )));
    }
    let unit_count = length.div_ceil(seals.unit_bytes) as usize;
    let fits = offset.is_multiple_of(u64::from(seals.unit_bytes))
        && seals.bytes.len() == unit_count * usize::from(seals.seal_bytes);
    if fits { Ok(()) } else { Err(invalid("seals that do not match the range written")) }
}
