//! The log as it is written: transactions whose data is durable go into it in the order of their queues,
//! everything that waits at the end of a turn in one record, and are committed when their record and all
//! before it are durable.

pub(crate) mod record;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use atoll_buffers::{BLOCK_BYTES, BlockBuffer};
use atoll_pending::Pending;
use atoll_types::PgId;
use bytes::Bytes;

use crate::disk::{DiskOperation, Segment, WRITE_SEGMENTS_MAX};
use crate::event::{StoreEvent, TransactionId};
use crate::invariants;
use crate::layout::Layout;
use crate::outbox::{Outbox, Purpose};
use crate::overlay::{Home, Overlay};
use crate::plan::Plan;
use record::{
    BATCH_BYTES, HEADER_BYTES, RECORD_BLOCKS_MAX, RecordHead, TransactionText, encode_record, record_blocks,
    text_bytes,
};

/// A transaction that is not durable yet.
struct Accepted {
    /// The queue that it waits in.
    queue: PgId,
    encoded: Bytes,
    plan: Plan,
    /// Data writes that must be durable before the log may mention them.
    data_writes_left: usize,
    reserved_blocks: u64,
}

/// A record that is being written.
struct Batch {
    sequence: u64,
    numbers: Vec<u64>,
    is_durable: bool,
}

/// The log, and the transactions that are not durable in it yet.
pub(crate) struct Log {
    layout: Layout,
    /// Distinguishes this run's records from all others.
    incarnation: u64,
    accepted: Pending<Accepted>,
    /// Transactions that are not in the queue yet, in order, per PG or the PG that it was split off.
    waiting: BTreeMap<PgId, VecDeque<u64>>,
    /// Transactions that go into the next records.
    queue: VecDeque<u64>,
    in_flight: VecDeque<Batch>,
    /// Ring position of the next record.
    position: u64,
    next_sequence: u64,
    durable_through: u64,
    /// Blocks appended and trimmed since the store was opened, skipped ends of the ring included.
    appended_blocks: u64,
    trimmed_blocks: u64,
    /// Room for transactions that are in no record yet.
    reserved_blocks: u64,
}

fn accepted_as(accepted: &Pending<Accepted>, number: u64) -> &Accepted {
    accepted.get(number).expect("a transaction that waits is remembered")
}

/// Records that are written at the same time.
const WRITES_IN_FLIGHT_MAX: usize = 2;

impl Log {
    pub fn new(layout: Layout, incarnation: u64) -> Self {
        Log {
            layout,
            incarnation,
            accepted: Pending::default(),
            waiting: BTreeMap::new(),
            queue: VecDeque::new(),
            in_flight: VecDeque::new(),
            position: 0,
            next_sequence: 1,
            durable_through: 0,
            appended_blocks: 0,
            trimmed_blocks: 0,
            reserved_blocks: 0,
        }
    }

    // ---- figures ----------------------------------------------------------------------------

    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    fn capacity_blocks(&self) -> u64 {
        // One record's worth is set aside for the end of the ring that a long record skips.
        self.layout.wal_blocks - 2 * RECORD_BLOCKS_MAX
    }

    fn committed_blocks(&self) -> u64 {
        self.appended_blocks - self.trimmed_blocks + self.reserved_blocks
    }

    pub fn size_bytes(&self) -> u64 {
        self.capacity_blocks() * BLOCK_BYTES as u64
    }

    pub fn used_bytes(&self) -> u64 {
        self.committed_blocks() * BLOCK_BYTES as u64
    }

    /// Returns true if there is room for any transaction.
    pub fn has_room(&self) -> bool {
        self.committed_blocks() + RECORD_BLOCKS_MAX <= self.capacity_blocks()
    }

    pub fn is_half_full(&self) -> bool {
        self.committed_blocks() * 2 > self.capacity_blocks()
    }

    /// Returns the blocks that may be appended while a checkpoint that began in time runs: one begins when the log
    /// is half full, and a part is left for uneven arrivals.
    pub fn blocks_per_checkpoint(&self) -> u64 {
        self.capacity_blocks() / 3
    }

    /// Blocks that were appended since the store was opened.
    pub fn appended_blocks(&self) -> u64 {
        self.appended_blocks
    }

