//! Group commit: transactions whose data is durable go into the log in the order of their groups,
//! everything that waits at the end of a turn in one record, and are committed when their record and
//! all before it are durable.

use std::collections::VecDeque;
use std::sync::Arc;

use atoll_base::{BLOCK_BYTES, PgId};
use bytes::Bytes;

use crate::disk::{DiskOperation, Segment, WRITE_SEGMENTS_MAX};
use crate::plan::Plan;
use crate::store::{Purpose, Store, StoreEvent, TransactionId};
use crate::wal::{BATCH_BYTES, HEADER_BYTES, RECORD_BLOCKS_MAX, RecordHead, encode_record, record_blocks};

/// A transaction that is not durable yet.
pub(crate) struct Accepted {
    /// The queue that it waits in.
    pub queue: PgId,
    pub encoded: Bytes,
    pub plan: Plan,
    /// Data writes that must be durable before the log may mention them.
    pub data_writes_left: usize,
    pub reserved_blocks: u64,
}

/// A record that is being written.
pub(crate) struct Batch {
    pub sequence: u64,
    pub numbers: Vec<u64>,
    pub is_durable: bool,
}

/// The log, as it is written.
#[derive(Default)]
pub(crate) struct Wal {
    pub queue: VecDeque<u64>,
    pub in_flight: VecDeque<Batch>,
    /// Ring position of the next record.
    pub position: u64,
    pub next_sequence: u64,
    pub durable_through: u64,
    /// Blocks appended and trimmed since the store was opened, skipped ends of the ring included.
    pub appended_blocks: u64,
    pub trimmed_blocks: u64,
    pub reserved_blocks: u64,
}

/// Records that are written at the same time.
pub(crate) const WAL_WRITES_IN_FLIGHT_MAX: usize = 2;

impl Store {
    pub(crate) fn wal_capacity_blocks(&self) -> u64 {
        // One record's worth is set aside for the end of the ring that a long record skips.
        self.layout.wal_blocks - 2 * RECORD_BLOCKS_MAX
    }

    pub(crate) fn wal_committed_blocks(&self) -> u64 {
        self.wal.appended_blocks - self.wal.trimmed_blocks + self.wal.reserved_blocks
    }

    /// Moves the group's transactions whose data is durable into the log's queue, in order.
    pub(crate) fn move_to_log(&mut self, pg: PgId) {
        let Some(queue) = self.pg_queues.get_mut(&pg) else { return };
        while let Some(number) = queue.front() {
            if self.accepted[number].data_writes_left > 0 {
                return;
            }
            self.wal.queue.extend(queue.pop_front());
        }
        self.pg_queues.remove(&pg);
    }

    pub(crate) fn write_batch(&mut self) {
        let (mut numbers, mut texts, mut segments) = (Vec::new(), Vec::new(), Vec::new());
        let (mut text_bytes, mut data_blocks, mut reserved_blocks) = (0, 0, 0);
        while let Some(&number) = self.wal.queue.front() {
            let accepted = &self.accepted[&number];
            let is_first = numbers.is_empty();
            let grown =
                text_bytes + accepted.encoded.len() + (data_blocks + accepted.inline_blocks()) * BLOCK_BYTES;
            if !is_first && (grown > BATCH_BYTES || segments.len() + 2 > WRITE_SEGMENTS_MAX) {
                break;
            }
            text_bytes += accepted.encoded.len();
            texts.push(accepted.encoded.clone());
            reserved_blocks += accepted.reserved_blocks;
            let block_count = accepted.inline_blocks();
            if let Some(data) = accepted.plan.inline_data().filter(|data| !data.is_empty()) {
                segments.push(Segment { buffer: Arc::clone(data), first_block: 0, block_count });
                data_blocks += block_count;
            }
            numbers.push(number);
            self.wal.queue.pop_front();
        }
        self.wal.reserved_blocks -= reserved_blocks;
        let sequence = self.wal.next_sequence;
        self.wal.next_sequence += 1;
        let head = RecordHead {
            incarnation: self.incarnation,
            sequence,
            durable_through: self.wal.durable_through,
            generation: self.superblock.generation,
        };
        let text = Arc::new(encode_record(head, &texts, data_blocks));
        segments.insert(0, Segment { block_count: text.block_count(), buffer: text, first_block: 0 });
        let blocks = record_blocks(text_bytes, data_blocks);
        let position = self.place_record(blocks);
        self.note_places(&numbers, sequence, position + blocks - data_blocks as u64);
        self.wal.in_flight.push_back(Batch { sequence, numbers, is_durable: false });
        let offset = (self.layout.wal_start + position) * BLOCK_BYTES as u64;
        let write = DiskOperation::Write { offset, segments, durable: true };
        self.request_on(self.layout.wal_device, Purpose::Wal { sequence }, write);
    }

