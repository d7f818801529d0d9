//! The store itself: accepting transactions, group commit, and completions.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use atoll_base::limits::PG_LOG_ENTRIES;
use atoll_base::{BLOCK_BYTES, LogEntry, Mutation, PgId, Transaction, Version};
use bytes::Bytes;

use crate::allocator::Allocator;
use crate::checkpoint::Checkpoint;
use crate::disk::{Device, DiskOperation, DiskRequest, DiskResult, Segment, WRITE_SEGMENTS_MAX};
use crate::error::StoreError;
use crate::layout::Layout;
use crate::metadata::{MemoryMetadata, Metadata, ObjectKey};
use crate::onode::Onode;
use crate::overlay::{Overlay, PendingBlock};
use crate::plan::{Plan, apply, plan, validate};
use crate::read::{ReadData, ReadError, ReadInProgress, ReadPiece};
use crate::superblock::Superblock;
use crate::wal::{
    BATCH_BYTES, HEADER_BYTES, RECORD_BLOCKS_MAX, RecordHead, encode_record, encode_transaction, record_blocks,
};

/// Names an accepted transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TransactionId(pub u64);

/// What happened in the store.
#[derive(Debug)]
pub enum StoreEvent {
    /// The transaction is durable.
    Committed(TransactionId),
    /// A read is done.
    Read {
        /// The id that [`Store::read`] returned.
        id: u64,
        /// What was found.
        result: Result<ReadData, ReadError>,
    },
    /// The device failed; nothing more will be committed.
    Poisoned {
        /// The failure.
        cause: String,
    },
}

/// Figures about a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreUsage {
    /// Size of the data region in bytes.
    pub total_bytes: u64,
    /// Bytes of the data region in use, blocks that wait to be freed included.
    pub used_bytes: u64,
    /// Objects.
    pub object_count: u64,
    /// Damaged blocks met since the store was opened.
    pub corrupt_block_count: u64,
    /// Checkpoints made since the store was opened.
    pub checkpoint_count: u64,
}

/// What a store remembers of a placement group.
#[derive(Clone, Debug, Default)]
pub(crate) struct PgState {
    pub head: Version,
    pub applied_number: u64,
    pub log: VecDeque<Arc<LogEntry>>,
}

impl PgState {
    pub fn record(&mut self, number: u64, entries: &[LogEntry]) {
        self.applied_number = number;
        for entry in entries {
            self.head = entry.version;
            self.log.push_back(Arc::new(entry.clone()));
        }
        let excess = self.log.len().saturating_sub(PG_LOG_ENTRIES);
        self.log.drain(..excess);
    }
}

/// Why a disk request was made.
#[derive(Clone, Copy)]
pub(crate) enum Purpose {
    Read(ReadPiece),
    /// Data of a large write.
    Data {
        number: u64,
    },
    Wal {
        sequence: u64,
    },
    Checkpoint,
}

struct Accepted {
    pg: PgId,
    encoded: Bytes,
    plan: Plan,
    /// Data writes that must be durable before the log may mention them.
    data_writes_left: usize,
    reserved_blocks: u64,
}

struct Batch {
    sequence: u64,
    numbers: Vec<u64>,
    is_durable: bool,
}

#[derive(Default)]
struct Wal {
    queue: VecDeque<u64>,
    in_flight: VecDeque<Batch>,
    /// Ring position of the next record.
    position: u64,
    next_sequence: u64,
    durable_through: u64,
    /// Blocks appended and trimmed since the store was opened, skipped ends of the ring included.
    appended_blocks: u64,
    trimmed_blocks: u64,
    reserved_blocks: u64,
}

/// Log text after which a nearly full metadata slot is counted anew.
const METADATA_RECOUNT_BYTES: u64 = 256 << 10;
const WAL_WRITES_IN_FLIGHT_MAX: usize = 2;
/// Share of the device that clients may not fill, so that recovery and deletes always have room.
const RESERVE_SHARE: u32 = 20;
const RESERVE_BLOCKS_MIN: u32 = (96 << 20) / BLOCK_BYTES as u32;

