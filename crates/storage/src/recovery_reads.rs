//! Reads for a lagging member: the difference of an object, as transactions that bring its copy to this one's
//! state.

use atoll_buffers::BLOCK_BYTES;
use atoll_pg::{ObjectParts, Token};
use atoll_store::{LoadRequest, ObjectKey, ReadData, ReadError, Store, StoreError};
use atoll_types::limits::{OBJECT_BYTES_MAX, OPERATIONS_MAX};
use atoll_types::{Mutation, ObjectName, PgId, Seals, Touched, Transaction};
use bytes::Bytes;

use crate::{Loader, Reader, Storage, StorageEvent};

/// Omap bytes per transaction: well below the control segment's limit.
const OMAP_BYTES_PER_TRANSACTION: usize = 512 << 10;
/// Bytes of data in one part, a multiple of all seal units: clients' requests wait behind it at both
/// ends and on the way.
pub(crate) const PART_BYTES: u64 = 512 << 10;

/// An object, or a part of one, that is to be read for another OSD.
pub struct RecoveryRead {
    /// The PG.
    pub pg: PgId,
    /// The PG's token.
    pub token: Token,
    /// The object.
    pub object: ObjectName,
    /// Parts of the object to read.
    pub touched: Touched,
    /// Where the part begins; everything is read at once if there is none.
    pub from: Option<u64>,
}

impl RecoveryRead {
    /// It is of an object that has begun: clients' writes wait until that is there.
    pub fn goes_on(&self) -> bool {
        self.from.is_some_and(|from| from > 0)
    }
}

/// A read for another OSD that waits for the object's data.
pub(crate) struct PartRead {
    wanted: RecoveryRead,
    span_start: u64,
    /// Byte ranges to send, in order and disjoint, once they are known.
    ranges: Option<Vec<(u64, u64)>>,
    /// Where the next part begins.
    next: Option<u64>,
}

impl Storage {
    /// Begins to read an object, or a part of one, for another OSD.
    pub fn read_for_recovery(&mut self, wanted: RecoveryRead) {
        let key = ObjectKey { pg: wanted.pg, name: wanted.object.clone() };
        // Which ranges there are depends on the shape of the seals; a read of nothing waits until
        // the object's header is in memory.
        let read = PartRead { wanted, span_start: 0, ranges: None, next: None };
        self.read(key, 0, 0, Reader::Recovery(Box::new(read)));
    }

    /// Handles a result of a read: first without data, then with it.
    pub(crate) fn part_read(&mut self, mut read: PartRead, result: Result<ReadData, ReadError>) {
        let found = match result {
            Ok(found) => found,
            Err(ReadError::NoSuchObject) => {
                let gone = transaction(&read.wanted, vec![Mutation::Remove], Bytes::new());
                return self.recovery_read_done(read, Ok(ObjectParts { transactions: vec![gone], next: None }));
            }
            Err(error) => return self.recovery_read_done(read, Err(error.to_string())),
        };
        if read.ranges.is_some() {
            return self.part_data_ready((read, found));
        }
        let key = ObjectKey { pg: read.wanted.pg, name: read.wanted.object.clone() };
        let ranges = byte_ranges(&found, &read.wanted.touched);
        let (ranges, next) = match read.wanted.from {
            Some(from) => part_of_ranges(ranges, from, self.part_bytes),
            None => (ranges, None),
        };
        read.next = next;
        read.span_start = ranges.first().map_or(0, |range| range.0);
        let span_end = ranges.last().map_or(0, |range| range.1);
        let (offset, length) = (read.span_start, (span_end - read.span_start) as u32);
        read.ranges = Some(ranges);
        self.read(key, offset, length, Reader::Recovery(Box::new(read)));
    }

