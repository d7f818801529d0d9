//! The store itself: accepting transactions, group commit, and completions.

use std::collections::BTreeMap;
use std::sync::Arc;

use atoll_buffers::{BLOCK_BYTES, BlockBuffer};
use atoll_codec::Writer;
use atoll_types::{LogEntry, PgId, PoolId, SharedTransaction, Transaction, Version};
use bytes::Bytes;

use crate::allocator::Allocator;
use crate::checkpoint::Checkpoint;
use crate::disk::{DiskOperation, DiskRequest, DiskResult};
use crate::error::StoreError;
use crate::event::{BackingRoom, PoolUsage, StoreEvent, StoreUsage, TransactionId};
use crate::invariants;
use crate::layout::Layout;
use crate::loads::Loads;
use crate::log::Log;
use crate::metadata::page_table::{PAGES_MAX, PageTable};
use crate::metadata::{Metadata, PoolCount};
use crate::outbox::{Outbox, Purpose};
use crate::overlay::{Home, Overlay, PendingBlock};
use crate::pgs::{PgHistory, Pgs, Saving};
use crate::plan::{Data, Plan, plan};
use crate::read::Reads;
use crate::scrub::Scrubs;
use crate::space::Space;
use crate::superblock::Superblock;

/// Memory for metadata pages unless [`Store::set_memory_budget`] says otherwise.
const PAGE_BUDGET_BYTES: u64 = 256 << 20;
const PENDING_BUDGET_BYTES: u64 = 256 << 20;

/// The object store on one device.
pub struct Store {
    pub(crate) layout: Layout,
    pub(crate) superblock: Superblock,
    pub(crate) metadata: Metadata,
    pub(crate) page_table: PageTable,
    pub(crate) pgs: Pgs,
    pub(crate) space: Space,
    pub(crate) backing_room: BackingRoom,
    pub(crate) overlay: Overlay,
    pub(crate) checkpoint: Option<Box<Checkpoint>>,
    pub(crate) reads: Reads,
    pub(crate) loads: Loads,
    pub(crate) scrubs: Scrubs,
    pub(crate) outbox: Outbox,
    pub(crate) next_number: u64,
    pub(crate) poisoned: Option<String>,
    /// Damage of metadata that the superblock does not have yet.
    pub(crate) damage_to_note: Option<String>,
    pub(crate) usage: StoreUsage,
    pub(crate) page_budget_bytes: u64,
    pub(crate) pending_budget_bytes: u64,
    /// Metadata pages that the page table has room for.
    pub(crate) page_count_max: u32,
    pub(crate) log: Log,
}

/// Result of recovery.
pub(crate) struct StoreParts {
    pub layout: Layout,
    pub superblock: Superblock,
    pub incarnation: u64,
    pub metadata: Metadata,
    pub page_table: PageTable,
    pub pgs: BTreeMap<PgId, PgHistory>,
    pub allocator: Allocator,
    pub overlay: Overlay,
    pub freed: Vec<u32>,
    pub next_number: u64,
}

impl Store {
    pub(crate) fn from_parts(parts: StoreParts) -> Self {
        Store {
            layout: parts.layout,
            superblock: parts.superblock,
            metadata: parts.metadata,
            page_table: parts.page_table,
            pgs: Pgs::new(parts.pgs),
            space: Space::new(parts.allocator, parts.freed),
            backing_room: BackingRoom::default(),
            overlay: parts.overlay,
            checkpoint: None,
            reads: Reads::default(),
            loads: Loads::default(),
            scrubs: Scrubs::default(),
            outbox: Outbox::new(),
            next_number: parts.next_number.max(1),
            poisoned: None,
            damage_to_note: None,
            usage: StoreUsage::default(),
            page_budget_bytes: PAGE_BUDGET_BYTES,
            pending_budget_bytes: PENDING_BUDGET_BYTES,
            page_count_max: PAGES_MAX,
            log: Log::new(parts.layout, parts.incarnation),
        }
    }

    /// Sets how much memory metadata pages and data that is not at its place yet may take. Data that cannot be
    /// dropped yet counts too, and makes the store write it earlier. Pages that an operation needs at once are
    /// loaded however many they are.
    pub fn set_memory_budget(&mut self, page_bytes: u64, pending_bytes: u64) {
        self.page_budget_bytes = page_bytes;
        self.pending_budget_bytes = pending_bytes;
    }

    /// Version of the newest accepted write of a PG.
    pub fn head(&self, pg: PgId) -> Version {
        self.pgs.get(pg).map_or_else(Version::default, |state| state.head)
    }

    /// The PGs that the store has a history of.
    pub fn pgs(&self) -> impl Iterator<Item = PgId> {
        self.pgs.ids()
    }

    /// The newest log entries of a PG, oldest first.
    pub fn log(&self, pg: PgId) -> impl DoubleEndedIterator<Item = &LogEntry> {
        self.pgs.get(pg).into_iter().flat_map(|state| &state.log)
    }