    /// The newest record before which all are durable.
    pub fn durable_through(&self) -> u64 {
        self.durable_through
    }

    /// Ring position and number of the next record.
    pub fn head(&self) -> (u64, u64) {
        // At the very end of the ring the next record can only be at its beginning.
        let position = if self.position == self.layout.wal_blocks { 0 } else { self.position };
        (position, self.next_sequence)
    }

    pub fn oldest_uncommitted_number(&self) -> Option<u64> {
        self.accepted.first().map(|(number, _)| number)
    }

    // ---- transactions -----------------------------------------------------------------------

    /// Takes a transaction, encoded, which goes into the log when as many data writes are durable.
    pub fn accept(&mut self, number: u64, queue: PgId, encoded: Bytes, plan: Plan, data_writes_left: usize) {
        let inline_blocks = plan.inline_data().map_or(0, |data| data.block_count());
        let reserved_blocks = record_blocks(text_bytes(&encoded, &plan), inline_blocks);
        self.reserved_blocks += reserved_blocks;
        self.accepted.insert(number, Accepted { queue, encoded, plan, data_writes_left, reserved_blocks });
        if data_writes_left == 0 && !self.waiting.contains_key(&queue) {
            return self.queue.push_back(number);
        }
        let waiting = self.waiting.entry(queue).or_default();
        invariants::queue_keeps_the_order(waiting.back().copied(), number);
        waiting.push_back(number);
        self.move_to_queue(queue);
    }

    /// A data write of a transaction is durable.
    pub fn data_written(&mut self, number: u64, overlay: &mut Overlay) {
        let accepted = self.accepted.get_mut(number).expect("a transaction waits for its data");
        accepted.data_writes_left -= 1;
        if accepted.data_writes_left == 0 {
            accepted.plan.runs().for_each(|run| overlay.remove_run(run));
            let queue = accepted.queue;
            self.move_to_queue(queue);
        }
    }

    /// Moves transactions whose data is durable into the queue, in order.
    fn move_to_queue(&mut self, pg: PgId) {
        let Some(waiting) = self.waiting.get_mut(&pg) else { return };
        while let Some(&number) = waiting.front() {
            if accepted_as(&self.accepted, number).data_writes_left > 0 {
                return;
            }
            self.queue.extend(waiting.pop_front());
        }
        self.waiting.remove(&pg);
    }

    // ---- records ----------------------------------------------------------------------------

    /// Writes the queue, as far as not too many records are in flight. `generation` is that of the superblock in
    /// force.
    pub fn flush(&mut self, generation: u64, overlay: &mut Overlay, outbox: &mut Outbox) {
        while self.in_flight.len() < WRITES_IN_FLIGHT_MAX && !self.queue.is_empty() {
            self.write_batch(generation, overlay, outbox);
        }
    }

    fn write_batch(&mut self, generation: u64, overlay: &mut Overlay, outbox: &mut Outbox) {
        let (mut numbers, mut segments) = (Vec::new(), Vec::new());
        let (mut all_text_bytes, mut data_blocks, mut reserved_blocks) = (0, 0, 0);
        while let Some(&number) = self.queue.front() {
            let accepted = accepted_as(&self.accepted, number);
            let is_first = numbers.is_empty();
            let text_bytes = text_bytes(&accepted.encoded, &accepted.plan);
            let grown = all_text_bytes + text_bytes + (data_blocks + accepted.inline_blocks()) * BLOCK_BYTES;
            if !is_first && (grown > BATCH_BYTES || segments.len() + 2 > WRITE_SEGMENTS_MAX) {
                break;
            }
            invariants::log_mentions_durable_data_only(accepted.data_writes_left);
            all_text_bytes += text_bytes;
            reserved_blocks += accepted.reserved_blocks;
            let block_count = accepted.inline_blocks();
            if let Some(data) = accepted.plan.inline_data().filter(|data| !data.is_empty()) {
                segments.push(Segment { buffer: Arc::clone(data), first_block: 0, block_count });
                data_blocks += block_count;
            }
            numbers.push(number);
            self.queue.pop_front();
        }
        self.reserved_blocks -= reserved_blocks;
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        let (incarnation, durable_through) = (self.incarnation, self.durable_through);
        let head = RecordHead { incarnation, sequence, durable_through, generation };
        let text = Arc::new(self.encode(head, &numbers, all_text_bytes, data_blocks));
        segments.insert(0, Segment { block_count: text.block_count(), buffer: text, first_block: 0 });
        let blocks = record_blocks(all_text_bytes, data_blocks);
        invariants::record_fits_its_reservation(blocks, reserved_blocks);
        let position = self.place_record(blocks);
        self.note_places(&numbers, sequence, position + blocks - data_blocks as u64, overlay);
        self.in_flight.push_back(Batch { sequence, numbers, is_durable: false });
        let offset = (self.layout.wal_start + position) * BLOCK_BYTES as u64;
        let write = DiskOperation::Write { offset, segments, durable: true };
        outbox.request_on(self.layout.wal_device, Purpose::Wal { sequence }, write);
    }

