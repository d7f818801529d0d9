//! A client's write in terms of shards: the old bytes that it needs, and then each shard's change and the
//! pre-image for a roll back.
//!
//! A small overwrite touches the data shards that it falls on and all parity shards, which change
//! by the difference of the data (parity delta). The bytes that it replaces go into the log entry:
//! usually each member reads those of its own shard, so that they need not travel.
//! For a larger one every shard clones the object instead, which copies no data. Seals are coded
//! like data: those of a parity shard are the code of those of the data shards, unit by unit.

mod shards;

use std::collections::BTreeMap;

use atoll_buffers::{BLOCK_BYTES, BlockBuffer};
use atoll_types::limits::{OBJECT_BYTES_MAX, SEAL_BYTES_MAX};
use atoll_types::{Mutation, ObjectName, PreImage, Refusal, Seals};
use bytes::Bytes;

use super::shape::Span;
use crate::actions::WholeObject;
use crate::config::CodeShape;

/// Most replaced bytes of a shard that a log entry holds.
pub(super) const INLINE_PRE_IMAGE_BYTES_MAX: usize = 64 << 10;

const BLOCK: u64 = BLOCK_BYTES as u64;

/// Change of one shard.
#[derive(Clone, Debug)]
pub(crate) struct ShardChange {
    pub mutations: Vec<Mutation>,
    pub payload: Bytes,
    pub pre_image: PreImage,
    pub basis: Basis,
}

/// First step of the member with a shard, before it logs its change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Basis {
    /// Nothing: the change and its pre-image are whole.
    Whole,
    /// It reads the replaced data, and adds that to the pre-image.
    NewBytes,
    /// The same. The payload and the seals are the difference of the new ones from the old ones.
    Difference,
}

/// Fate of a block.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Unchanged,
    Written,
    Zeroed,
}

/// The new bytes of a data shard, over the update's span.
struct Column {
    data: BlockBuffer,
    fates: Vec<Fate>,
    seals: Vec<u8>,
    /// By unit.
    seals_changed: Vec<bool>,
}

/// A write of an object in terms of its shards.
pub(crate) struct Update {
    shape: CodeShape,
    old: Option<WholeObject>,
    /// Nothing of the old object stays.
    starts_anew: bool,
    is_removed: bool,
    clone_source: Option<ObjectName>,
    object_bytes: u64,
    seal_shape: Option<(u32, u16)>,
    /// Empty if no data changes.
    pub span: Span,
    columns: Vec<Option<Column>>,
    /// Members read the replaced data themselves, all but the one with this shard, which asks.
    asking_shard: Option<u8>,
}

fn invalid(detail: impl Into<String>) -> Refusal {
    Refusal::Invalid { detail: detail.into() }
}

impl Update {
    /// Checks a write and finds the span that it changes. Refuses writes that an erasure-coded pool does not
    /// support.
    pub fn plan(
        shape: CodeShape,
        old: Option<WholeObject>,
        mutations: &[Mutation],
        payload: &Bytes,
    ) -> Result<Self, Refusal> {
        let mut update = Update {
            shape,
            old,
            starts_anew: old.is_none(),
            is_removed: old.is_none(),
            clone_source: None,
            object_bytes: old.map_or(0, |old| old.object_bytes),
            seal_shape: old.and_then(|old| old.seal_shape),
            span: Span { start: 0, end: 0 },
            columns: Vec::new(),
            asking_shard: None,
        };
        let mut written_bytes = 0;
        for mutation in mutations {
            update.look_at(mutation, mutations.len())?;
            if let Mutation::Write { length, .. } = mutation {
                written_bytes += *length as usize;
            }
        }
        if written_bytes != payload.len() {
            return Err(invalid(format!("writes of {written_bytes} bytes with a payload of {}", payload.len())));
        }
        let last_remove = mutations.iter().rposition(|mutation| *mutation == Mutation::Remove);
        for mutation in &mutations[last_remove.map_or(0, |last| last + 1)..] {
            update.check_unit(mutation)?;
            match mutation {
                Mutation::Write { offset, length, .. } => update.touch(*offset, u64::from(*length)),
                Mutation::Zero { offset, length } => update.touch(*offset, update.zeroed_length(*offset, *length)),
                Mutation::Truncate { size_bytes } => update.touch(*size_bytes, update.cut_length(*size_bytes)),
                _ => {}
            }
        }
        if let Some((unit_bytes, _)) = update.seal_shape {
            update.span = update.span.widened(u64::from(unit_bytes));
        }
        update.columns = (0..shape.data).map(|_| None).collect();
        update.fill_columns(mutations, payload);
        Ok(update)
    }