    /// Forgets the pre-images of a PG's writes up to `through`, which will not be rolled back.
    pub fn forget_pre_images(&mut self, pg: PgId, through: Version) {
        if let Some(state) = self.pgs.get_mut(pg) {
            state.forget_pre_images(through);
        }
    }

    /// Figures about the store.
    pub fn usage(&self) -> StoreUsage {
        StoreUsage {
            total_bytes: u64::from(self.space.block_count()) * BLOCK_BYTES as u64,
            used_bytes: u64::from(self.space.used_count()) * BLOCK_BYTES as u64,
            object_count: self.metadata.object_count,
            metadata_memory_bytes: self.metadata.tree.pages.memory_bytes(),
            pending_memory_bytes: self.overlay.memory_bytes(),
            metadata_page_count: self.metadata.tree.pages.count(),
            metadata_page_hit_count: self.metadata.tree.pages.hit_count(),
            metadata_page_miss_count: self.metadata.tree.pages.miss_count(),
            log_size_bytes: self.log.size_bytes(),
            log_used_bytes: self.log.used_bytes(),
            ..self.usage
        }
    }

    /// Returns the usage of the store by each pool. `None` if the store was made by a release that did not count
    /// that.
    pub fn pool_usage(&self) -> Option<BTreeMap<PoolId, PoolUsage>> {
        let usage = |(pool, count): (PoolId, PoolCount)| {
            (pool, PoolUsage { object_count: count.objects, used_bytes: count.blocks * BLOCK_BYTES as u64 })
        };
        Some(self.metadata.pool_counts.as_ref()?.iter().map(usage).collect())
    }

    /// Accepts a transaction: it is applied in memory at once, and [`StoreEvent::Committed`]
    /// follows when it is durable. Transactions of one PG become durable in order.
    /// The caller must have seen [`Store::has_log_room`]. After an error nothing was changed, unless
    /// [`Store::poisoned_by`] says that the store is of no use any more.
    ///
    /// ```
    /// use atoll_types::Transaction;
    /// use atoll_store::{Store, StoreError, TransactionId};
    ///
    /// /// `None` if the log has no room; it has when the checkpoint that runs is done.
    /// fn try_submit(store: &mut Store, transaction: &Transaction) -> Option<Result<TransactionId, StoreError>> {
    ///     store.has_log_room().then(|| store.submit(transaction))
    /// }
    /// ```
    pub fn submit(&mut self, transaction: &Transaction) -> Result<TransactionId, StoreError> {
        let mut writer = Writer::with_capacity(transaction.encoded_bytes_expected());
        transaction.encode(&mut writer);
        self.submit_encoded(transaction, writer.finish())
    }

    /// As [`Store::submit`]: a transaction that is encoded already.
    pub fn submit_shared(&mut self, transaction: &SharedTransaction) -> Result<TransactionId, StoreError> {
        self.submit_encoded(transaction, transaction.encoded().clone())
    }

    fn submit_encoded(&mut self, transaction: &Transaction, encoded: Bytes) -> Result<TransactionId, StoreError> {
        assert!(self.has_log_room(), "the caller waits for room in the log");
        if let Some(cause) = &self.poisoned {
            return Err(StoreError::Poisoned { cause: cause.clone() });
        }
        self.check_follows(transaction)?;
        self.metadata.parts.check_owner(transaction.pg, &transaction.object, &transaction.mutations, true)?;
        self.check_split(transaction)?;
        let (plan, freed) = match self.metadata.overwrite(transaction)? {
            Some(overwrite) => (overwrite.apply(transaction, &mut self.metadata), Vec::new()),
            None => self.change(transaction)?,
        };
        Ok(self.accept(transaction, encoded, plan, &freed))
    }

    /// A transaction has changed the metadata: shows its data, and has it logged. `freed` are the blocks that
    /// nothing refers to any more.
    pub(crate) fn accept(
        &mut self,
        transaction: &Transaction,
        encoded: Bytes,
        plan: Plan,
        freed: &[u32],
    ) -> TransactionId {
        let number = self.next_number;
        self.next_number += 1;
        self.space.give_up(freed);
        self.pgs.record(number, transaction, &mut self.metadata.parts);
        let data_writes_left = match &plan.data {
            Data::Inline(data) => {
                self.show_in_overlay(number, &plan, data);
                0
            }
            Data::Direct(bytes) => self.write_data(number, &plan, bytes),
        };
        // After the data is shown: a transaction may free what it has written itself.
        for &block in freed {
            self.overlay.remove(block);
        }
        // PGs that came from one by splits share its objects, and so the order of their writes.
        let queue = self.metadata.parts.root(transaction.pg);
        self.log.accept(number, queue, encoded, plan, data_writes_left);
        TransactionId(number)
    }