    fn encode(&self, head: RecordHead, numbers: &[u64], text_bytes: usize, data_blocks: usize) -> BlockBuffer {
        let text = |&number: &u64| {
            let Accepted { encoded, plan, .. } = accepted_as(&self.accepted, number);
            TransactionText { number, encoded, plan }
        };
        let texts: Vec<TransactionText> = numbers.iter().map(text).collect();
        encode_record(head, &texts, text_bytes, data_blocks)
    }

    /// Remembers where in the ring the data of small writes is.
    fn note_places(&self, numbers: &[u64], sequence: u64, mut log_block: u64, overlay: &mut Overlay) {
        for &number in numbers {
            let plan = &accepted_as(&self.accepted, number).plan;
            if plan.inline_data().is_some() {
                for block in plan.blocks() {
                    overlay.logged(block, number, sequence, log_block);
                    log_block += 1;
                }
            }
        }
    }

    fn place_record(&mut self, blocks: u64) -> u64 {
        let end_blocks = self.layout.wal_blocks - self.position;
        if end_blocks < blocks {
            self.appended_blocks += end_blocks;
            self.position = 0;
        }
        let position = self.position;
        self.position += blocks;
        self.appended_blocks += blocks;
        let used_blocks = self.appended_blocks - self.trimmed_blocks;
        invariants::log_keeps_what_is_not_trimmed(used_blocks, self.layout.wal_blocks);
        position
    }

    /// A record is durable. Its transactions are committed as soon as those of all before it are.
    pub fn written(&mut self, sequence: u64, outbox: &mut Outbox) {
        let batch = self.in_flight.iter_mut().find(|batch| batch.sequence == sequence);
        batch.expect("a record in flight is remembered").is_durable = true;
        // A record counts only when all records before it are durable too: replay stops at a gap.
        while self.in_flight.front().is_some_and(|batch| batch.is_durable) {
            let batch = self.in_flight.pop_front().expect("looked at above");
            invariants::records_become_durable_in_order(self.durable_through, batch.sequence);
            self.durable_through = batch.sequence;
            for number in batch.numbers {
                self.accepted.remove(number);
                outbox.tell(StoreEvent::Committed(TransactionId(number)));
            }
        }
    }

    /// A checkpoint holds everything that was appended before.
    pub fn trim(&mut self, appended_blocks: u64) {
        invariants::log_is_trimmed_forward(self.trimmed_blocks, appended_blocks, self.appended_blocks);
        self.trimmed_blocks = appended_blocks;
    }

    // ---- invariants -------------------------------------------------------------------------

    /// Asserts invariants of the log between any two events. `trims_to` is where the checkpoint that runs will
    /// trim it.
    pub fn check_invariants(&self, trims_to: Option<u64>, outbox: &Outbox) {
        self.transactions_wait_in_one_place();
        self.records_in_flight_are_the_newest(trims_to.unwrap_or(self.trimmed_blocks));
        self.writes_are_under_way(outbox);
    }