    fn look_at(&mut self, mutation: &Mutation, count: usize) -> Result<(), Refusal> {
        match mutation {
            Mutation::Write { offset, length, seals } => self.look_at_write(*offset, *length, seals.as_ref())?,
            Mutation::Zero { offset, length } => {
                let unit = self.unit_bytes();
                let end = offset.checked_add(*length).filter(|end| *end <= OBJECT_BYTES_MAX);
                if !offset.is_multiple_of(unit) || end.is_none_or(|end| !end.is_multiple_of(unit)) {
                    return Err(invalid(format!(
                        "zeroing {length} bytes at {offset}: both must be multiples of {unit} within the object"
                    )));
                }
                self.is_removed = false;
            }
            Mutation::Truncate { size_bytes } => self.look_at_truncation(*size_bytes, count)?,
            Mutation::Remove => {
                self.starts_anew = true;
                self.is_removed = true;
                (self.object_bytes, self.seal_shape) = (0, None);
            }
            Mutation::Create => self.is_removed = false,
            Mutation::CloneFrom { source } if count == 1 => {
                self.is_removed = false;
                self.clone_source = Some(source.clone());
            }
            Mutation::CloneFrom { .. } => return Err(invalid("a clone together with other changes")),
            Mutation::OmapSet { .. } | Mutation::OmapRemove { .. } | Mutation::OmapReplace { .. } => {
                return Err(invalid(
                    "an erasure-coded pool holds data only: keys and values (such as a bucket's index) need a replicated pool",
                ));
            }
            Mutation::SetVersion { .. }
            | Mutation::ResetLog { .. }
            | Mutation::Split { .. }
            | Mutation::ClonePreImage { .. }
            | Mutation::RemoveOther { .. }
            | Mutation::SetShardOf { .. } => unreachable!("admission refuses mutations that are not for clients"),
        }
        Ok(())
    }

    fn look_at_write(&mut self, offset: u64, length: u32, seals: Option<&Seals>) -> Result<(), Refusal> {
        let end = offset.saturating_add(u64::from(length));
        if length == 0 || end > OBJECT_BYTES_MAX {
            let detail = format!("a write of {length} bytes at {offset}; objects have up to {OBJECT_BYTES_MAX}");
            return Err(invalid(detail));
        }
        if !offset.is_multiple_of(BLOCK) || !end.is_multiple_of(BLOCK) && end < self.object_bytes {
            return Err(invalid(format!(
                "a write of {length} bytes at {offset}: it must cover whole blocks of {BLOCK} bytes up to the object's end"
            )));
        }
        if let Some(seals) = seals {
            self.check_seals(offset, length, seals)?;
        }
        self.object_bytes = self.object_bytes.max(end);
        self.is_removed = false;
        Ok(())
    }

    /// Shards change all at once, so zeroed ranges must fit the seals that the object has in the end: a later
    /// write of the request may give it some.
    fn check_unit(&self, mutation: &Mutation) -> Result<(), Refusal> {
        let unit = self.unit_bytes();
        match *mutation {
            Mutation::Zero { offset, length } if !offset.is_multiple_of(unit) || !length.is_multiple_of(unit) => {
                Err(invalid(format!(
                    "zeroing {length} bytes at {offset} and then sealing units of {unit}: both must be multiples of that"
                )))
            }
            _ => Ok(()),
        }
    }

