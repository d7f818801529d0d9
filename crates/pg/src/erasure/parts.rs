//! Parts of shards, and the data of an object assembled from them.

use std::collections::BTreeMap;

use atoll_buffers::{BLOCK_BYTES, BlockBuffer};
use atoll_types::Seals;
use bytes::Bytes;

use super::shape::{Piece, Span};
use crate::actions::WholeObject;
use crate::config::CodeShape;

/// The bytes of a span of a shard, and the seals of the units in it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Part {
    pub data: Bytes,
    /// Empty if the object has no seals.
    pub seals: Bytes,
}

/// Cuts a part to a smaller span. Both spans begin at whole sealed units.
pub(crate) fn cut((span, part): &(Span, Part), wanted: Span, seal_shape: Option<(u32, u16)>) -> Part {
    let from = (wanted.start - span.start) as usize;
    let data = part.data.slice(from..from + wanted.length());
    let seals = match seal_shape {
        None => Bytes::new(),
        Some((unit, width)) => {
            let (unit, width) = (u64::from(unit), usize::from(width));
            let first = (wanted.start / unit - span.start / unit) as usize;
            let count = (wanted.end.div_ceil(unit) - wanted.start / unit) as usize;
            part.seals.slice(first * width..(first + count) * width)
        }
    };
    Part { data, seals }
}

pub(crate) fn is_all_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

/// Which blocks hold data: those that are not all zeros, or whose unit has a seal.
pub(crate) fn blocks_in_use(data: &[u8], seals: Option<&Seals>) -> Vec<bool> {
    let has_seal = |block: usize| {
        seals.is_some_and(|seals| {
            let (unit, width) = (block * BLOCK_BYTES / seals.unit_bytes as usize, usize::from(seals.seal_bytes));
            seals.bytes.get(unit * width..(unit + 1) * width).is_some_and(|seal| !is_all_zero(seal))
        })
    };
    let blocks = data.chunks(BLOCK_BYTES).enumerate();
    blocks.map(|(block, bytes)| has_seal(block) || !is_all_zero(bytes)).collect()
}

/// Joins pieces in a pooled buffer: fresh pages would cost more than the copy.
fn joined(pieces: &[Bytes]) -> Bytes {
    let length: usize = pieces.iter().map(Bytes::len).sum();
    let mut buffer = BlockBuffer::for_overwriting(length.div_ceil(BLOCK_BYTES));
    let mut rest = buffer.as_mut_slice();
    for piece in pieces {
        let (own, behind) = rest.split_at_mut(piece.len());
        own.copy_from_slice(piece);
        rest = behind;
    }
    Bytes::from_owner(buffer).slice(..length)
}

/// Assembles the data and seals of a range of an object from parts of its shards.
pub(crate) fn assemble(
    shape: CodeShape,
    whole: &WholeObject,
    (offset, length): (u64, u64),
    parts: &BTreeMap<u8, (Span, Part)>,
) -> (Bytes, Option<Seals>) {
    let end = whole.object_bytes.min(offset.saturating_add(length));
    let length = end.saturating_sub(offset);
    let slice = |piece: &Piece| {
        let (span, part) = &parts[&piece.shard];
        let start = (piece.offset - span.start) as usize;
        part.data.slice(start..start + piece.length as usize)
    };
    let mut pieces: Vec<Bytes> = shape.pieces(offset, length).map(|piece| slice(&piece)).collect();
    let data = if pieces.len() == 1 { pieces.remove(0) } else { joined(&pieces) };
    let seals = whole.seal_shape.map(|(unit_bytes, seal_bytes)| {
        let (unit, width) = (u64::from(unit_bytes), usize::from(seal_bytes));
        let units = if length == 0 { 0..0 } else { offset / unit..end.div_ceil(unit) };
        let mut bytes = Vec::with_capacity((units.end - units.start) as usize * width);
        for number in units {
            let piece = shape.pieces(number * unit, unit).next().expect("a unit is not empty");
            let (span, part) = &parts[&piece.shard];
            let index = (piece.offset / unit - span.start / unit) as usize * width;
            match part.seals.get(index..index + width) {
                Some(seal) => bytes.extend_from_slice(seal),
                None => bytes.resize(bytes.len() + width, 0),
            }
        }
        Seals { unit_bytes, seal_bytes, bytes: bytes.into() }
    });
    (data, seals)
}
