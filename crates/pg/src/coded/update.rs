//! What a client's write means for the shards of an object: which old bytes are needed, and then what
//! every shard has to change, and how it takes that back.
//!
//! A small overwrite touches the data shards that it is about and all parity shards, which change by
//! what the data changes (parity delta); what was there goes into the log entry, so that it can be
//! taken back. Larger ones have every shard keep a clone of the object instead, which costs no copy
//! of data. Seals are coded like data: those of a parity shard are the code of those of the data
//! shards, unit by unit.

use std::collections::BTreeMap;

use atoll_base::limits::{OBJECT_BYTES_MAX, SEAL_BYTES_MAX};
use atoll_base::{BLOCK_BYTES, BlockBuffer, Mutation, ObjectName, Refusal, Seals, Undo};
use atoll_ec::Code;
use bytes::Bytes;

use super::shape::{Piece, Span};
use crate::actions::WholeObject;
use crate::group::CodeShape;

/// Up to so many overwritten bytes of a shard go into the log.
const INLINE_UNDO_BYTES_MAX: usize = 64 << 10;

const BLOCK: u64 = BLOCK_BYTES as u64;

/// The bytes of a span of a shard, and the seals of the units in it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Part {
    pub data: Bytes,
    /// Empty if the object has no seals.
    pub seals: Bytes,
}

/// What one shard does.
#[derive(Clone, Debug)]
pub(crate) struct ShardChange {
    pub mutations: Vec<Mutation>,
    pub payload: Bytes,
    pub undo: Undo,
}

/// What becomes of a block.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Kept,
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
    /// Nothing of what was there stays.
    starts_anew: bool,
    is_removed: bool,
    clone_source: Option<ObjectName>,
    object_bytes: u64,
    seal_shape: Option<(u32, u16)>,
    /// Empty if no data changes.
    span: Span,
    columns: Vec<Option<Column>>,
}

fn invalid(detail: impl Into<String>) -> Refusal {
    Refusal::Invalid { detail: detail.into() }
}