    fn look_at_truncation(&mut self, size_bytes: u64, count: usize) -> Result<(), Refusal> {
        let unit = self.unit_bytes();
        if size_bytes > self.object_bytes || !size_bytes.is_multiple_of(unit) && size_bytes != self.object_bytes {
            return Err(invalid(format!(
                "truncating {} bytes to {size_bytes}: it must be less and a multiple of {unit}",
                self.object_bytes
            )));
        }
        if count > 1 {
            return Err(invalid("a truncation together with other changes in an erasure-coded pool"));
        }
        self.is_removed = false;
        self.object_bytes = size_bytes;
        Ok(())
    }

    fn check_seals(&mut self, offset: u64, length: u32, seals: &Seals) -> Result<(), Refusal> {
        let shape = (seals.unit_bytes, seals.seal_bytes);
        if *self.seal_shape.get_or_insert(shape) != shape {
            return Err(invalid("seals of another shape than the object's"));
        }
        if seals.unit_bytes == 0 || !self.shape.chunk_bytes.is_multiple_of(seals.unit_bytes) {
            return Err(invalid(format!(
                "sealed units of {} bytes do not fit the pool's chunks of {}; use a pool with larger chunks",
                seals.unit_bytes, self.shape.chunk_bytes
            )));
        }
        let unit_count = length.div_ceil(seals.unit_bytes) as usize;
        let width = usize::from(seals.seal_bytes);
        let fits = (1..=SEAL_BYTES_MAX).contains(&width)
            && offset.is_multiple_of(u64::from(seals.unit_bytes))
            && seals.bytes.len() == unit_count * width;
        if fits { Ok(()) } else { Err(invalid("seals that do not match the range written")) }
    }

    /// How much of a range to be zeroed lies within the object's stripes.
    fn zeroed_length(&self, offset: u64, length: u64) -> u64 {
        self.object_bytes.next_multiple_of(self.shape.stripe_bytes()).saturating_sub(offset).min(length)
    }

    /// Returns the length that a truncation must zero: the rest of the stripe that it cuts. Shards end after it.
    fn cut_length(&self, size_bytes: u64) -> u64 {
        if self.old.is_none_or(|old| old.object_bytes == size_bytes) {
            return 0;
        }
        size_bytes.next_multiple_of(self.shape.stripe_bytes()) - size_bytes
    }

    fn touch(&mut self, offset: u64, length: u64) {
        if let Some(span) = self.shape.span(offset, length) {
            self.span = if self.span.length() == 0 { span } else { self.span.hull(&span) };
        }
    }

    // ---- the new bytes ----------------------------------------------------------------------

    fn unit_bytes(&self) -> u64 {
        self.seal_shape.map_or(BLOCK, |(unit, _)| u64::from(unit))
    }

    fn seal_width(&self) -> usize {
        self.seal_shape.map_or(0, |(_, width)| usize::from(width))
    }

    fn unit_count(&self) -> usize {
        self.span.length() / self.unit_bytes() as usize
    }

    fn column(&mut self, shard: u8) -> &mut Column {
        let (blocks, units, width) = (self.span.length() / BLOCK_BYTES, self.unit_count(), self.seal_width());
        self.columns[usize::from(shard)].get_or_insert_with(|| Column {
            data: BlockBuffer::for_overwriting(blocks),
            fates: vec![Fate::Unchanged; blocks],
            seals: vec![0; units * width],
            seals_changed: vec![false; units],
        })
    }