    /// The data is there; the omap may have to be loaded still.
    pub(crate) fn part_data_ready(&mut self, (read, found): (PartRead, ReadData)) {
        if read.next.is_some() {
            let (transactions, next) = (vec![data_transaction(&read, &found)], read.next);
            return self.recovery_read_done(read, Ok(ObjectParts { transactions, next }));
        }
        let answer = match omap_changes(&self.store, &read.wanted) {
            Ok(mut changes) => {
                // The last change sets the version, which says that the copy is whole.
                changes.push(Mutation::SetVersion { version: found.version });
                let transactions = last_transactions(&read, &found, changes);
                Ok(ObjectParts { transactions, next: None })
            }
            Err(StoreError::Cold(cold)) => {
                return self.load(LoadRequest::Pages(cold), Loader::Recovery(Box::new((read, found))));
            }
            Err(error) => Err(error.to_string()),
        };
        self.recovery_read_done(read, answer);
    }

    fn recovery_read_done(&mut self, read: PartRead, answer: Result<ObjectParts, String>) {
        self.events.push_back(StorageEvent::RecoveryRead { read: read.wanted, answer });
    }
}

fn transaction(read: &RecoveryRead, mutations: Vec<Mutation>, payload: Bytes) -> Transaction {
    let (pg, object) = (read.pg, read.object.clone());
    Transaction { pg, object, mutations, payload, payload_sealed: false, log: Vec::new() }
}

/// The touched ranges, widened to whole seal units, merged, in order.
fn byte_ranges(object: &ReadData, touched: &Touched) -> Vec<(u64, u64)> {
    let unit = object.seals.as_ref().map_or(BLOCK_BYTES as u64, |seals| u64::from(seals.unit_bytes));
    if touched.whole {
        return vec![(0, object.object_bytes.next_multiple_of(unit).min(OBJECT_BYTES_MAX))];
    }
    let widen = |&(first, count): &(u32, u32)| {
        let (start, end) =
            (u64::from(first) * BLOCK_BYTES as u64, (u64::from(first) + u64::from(count)) * BLOCK_BYTES as u64);
        (start / unit * unit, end.next_multiple_of(unit).min(OBJECT_BYTES_MAX))
    };
    let mut wanted: Vec<(u64, u64)> = touched.block_ranges.iter().map(widen).collect();
    wanted.sort_unstable();
    let mut merged: Vec<(u64, u64)> = Vec::new();
    for (start, end) in wanted {
        match merged.last_mut() {
            Some(last) if start <= last.1 => last.1 = last.1.max(end),
            _ => merged.push((start, end)),
        }
    }
    merged
}

/// The ranges from a byte on as far as they fit into one part, and where the next begins.
fn part_of_ranges(ranges: Vec<(u64, u64)>, from: u64, part_bytes: u64) -> (Vec<(u64, u64)>, Option<u64>) {
    let left = || ranges.iter().filter(|(_, end)| *end > from).map(|&(start, end)| (start.max(from), end));
    let Some((first, _)) = left().next() else { return (Vec::new(), None) };
    let limit = first + part_bytes;
    let part = left().filter(|(start, _)| *start < limit).map(|(start, end)| (start, end.min(limit)));
    let next = left().find(|(_, end)| *end > limit).map(|(start, _)| start.max(limit));
    (part.collect(), next)
}

fn data_transaction(read: &PartRead, found: &ReadData) -> Transaction {
    let is_first = read.wanted.from.is_none_or(|from| from == 0);
    let mut mutations = if read.wanted.touched.whole && is_first { vec![Mutation::Remove] } else { Vec::new() };
    mutations.push(Mutation::Create);
    let mut pieces = Vec::new();
    for &(start, end) in read.ranges.iter().flatten() {
        let written_end = end.min(found.object_bytes);
        if start < written_end {
            let from = (start - read.span_start) as usize;
            let length = (written_end - start) as usize;
            pieces.push(found.data.slice(from..from + length));
            let seals = found.seals.as_ref().map(|seals| part_of(seals, from, length));
            mutations.push(Mutation::Write { offset: start, length: length as u32, seals });
        }
    }
    let payload = if pieces.len() == 1 { pieces.remove(0) } else { Bytes::from(pieces.concat()) };
    // What clients sealed is not encrypted a second time on its way.
    let payload_sealed = found.seals.is_some();
    Transaction { payload_sealed, ..transaction(&read.wanted, mutations, payload) }
}

