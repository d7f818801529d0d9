//! State of PGs in a store: the head of each one's history and its newest log entries. They are in memory; a
//! checkpoint holds them too, in segments that are written once.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::ControlFlow;

use atoll_codec::{CodecError, Reader, Writer};
use atoll_types::limits::{PG_LOG_BYTES, PG_LOG_ENTRIES, PG_LOG_ENTRIES_MIN};
use atoll_types::{Epoch, LogEntry, Mutation, PgId, Transaction, Version};
use bytes::Bytes;

use crate::log::record::counter;
use crate::metadata::{Changes, Cold, Metadata, PageError, Part, Parts, Split, Unready, keys};

/// Entries that are saved at once while there is no checkpoint, so that a checkpoint has few left.
const SEGMENT_ENTRIES: usize = 32;
/// Length of a PG's header if the PG was never split.
const HEADER_BYTES: usize = 24;

/// PGs whose log entries are saved in one turn while there is no checkpoint.
const SAVED_PER_TURN: usize = 4;
/// Pages that are read side by side before the logs of all PGs are saved.
const PAGES_LOADED_MAX: usize = 512;

/// State of the store's PGs.
pub(crate) struct Pgs {
    histories: BTreeMap<PgId, PgHistory>,
    /// PGs that have changed since the last checkpoint began.
    changed: BTreeSet<PgId>,
    /// PGs that have enough entries for a segment, in the order in which they got them.
    with_segment: VecDeque<PgId>,
}

/// How far saving got.
pub(crate) enum Saving {
    Done,
    /// These pages must be loaded first.
    Cold(Vec<u32>),
    /// The metadata makes no sense.
    Damaged(String),
}

impl Pgs {
    pub fn new(histories: BTreeMap<PgId, PgHistory>) -> Self {
        Pgs { changed: histories.keys().copied().collect(), histories, with_segment: VecDeque::new() }
    }

    pub fn get(&self, pg: PgId) -> Option<&PgHistory> {
        self.histories.get(&pg)
    }

    pub fn get_mut(&mut self, pg: PgId) -> Option<&mut PgHistory> {
        self.histories.get_mut(&pg)
    }

    pub fn ids(&self) -> impl Iterator<Item = PgId> {
        self.histories.keys().copied()
    }

    /// A transaction was accepted.
    pub fn record(&mut self, number: u64, transaction: &Transaction, parts: &mut Parts) {
        let pg = transaction.pg;
        let history = self.histories.entry(pg).or_default();
        let (had_segment, was_changed) = (history.has_segment(), history.is_changed);
        history.record(number, transaction);
        if history.has_segment() && !had_segment {
            self.with_segment.push_back(pg);
        }
        if !was_changed {
            self.changed.insert(pg);
        }
        self.changed.extend(record_split(&mut self.histories, parts, transaction));
    }

    /// Brings the logs of some PGs that have enough for a segment into the tree. If pages must be loaded for
    /// one, it is the first of a later turn; loading those of others meanwhile would evict its own.
    pub fn save_some(&mut self, metadata: &mut Metadata) -> Saving {
        for _ in 0..SAVED_PER_TURN {
            let Some(&pg) = self.with_segment.front() else { break };
            let history = self.histories.get_mut(&pg).expect("PGs are never forgotten");
            if history.has_segment()
                && let Err(unready) = history.save(pg, metadata)
            {
                return match Saving::from(unready) {
                    // With all others that it will look at: they are read side by side.
                    Saving::Cold(found) => {
                        Saving::Cold(found.into_iter().chain(history.cold_pages(pg, metadata)).collect())
                    }
                    other => other,
                };
            }
            self.with_segment.pop_front();
        }
        Saving::Done
    }