    fn fill_columns(&mut self, mutations: &[Mutation], payload: &Bytes) {
        let last_remove = mutations.iter().rposition(|mutation| *mutation == Mutation::Remove);
        let mut rest = &payload[..];
        for (number, mutation) in mutations.iter().enumerate() {
            let counts = last_remove.is_none_or(|last| number > last);
            match mutation {
                Mutation::Write { offset, length, seals } => {
                    let (data, behind) = rest.split_at(*length as usize);
                    rest = behind;
                    if counts {
                        self.write(*offset, data, seals.as_ref());
                    }
                }
                Mutation::Zero { offset, length } if counts => {
                    self.zero(*offset, self.zeroed_length(*offset, *length));
                }
                Mutation::Truncate { size_bytes } => self.zero(*size_bytes, self.cut_length(*size_bytes)),
                _ => {}
            }
        }
    }

    fn write(&mut self, offset: u64, mut data: &[u8], seals: Option<&Seals>) {
        let (span, unit, width) = (self.span, self.unit_bytes(), self.seal_width());
        let mut seals = seals.map(|seals| &seals.bytes[..]);
        for piece in self.shape.pieces(offset, data.len() as u64) {
            let (bytes, behind) = data.split_at(piece.length as usize);
            data = behind;
            let column = self.column(piece.shard);
            let start = (piece.offset - span.start) as usize;
            let blocks = column.put(start, bytes.len(), Fate::Written);
            blocks[..bytes.len()].copy_from_slice(bytes);
            blocks[bytes.len()..].fill(0);
            if let Some(seals) = &mut seals {
                let first = start / unit as usize;
                let count = bytes.len().div_ceil(unit as usize);
                let (own, behind) = seals.split_at(count * width);
                *seals = behind;
                column.seals[first * width..][..own.len()].copy_from_slice(own);
                column.seals_changed[first..first + count].fill(true);
            }
        }
    }

    fn zero(&mut self, offset: u64, length: u64) {
        let (span, unit, width) = (self.span, self.unit_bytes(), self.seal_width());
        for piece in self.shape.pieces(offset, length) {
            let column = self.column(piece.shard);
            let start = (piece.offset - span.start) as usize;
            column.put(start, piece.length as usize, Fate::Zeroed).fill(0);
            let first = start / unit as usize;
            let count = (piece.length as usize).div_ceil(unit as usize);
            column.seals[first * width..(first + count) * width].fill(0);
            column.seals_changed[first..first + count].fill(true);
        }
    }

    // ---- what it needs ----------------------------------------------------------------------

    /// Returns true if there was no object when the write was planned.
    pub fn creates(&self) -> bool {
        self.old.is_none()
    }

    /// The object has another version since the write was planned, and is otherwise the same.
    pub fn set_old_version(&mut self, version: atoll_types::Version) {
        if let Some(old) = &mut self.old {
            old.version = version;
        }
    }

    /// The span that other reads and writes of the object must not touch meanwhile.
    pub fn locked_span(&self) -> Span {
        // A member's answer counts only if its shard has the right length, so nothing else may read
        // while the length changes.
        let changes_length = self.shape.shard_bytes(self.object_bytes) != self.old_shard_bytes();
        if self.starts_anew || self.clone_source.is_some() || changes_length { Span::WHOLE } else { self.span }
    }

    fn old_shard_bytes(&self) -> u64 {
        self.old.map_or(0, |old| self.shape.shard_bytes(old.object_bytes))
    }

    /// The part of the span that the old object has.
    fn old_span(&self) -> Option<Span> {
        let there = Span { start: 0, end: self.old_shard_bytes() };
        if self.starts_anew || self.clone_source.is_some() { None } else { self.span.intersection(&there) }
    }

    /// Returns true if every shard clones the old object as its pre-image.
    pub fn clones_pre_image(&self) -> bool {
        let cut_bytes = self.old_shard_bytes().saturating_sub(self.shape.shard_bytes(self.object_bytes));
        let old_bytes = self.old_span().map_or(0, |span| span.length() as u64) + cut_bytes;
        let replaces = self.starts_anew || self.clone_source.is_some() || cut_bytes > 0;
        self.old.is_some() && (replaces || old_bytes > INLINE_PRE_IMAGE_BYTES_MAX as u64)
    }

