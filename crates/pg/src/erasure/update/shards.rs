//! The changes of every shard for a write, and the pre-images.

use std::collections::BTreeMap;

use atoll_buffers::{BLOCK_BYTES, BlockBuffer};
use atoll_ec::Code;
use atoll_types::{Mutation, ObjectName, PreImage, Seals};
use bytes::Bytes;

use super::{Basis, Column, Fate, ShardChange, Update, shard_of};
use crate::actions::WholeObject;
use crate::erasure::parts::{Part, is_all_zero};

impl Update {
    /// The changes of every shard, in the order of the shards. `old` holds the spans that were
    /// wanted;
    /// `clone` is the name for the pre-image clone, if one is needed.
    pub fn finish(mut self, code: &Code, old: &BTreeMap<u8, Part>, clone: ObjectName) -> Vec<ShardChange> {
        let is_delta = self.is_delta();
        let parity = match self.span.length() {
            0 => Vec::new(),
            _ if is_delta => self.parity_by_delta(code, old),
            _ => self.parity_of_all(code, old),
        };
        let pre_images: Vec<PreImage> =
            (0..self.shape.shards()).map(|shard| self.pre_image(shard, old, &clone)).collect();
        let bases: Vec<Basis> = (0..self.shape.shards()).map(|shard| self.basis(shard, is_delta)).collect();
        let columns = std::mem::take(&mut self.columns).into_iter();
        let runs = columns.map(|column| column.map_or_else(Runs::default, |column| self.column_runs(column)));
        let mut runs: Vec<Runs> = runs.collect();
        for ((data, seals), basis) in parity.into_iter().zip(&bases[usize::from(self.shape.data)..]) {
            runs.push(match basis {
                Basis::Difference => self.runs(data, &seals, |_| (Fate::Written, self.seal_width() > 0)),
                _ => self.parity_runs(data, &seals),
            });
        }
        runs.resize_with(usize::from(self.shape.shards()), Runs::default);
        let change = |((runs, pre_image), basis): ((Runs, PreImage), Basis)| {
            let mut mutations = Vec::new();
            if self.clones_pre_image() {
                mutations.push(Mutation::ClonePreImage { copy: clone.clone() });
            }
            mutations.extend(self.frame());
            mutations.extend(runs.mutations);
            ShardChange { mutations, payload: runs.payload, pre_image, basis }
        };
        runs.into_iter().zip(pre_images).zip(bases).map(change).collect()
    }

    /// Returns the first step of the member with a shard, before it logs its change.
    fn basis(&self, shard: u8, is_delta: bool) -> Basis {
        match self.columns.get(usize::from(shard)) {
            _ if !self.is_read_by_member(shard) => Basis::Whole,
            Some(None) => Basis::Whole,
            None if is_delta => Basis::Difference,
            Some(Some(_)) | None => Basis::NewBytes,
        }
    }

    /// Changes the old parity by the difference of the data shards; unknown parity counts as zeros, which gives
    /// the difference. Unchanged blocks of the columns get their old bytes.
    fn parity_by_delta(&mut self, code: &Code, old: &BTreeMap<u8, Part>) -> Vec<(BlockBuffer, Vec<u8>)> {
        let width = self.seal_width();
        let old_part = |shard: u8| self.extended(old.get(&shard));
        let mut parity: Vec<_> = (self.shape.data..self.shape.shards()).map(old_part).collect();
        for shard in 0..self.shape.data {
            let is_changed = self.columns[usize::from(shard)].is_some();
            let was = is_changed.then(|| self.extended(old.get(&shard)));
            let column = self.columns[usize::from(shard)].as_mut();
            let (Some((mut delta, mut seal_delta)), Some(column)) = (was, column) else { continue };
            column.fill_unchanged(&delta, &seal_delta, width);
            atoll_ec::xor_into(delta.as_mut_slice(), column.data.as_slice());
            atoll_ec::xor_into(&mut seal_delta, &column.seals);
            for (index, (data, seals)) in parity.iter_mut().enumerate() {
                code.update(usize::from(shard), delta.as_slice(), index, data.as_mut_slice());
                code.update(usize::from(shard), &seal_delta, index, seals);
            }
        }
        parity
    }

