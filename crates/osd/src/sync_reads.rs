//! Reading the parts of an object that a lagging member lacks, as transactions that bring its copy
//! to this one's state.

use atoll_base::limits::{OBJECT_BYTES_MAX, OPERATIONS_MAX};
use atoll_base::{BLOCK_BYTES, Mutation, ObjectName, PgId, Touched, Transaction};
use atoll_pg::Token;
use atoll_store::{ObjectKey, Onode, ReadData, ReadError};
use bytes::{Bytes, BytesMut};

use crate::daemon::{Osd, ReadOwner};

/// Omap bytes per transaction: well below the control segment's limit.
const OMAP_BYTES_PER_TRANSACTION: usize = 512 << 10;

/// A sync read that waits for the object's data.
pub(crate) struct SyncRead {
    pg: PgId,
    token: Token,
    object: ObjectName,
    touched: Touched,
    span_start: u64,
    /// Byte ranges to send, in order and disjoint.
    ranges: Vec<(u64, u64)>,
}

impl Osd {
    pub(crate) fn start_sync_read(&mut self, pg: PgId, token: Token, object: ObjectName, touched: Touched) {
        let key = ObjectKey { pg, name: object.clone() };
        let Some(onode) = self.store.object(&key) else {
            let gone = transaction(pg, &object, vec![Mutation::Remove], Bytes::new());
            return self.sync_read_done(pg, token, Ok(vec![gone]));
        };
        let ranges = byte_ranges(onode, &touched);
        let span_start = ranges.first().map_or(0, |range| range.0);
        let span_end = ranges.last().map_or(0, |range| range.1);
        let read = SyncRead { pg, token, object, touched, span_start, ranges };
        let read_id = self.store.read(key, span_start, (span_end - span_start) as u32);
        self.reads.insert(read_id, ReadOwner::Sync(Box::new(read)));
    }

    pub(crate) fn sync_data_read(&mut self, read: SyncRead, result: Result<ReadData, ReadError>) {
        let key = ObjectKey { pg: read.pg, name: read.object.clone() };
        let answer = match (result, self.store.object(&key)) {
            (Ok(found), Some(onode)) => Ok(build(&read, onode, &found.data)),
            (Err(error), _) => Err(error.to_string()),
            (Ok(_), None) => Err("the object was removed while it was read".into()),
        };
        self.sync_read_done(read.pg, read.token, answer);
    }

    fn sync_read_done(&mut self, pg: PgId, token: Token, answer: Result<Vec<Transaction>, String>) {
        if let Some(group) = self.pgs.get_mut(&pg) {
            group.sync_ready(token, answer);
            self.dirty.insert(pg);
        }
    }
}

fn transaction(pg: PgId, object: &ObjectName, mutations: Vec<Mutation>, payload: Bytes) -> Transaction {
    Transaction { pg, object: object.clone(), mutations, payload, payload_sealed: false, log: Vec::new() }
}

/// The touched ranges, widened to whole seal units, merged, in order.
fn byte_ranges(onode: &Onode, touched: &Touched) -> Vec<(u64, u64)> {
    let unit = onode.seal_shape().map_or(BLOCK_BYTES as u64, |(unit_bytes, _)| u64::from(unit_bytes));
    if touched.whole {
        return vec![(0, onode.size_bytes().next_multiple_of(unit).min(OBJECT_BYTES_MAX))];
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

fn build(read: &SyncRead, onode: &Onode, data: &Bytes) -> Vec<Transaction> {
    let mut mutations = if read.touched.whole { vec![Mutation::Remove] } else { Vec::new() };
    mutations.push(Mutation::Create);
    let mut payload = BytesMut::new();
    for &(start, end) in &read.ranges {
        let written_end = end.min(onode.size_bytes());
        if start < written_end {
            let from = (start - read.span_start) as usize;
            let length = (written_end - start) as usize;
            payload.extend_from_slice(&data[from..from + length]);
            let seals = onode.seals(start, length as u64);
            mutations.push(Mutation::Write { offset: start, length: length as u32, seals });
        }
    }
    let mut transactions = vec![transaction(read.pg, &read.object, mutations, payload.freeze())];
    transactions.extend(omap_transactions(read, onode));
    transactions
}

fn omap_transactions(read: &SyncRead, onode: &Onode) -> Vec<Transaction> {
    let set = |key: &Bytes, value: &Bytes| Mutation::OmapSet { key: key.clone(), value: value.clone() };
    let changes: Vec<Mutation> = if read.touched.whole {
        onode.omap().iter().map(|(key, value)| set(key, value)).collect()
    } else {
        let change = |key: &Bytes| match onode.omap().get(key) {
            Some(value) => set(key, value),
            None => Mutation::OmapRemove { key: key.clone() },
        };
        read.touched.omap_keys.iter().map(change).collect()
    };
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