    /// A transaction that is not durable waits for its data, for the log or for its record, each in one
    /// place, and in its queue's order; the log has set aside room for all that no record has yet.
    fn transactions_wait_in_one_place(&self) {
        let written = self.in_flight.iter().flat_map(|batch| batch.numbers.iter().copied());
        let without_record = || self.queue.iter().chain(self.waiting.values().flatten()).copied();
        let mut newest = BTreeMap::new();
        let mut seen = BTreeSet::new();
        for number in written.chain(without_record()) {
            assert!(seen.insert(number), "transaction {number} waits in one place");
            let accepted = accepted_as(&self.accepted, number);
            let before = newest.insert(accepted.queue, number);
            assert!(before < Some(number), "transaction {number} keeps its place in the order of its queue");
        }
        assert!(
            seen.iter().copied().eq(self.accepted.iter().map(|(number, _)| number)),
            "every transaction that is not durable waits somewhere"
        );
        let reserved = without_record().map(|number| accepted_as(&self.accepted, number).reserved_blocks);
        assert!(
            reserved.sum::<u64>() == self.reserved_blocks,
            "room in the log is reserved for waiting \
            transactions"
        );
    }

    /// The records in flight are all those behind the newest one that counts as durable; the tail of the log
    /// is not behind the checkpoint that runs, and that not behind the head.
    fn records_in_flight_are_the_newest(&self, trims_to: u64) {
        let expected = self.durable_through + 1..self.next_sequence;
        assert!(
            self.in_flight.iter().map(|batch| batch.sequence).eq(expected),
            "records in flight are those that do not count as durable"
        );
        invariants::log_is_trimmed_forward(self.trimmed_blocks, trims_to, self.appended_blocks);
        invariants::log_keeps_what_is_not_trimmed(
            self.appended_blocks - self.trimmed_blocks,
            self.layout.wal_blocks,
        );
    }

    /// Every data write and every record that something waits for is under way, and nothing else.
    fn writes_are_under_way(&self, outbox: &Outbox) {
        let mut data_writes: BTreeMap<u64, usize> = BTreeMap::new();
        let mut records = BTreeSet::new();
        for (_, purpose) in outbox.purposes() {
            match purpose {
                Purpose::Data { number } => *data_writes.entry(number).or_default() += 1,
                Purpose::Wal { sequence } => assert!(records.insert(sequence), "a record is written once"),
                _ => {}
            }
        }
        let wanted = self.accepted.iter().filter(|(_, accepted)| accepted.data_writes_left > 0);
        let wanted = wanted.map(|(number, accepted)| (number, accepted.data_writes_left));
        assert!(wanted.eq(data_writes), "transactions wait for as many writes as are under way");
        let wanted = self.in_flight.iter().filter(|batch| !batch.is_durable).map(|batch| batch.sequence);
        assert!(wanted.eq(records), "records in flight are being written");
    }

    /// Bytes of small writes are in memory or durable in a part of the log that is not trimmed. Replayed blocks
    /// have no record of this run; the opening checkpoint applies them.
    pub fn covers(&self, overlay: &Overlay, is_opening: bool) {
        let ring_blocks = self.layout.wal_blocks;
        let untrimmed_blocks = self.appended_blocks - self.trimmed_blocks;
        for (block, pending) in overlay.range_from(0) {
            match pending.home {
                Home::Log { sequence: 0, .. } => assert!(is_opening, "replayed blocks are applied at once"),
                Home::Log { sequence, block: log_block } => {
                    let behind_head = (self.position + ring_blocks - log_block - 1) % ring_blocks + 1;
                    let is_there = sequence < self.next_sequence && behind_head <= untrimmed_blocks;
                    assert!(is_there, "bytes of block {block} are in the log as long as they are not applied");
                    let is_safe = pending.buffer.is_some() || sequence <= self.durable_through;
                    assert!(is_safe, "bytes of block {block} stay in memory until the log has them");
                }
                Home::NoRecord | Home::Place => {
                    let is_safe = pending.buffer.is_some();
                    assert!(is_safe, "bytes of block {block} stay in memory until the log has them");
                }
            }
        }
    }
}

impl Accepted {
    fn inline_blocks(&self) -> usize {
        self.plan.inline_data().map_or(0, |data| data.block_count())
    }
}

const _: () = assert!(
    RECORD_BLOCKS_MAX as usize * BLOCK_BYTES
        > HEADER_BYTES + BATCH_BYTES + atoll_types::limits::CONTROL_BYTES_MAX + crate::plan::INLINE_BYTES_MAX
);

#[cfg(test)]
mod violations;