    /// Remembers where in the ring the data of small writes is.
    fn note_places(&mut self, numbers: &[u64], sequence: u64, mut log_block: u64) {
        for &number in numbers {
            let plan = &self.accepted[&number].plan;
            if plan.inline_data().is_some() {
                for block in plan.blocks() {
                    self.overlay.logged(block, number, sequence, log_block);
                    log_block += 1;
                }
            }
        }
    }

    fn place_record(&mut self, blocks: u64) -> u64 {
        let end_blocks = self.layout.wal_blocks - self.wal.position;
        if end_blocks < blocks {
            self.wal.appended_blocks += end_blocks;
            self.wal.position = 0;
        }
        let position = self.wal.position;
        self.wal.position += blocks;
        self.wal.appended_blocks += blocks;
        let used_blocks = self.wal.appended_blocks - self.wal.trimmed_blocks;
        assert!(used_blocks <= self.layout.wal_blocks, "the log never overwrites what is not trimmed");
        position
    }

    pub(crate) fn wal_head(&self) -> (u64, u64) {
        // At the very end of the ring the next record can only be at its beginning.
        let position = if self.wal.position == self.layout.wal_blocks { 0 } else { self.wal.position };
        (position, self.wal.next_sequence)
    }

    pub(crate) fn wal_appended_blocks(&self) -> u64 {
        self.wal.appended_blocks
    }

    pub(crate) fn wal_durable_through(&self) -> u64 {
        self.wal.durable_through
    }

    /// Blocks that may be appended to the log while a checkpoint that began in time runs: one
    /// begins when the log is half full, and a part is left for what comes unevenly.
    pub(crate) fn wal_blocks_per_checkpoint(&self) -> u64 {
        self.wal_capacity_blocks() / 3
    }

    pub(crate) fn trim_wal(&mut self, appended_blocks: u64) {
        self.wal.trimmed_blocks = appended_blocks;
    }

    pub(crate) fn oldest_uncommitted_number(&self) -> Option<u64> {
        self.accepted.keys().next().copied()
    }

    pub(crate) fn data_written(&mut self, number: u64) {
        let accepted = self.accepted.get_mut(&number).expect("a transaction waits for its data");
        accepted.data_writes_left -= 1;
        if accepted.data_writes_left == 0 {
            accepted.plan.runs().for_each(|run| self.overlay.remove_run(run));
            let queue = accepted.queue;
            self.move_to_log(queue);
        }
    }

    pub(crate) fn batch_written(&mut self, sequence: u64) {
        let batch = self.wal.in_flight.iter_mut().find(|batch| batch.sequence == sequence);
        batch.expect("a record in flight is remembered").is_durable = true;
        // A record counts only when all records before it are durable too: replay stops at a gap.
        while self.wal.in_flight.front().is_some_and(|batch| batch.is_durable) {
            let batch = self.wal.in_flight.pop_front().expect("looked at above");
            self.wal.durable_through = batch.sequence;
            for number in batch.numbers {
                self.accepted.remove(&number);
                self.events.push_back(StoreEvent::Committed(TransactionId(number)));
            }
        }
        self.advance_checkpoint();
    }
}

impl Accepted {
    fn inline_blocks(&self) -> usize {
        self.plan.inline_data().map_or(0, |data| data.block_count())
    }
}

const _: () = assert!(
    RECORD_BLOCKS_MAX as usize * BLOCK_BYTES
        > HEADER_BYTES + BATCH_BYTES + atoll_base::limits::CONTROL_BYTES_MAX + crate::plan::INLINE_BYTES_MAX
);