    /// Brings the logs of all PGs that have changed into the tree.
    ///
    /// None is saved before the pages of all are in memory: a log saved while others wait changes again meanwhile,
    /// and would be saved over and over, a few entries at a time.
    pub fn save_all(&mut self, metadata: &mut Metadata) -> Saving {
        let cold = |pg: &PgId| self.histories[pg].cold_pages(*pg, metadata);
        let cold: Vec<u32> = self.changed.iter().flat_map(cold).take(PAGES_LOADED_MAX).collect();
        if !cold.is_empty() {
            return Saving::Cold(cold);
        }
        while let Some(&pg) = self.changed.first() {
            let history = self.histories.get_mut(&pg).expect("PGs are never forgotten");
            if let Err(unready) = history.save(pg, metadata) {
                return unready.into();
            }
            self.changed.remove(&pg);
        }
        Saving::Done
    }

    /// A PG whose newest log entries are not in the tree is known to have changed, so that the next
    /// checkpoint saves them.
    pub fn check_invariants(&self) {
        for (pg, history) in &self.histories {
            let is_known = history.is_saved() || self.changed.contains(pg);
            assert!(is_known, "the next checkpoint knows that {pg} has changed");
            let bytes: u64 = history.log.iter().map(memory_bytes).sum();
            assert!(bytes == history.log_bytes, "the bytes of the log of {pg} are counted");
        }
    }

    #[cfg(test)]
    pub fn forget_changes(&mut self) {
        self.changed.clear();
    }
}

impl From<Unready> for Saving {
    fn from(unready: Unready) -> Self {
        match unready {
            Unready::Cold(Cold(pages)) => Saving::Cold(pages),
            Unready::Damaged(error) => Saving::Damaged(format!("metadata of a PG is damaged: {error}")),
            Unready::Invalid(detail) => Saving::Damaged(detail),
        }
    }
}

/// A copy for a long time: it must not keep the buffer of a connection alive that the keys were received in.
fn to_keep(entry: &LogEntry) -> LogEntry {
    let mut kept = entry.clone();
    kept.touched.omap_keys.iter_mut().for_each(|key| *key = Bytes::copy_from_slice(key));
    kept
}

/// Bytes that an entry takes in memory, roughly. Its pre-image does not count: it goes when all members have the write.
fn memory_bytes(entry: &LogEntry) -> u64 {
    (size_of::<LogEntry>() + entry.object.as_str().len() + entry.touched.memory_bytes()) as u64
}

/// State of a PG in a store.
#[derive(Clone, Debug, Default)]
pub(crate) struct PgHistory {
    pub head: Version,
    /// The newest of the store's transactions that changed the PG.
    pub applied_number: u64,
    pub log: VecDeque<LogEntry>,
    /// By its entries.
    log_bytes: u64,
    /// How many of the newest entries no segment holds.
    unsaved_count: usize,
    /// First and last sequence of the segments.
    segments: VecDeque<(u64, u64)>,
    is_changed: bool,
    /// Entries up to here have no pre-images any more.
    pre_images_forgotten: Version,
    /// Entries in segments were dropped, so that all segments must be written again.
    was_reset: bool,
}