/// The object store on one device.
pub struct Store<M: Metadata = MemoryMetadata> {
    pub(crate) layout: Layout,
    pub(crate) superblock: Superblock,
    pub(crate) incarnation: u64,
    pub(crate) metadata: M,
    pub(crate) pgs: BTreeMap<PgId, PgState>,
    pub(crate) allocator: Allocator,
    pub(crate) overlay: Overlay,
    /// Blocks that nothing refers to, usable after the next checkpoint.
    pub(crate) freed: Vec<u32>,
    pub(crate) checkpoint: Option<Checkpoint<M::Snapshot>>,
    pub(crate) reads: BTreeMap<u64, ReadInProgress>,
    pub(crate) events: VecDeque<StoreEvent>,
    pub(crate) next_number: u64,
    pub(crate) poisoned: Option<String>,
    pub(crate) usage: StoreUsage,
    /// Log text of transactions that no checkpoint holds yet, and of those that the running one
    /// will hold.
    pub(crate) text_since_checkpoint_bytes: u64,
    pub(crate) text_being_checkpointed_bytes: u64,
    accepted: BTreeMap<u64, Accepted>,
    /// Transactions that are not in the log's queue yet, in order, per placement group.
    pg_queues: BTreeMap<PgId, VecDeque<u64>>,
    wal: Wal,
    requests: VecDeque<DiskRequest>,
    purposes: BTreeMap<u64, Purpose>,
    next_id: u64,
}

impl<M: Metadata> Store<M> {
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn from_parts(
        layout: Layout,
        superblock: Superblock,
        incarnation: u64,
        metadata: M,
        pgs: BTreeMap<PgId, PgState>,
        allocator: Allocator,
        overlay: Overlay,
        next_number: u64,
    ) -> Self {
        Store {
            layout,
            superblock,
            incarnation,
            metadata,
            pgs,
            allocator,
            overlay,
            freed: Vec::new(),
            checkpoint: None,
            reads: BTreeMap::new(),
            events: VecDeque::new(),
            next_number: next_number.max(1),
            poisoned: None,
            usage: StoreUsage::default(),
            text_since_checkpoint_bytes: 0,
            text_being_checkpointed_bytes: 0,
            accepted: BTreeMap::new(),
            pg_queues: BTreeMap::new(),
            wal: Wal { next_sequence: 1, ..Wal::default() },
            requests: VecDeque::new(),
            purposes: BTreeMap::new(),
            next_id: 1,
        }
    }

    /// The object's metadata as changed by all accepted transactions, durable or not.
    pub fn object(&self, key: &ObjectKey) -> Option<&Arc<Onode>> {
        self.metadata.get(key)
    }

    /// Version of the newest accepted write of a placement group.
    pub fn head(&self, pg: PgId) -> Version {
        self.pgs.get(&pg).map_or_else(Version::default, |state| state.head)
    }

    /// The newest log entries of a placement group, oldest first.
    pub fn log(&self, pg: PgId) -> impl DoubleEndedIterator<Item = &LogEntry> {
        self.pgs.get(&pg).into_iter().flat_map(|state| &state.log).map(|entry| &**entry)
    }

    /// Figures about the store.
    pub fn usage(&self) -> StoreUsage {
        let (total, free) = (self.allocator.block_count(), self.allocator.free_count());
        StoreUsage {
            total_bytes: u64::from(total) * BLOCK_BYTES as u64,
            used_bytes: u64::from(total - free) * BLOCK_BYTES as u64,
            object_count: self.metadata.len(),
            ..self.usage
        }
    }

    fn reserve_blocks(&self) -> u32 {
        (self.allocator.block_count() / RESERVE_SHARE).max(RESERVE_BLOCKS_MIN)
    }

    fn metadata_is_nearly_full(&self) -> bool {
        // What a transaction adds to the metadata is no more than its text in the log.
        let written = (self.superblock.chunk_count + 1) * (crate::checkpoint::CHUNK_BLOCKS * BLOCK_BYTES) as u64;
        let expected = written + self.text_being_checkpointed_bytes + self.text_since_checkpoint_bytes;
        expected > self.layout.slot_blocks * BLOCK_BYTES as u64 / 10 * 9
    }

    /// Whether clients must not add data.
    pub fn is_full(&self) -> bool {
        self.allocator.free_count() <= self.reserve_blocks() || self.metadata_is_nearly_full()
    }

    /// Checks a client's write before it gets its place in the group's history.
    pub fn check(&self, key: &ObjectKey, mutations: &[Mutation], payload_bytes: usize) -> Result<(), StoreError> {
        let onode = self.metadata.get(key).map(|onode| &**onode);
        let block_count = validate(mutations, payload_bytes, onode)?;
        // The group's own object holds fences and promises, without which nobody could even delete.
        let is_own = key.name.as_str() == atoll_base::operation::PG_META_OBJECT;
        let adds_data = block_count > 0 || Self::adds_omap(mutations) && !is_own;
        if adds_data && self.is_full() { Err(StoreError::NoSpace) } else { Ok(()) }
    }

    /// Whether the mutations add omap entries.
    pub fn adds_omap(mutations: &[Mutation]) -> bool {
        mutations.iter().any(|mutation| {
            matches!(mutation, Mutation::OmapSet { .. } | Mutation::OmapReplace { value: Some(_), .. })
        })
    }

    /// Names of the objects of a placement group.
    pub fn objects_of(&self, pg: PgId) -> Vec<atoll_base::ObjectName> {
        self.metadata.names_of(pg)
    }