impl Update {
    /// Checks a write and finds out what it changes.
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
        update.fill(mutations, payload);
        Ok(update)
    }

    fn look_at(&mut self, mutation: &Mutation, count: usize) -> Result<(), Refusal> {
        match mutation {
            Mutation::Write { offset, length, seals } => {
                let end = offset.saturating_add(u64::from(*length));
                if *length == 0 || end > OBJECT_BYTES_MAX {
                    let detail =
                        format!("a write of {length} bytes at {offset}; objects have up to {OBJECT_BYTES_MAX}");
                    return Err(invalid(detail));
                }
                if !offset.is_multiple_of(BLOCK) || !end.is_multiple_of(BLOCK) && end < self.object_bytes {
                    return Err(invalid(format!(
                        "a write of {length} bytes at {offset}: it must cover whole blocks of {BLOCK} bytes up to the object's end"
                    )));
                }
                if let Some(seals) = seals {
                    self.check_seals(*offset, *length, seals)?;
                }
                self.object_bytes = self.object_bytes.max(end);
                self.is_removed = false;
            }
            Mutation::Zero { offset, length } => {
                let unit = self.seal_shape.map_or(BLOCK, |(unit, _)| u64::from(unit));
                let end = offset.checked_add(*length).filter(|end| *end <= OBJECT_BYTES_MAX);
                if !offset.is_multiple_of(unit) || end.is_none_or(|end| !end.is_multiple_of(unit)) {
                    return Err(invalid(format!(
                        "zeroing {length} bytes at {offset}: both must be multiples of {unit} within the object"
                    )));
                }
                self.is_removed = false;
            }
            Mutation::Truncate { size_bytes } => {
                let unit = self.seal_shape.map_or(BLOCK, |(unit, _)| u64::from(unit));
                if *size_bytes > self.object_bytes
                    || !size_bytes.is_multiple_of(unit) && *size_bytes != self.object_bytes
                {
                    return Err(invalid(format!(
                        "truncating {} bytes to {size_bytes}: it must be less and a multiple of {unit}",
                        self.object_bytes
                    )));
                }
                if count > 1 {
                    return Err(invalid("a truncation together with other changes in an erasure-coded pool"));
                }
                self.is_removed = false;
                self.object_bytes = *size_bytes;
            }
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
            | Mutation::KeepAs { .. }
            | Mutation::RemoveOther { .. }
            | Mutation::SetShardOf { .. } => unreachable!("clients' mutations were looked at before"),
        }
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

    /// How much of a range to be zeroed there is, when all is done.
    fn zeroed_length(&self, offset: u64, length: u64) -> u64 {
        self.object_bytes.next_multiple_of(self.shape.stripe_bytes()).saturating_sub(offset).min(length)
    }

    /// What a truncation must zero: the rest of the stripe that it cuts. Behind it shards end.
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
            fates: vec![Fate::Kept; blocks],
            seals: vec![0; units * width],
            seals_changed: vec![false; units],
        })
    }

    fn fill(&mut self, mutations: &[Mutation], payload: &Bytes) {
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

    /// Nothing else has changed since the write was planned.
    pub fn set_old_version(&mut self, version: atoll_base::Version) {
        if let Some(old) = &mut self.old {
            old.version = version;
        }
    }

    /// What other writes and reads of the object must keep off.
    pub fn locked_span(&self) -> Span {
        // A member's answer counts only if its shard is as long as it should be.
        let changes_length = self.shape.shard_bytes(self.object_bytes) != self.old_shard_bytes();
        if self.starts_anew || self.clone_source.is_some() || changes_length { Span::WHOLE } else { self.span }
    }

    fn old_shard_bytes(&self) -> u64 {
        self.old.map_or(0, |old| self.shape.shard_bytes(old.object_bytes))
    }

    /// The part of the span where something was before.
    fn old_span(&self) -> Option<Span> {
        let there = Span { start: 0, end: self.old_shard_bytes() };
        if self.starts_anew || self.clone_source.is_some() { None } else { self.span.intersection(&there) }
    }

    /// Whether every shard keeps a clone of what it has.
    fn keeps_clone(&self) -> bool {
        let cut_bytes = self.old_shard_bytes().saturating_sub(self.shape.shard_bytes(self.object_bytes));
        let old_bytes = self.old_span().map_or(0, |span| span.length() as u64) + cut_bytes;
        let replaces = self.starts_anew || self.clone_source.is_some() || cut_bytes > 0;
        self.old.is_some() && (replaces || old_bytes > INLINE_UNDO_BYTES_MAX as u64)
    }

    /// Which shards must be read, and where.
    pub fn wanted(&self) -> BTreeMap<u8, Span> {
        let Some(span) = self.old_span() else { return BTreeMap::new() };
        let is_full = |column: &Option<Column>| {
            let seals_are_new = |column: &Column| self.seal_width() == 0 || !column.seals_changed.contains(&false);
            column.as_ref().is_some_and(|column| !column.fates.contains(&Fate::Kept) && seals_are_new(column))
        };
        if !self.keeps_clone() {
            let touched = (0..self.shape.data).filter(|shard| self.columns[usize::from(*shard)].is_some());
            return touched.chain(self.shape.data..self.shape.shards()).map(|shard| (shard, span)).collect();
        }
        if self.columns.iter().all(is_full) {
            return BTreeMap::new();
        }
        (0..self.shape.data).map(|shard| (shard, span)).collect()
    }

    // ---- what every shard does --------------------------------------------------------------

    /// What every shard does, in the order of the shards. `old` holds what was wanted; `kept` is the
    /// name of the clone, should there be one.
    pub fn finish(mut self, code: &Code, old: &BTreeMap<u8, Part>, kept: ObjectName) -> Vec<ShardChange> {
        let is_delta = !old.is_empty() && !self.keeps_clone();
        let parity = match self.span.length() {
            0 => Vec::new(),
            _ if is_delta => self.parity_by_delta(code, old),
            _ => self.parity_of_all(code, old),
        };
        let undos: Vec<Undo> = (0..self.shape.shards()).map(|shard| self.undo(shard, old, &kept)).collect();
        let columns = std::mem::take(&mut self.columns).into_iter();
        let runs = columns.map(|column| column.map_or_else(Runs::default, |column| self.column_runs(column)));
        let mut runs: Vec<Runs> = runs.collect();
        runs.extend(parity.into_iter().map(|(data, seals)| self.parity_runs(data, &seals)));
        runs.resize_with(usize::from(self.shape.shards()), Runs::default);
        let change = |(runs, undo): (Runs, Undo)| {
            let mut mutations = Vec::new();
            if self.keeps_clone() {
                mutations.push(Mutation::KeepAs { copy: kept.clone() });
            }
            mutations.extend(self.frame());
            mutations.extend(runs.mutations);
            ShardChange { mutations, payload: runs.payload, undo }
        };
        runs.into_iter().zip(undos).map(change).collect()
    }

    /// Changes the old parity by what the data shards change. What a column keeps becomes what it was.
    fn parity_by_delta(&mut self, code: &Code, old: &BTreeMap<u8, Part>) -> Vec<(BlockBuffer, Vec<u8>)> {
        let width = self.seal_width();
        let old_part = |shard: u8| self.extended(old.get(&shard));
        let mut parity: Vec<_> = (self.shape.data..self.shape.shards()).map(old_part).collect();
        for shard in 0..self.shape.data {
            let (mut delta, mut seal_delta) = self.extended(old.get(&shard));
            let Some(column) = &mut self.columns[usize::from(shard)] else { continue };
            column.keep(&delta, &seal_delta, width);
            atoll_ec::xor_into(delta.as_mut_slice(), column.data.as_slice());
            atoll_ec::xor_into(&mut seal_delta, &column.seals);
            for (index, (data, seals)) in parity.iter_mut().enumerate() {
                code.update(usize::from(shard), delta.as_slice(), index, data.as_mut_slice());
                code.update(usize::from(shard), &seal_delta, index, seals);
            }
        }
        parity
    }

    /// Computes parity anew from all data shards.
    fn parity_of_all(&mut self, code: &Code, old: &BTreeMap<u8, Part>) -> Vec<(BlockBuffer, Vec<u8>)> {
        let width = self.seal_width();
        let (blocks, seal_bytes) = (self.span.length() / BLOCK_BYTES, self.unit_count() * width);
        let mut others: BTreeMap<u8, (BlockBuffer, Vec<u8>)> = BTreeMap::new();
        for shard in 0..self.shape.data {
            let has_all = |column: &Column| !column.fates.contains(&Fate::Kept);
            let is_full = self.columns[usize::from(shard)].as_ref().is_some_and(has_all);
            if is_full && width == 0 {
                continue;
            }
            let was = self.extended(old.get(&shard));
            match &mut self.columns[usize::from(shard)] {
                Some(column) => column.keep(&was.0, &was.1, width),
                None => drop(others.insert(shard, was)),
            }
        }
        let data: Vec<&[u8]> = (0..self.shape.data)
            .map(|shard| match &self.columns[usize::from(shard)] {
                Some(column) => column.data.as_slice(),
                None => others[&shard].0.as_slice(),
            })
            .collect();
        let seals: Vec<&[u8]> = (0..self.shape.data)
            .map(|shard| match &self.columns[usize::from(shard)] {
                Some(column) => &column.seals[..],
                None => &others[&shard].1[..],
            })
            .collect();
        let empty = || (BlockBuffer::for_overwriting(blocks), vec![0; seal_bytes]);
        let mut parity: Vec<_> = (0..self.shape.parity).map(|_| empty()).collect();
        let (mut parity_data, mut parity_seals): (Vec<&mut [u8]>, Vec<&mut [u8]>) =
            parity.iter_mut().map(|(data, seals)| (data.as_mut_slice(), &mut seals[..])).unzip();
        code.encode(&data, &mut parity_data);
        code.encode(&seals, &mut parity_seals);
        parity
    }

    /// A shard's old bytes and seals over the whole span; where it had none there are zeros.
    fn extended(&self, old: Option<&Part>) -> (BlockBuffer, Vec<u8>) {
        let (unit, width) = (self.unit_bytes(), self.seal_width());
        let mut data = BlockBuffer::zeroed(self.span.length() / BLOCK_BYTES);
        let mut seals = vec![0; self.unit_count() * width];
        if let (Some(part), Some(span)) = (old, self.old_span()) {
            let start = (span.start - self.span.start) as usize;
            data.as_mut_slice()[start..start + part.data.len()].copy_from_slice(&part.data);
            let first = start / unit as usize * width;
            let length = part.seals.len().min(seals.len() - first);
            seals[first..first + length].copy_from_slice(&part.seals[..length]);
        }
        (data, seals)
    }

    /// What brings the object itself into being, or its size or kind up to date.
    fn frame(&self) -> Vec<Mutation> {
        let mut mutations = Vec::new();
        if let Some(source) = &self.clone_source {
            return vec![Mutation::CloneFrom { source: source.clone() }];
        }
        if self.starts_anew && self.old.is_some() || self.is_removed {
            mutations.push(Mutation::Remove);
        }
        let is_as_before = |old: WholeObject| {
            !self.starts_anew && (old.object_bytes, old.seal_shape) == (self.object_bytes, self.seal_shape)
        };
        if !self.is_removed && !self.old.is_some_and(is_as_before) {
            let shard_bytes = self.shape.shard_bytes(self.object_bytes);
            if !self.starts_anew && shard_bytes < self.old_shard_bytes() {
                mutations.push(Mutation::Truncate { size_bytes: shard_bytes });
            }
            mutations.push(shard_of(self.shape, self.object_bytes, self.seal_shape));
        }
        mutations
    }

    fn undo(&self, shard: u8, old: &BTreeMap<u8, Part>, kept: &ObjectName) -> Undo {
        let Some(was) = self.old else {
            return Undo { mutations: vec![Mutation::Remove], payload: Bytes::new() };
        };
        if self.keeps_clone() {
            return Undo { mutations: vec![Mutation::CloneFrom { source: kept.clone() }], payload: Bytes::new() };
        }
        let mut mutations = Vec::new();
        if (was.object_bytes, was.seal_shape) != (self.object_bytes, self.seal_shape) {
            let least = self.old_shard_bytes().min(self.shape.shard_bytes(self.object_bytes));
            mutations.push(Mutation::Truncate { size_bytes: least });
            mutations.push(shard_of(self.shape, was.object_bytes, was.seal_shape));
        }
        let mut payload = Bytes::new();
        let is_touched = self.columns.get(usize::from(shard)).is_none_or(Option::is_some);
        if let (true, Some(span), Some(part)) = (is_touched, self.old_span(), old.get(&shard)) {
            payload = part.data.clone();
            let seals = was.seal_shape.map(|(unit_bytes, seal_bytes)| {
                let count = span.length().div_ceil(unit_bytes as usize);
                let mut bytes = part.seals.to_vec();
                bytes.resize(count * usize::from(seal_bytes), 0);
                Seals { unit_bytes, seal_bytes, bytes: bytes.into() }
            });
            mutations.push(Mutation::Write { offset: span.start, length: payload.len() as u32, seals });
        }
        mutations.push(Mutation::SetVersion { version: was.version });
        Undo { mutations, payload }
    }

    fn column_runs(&self, column: Column) -> Runs {
        let Column { data, fates, seals, seals_changed } = column;
        let unit = self.unit_bytes() as usize;
        let has_seals = self.seal_width() > 0;
        // A unit with a seal is zeroed as a whole or not at all.
        let is_written: Vec<bool> =
            fates.chunks(unit / BLOCK_BYTES).map(|blocks| blocks.contains(&Fate::Written)).collect();
        let kind = |block: usize| {
            let number = block * BLOCK_BYTES / unit;
            let fate = match fates[block] {
                Fate::Zeroed if is_written[number] => Fate::Written,
                fate => fate,
            };
            (fate, has_seals && seals_changed[number])
        };
        self.runs(data, &seals, kind)
    }

    /// All of a parity shard's span, but for units that are all zeros.
    fn parity_runs(&self, data: BlockBuffer, seals: &[u8]) -> Runs {
        let (unit, width) = (self.unit_bytes() as usize, self.seal_width());
        let is_zero = |number: usize| {
            let seals_are_zero = seals[number * width..(number + 1) * width].iter().all(|byte| *byte == 0);
            seals_are_zero && is_all_zero(&data.as_slice()[number * unit..(number + 1) * unit])
        };
        let had_none = self.old_span().is_none();
        let fate = |number: usize| match is_zero(number) {
            true if had_none => Fate::Kept,
            true => Fate::Zeroed,
            false => Fate::Written,
        };
        let fates: Vec<Fate> = (0..self.unit_count()).map(fate).collect();
        let kind = |block: usize| (fates[block * BLOCK_BYTES / unit], width > 0);
        self.runs(data, seals, kind)
    }

    /// Consecutive blocks of one kind (what becomes of them, and whether with their seals) together.
    fn runs(&self, data: BlockBuffer, seals: &[u8], kind: impl Fn(usize) -> (Fate, bool)) -> Runs {
        let count = data.block_count();
        let mut runs: Vec<(usize, usize)> = Vec::new();
        let mut mutations = Vec::new();
        let mut first = 0;
        while first < count {
            let (fate, with_seals) = kind(first);
            let end = (first..count).find(|block| kind(*block) != (fate, with_seals)).unwrap_or(count);
            let (offset, length) = (self.span.start + (first * BLOCK_BYTES) as u64, (end - first) * BLOCK_BYTES);
            match fate {
                Fate::Kept => {}
                Fate::Zeroed => mutations.push(Mutation::Zero { offset, length: length as u64 }),
                Fate::Written => {
                    let seals = self.seal_shape.filter(|_| with_seals).map(|(unit_bytes, seal_bytes)| {
                        let (unit, width) = (unit_bytes as usize, usize::from(seal_bytes));
                        let from = first * BLOCK_BYTES / unit;
                        let units = length.div_ceil(unit);
                        let bytes = Bytes::copy_from_slice(&seals[from * width..(from + units) * width]);
                        Seals { unit_bytes, seal_bytes, bytes }
                    });
                    mutations.push(Mutation::Write { offset, length: length as u32, seals });
                    runs.push((first, end));
                }
            }
            first = end;
        }
        let bytes_of = |(first, end): &(usize, usize)| &data.as_slice()[first * BLOCK_BYTES..end * BLOCK_BYTES];
        let payload = match &runs[..] {
            [] => Bytes::new(),
            [(0, end)] if *end == count => Bytes::from_owner(data),
            runs => Bytes::from(runs.iter().map(bytes_of).collect::<Vec<_>>().concat()),
        };
        Runs { mutations, payload }
    }
}

