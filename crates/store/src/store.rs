//! The store itself: accepting transactions, group commit, and completions.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use atoll_base::{BLOCK_BYTES, BlockBuffer, LogEntry, Mutation, PgId, Transaction, Version};
use bytes::Bytes;

use crate::allocator::Allocator;
use crate::checkpoint::Checkpoint;
use crate::disk::{Device, DiskOperation, DiskRequest, DiskResult};
use crate::error::StoreError;
use crate::group_commit::{Accepted, WAL_WRITES_IN_FLIGHT_MAX, Wal};
use crate::groups::{PgState, record_split};
use crate::layout::Layout;
use crate::lookup::{LoadId, Loads};
use crate::metadata::page_table::{PAGES_MAX, PageTable};
use crate::metadata::{Cold, Metadata, ObjectKey};
use crate::overlay::{Home, Overlay, PendingBlock};
use crate::plan::{Data, Plan, check_prepared, plan};
use crate::read::{ReadData, ReadError, ReadPiece, Reads};
use crate::scrub::{ScrubError, ScrubPiece, ScrubResult, Scrubs};
use crate::superblock::Superblock;
use crate::validate::validate;
use crate::wal::{RECORD_BLOCKS_MAX, encode_transaction, record_blocks};

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
    /// A scrub is done.
    Scrubbed {
        /// The id that [`Store::scrub`] returned.
        id: u64,
        /// What was found.
        result: Result<ScrubResult, ScrubError>,
    },
    /// What [`Store::load`] was asked for is in memory, until the next [`Store::flush`].
    Loaded(LoadId),
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
    /// Bytes of the data region in use. What was freed since the last checkpoint does not count,
    /// though it can be used again only after the next one.
    pub used_bytes: u64,
    /// Objects.
    pub object_count: u64,
    /// Damaged blocks met since the store was opened.
    pub corrupt_block_count: u64,
    /// Checkpoints made since the store was opened.
    pub checkpoint_count: u64,
    /// Memory that metadata takes, in bytes.
    pub metadata_memory_bytes: u64,
    /// Memory that data takes which is not at its place yet, in bytes.
    pub pending_memory_bytes: u64,
    /// Metadata pages of the store, in memory or not; each has one block.
    pub metadata_page_count: u32,
}

/// Why a disk request was made.
#[derive(Clone, Copy)]
pub(crate) enum Purpose {
    Read(ReadPiece),
    Scrub(ScrubPiece),
    /// Data of a large write.
    Data {
        number: u64,
    },
    Wal {
        sequence: u64,
    },
    /// A metadata page.
    Page {
        number: u32,
    },
    /// Something that the checkpoint does.
    Checkpoint,
}

/// Share of the device that clients may not fill, so that recovery and deletes always have room.
const RESERVE_SHARE: u32 = 20;
const RESERVE_BLOCKS_MIN: u32 = (96 << 20) / BLOCK_BYTES as u32;
/// Numbers of metadata pages that clients may not take, for the same reasons.
const RESERVE_PAGES: u32 = 1 << 16;

/// Memory for metadata pages unless [`Store::set_memory_budget`] says otherwise.
const PAGE_BUDGET_BYTES: u64 = 256 << 20;
const PENDING_BUDGET_BYTES: u64 = 256 << 20;
/// Groups whose log entries are saved in one turn while there is no checkpoint.
const GROUPS_SAVED_PER_TURN: usize = 4;

/// The object store on one device.
pub struct Store {
    pub(crate) layout: Layout,
    pub(crate) superblock: Superblock,
    pub(crate) incarnation: u64,
    pub(crate) metadata: Metadata,
    pub(crate) page_table: PageTable,
    pub(crate) pgs: BTreeMap<PgId, PgState>,
    /// Groups that have changed since the last checkpoint began.
    pub(crate) changed_pgs: BTreeSet<PgId>,
    pub(crate) allocator: Allocator,
    pub(crate) overlay: Overlay,
    /// Blocks that nothing refers to, usable after the next checkpoint.
    pub(crate) freed: Vec<u32>,
    pub(crate) checkpoint: Option<Box<Checkpoint>>,
    pub(crate) reads: Reads,
    pub(crate) loads: Loads,
    pub(crate) scrubs: Scrubs,
    pub(crate) events: VecDeque<StoreEvent>,
    pub(crate) next_number: u64,
    pub(crate) poisoned: Option<String>,
    pub(crate) usage: StoreUsage,
    pub(crate) page_budget_bytes: u64,
    pub(crate) pending_budget_bytes: u64,
    page_count_max: u32,
    pub(crate) accepted: BTreeMap<u64, Accepted>,
    /// Transactions that are not in the log's queue yet, in order, per placement group or the group
    /// that it was split off.
    pub(crate) pg_queues: BTreeMap<PgId, VecDeque<u64>>,
    pgs_with_segment: VecDeque<PgId>,
    pub(crate) wal: Wal,
    requests: VecDeque<DiskRequest>,
    purposes: BTreeMap<u64, Purpose>,
    next_id: u64,
}