    fn wal_capacity_blocks(&self) -> u64 {
        // One record's worth is set aside for the end of the ring that a long record skips.
        self.layout.wal_blocks - 2 * RECORD_BLOCKS_MAX
    }

    fn wal_committed_blocks(&self) -> u64 {
        self.wal.appended_blocks - self.wal.trimmed_blocks + self.wal.reserved_blocks
    }

    /// Whether the log has room for any transaction. If not, wait for the checkpoint that runs.
    pub fn has_log_room(&self) -> bool {
        self.wal_committed_blocks() + RECORD_BLOCKS_MAX <= self.wal_capacity_blocks()
    }

    /// Accepts a transaction: it is applied in memory at once, and [`StoreEvent::Committed`]
    /// follows when it is durable. Transactions of one placement group become durable in order.
    /// The caller must have seen [`Store::has_log_room`]. After an error nothing was changed.
    pub fn submit(&mut self, transaction: &Transaction) -> Result<TransactionId, StoreError> {
        assert!(self.has_log_room(), "the caller waits for room in the log");
        if let Some(cause) = &self.poisoned {
            return Err(StoreError::Poisoned { cause: cause.clone() });
        }
        self.check_follows(transaction)?;
        let key = ObjectKey { pg: transaction.pg, name: transaction.object.clone() };
        let onode = self.metadata.get(&key).cloned();
        let plan = plan(transaction, onode.as_deref(), &mut self.allocator)?;
        drop(onode);
        let number = self.next_number;
        self.next_number += 1;
        let freed_before = self.freed.len();
        apply(transaction, &plan.placements, &mut self.metadata, &mut self.freed);
        for &block in &self.freed[freed_before..] {
            self.overlay.remove(block);
        }
        self.pgs.entry(transaction.pg).or_default().record(number, &transaction.log);
        self.show_in_overlay(&plan);
        let data_writes_left = if plan.is_inline { 0 } else { self.write_data(number, &plan) };
        let encoded = encode_transaction(number, transaction, &plan);
        let inline_blocks = if plan.is_inline { plan.data.block_count() } else { 0 };
        let reserved_blocks = record_blocks(encoded.len(), inline_blocks);
        self.wal.reserved_blocks += reserved_blocks;
        self.text_since_checkpoint_bytes += encoded.len() as u64;
        let pg = transaction.pg;
        self.accepted.insert(number, Accepted { pg, encoded, plan, data_writes_left, reserved_blocks });
        self.pg_queues.entry(pg).or_default().push_back(number);
        self.move_to_log(pg);
        Ok(TransactionId(number))
    }

    /// A write of an object must be the next of its group's history: a gap would hide that the one
    /// before was not taken. What brings a lagging member level names the group's own object.
    fn check_follows(&self, transaction: &Transaction) -> Result<(), StoreError> {
        let head = self.head(transaction.pg);
        match &transaction.log[..] {
            [entry] if entry.object == transaction.object && entry.version.sequence != head.sequence + 1 => {
                let detail = format!("write {} does not follow the group's head {head}", entry.version);
                Err(StoreError::Invalid { detail })
            }
            _ => Ok(()),
        }
    }

    fn show_in_overlay(&mut self, plan: &Plan) {
        let blocks = plan.placements.iter().flat_map(|placement| placement.blocks());
        for (index, block) in blocks.enumerate() {
            let buffer = Arc::clone(&plan.data);
            self.overlay.insert(block, PendingBlock { buffer, index, in_log: plan.is_inline });
        }
    }

    fn write_data(&mut self, number: u64, plan: &Plan) -> usize {
        let mut first_block = 0;
        let mut count = 0;
        for &(start, length) in plan.placements.iter().flat_map(|placement| &placement.runs) {
            let segment = Segment { buffer: Arc::clone(&plan.data), first_block, block_count: length as usize };
            let offset = u64::from(start) * BLOCK_BYTES as u64;
            let write = DiskOperation::Write { offset, segments: vec![segment], durable: true };
            self.request(Purpose::Data { number }, write);
            first_block += length as usize;
            count += 1;
        }
        count
    }

    /// Moves the group's transactions whose data is durable into the log's queue, in order.
    fn move_to_log(&mut self, pg: PgId) {
        let Some(queue) = self.pg_queues.get_mut(&pg) else { return };
        while let Some(number) = queue.front() {
            if self.accepted[number].data_writes_left > 0 {
                return;
            }
            self.wal.queue.extend(queue.pop_front());
        }
        self.pg_queues.remove(&pg);
    }