    /// Computes parity from all data shards.
    fn parity_of_all(&mut self, code: &Code, old: &BTreeMap<u8, Part>) -> Vec<(BlockBuffer, Vec<u8>)> {
        let width = self.seal_width();
        let (blocks, seal_bytes) = (self.span.length() / BLOCK_BYTES, self.unit_count() * width);
        let mut others: BTreeMap<u8, (BlockBuffer, Vec<u8>)> = BTreeMap::new();
        for shard in 0..self.shape.data {
            let has_all = |column: &Column| !column.fates.contains(&Fate::Unchanged);
            let is_full = self.columns[usize::from(shard)].as_ref().is_some_and(has_all);
            if is_full && width == 0 {
                continue;
            }
            let was = self.extended(old.get(&shard));
            match &mut self.columns[usize::from(shard)] {
                Some(column) => column.fill_unchanged(&was.0, &was.1, width),
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

    /// A shard's old bytes and seals over the whole span, with zeros where it had none.
    fn extended(&self, old: Option<&Part>) -> (BlockBuffer, Vec<u8>) {
        let (unit, width) = (self.unit_bytes(), self.seal_width());
        let blocks = self.span.length() / BLOCK_BYTES;
        let mut seals = vec![0; self.unit_count() * width];
        let (Some(part), Some(span)) = (old, self.old_span()) else { return (BlockBuffer::zeroed(blocks), seals) };
        let mut data = BlockBuffer::for_overwriting(blocks);
        let start = (span.start - self.span.start) as usize;
        let (before, rest) = data.as_mut_slice().split_at_mut(start);
        let (old, behind) = rest.split_at_mut(part.data.len());
        before.fill(0);
        old.copy_from_slice(&part.data);
        behind.fill(0);
        let first = start / unit as usize * width;
        let length = part.seals.len().min(seals.len() - first);
        seals[first..first + length].copy_from_slice(&part.seals[..length]);
        (data, seals)
    }

    /// The mutations that create or remove the object, or change its size or seal shape.
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

    /// Returns true for a small overwrite of existing data, so that all shards may take it in place.
    pub fn may_stay_in_place(&self) -> bool {
        let mut columns = self.columns.iter().flatten();
        let zeroes = columns.any(|column| column.fates.contains(&Fate::Zeroed));
        self.old_span().is_some() && self.frame().is_empty() && !self.clones_pre_image() && !zeroes
    }

    /// The pre-image of a shard.
    fn pre_image(&self, shard: u8, old: &BTreeMap<u8, Part>, clone: &ObjectName) -> PreImage {
        let Some(was) = self.old else {
            return PreImage { mutations: vec![Mutation::Remove], payload: Bytes::new() };
        };
        if self.clones_pre_image() {
            return PreImage {
                mutations: vec![Mutation::CloneFrom { source: clone.clone() }],
                payload: Bytes::new(),
            };
        }
        // Also if the size does not change: a roll back that is repeated may meet another object of
        // this name, which later writes made.
        let least = self.old_shard_bytes().min(self.shape.shard_bytes(self.object_bytes));
        let shard_of = shard_of(self.shape, was.object_bytes, was.seal_shape);
        let mut mutations = vec![Mutation::Truncate { size_bytes: least }, shard_of];
        let mut payload = Bytes::new();
        let is_touched = self.columns.get(usize::from(shard)).is_none_or(Option::is_some);
        let has_bytes = is_touched && !self.is_read_by_member(shard);
        if let (true, Some(span), Some(part)) = (has_bytes, self.old_span(), old.get(&shard)) {
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
        PreImage { mutations, payload }
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

    /// The changes of a parity shard: its whole span, except units that are all zeros.
    fn parity_runs(&self, data: BlockBuffer, seals: &[u8]) -> Runs {
        let (unit, width) = (self.unit_bytes() as usize, self.seal_width());
        let is_zero = |number: usize| {
            let seals_are_zero = seals[number * width..(number + 1) * width].iter().all(|byte| *byte == 0);
            seals_are_zero && is_all_zero(&data.as_slice()[number * unit..(number + 1) * unit])
        };
        let had_none = self.old_span().is_none();
        let fate = |number: usize| match is_zero(number) {
            true if had_none => Fate::Unchanged,
            true => Fate::Zeroed,
            false => Fate::Written,
        };
        let fates: Vec<Fate> = (0..self.unit_count()).map(fate).collect();
        let kind = |block: usize| (fates[block * BLOCK_BYTES / unit], width > 0);
        self.runs(data, seals, kind)
    }

    /// Merges consecutive blocks of one kind: their fate, and whether their seals change.
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
                Fate::Unchanged => {}
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