    /// Returns true if members can read the replaced data themselves: it is a small overwrite of data that all
    /// have.
    pub fn can_be_read_by_members(&self) -> bool {
        self.may_stay_in_place() && self.old_span() == Some(self.span)
    }

    /// Lets members read the replaced data. This OSD has `own_shard` and reads that before.
    pub fn leave_to_members(&mut self, own_shard: u8) {
        self.asking_shard = Some(own_shard);
    }

    pub fn is_left_to_members(&self) -> bool {
        self.asking_shard.is_some()
    }

    /// Returns true if the member with a shard reads the replaced data.
    fn is_read_by_member(&self, shard: u8) -> bool {
        self.asking_shard.is_some_and(|own| own != shard)
    }

    /// Returns true if the new bytes and seals of all data shards are known.
    fn is_full(&self) -> bool {
        self.columns.iter().all(|column| {
            let seals_are_new = |column: &Column| self.seal_width() == 0 || !column.seals_changed.contains(&false);
            column.as_ref().is_some_and(|column| !column.fates.contains(&Fate::Unchanged) && seals_are_new(column))
        })
    }

    /// Returns true if parity changes by the difference of the data.
    fn is_delta(&self) -> bool {
        self.old_span().is_some() && !self.clones_pre_image() && !(self.is_left_to_members() && self.is_full())
    }

    /// The shards whose old bytes are needed, and where.
    pub fn wanted(&self) -> BTreeMap<u8, Span> {
        let Some(span) = self.old_span() else { return BTreeMap::new() };
        if !self.clones_pre_image() {
            let is_needed = |shard: &u8| match self.columns.get(usize::from(*shard)) {
                Some(column) => column.is_some() && (self.is_delta() || !self.is_read_by_member(*shard)),
                None => !self.is_read_by_member(*shard),
            };
            return (0..self.shape.shards()).filter(is_needed).map(|shard| (shard, span)).collect();
        }
        if self.is_full() {
            return BTreeMap::new();
        }
        (0..self.shape.data).map(|shard| (shard, span)).collect()
    }
}

impl Column {
    /// Sets the fate of the blocks of a range, and returns their bytes.
    fn put(&mut self, start: usize, length: usize, fate: Fate) -> &mut [u8] {
        let end = (start + length).next_multiple_of(BLOCK_BYTES);
        self.fates[start / BLOCK_BYTES..end / BLOCK_BYTES].fill(fate);
        &mut self.data.as_mut_slice()[start..end]
    }

    /// Fills unchanged blocks and seals with the old ones.
    fn fill_unchanged(&mut self, old: &BlockBuffer, old_seals: &[u8], width: usize) {
        let blocks = self.data.as_mut_slice().chunks_exact_mut(BLOCK_BYTES);
        for ((block, was), fate) in blocks.zip(old.as_slice().chunks_exact(BLOCK_BYTES)).zip(&self.fates) {
            if *fate == Fate::Unchanged {
                block.copy_from_slice(was);
            }
        }
        if width > 0 {
            let seals = self.seals.chunks_exact_mut(width).zip(old_seals.chunks_exact(width));
            for ((seal, was), changed) in seals.zip(&self.seals_changed) {
                if !changed {
                    seal.copy_from_slice(was);
                }
            }
        }
    }
}

/// The mutation that describes a shard's object in its metadata.
pub(crate) fn shard_of(shape: CodeShape, object_bytes: u64, seal_shape: Option<(u32, u16)>) -> Mutation {
    let (seal_unit_bytes, seal_bytes) = seal_shape.unwrap_or_default();
    let shard_bytes = shape.shard_bytes(object_bytes);
    Mutation::SetShardOf { object_bytes, shard_bytes, seal_unit_bytes, seal_bytes }
}

#[cfg(test)]
#[path = "update_tests.rs"]
mod tests;