    /// Finds places for a transaction's data and changes the metadata. Returns the blocks that nothing refers to
    /// any more, too.
    pub(crate) fn change(&mut self, transaction: &Transaction) -> Result<(Plan, Vec<u32>), StoreError> {
        if self.is_exhausted() && self.takes_from_checkpoints(transaction)? {
            return Err(StoreError::NoSpace);
        }
        let (plan, prepared) = plan(transaction, &self.metadata, self.space.allocator())?;
        if let Err(unready) = self.metadata.apply(&prepared) {
            let error = StoreError::from(unready);
            match error {
                StoreError::Damaged { .. } => self.poison_by_damage(error.to_string()),
                _ => self.poison(error.to_string()),
            }
            return Err(error);
        }
        self.metadata.count(transaction.pg.pool, &prepared);
        Ok((plan, prepared.freed))
    }

    /// Drawn when the store was made.
    pub fn id(&self) -> [u8; 16] {
        self.superblock.store_id
    }

    /// The generation of the superblock in force, which is durable.
    pub fn generation(&self) -> u64 {
        self.superblock.generation
    }

    /// The number of PGs that the pool had when this one was split here, or was split off.
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
            self.outbox.request(Purpose::Data { number }, DiskOperation::WriteBytes { offset, bytes });
            count += 1;
        }
        count
    }

    /// Writes the transactions that wait for the log. Call once per turn of the event loop, so that everything
    /// that arrived in the turn shares one write.
    ///
    /// ```
    /// use atoll_store::{DiskRequest, Store};
    ///
    /// /// What the devices are to do after a turn.
    /// fn end_of_turn(store: &mut Store) -> Vec<DiskRequest> {
    ///     store.flush();
    ///     std::iter::from_fn(|| store.next_request()).collect()
    /// }
    /// ```
    pub fn flush(&mut self) {
        if self.poisoned.is_none() {
            self.log.flush(self.superblock.generation, &mut self.overlay, &mut self.outbox);
        }
        let pages_are_many = self.unwritten_page_bytes() > self.page_budget_bytes / 4;
        if self.log.is_half_full() || pages_are_many || self.must_reclaim() {
            self.start_checkpoint();
        }
        self.discard_next();
        self.save_some_pgs();
        self.metadata.tree.pages.evict(self.page_budget_bytes, self.loads.waiting_since());
        self.overlay.drop_down_to(self.pending_budget_bytes, self.log.durable_through());
    }

    fn save_some_pgs(&mut self) {
        if self.poisoned.is_some() {
            return;
        }
        match self.pgs.save_some(&mut self.metadata) {
            Saving::Done => {}
            Saving::Cold(pages) => pages.into_iter().for_each(|number| self.load_page(number)),
            Saving::Damaged(cause) => self.poison_by_damage(cause),
        }
    }

    /// Reports the end of a disk request.
    ///
    /// ```
    /// use atoll_store::{Disk, Store};
    ///
    /// fn do_one(store: &mut Store, disk: &mut dyn Disk) {
    ///     if let Some(request) = store.next_request() {
    ///         let result = disk.execute(request.device, request.operation);
    ///         store.complete(request.id, result);
    ///     }
    /// }
    /// ```
    pub fn complete(&mut self, request_id: u64, result: DiskResult) {
        let purpose = self.outbox.completed(request_id);
        match purpose {
            Purpose::Read(piece) => return self.read_piece_done(piece, result),
            Purpose::Scrub(piece) => return self.scrub_piece_done(piece, result),
            Purpose::Page { number, is_again } => return self.page_read(number, is_again, result),
            Purpose::DamageNote => return self.damage_noted(&result),
            Purpose::Discard => return self.discarded(&result),
            Purpose::Checkpoint if self.is_noting_damage() => return self.superblock_may_have_ended(&result),
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
            Purpose::Read(_)
            | Purpose::Scrub(_)
            | Purpose::Page { .. }
            | Purpose::DamageNote
            | Purpose::Discard => unreachable!("handled above"),
            Purpose::Data { number } => self.log.data_written(number, &mut self.overlay),
            Purpose::Wal { sequence } => self.record_written(sequence),
            Purpose::Checkpoint => self.checkpoint_request_done(request_id, buffer),
        }
    }

    /// A record of the log is durable, which the checkpoint may wait for.
    pub(crate) fn record_written(&mut self, sequence: u64) {
        invariants::nothing_is_acknowledged_after_a_failure(self.poisoned.is_some());
        self.log.written(sequence, &mut self.outbox);
        self.advance_checkpoint();
    }

    pub(crate) fn poison(&mut self, cause: String) {
        if self.poisoned.is_none() {
            self.outbox.tell(StoreEvent::Poisoned { cause: cause.clone() });
            self.poisoned = Some(cause);
        }
    }

    /// The failure after which the store takes no more writes.
    pub fn poisoned_by(&self) -> Option<&str> {
        self.poisoned.as_deref()
    }

    /// The next request for the device.
    pub fn next_request(&mut self) -> Option<DiskRequest> {
        self.outbox.take_request()
    }

    /// The next event.
    pub fn next_event(&mut self) -> Option<StoreEvent> {
        self.outbox.take_event()
    }
}