/// What recovery found.
pub(crate) struct Parts {
    pub layout: Layout,
    pub superblock: Superblock,
    pub incarnation: u64,
    pub metadata: Metadata,
    pub page_table: PageTable,
    pub pgs: BTreeMap<PgId, PgState>,
    pub allocator: Allocator,
    pub overlay: Overlay,
    pub freed: Vec<u32>,
    pub next_number: u64,
}

impl Store {
    pub(crate) fn from_parts(parts: Parts) -> Self {
        Store {
            layout: parts.layout,
            superblock: parts.superblock,
            incarnation: parts.incarnation,
            metadata: parts.metadata,
            page_table: parts.page_table,
            changed_pgs: parts.pgs.keys().copied().collect(),
            pgs: parts.pgs,
            allocator: parts.allocator,
            overlay: parts.overlay,
            freed: parts.freed,
            checkpoint: None,
            reads: Reads::default(),
            loads: Loads::default(),
            scrubs: Scrubs::default(),
            events: VecDeque::new(),
            next_number: parts.next_number.max(1),
            poisoned: None,
            usage: StoreUsage::default(),
            page_budget_bytes: PAGE_BUDGET_BYTES,
            pending_budget_bytes: PENDING_BUDGET_BYTES,
            page_count_max: PAGES_MAX,
            accepted: BTreeMap::new(),
            pg_queues: BTreeMap::new(),
            pgs_with_segment: VecDeque::new(),
            wal: Wal { next_sequence: 1, ..Wal::default() },
            requests: VecDeque::new(),
            purposes: BTreeMap::new(),
            next_id: 1,
        }
    }

    /// Sets how much memory metadata pages and data that is not at its place yet may take. What
    /// cannot be dropped yet counts too, and makes the store write it earlier. Pages that an operation
    /// needs at once are loaded however many they are.
    pub fn set_memory_budget(&mut self, page_bytes: u64, pending_bytes: u64) {
        self.page_budget_bytes = page_bytes;
        self.pending_budget_bytes = pending_bytes;
    }

    /// Version of the newest accepted write of a placement group.
    pub fn head(&self, pg: PgId) -> Version {
        self.pgs.get(&pg).map_or_else(Version::default, |state| state.head)
    }

    /// The placement groups of which the store knows something.
    pub fn groups(&self) -> impl Iterator<Item = PgId> {
        self.pgs.keys().copied()
    }

    /// The newest log entries of a placement group, oldest first.
    pub fn log(&self, pg: PgId) -> impl DoubleEndedIterator<Item = &LogEntry> {
        self.pgs.get(&pg).into_iter().flat_map(|state| &state.log).map(|entry| &**entry)
    }

    /// Forgets how writes of a placement group are undone, up to one that nobody will take back.
    pub fn forget_undo(&mut self, pg: PgId, through: Version) {
        if let Some(state) = self.pgs.get_mut(&pg) {
            state.forget_undo(through);
        }
    }

    /// Figures about the store.
    pub fn usage(&self) -> StoreUsage {
        let (total, free) = (self.allocator.block_count(), self.allocator.free_count());
        StoreUsage {
            total_bytes: u64::from(total) * BLOCK_BYTES as u64,
            used_bytes: u64::from(total - free - self.freed.len() as u32) * BLOCK_BYTES as u64,
            object_count: self.metadata.object_count,
            metadata_memory_bytes: self.metadata.tree.pages.memory_bytes(),
            pending_memory_bytes: self.overlay.memory_bytes(),
            metadata_page_count: self.metadata.tree.pages.count(),
            ..self.usage
        }
    }

    fn reserve_blocks(&self) -> u32 {
        (self.allocator.block_count() / RESERVE_SHARE).max(RESERVE_BLOCKS_MIN)
    }

    /// Whether clients must not add data. What the next checkpoint sets free is not taken.
    pub fn is_full(&self) -> bool {
        let free_soon = self.allocator.free_count() as usize + self.blocks_to_reclaim();
        free_soon <= self.reserve_blocks() as usize || self.page_room() <= RESERVE_PAGES
    }

