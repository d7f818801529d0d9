//! Reading the parts of an object that a lagging member lacks, as transactions that bring its copy
//! to this one's state.

use atoll_base::limits::{OBJECT_BYTES_MAX, OPERATIONS_MAX};
use atoll_base::{BLOCK_BYTES, Mutation, ObjectName, PgId, Seals, Touched, Transaction};
use atoll_pg::Token;
use atoll_store::{ObjectKey, ReadData, ReadError, Store, StoreError, Wish};
use bytes::{Bytes, BytesMut};

use crate::daemon::{LoadOwner, Osd, ReadOwner};
use crate::recovery::RecoveryRead;

/// Omap bytes per transaction: well below the control segment's limit.
const OMAP_BYTES_PER_TRANSACTION: usize = 512 << 10;

/// A sync read that waits for the object's data.
pub(crate) struct SyncRead {
    pg: PgId,
    token: Token,
    object: ObjectName,
    touched: Touched,
    /// The recovery scheduler waits for its end.
    is_scheduled: bool,
    span_start: u64,
    /// Byte ranges to send, in order and disjoint, once they are known.
    ranges: Option<Vec<(u64, u64)>>,
}

impl Osd {
    /// Reads for recovery as far as clients leave room.
    pub(crate) fn start_recovery_reads(&mut self) {
        while let Some(read) = self.recovery.next(self.now_ms) {
            self.start_sync_read(read, true);
        }
    }

    pub(crate) fn start_sync_read(&mut self, read: RecoveryRead, is_scheduled: bool) {
        let RecoveryRead { pg, token, object, touched } = read;
        let key = ObjectKey { pg, name: object.clone() };
        // Which ranges there are depends on the shape of the seals; a read of nothing waits until
        // the object's header is in memory.
        let read = SyncRead { pg, token, object, touched, is_scheduled, span_start: 0, ranges: None };
        let read_id = self.store.read(key, 0, 0);
        self.reads.insert(read_id, ReadOwner::Sync(Box::new(read)));
    }

    /// Part of what a sync read needs has been read: first nothing, then the data.
    pub(crate) fn sync_data_read(&mut self, mut read: SyncRead, result: Result<ReadData, ReadError>) {
        let found = match result {
            Ok(found) => found,
            Err(ReadError::NoSuchObject) => {
                let gone = transaction(read.pg, &read.object, vec![Mutation::Remove], Bytes::new());
                return self.sync_read_done(&read, Ok(vec![gone]));
            }
            Err(error) => return self.sync_read_done(&read, Err(error.to_string())),
        };
        if read.ranges.is_some() {
            return self.sync_data_ready((read, found));
        }
        let key = ObjectKey { pg: read.pg, name: read.object.clone() };
        let ranges = byte_ranges(&found, &read.touched);
        read.span_start = ranges.first().map_or(0, |range| range.0);
        let span_end = ranges.last().map_or(0, |range| range.1);
        let read_id = self.store.read(key, read.span_start, (span_end - read.span_start) as u32);
        read.ranges = Some(ranges);
        self.reads.insert(read_id, ReadOwner::Sync(Box::new(read)));
    }

    /// The data is there; the omap may have to be loaded still.
    pub(crate) fn sync_data_ready(&mut self, (read, found): (SyncRead, ReadData)) {
        let answer = match omap_changes(&self.store, &read) {
            Ok(mut changes) => {
                // The last change of all says that the copy is whole.
                changes.push(Mutation::SetVersion { version: found.version });
                Ok(build(&read, &found, changes))
            }
            Err(StoreError::Cold(cold)) => {
                let load = self.store.load(Wish::Pages(cold));
                self.loads.insert(load, LoadOwner::Sync(Box::new((read, found))));
                return;
            }
            Err(error) => Err(error.to_string()),
        };
        self.sync_read_done(&read, answer);
    }

    fn sync_read_done(&mut self, read: &SyncRead, answer: Result<Vec<Transaction>, String>) {
        let (pg, token) = (read.pg, read.token);
        if read.is_scheduled {
            let parts = answer.iter().flatten();
            self.recovery.done(parts.map(|part| part.payload.len() as u64).sum());
            self.start_recovery_reads();
        }
        self.with_group(pg, |group, view| group.sync_ready(token, answer, view));
    }
}

fn transaction(pg: PgId, object: &ObjectName, mutations: Vec<Mutation>, payload: Bytes) -> Transaction {
    Transaction { pg, object: object.clone(), mutations, payload, payload_sealed: false, log: Vec::new() }
}

/// The touched ranges, widened to whole seal units, merged, in order.
fn byte_ranges(object: &ReadData, touched: &Touched) -> Vec<(u64, u64)> {
    let unit = object.seals.as_ref().map_or(BLOCK_BYTES as u64, |seals| u64::from(seals.unit_bytes));
    if touched.whole {
        return vec![(0, object.object_bytes.next_multiple_of(unit).min(OBJECT_BYTES_MAX))];
    }
    let widen = |&(first, count): &(u32, u32)| {
        let (start, end) = (u64::from(first) * BLOCK_BYTES as u64, u64::from(first + count) * BLOCK_BYTES as u64);
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

fn build(read: &SyncRead, found: &ReadData, omap: Vec<Mutation>) -> Vec<Transaction> {
    let mut mutations = if read.touched.whole { vec![Mutation::Remove] } else { Vec::new() };
    mutations.push(Mutation::Create);
    let mut payload = BytesMut::new();
    for &(start, end) in read.ranges.iter().flatten() {
        let written_end = end.min(found.object_bytes);
        if start < written_end {
            let from = (start - read.span_start) as usize;
            let length = (written_end - start) as usize;
            payload.extend_from_slice(&found.data[from..from + length]);
            let seals = found.seals.as_ref().map(|seals| part_of(seals, from, length));
            mutations.push(Mutation::Write { offset: start, length: length as u32, seals });
        }
    }
    let mut transactions = vec![transaction(read.pg, &read.object, mutations, payload.freeze())];
    transactions.extend(omap_transactions(read, omap));
    transactions
}

/// The seals of the units from `from` bytes behind the first one's on.
fn part_of(seals: &Seals, from: usize, length: usize) -> Seals {
    let (unit, width) = (seals.unit_bytes as usize, usize::from(seals.seal_bytes));
    let range = from / unit * width..(from + length).div_ceil(unit) * width;
    Seals { bytes: seals.bytes.slice(range), ..seals.clone() }
}

/// What makes the receiver's omap like this one's, where it may differ.
fn omap_changes(store: &Store, read: &SyncRead) -> Result<Vec<Mutation>, StoreError> {
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

fn omap_transactions(read: &SyncRead, changes: Vec<Mutation>) -> Vec<Transaction> {
    let mut transactions = Vec::new();
    let (mut batch, mut batch_bytes) = (Vec::new(), 0);
    for change in changes {
        batch_bytes += match &change {
            Mutation::OmapSet { key, value } => key.len() + value.len() + 16,
            _ => atoll_base::limits::OMAP_KEY_BYTES_MAX,
        };
        batch.push(change);
        if batch_bytes > OMAP_BYTES_PER_TRANSACTION || batch.len() == OPERATIONS_MAX {
            batch_bytes = 0;
            transactions.push(transaction(read.pg, &read.object, std::mem::take(&mut batch), Bytes::new()));
        }
    }
    if !batch.is_empty() {
        transactions.push(transaction(read.pg, &read.object, batch, Bytes::new()));
    }
    transactions
}