/// The rest of an object. If it is small it is one transaction, which is there whole or not at all.
fn last_transactions(read: &PartRead, found: &ReadData, omap: Vec<Mutation>) -> Vec<Transaction> {
    let mut data = data_transaction(read, found);
    let mut omap = omap_transactions(&read.wanted, omap);
    if let [only] = &mut omap[..]
        && data.mutations.len() + only.mutations.len() <= OPERATIONS_MAX
    {
        data.mutations.append(&mut only.mutations);
        return vec![data];
    }
    omap.insert(0, data);
    omap
}

/// The seals of the units from `from` bytes behind the first one's on.
fn part_of(seals: &Seals, from: usize, length: usize) -> Seals {
    let (unit, width) = (seals.unit_bytes as usize, usize::from(seals.seal_bytes));
    let range = from / unit * width..(from + length).div_ceil(unit) * width;
    Seals { bytes: seals.bytes.slice(range), ..seals.clone() }
}

/// The mutations that make the receiver's omap equal to this one, where it may differ.
fn omap_changes(store: &Store, read: &RecoveryRead) -> Result<Vec<Mutation>, StoreError> {
    let key = ObjectKey { pg: read.pg, name: read.object.clone() };
    let set = |(key, value)| Mutation::OmapSet { key, value };
    let mut changes = Vec::new();
    if !read.touched.whole {
        for omap_key in &read.touched.omap_keys {
            changes.push(match store.omap_value(&key, omap_key)? {
                Some(value) => set((omap_key.clone(), value)),
                None => Mutation::OmapRemove { key: omap_key.clone() },
            });
        }
        return Ok(changes);
    }
    let mut from = Bytes::new();
    loop {
        let (entries, more) = store.omap_page(&key, b"", &from, OPERATIONS_MAX)?;
        if let (Some((last, _)), true) = (entries.last(), more) {
            // The first key behind the last one.
            from = [last, &b"\0"[..]].concat().into();
        }
        changes.extend(entries.into_iter().map(set));
        if !more {
            return Ok(changes);
        }
    }
}

fn omap_transactions(read: &RecoveryRead, changes: Vec<Mutation>) -> Vec<Transaction> {
    let mut transactions = Vec::new();
    let (mut batch, mut batch_bytes) = (Vec::new(), 0);
    for change in changes {
        batch_bytes += match &change {
            Mutation::OmapSet { key, value } => key.len() + value.len() + 16,
            _ => atoll_types::limits::OMAP_KEY_BYTES_MAX,
        };
        batch.push(change);
        if batch_bytes > OMAP_BYTES_PER_TRANSACTION || batch.len() == OPERATIONS_MAX {
            batch_bytes = 0;
            transactions.push(transaction(read, std::mem::take(&mut batch), Bytes::new()));
        }
    }
    if !batch.is_empty() {
        transactions.push(transaction(read, batch, Bytes::new()));
    }
    transactions
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_all_ranges_once() {
        let ranges = vec![(0, 4096), (8192, 8192 + PART_BYTES), (3 * PART_BYTES, 4 * PART_BYTES)];
        let (mut from, mut covered) = (Some(0), Vec::new());
        while let Some(start) = from {
            let (part, next) = part_of_ranges(ranges.clone(), start, PART_BYTES);
            let (first, last) = (part[0].0, part[part.len() - 1].1);
            assert!(last - first <= PART_BYTES && next.is_none_or(|next| next >= last));
            covered.extend(part);
            from = next;
        }
        let limit = PART_BYTES;
        let cut = [(0, 4096), (8192, limit), (limit, limit + 8192), (3 * limit, 4 * limit)];
        assert_eq!(covered, cut);
        assert_eq!(part_of_ranges(vec![(0, 0)], 0, PART_BYTES), (Vec::new(), None));
        assert_eq!(part_of_ranges(Vec::new(), 0, PART_BYTES), (Vec::new(), None));
    }
}
