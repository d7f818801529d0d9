//! What a store remembers of placement groups: the head of each one's history and its newest log
//! entries. They are in memory; a checkpoint holds them too, in segments that are written once.

use std::collections::{BTreeMap, VecDeque};
use std::ops::ControlFlow;
use std::sync::Arc;

use atoll_base::limits::PG_LOG_ENTRIES;
use atoll_base::{CodecError, Epoch, LogEntry, Mutation, PgId, Reader, Transaction, Version, Writer};
use bytes::Bytes;

use crate::metadata::{Changes, Cold, Metadata, Part, Parts, Split, Unready, keys};

/// Entries that are saved at once while there is no checkpoint, so that a checkpoint has few left.
const SEGMENT_ENTRIES: usize = 32;
/// Length of a group's header if the group was never split.
const HEADER_BYTES: usize = 24;

/// What a store remembers of a placement group.
#[derive(Clone, Debug, Default)]
pub(crate) struct PgState {
    pub head: Version,
    /// The newest of the store's transactions that changed the group.
    pub applied_number: u64,
    pub log: VecDeque<Arc<LogEntry>>,
    /// How many of the newest entries no segment holds.
    unsaved_count: usize,
    /// First and last sequence of the segments.
    segments: VecDeque<(u64, u64)>,
    is_changed: bool,
    /// Entries up to here say no more how they are undone.
    undo_forgotten: Version,
    /// Entries that segments hold were forgotten, so that all segments must be written anew.
    was_reset: bool,
}

impl PgState {
    pub fn record(&mut self, number: u64, transaction: &Transaction) {
        self.applied_number = number;
        self.is_changed = true;
        for mutation in &transaction.mutations {
            if let Mutation::ResetLog { head } = mutation {
                self.reset(*head);
            }
        }
        let entries = &transaction.log;
        for entry in entries {
            self.head = entry.version;
            self.log.push_back(Arc::new(entry.clone()));
        }
        self.unsaved_count = (self.unsaved_count + entries.len()).min(PG_LOG_ENTRIES);
        while self.log.len() > PG_LOG_ENTRIES {
            self.log.pop_front();
        }
    }

    /// Nobody will take back what is no newer.
    pub fn forget_undo(&mut self, through: Version) {
        let entries = self.log.iter_mut().rev().skip_while(|entry| entry.version > through);
        for entry in entries.take_while(|entry| entry.version > self.undo_forgotten) {
            if entry.undo.is_some() {
                *entry = Arc::new(LogEntry { undo: None, ..LogEntry::clone(entry) });
            }
        }
        self.undo_forgotten = self.undo_forgotten.max(through);
    }

    fn reset(&mut self, head: Version) {
        while self.log.back().is_some_and(|entry| entry.version > head) {
            self.log.pop_back();
        }
        self.head = head;
        self.unsaved_count = self.log.len();
        self.was_reset = true;
    }

    /// A group that is split off, with the history of this one if it has all its objects; before
    /// it, there may have been something else of its name.
    fn split_off(&self, is_whole: bool, before: PgState) -> PgState {
        let (head, log) = if is_whole { (self.head, self.log.clone()) } else { Default::default() };
        PgState {
            head,
            applied_number: self.applied_number,
            unsaved_count: log.len(),
            log,
            segments: before.segments,
            is_changed: true,
            undo_forgotten: self.undo_forgotten,
            was_reset: true,
        }
    }

    /// Whether enough is unsaved for a segment.
    pub fn has_segment(&self) -> bool {
        self.unsaved_count >= SEGMENT_ENTRIES
    }

    fn unsaved(&self) -> impl Iterator<Item = &Arc<LogEntry>> {
        self.log.iter().skip(self.log.len() - self.unsaved_count)
    }

    /// How many of the oldest segments say nothing any more.
    fn outdated_segments(&self) -> usize {
        let oldest = self.log.front().map_or(u64::MAX, |entry| entry.version.sequence);
        self.segments.iter().take_while(|(_, last)| self.was_reset || *last < oldest).count()
    }

    /// Pages that saving looks at and that are not in memory, as far as can be seen before they are.
    pub fn cold_pages(&self, pg: PgId, metadata: &Metadata) -> Vec<u32> {
        let tree = &metadata.tree;
        let mut looks = vec![tree.touch(&keys::group(pg))];
        for entry in self.unsaved().step_by(SEGMENT_ENTRIES) {
            looks.push(tree.touch(&keys::part(&keys::group_log(pg, entry.version.sequence), 0)));
        }
        for (first, _) in self.segments.range(..self.outdated_segments()) {
            let parts = keys::group_log(pg, *first);
            looks.push(tree.scan(&parts, &keys::end_of(&parts), |_, _| ControlFlow::Continue(())));
        }
        looks.into_iter().filter_map(Result::err).flat_map(|Cold(pages)| pages).collect()
    }