    /// Blocks that nobody needs any more, which a checkpoint has yet to set free.
    fn blocks_to_reclaim(&self) -> usize {
        self.freed.len() + self.checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.freed_count())
    }

    /// Whether there is no space only until the next checkpoint is done.
    fn waits_for_space(&self) -> bool {
        self.allocator.free_count() <= self.reserve_blocks() && !self.is_full()
    }

    /// Metadata pages that may still be added: the page table has room for so many, which is less
    /// than a large device has blocks.
    fn page_room(&self) -> u32 {
        self.metadata.tree.pages.room(self.page_count_max)
    }

    /// Lets tests fill the page table, which takes half a tebibyte of metadata otherwise.
    #[doc(hidden)]
    pub fn limit_pages(&mut self, count_max: u32) {
        self.page_count_max = count_max;
    }

    /// Whether nothing must be added at all: the rest is for checkpoints, which free space.
    fn is_exhausted(&self) -> bool {
        self.allocator.free_count() <= self.reserve_blocks() / 2 || self.page_room() <= RESERVE_PAGES / 2
    }

    /// Checks a client's write before it gets its place in the group's history. What it looks at is
    /// loaded ([`Store::is_write_loaded`]).
    pub fn check(&self, key: &ObjectKey, mutations: &[Mutation], payload_bytes: usize) -> Result<(), StoreError> {
        let info = self.metadata.info(&self.metadata.parts.object(key))?;
        let block_count = validate(mutations, payload_bytes, info.as_ref())?;
        // A write that gets its place in the history and is then refused would break the history.
        check_prepared(key, mutations, &self.metadata)?;
        // The group's own object holds fences and promises, without which nobody could even delete.
        let is_own = key.name.as_str() == atoll_base::operation::PG_META_OBJECT;
        let adds_data = block_count > 0 || Self::adds_metadata(mutations) && !is_own;
        if adds_data && self.is_full() { Err(StoreError::NoSpace) } else { Ok(()) }
    }

    /// Whether the mutations add metadata.
    pub fn adds_metadata(mutations: &[Mutation]) -> bool {
        mutations.iter().any(|mutation| {
            matches!(
                mutation,
                Mutation::OmapSet { .. }
                    | Mutation::OmapReplace { value: Some(_), .. }
                    | Mutation::Create
                    | Mutation::CloneFrom { .. }
                    | Mutation::KeepAs { .. }
            )
        })
    }

    /// Whether the log and the device have room for any transaction. If not, wait for the checkpoint
    /// that runs; a device that is full has room, so that deletes can be done.
    pub fn has_log_room(&self) -> bool {
        !self.waits_for_space()
            && self.wal_committed_blocks() + RECORD_BLOCKS_MAX <= self.wal_capacity_blocks()
            && self.unwritten_page_bytes() <= self.page_budget_bytes / 4 * 3
    }

    /// Bytes of metadata pages that a checkpoint must write before they can be dropped.
    fn unwritten_page_bytes(&self) -> u64 {
        let frozen = self.checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.pages_left());
        ((self.metadata.tree.pages.dirty_count() + frozen) * BLOCK_BYTES) as u64
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
        let adds = !transaction.payload.is_empty() || Self::adds_metadata(&transaction.mutations);
        let is_own = transaction.object.as_str() == atoll_base::operation::PG_META_OBJECT;
        if adds && !is_own && self.is_exhausted() {
            return Err(StoreError::NoSpace);
        }
        let (plan, prepared) = plan(transaction, &self.metadata, &mut self.allocator)?;
        let number = self.next_number;
        self.next_number += 1;
        for &block in &prepared.freed {
            self.overlay.remove(block);
        }
        self.freed.extend(&prepared.freed);
        self.metadata.apply(prepared);
        self.record_in_group(number, transaction);
        let data_writes_left = match &plan.data {
            Data::Inline(data) => {
                self.show_in_overlay(number, &plan, data);
                0
            }
            Data::Direct(bytes) => self.write_data(number, &plan, bytes),
        };
        let encoded = encode_transaction(number, transaction, &plan);
        let inline_blocks = plan.inline_data().map_or(0, |data| data.block_count());
        let reserved_blocks = record_blocks(encoded.len(), inline_blocks);
        self.wal.reserved_blocks += reserved_blocks;
        // Groups that came from one by splits share its objects, and so the order of their writes.
        let queue = self.metadata.parts.root(transaction.pg);
        self.accepted.insert(number, Accepted { queue, encoded, plan, data_writes_left, reserved_blocks });
        self.pg_queues.entry(queue).or_default().push_back(number);
        self.move_to_log(queue);
        Ok(TransactionId(number))
    }

    /// A write of an object must be the next of its group's history: a gap would hide that the one
    /// before was not taken. What brings a lagging member level names the group's own object.
    fn check_follows(&self, transaction: &Transaction) -> Result<(), StoreError> {
        let head = transaction.reset_head().unwrap_or_else(|| self.head(transaction.pg));
        match &transaction.log[..] {
            [entry] if entry.object == transaction.object && entry.version.sequence != head.sequence + 1 => {
                let detail = format!("write {} does not follow the group's head {head}", entry.version);
                Err(StoreError::Invalid { detail })
            }
            _ => Ok(()),
        }
    }

    fn record_in_group(&mut self, number: u64, transaction: &Transaction) {
        let pg = transaction.pg;
        let state = self.pgs.entry(pg).or_default();
        let had_segment = state.has_segment();
        state.record(number, transaction);
        if state.has_segment() && !had_segment {
            self.pgs_with_segment.push_back(pg);
        }
        self.changed_pgs.insert(pg);
        self.changed_pgs.extend(record_split(&mut self.pgs, &mut self.metadata.parts, transaction));
    }

    /// Of how many groups of its pool a group is one, if it was split or split off here.
    pub fn pg_num(&self, pg: PgId) -> Option<u32> {
        self.metadata.parts.get(pg).map(|part| part.pg_num)
    }

    fn show_in_overlay(&mut self, number: u64, plan: &Plan, data: &Arc<BlockBuffer>) {
        for (index, block) in plan.blocks().enumerate() {
            let buffer = Some((Arc::clone(data), index));
            self.overlay.insert(block, PendingBlock { buffer, number, home: Home::NoRecord });
        }
    }

    fn write_data(&mut self, number: u64, plan: &Plan, data: &Bytes) -> usize {
        let mut position = 0;
        let mut count = 0;
        for run @ (start, length) in plan.runs() {
            let bytes = data.slice(position..position + length as usize * BLOCK_BYTES);
            position += bytes.len();
            self.overlay.insert_run(run, bytes.clone());
            let offset = u64::from(start) * BLOCK_BYTES as u64;
            self.request(Purpose::Data { number }, DiskOperation::WriteBytes { offset, bytes });
            count += 1;
        }
        count
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
        let log_is_half_full = self.wal_committed_blocks() * 2 > self.wal_capacity_blocks();
        let pages_are_many = self.unwritten_page_bytes() > self.page_budget_bytes / 4;
        if log_is_half_full || pages_are_many || self.must_reclaim_space() {
            self.start_checkpoint();
        }
        self.save_some_groups();
        self.metadata.tree.pages.evict(self.page_budget_bytes, self.loads.waiting_since());
        self.overlay.drop_down_to(self.pending_budget_bytes, self.wal.durable_through);
    }

    /// Saves log entries of groups that have enough of them. If pages must be loaded for one, it is the
    /// first of a later turn; to load those of others meanwhile would drive out its own.
    fn save_some_groups(&mut self) {
        for _ in 0..GROUPS_SAVED_PER_TURN {
            let Some(&pg) = self.pgs_with_segment.front().filter(|_| self.poisoned.is_none()) else { return };
            let state = self.pgs.get_mut(&pg).expect("groups are never forgotten");
            if state.has_segment() {
                let cold = state.cold_pages(pg, &self.metadata);
                if !cold.is_empty() {
                    return cold.into_iter().for_each(|number| self.load_page(number));
                }
                if let Err(unready) = state.save(pg, &mut self.metadata) {
                    match crate::groups::cold(unready) {
                        Ok(Cold(pages)) => return pages.into_iter().for_each(|number| self.load_page(number)),
                        Err(cause) => return self.poison(cause),
                    }
                }
            }
            self.pgs_with_segment.pop_front();
        }
    }

    fn must_reclaim_space(&self) -> bool {
        !self.freed.is_empty() && self.allocator.free_count() <= self.reserve_blocks() * 2
    }

    /// Reports the end of a disk request.
    pub fn complete(&mut self, request_id: u64, result: DiskResult) {
        let purpose = self.purposes.remove(&request_id).expect("completions belong to requests");
        match purpose {
            Purpose::Read(piece) => return self.read_piece_done(piece, result),
            Purpose::Scrub(piece) => return self.scrub_piece_done(piece, result),
            Purpose::Page { number } => return self.page_read(number, result),
            _ => {}
        }
        let buffer = match result {
            Ok(buffer) => buffer,
            Err(error) => return self.poison(error.to_string()),
        };
        if self.poisoned.is_some() {
            return;
        }
        match purpose {
            Purpose::Read(_) | Purpose::Scrub(_) | Purpose::Page { .. } => unreachable!("handled above"),
            Purpose::Data { number } => self.data_written(number),
            Purpose::Wal { sequence } => self.batch_written(sequence),
            Purpose::Checkpoint => self.checkpoint_request_done(request_id, buffer),
        }
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

    pub(crate) fn request(&mut self, purpose: Purpose, operation: DiskOperation) -> u64 {
        self.request_on(Device::Data, purpose, operation)
    }

    pub(crate) fn request_on(&mut self, device: Device, purpose: Purpose, operation: DiskOperation) -> u64 {
        let id = self.next_id();
        self.purposes.insert(id, purpose);
        self.requests.push_back(DiskRequest { id, device, operation });
        id
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