    /// Writes what waits for the log. Call once per turn of the event loop, so that everything
    /// that arrived in the turn shares one write.
    pub fn flush(&mut self) {
        while self.wal.in_flight.len() < WAL_WRITES_IN_FLIGHT_MAX && !self.wal.queue.is_empty() {
            if self.poisoned.is_some() {
                return;
            }
            self.write_batch();
        }
        let must_reclaim = self.must_reclaim_space() || self.metadata_may_have_shrunk();
        if self.wal_committed_blocks() * 2 > self.wal_capacity_blocks() || must_reclaim {
            self.start_checkpoint();
        }
    }

    /// Deletes make metadata smaller, but only a checkpoint shows by how much.
    fn metadata_may_have_shrunk(&self) -> bool {
        self.text_since_checkpoint_bytes > METADATA_RECOUNT_BYTES && self.metadata_is_nearly_full()
    }

    fn must_reclaim_space(&self) -> bool {
        !self.freed.is_empty() && self.allocator.free_count() <= self.reserve_blocks() * 2
    }

    fn write_batch(&mut self) {
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
            if block_count > 0 {
                segments.push(Segment { buffer: Arc::clone(&accepted.plan.data), first_block: 0, block_count });
                data_blocks += block_count;
            }
            numbers.push(number);
            self.wal.queue.pop_front();
        }
        self.wal.reserved_blocks -= reserved_blocks;
        let sequence = self.wal.next_sequence;
        self.wal.next_sequence += 1;
        let head =
            RecordHead { incarnation: self.incarnation, sequence, durable_through: self.wal.durable_through };
        let text = Arc::new(encode_record(head, &texts, data_blocks));
        segments.insert(0, Segment { block_count: text.block_count(), buffer: text, first_block: 0 });
        let blocks = record_blocks(text_bytes, data_blocks);
        let position = self.place_record(blocks);
        self.wal.in_flight.push_back(Batch { sequence, numbers, is_durable: false });
        let offset = (self.layout.wal_start + position) * BLOCK_BYTES as u64;
        self.request(Purpose::Wal { sequence }, DiskOperation::Write { offset, segments, durable: true });
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

    pub(crate) fn trim_wal(&mut self, appended_blocks: u64) {
        self.wal.trimmed_blocks = appended_blocks;
    }

    pub(crate) fn oldest_uncommitted_number(&self) -> Option<u64> {
        self.accepted.keys().next().copied()
    }

    /// Reports the end of a disk request.
    pub fn complete(&mut self, request_id: u64, result: DiskResult) {
        let purpose = self.purposes.remove(&request_id).expect("completions belong to requests");
        if let Purpose::Read(piece) = purpose {
            return self.read_piece_done(piece, result);
        }
        if let Err(error) = result {
            return self.poison(error.to_string());
        }
        if self.poisoned.is_some() {
            return;
        }
        match purpose {
            Purpose::Read(_) => unreachable!("handled above"),
            Purpose::Data { number } => self.data_written(number),
            Purpose::Wal { sequence } => self.batch_written(sequence),
            Purpose::Checkpoint => self.checkpoint_request_done(),
        }
    }

    fn data_written(&mut self, number: u64) {
        let accepted = self.accepted.get_mut(&number).expect("a transaction waits for its data");
        accepted.data_writes_left -= 1;
        if accepted.data_writes_left == 0 {
            for block in accepted.plan.placements.iter().flat_map(|placement| placement.blocks()) {
                self.overlay.remove_if_from(block, &accepted.plan.data);
            }
            let pg = accepted.pg;
            self.move_to_log(pg);
        }
    }

    fn batch_written(&mut self, sequence: u64) {
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

    pub(crate) fn poison(&mut self, cause: String) {
        if self.poisoned.is_none() {
            self.events.push_back(StoreEvent::Poisoned { cause: cause.clone() });
            self.poisoned = Some(cause);
        }
    }

    /// The failure after which the store takes no more writes.
    pub fn poisoned_by(&self) -> Option<&str> {
        self.poisoned.as_deref()
    }

    pub(crate) fn next_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    pub(crate) fn request(&mut self, purpose: Purpose, operation: DiskOperation) {
        let id = self.next_id();
        self.purposes.insert(id, purpose);
        self.requests.push_back(DiskRequest { id, device: Device::Data, operation });
    }

    /// The next request for the device.
    pub fn next_request(&mut self) -> Option<DiskRequest> {
        self.requests.pop_front()
    }

    /// The next event.
    pub fn next_event(&mut self) -> Option<StoreEvent> {
        self.events.pop_front()
    }
}

impl Accepted {
    fn inline_blocks(&self) -> usize {
        if self.plan.is_inline { self.plan.data.block_count() } else { 0 }
    }
}

const _: () = assert!(
    RECORD_BLOCKS_MAX as usize * BLOCK_BYTES
        > HEADER_BYTES + BATCH_BYTES + atoll_base::limits::CONTROL_BYTES_MAX + crate::plan::INLINE_BYTES_MAX
);