    /// Brings the tree up to date.
    pub fn save(&mut self, pg: PgId, metadata: &mut Metadata) -> Result<(), Unready> {
        if !self.is_changed {
            return Ok(());
        }
        let mut changes = Changes::new(metadata);
        let mut header = Writer::with_capacity(32);
        header.u64(self.head.epoch.0);
        header.u64(self.head.sequence);
        header.u64(self.applied_number);
        if let Some(part) = changes.metadata().parts.get(pg) {
            header.u32(part.root.index);
            header.u32(part.pg_num);
        }
        changes.set_value(keys::group(pg), header.finish().to_vec())?;
        let unsaved: Vec<_> = self.unsaved().collect();
        let mut added = Vec::new();
        for entries in unsaved.chunks(SEGMENT_ENTRIES) {
            let (first, last) = (entries[0].version.sequence, entries[entries.len() - 1].version.sequence);
            let mut writer = Writer::with_capacity(4096);
            writer.u32(entries.len() as u32);
            entries.iter().for_each(|entry| entry.encode(&mut writer));
            changes.set_parts(&keys::group_log(pg, first), Some(writer.as_slice()))?;
            added.push((first, last));
        }
        let outdated = self.outdated_segments();
        for (first, _) in self.segments.range(..outdated) {
            let is_replaced = added.iter().any(|(other, _)| other == first);
            if !is_replaced {
                changes.set_parts(&keys::group_log(pg, *first), None)?;
            }
        }
        let prepared = changes.finish();
        metadata.apply(prepared);
        self.segments.drain(..outdated);
        self.segments.extend(added);
        self.unsaved_count = 0;
        self.is_changed = false;
        self.was_reset = false;
        Ok(())
    }

    fn add_segment(&mut self, segment: Vec<u8>) -> Result<(), CodecError> {
        let mut reader = Reader::new(Bytes::from(segment));
        let count = reader.count(PG_LOG_ENTRIES, "log entries")?;
        let entries: Vec<LogEntry> =
            (0..count).map(|_| LogEntry::decode(&mut reader)).collect::<Result<_, _>>()?;
        reader.finish()?;
        if let [first, .., last] | [first @ last] = &entries[..] {
            self.segments.push_back((first.version.sequence, last.version.sequence));
        }
        self.log.extend(entries.into_iter().map(Arc::new));
        let excess = self.log.len().saturating_sub(PG_LOG_ENTRIES);
        self.log.drain(..excess);
        Ok(())
    }
}

/// A transaction has been recorded in its group: makes and undoes groups if it was a split.
/// Returns those.
pub(crate) fn record_split(
    groups: &mut BTreeMap<PgId, PgState>,
    parts: &mut Parts,
    transaction: &Transaction,
) -> Vec<PgId> {
    let mut changed = Vec::new();
    for mutation in &transaction.mutations {
        let Mutation::Split { pg_num_before, pg_num, is_whole } = mutation else { continue };
        let split = parts.split(transaction.pg, *pg_num_before, *pg_num, *is_whole);
        let Split { own, made, undone } = split.expect("preparing the transaction has split it, too");
        let state = groups.get(&transaction.pg).expect("the transaction is recorded").clone();
        let made = made.into_iter().map(|(pg, part)| (pg, Some(part), *is_whole));
        for (pg, part, is_whole) in made.chain(undone.into_iter().map(|pg| (pg, None, false))) {
            let before = groups.remove(&pg).unwrap_or_default();
            groups.insert(pg, state.split_off(is_whole, before));
            parts.set(pg, part);
            changed.push(pg);
        }
        parts.set(transaction.pg, own);
    }
    changed
}

/// Reads all groups from the tree, and which of them were split.
pub(crate) fn load(metadata: &Metadata) -> Result<(BTreeMap<PgId, PgState>, Parts), Unready> {
    let mut groups: BTreeMap<PgId, PgState> = BTreeMap::new();
    let mut parts = Parts::default();
    let mut segments: BTreeMap<(PgId, u64), Vec<u8>> = BTreeMap::new();
    let mut damage = None;
    metadata.tree.scan(&keys::GROUPS, &keys::end_of(&keys::GROUPS), |key, value| {
        match keys::parse_group(key) {
            Some((pg, None)) => match decode_header(pg, value) {
                Ok((state, part)) => {
                    groups.insert(pg, state);
                    parts.set(pg, part);
                }
                Err(error) => damage = Some(error),
            },
            Some((pg, Some(first))) => segments.entry((pg, first)).or_default().extend_from_slice(value),
            None => damage = Some(CodecError::Invalid { what: "group key", value: key.len() as u64 }),
        }
        ControlFlow::Continue(())
    })?;
    if let Some(error) = damage {
        return Err(error.into());
    }
    for ((pg, _), segment) in segments {
        groups.entry(pg).or_default().add_segment(segment)?;
    }
    Ok((groups, parts))
}

/// Decodes what the tree says of a group, but for its log.
pub(crate) fn decode_header(pg: PgId, value: &[u8]) -> Result<(PgState, Option<Part>), CodecError> {
    let mut reader = Reader::new(Bytes::copy_from_slice(value));
    let epoch = Epoch(reader.u64("epoch")?);
    let head = Version { epoch, sequence: reader.u64("sequence")? };
    let applied_number = reader.u64("applied number")?;
    let mut part = None;
    if value.len() > HEADER_BYTES {
        let root = PgId { index: reader.u32("root group")?, ..pg };
        let pg_num = reader.u32("number of groups")?;
        if !pg_num.is_power_of_two() || pg.index >= pg_num || root.index > pg.index {
            return Err(CodecError::Invalid { what: "number of groups", value: pg_num.into() });
        }
        part = Some(Part { root, pg_num });
    }
    reader.finish()?;
    Ok((PgState { head, applied_number, ..PgState::default() }, part))
}

/// The pages that saving waits for.
pub(crate) fn cold(unready: Unready) -> Result<Cold, String> {
    match unready {
        Unready::Cold(cold) => Ok(cold),
        Unready::Damaged(error) => Err(format!("metadata of a placement group is damaged: {error}")),
        Unready::Invalid(detail) => Err(detail),
    }
}