/// The changes of a shard's data.
#[derive(Default)]
struct Runs {
    mutations: Vec<Mutation>,
    payload: Bytes,
}

impl Column {
    /// The blocks of a range, whose fate is known now.
    fn put(&mut self, start: usize, length: usize, fate: Fate) -> &mut [u8] {
        let end = (start + length).next_multiple_of(BLOCK_BYTES);
        self.fates[start / BLOCK_BYTES..end / BLOCK_BYTES].fill(fate);
        &mut self.data.as_mut_slice()[start..end]
    }

    /// What is kept is what was there.
    fn keep(&mut self, old: &BlockBuffer, old_seals: &[u8], width: usize) {
        let blocks = self.data.as_mut_slice().chunks_exact_mut(BLOCK_BYTES);
        for ((block, was), fate) in blocks.zip(old.as_slice().chunks_exact(BLOCK_BYTES)).zip(&self.fates) {
            if *fate == Fate::Kept {
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

/// Says of what object a shard is one.
pub(crate) fn shard_of(shape: CodeShape, object_bytes: u64, seal_shape: Option<(u32, u16)>) -> Mutation {
    let (seal_unit_bytes, seal_bytes) = seal_shape.unwrap_or_default();
    let shard_bytes = shape.shard_bytes(object_bytes);
    Mutation::SetShardOf { object_bytes, shard_bytes, seal_unit_bytes, seal_bytes }
}

pub(crate) fn is_all_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

/// Pieces one after the other, in memory that is used again: fresh pages cost more than copying.
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

/// The data and seals of a range of an object, from the parts of its shards.
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

#[cfg(test)]
#[path = "update_tests.rs"]
mod tests;