impl PgHistory {
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
            self.push(to_keep(entry));
        }
        self.unsaved_count = (self.unsaved_count + entries.len()).min(self.log.len());
    }

    /// Appends an entry, and forgets the oldest ones for which there is no room.
    fn push(&mut self, entry: LogEntry) {
        self.log_bytes += memory_bytes(&entry);
        self.log.push_back(entry);
        let is_large = |log: &PgHistory| log.log_bytes > PG_LOG_BYTES && log.log.len() > PG_LOG_ENTRIES_MIN;
        while self.log.len() > PG_LOG_ENTRIES || is_large(self) {
            self.log_bytes -= self.log.pop_front().map_or(0, |oldest| memory_bytes(&oldest));
        }
    }

    /// Writes up to `through` will not be rolled back.
    pub fn forget_pre_images(&mut self, through: Version) {
        let entries = self.log.iter_mut().rev().skip_while(|entry| entry.version > through);
        for entry in entries.take_while(|entry| entry.version > self.pre_images_forgotten) {
            entry.pre_image = None;
        }
        // Entries that come later may be of writes that were committed elsewhere long ago.
        self.pre_images_forgotten = self.pre_images_forgotten.max(through.min(self.head));
    }

    fn reset(&mut self, head: Version) {
        while self.log.back().is_some_and(|entry| entry.version > head) {
            self.log_bytes -= self.log.pop_back().map_or(0, |newest| memory_bytes(&newest));
        }
        self.head = head;
        // What comes again with the same versions may have pre-images again.
        self.pre_images_forgotten = self.pre_images_forgotten.min(head);
        self.unsaved_count = self.log.len();
        self.was_reset = true;
    }

    /// Returns a PG that is split off, with the history of this one if it has all its objects; `before` is the
    /// earlier state of a PG of this id.
    fn split_off(&self, is_whole: bool, before: PgHistory) -> PgHistory {
        let (head, log, log_bytes) =
            if is_whole { (self.head, self.log.clone(), self.log_bytes) } else { Default::default() };
        PgHistory {
            head,
            applied_number: self.applied_number,
            unsaved_count: log.len(),
            log,
            log_bytes,
            segments: before.segments,
            is_changed: true,
            pre_images_forgotten: self.pre_images_forgotten,
            was_reset: true,
        }
    }

    /// Returns true if the tree has everything, as it was when the PG was saved last.
    pub fn is_saved(&self) -> bool {
        assert!(self.unsaved_count <= self.log.len() && self.log.len() <= PG_LOG_ENTRIES, "entries are counted");
        self.unsaved_count == 0 && !self.was_reset
    }

    /// Returns true if enough is unsaved for a segment.
    pub fn has_segment(&self) -> bool {
        self.unsaved_count >= SEGMENT_ENTRIES
    }

    fn unsaved(&self) -> impl Iterator<Item = &LogEntry> {
        self.log.iter().skip(self.log.len() - self.unsaved_count)
    }

    /// How many of the oldest segments hold only entries that were forgotten.
    fn outdated_segments(&self) -> usize {
        let oldest = self.log.front().map_or(u64::MAX, |entry| entry.version.sequence);
        self.segments.iter().take_while(|(_, last)| self.was_reset || *last < oldest).count()
    }

    /// Pages that saving looks at and that are not in memory, as far as can be seen before they are.
    pub fn cold_pages(&self, pg: PgId, metadata: &Metadata) -> Vec<u32> {
        let tree = &metadata.tree;
        let mut looks = vec![tree.touch(&keys::pg(pg))];
        for entry in self.unsaved().step_by(SEGMENT_ENTRIES) {
            looks.push(tree.touch(&keys::part(&keys::pg_log(pg, entry.version.sequence), 0)));
        }
        for (first, _) in self.segments.range(..self.outdated_segments()) {
            let parts = keys::pg_log(pg, *first);
            looks.push(tree.scan(&parts, &keys::end_of(&parts), |_, _| ControlFlow::Continue(())));
        }
        let cold = |look: Result<(), PageError>| match look {
            Err(PageError::Cold(Cold(pages))) => pages,
            // Saving meets the damage and says so.
            Ok(()) | Err(PageError::Contradiction { .. }) => Vec::new(),
        };
        looks.into_iter().flat_map(cold).collect()
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
        changes.set_value(keys::pg(pg), header.finish().to_vec())?;
        let unsaved: Vec<_> = self.unsaved().collect();
        let mut added = Vec::new();
        for entries in unsaved.chunks(SEGMENT_ENTRIES) {
            let (first, last) = (entries[0].version.sequence, entries[entries.len() - 1].version.sequence);
            let mut writer = Writer::with_capacity(4096);
            writer.u32(entries.len() as u32);
            entries.iter().for_each(|entry| entry.encode(&mut writer));
            changes.set_parts(&keys::pg_log(pg, first), Some(writer.as_slice()))?;
            added.push((first, last));
        }
        let outdated = self.outdated_segments();
        for (first, _) in self.segments.range(..outdated) {
            let is_replaced = added.iter().any(|(other, _)| other == first);
            if !is_replaced {
                changes.set_parts(&keys::pg_log(pg, *first), None)?;
            }
        }
        let prepared = changes.finish()?;
        metadata.apply(&prepared)?;
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
        for entry in &entries {
            counter(entry.version.sequence, "sequence of a log entry")?;
        }
        reader.finish()?;
        if let [first, .., last] | [first @ last] = &entries[..] {
            self.segments.push_back((first.version.sequence, last.version.sequence));
        }
        entries.into_iter().for_each(|entry| self.push(entry));
        Ok(())
    }
}

/// A transaction has been recorded in its PG: if it was a split, adds the PGs split off and removes
/// those merged back. Returns these PGs.
pub(crate) fn record_split(
    histories: &mut BTreeMap<PgId, PgHistory>,
    parts: &mut Parts,
    transaction: &Transaction,
) -> Vec<PgId> {
    let mut changed = Vec::new();
    for mutation in &transaction.mutations {
        let Mutation::Split { pg_num_before, pg_num, is_whole } = mutation else { continue };
        let split = parts.split(transaction.pg, *pg_num_before, *pg_num, *is_whole);
        let Split { own, made, merged_back } = split.expect("preparing the transaction has split it, too");
        let state = histories.get(&transaction.pg).expect("the transaction is recorded").clone();
        let made = made.into_iter().map(|(pg, part)| (pg, Some(part), *is_whole));
        for (pg, part, is_whole) in made.chain(merged_back.into_iter().map(|pg| (pg, None, false))) {
            let before = histories.remove(&pg).unwrap_or_default();
            histories.insert(pg, state.split_off(is_whole, before));
            parts.set(pg, part);
            changed.push(pg);
        }
        parts.set(transaction.pg, own);
    }
    changed
}

/// Reads all PGs from the tree, and which of them were split.
pub(crate) fn load(metadata: &Metadata) -> Result<(BTreeMap<PgId, PgHistory>, Parts), Unready> {
    let mut histories: BTreeMap<PgId, PgHistory> = BTreeMap::new();
    let mut parts = Parts::default();
    let mut segments: BTreeMap<(PgId, u64), Vec<u8>> = BTreeMap::new();
    let mut damage = None;
    metadata.tree.scan(&keys::PGS, &keys::end_of(&keys::PGS), |key, value| {
        match keys::parse_pg(key) {
            Some((pg, None)) => match decode_header(pg, value) {
                Ok((state, part)) => {
                    histories.insert(pg, state);
                    parts.set(pg, part);
                }
                Err(error) => damage = Some(error),
            },
            Some((pg, Some(first))) => segments.entry((pg, first)).or_default().extend_from_slice(value),
            None => damage = Some(CodecError::Invalid { what: "PG key", value: key.len() as u64 }),
        }
        ControlFlow::Continue(())
    })?;
    if let Some(error) = damage {
        return Err(error.into());
    }
    for ((pg, _), segment) in segments {
        histories.entry(pg).or_default().add_segment(segment)?;
    }
    Ok((histories, parts))
}

/// Decodes the tree's header of a PG, without its log.
pub(crate) fn decode_header(pg: PgId, value: &[u8]) -> Result<(PgHistory, Option<Part>), CodecError> {
    let mut reader = Reader::new(Bytes::copy_from_slice(value));
    let epoch = Epoch(reader.u64("epoch")?);
    let head = Version { epoch, sequence: counter(reader.u64("sequence")?, "sequence")? };
    let applied_number = counter(reader.u64("applied number")?, "applied number")?;
    let mut part = None;
    if value.len() > HEADER_BYTES {
        let root = PgId { index: reader.u32("root PG")?, ..pg };
        let pg_num = reader.u32("number of PGs")?;
        if !pg_num.is_power_of_two() || pg.index >= pg_num || root.index > pg.index {
            return Err(CodecError::Invalid { what: "number of PGs", value: pg_num.into() });
        }
        part = Some(Part { root, pg_num });
    }
    reader.finish()?;
    Ok((PgHistory { head, applied_number, ..PgHistory::default() }, part))
}
