//! Formatting a device, and opening one: load the newest checkpoint, replay the log, and write a
//! fresh checkpoint under a new incarnation before anything is served.

use std::collections::BTreeMap;
use std::sync::Arc;

use atoll_buffers::{BLOCK_BYTES, BlockBuffer};
use atoll_types::{PgId, Transaction};

use crate::allocator::Allocator;
use crate::damage::refuse_damage;
use crate::disk::{Device, Disk, DiskOperation, Segment, read_blocks, read_device};
use crate::error::{OpenError, StoreError};

use crate::layout::{FormatOptions, Layout, SUPERBLOCK_COPIES};
use crate::loads::LoadRequest;
use crate::log::record::{LoggedTransaction, RecordHeader};
use crate::metadata::page_table::PageTable;
use crate::metadata::{Bitmap, Cold, Location, Metadata, PageKind, Pages, Tree, Unready};
use crate::overlay::{Home, Overlay, PendingBlock};
use crate::pgs::{PgHistory, record_split};
use crate::plan::prepare_logged;
use crate::store::{Store, StoreParts};
use crate::superblock::{Superblock, check_log_mark, encode_log_mark};

const ZERO_BLOCKS: usize = 256;

/// Identity of a store among all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreIdentity {
    /// Drawn when it was made.
    pub store_id: [u8; 16],
    /// True if it was ever opened since.
    pub was_opened: bool,
    /// Raised at every opening and by every checkpoint. A lower one than was seen before is that of an older
    /// copy of the device.
    pub generation: u64,
}

impl Store {
    /// Makes an empty store on the device. Whatever was there is lost.
    ///
    /// ```
    /// use atoll_store::{Disk, FormatOptions, OpenError, Store};
    ///
    /// fn format(disk: &mut dyn Disk, store_id: [u8; 16]) -> Result<(), OpenError> {
    ///     Store::format(disk, FormatOptions { store_id, wal_bytes: 256 << 20, wal_is_apart: false })
    /// }
    /// ```
    pub fn format(disk: &mut dyn Disk, options: FormatOptions) -> Result<(), OpenError> {
        let device_bytes = disk.size_bytes(Device::Data).unwrap_or(0);
        let layout = Layout::new(device_bytes, options.wal_bytes, options.wal_is_apart)?;
        // The ring is written once, so that later synced writes find their blocks allocated when
        // the device is a file.
        if options.wal_is_apart {
            let size_bytes = disk.size_bytes(Device::Log).unwrap_or(0);
            let minimum_bytes = (layout.wal_start + layout.wal_blocks) * BLOCK_BYTES as u64;
            if size_bytes < minimum_bytes {
                return Err(OpenError::TooSmall { size_bytes, minimum_bytes });
            }
            write_block(disk, Device::Log, encode_log_mark(options.store_id))?;
        }
        zero_blocks(disk, Device::Data, 0, SUPERBLOCK_COPIES)?;
        zero_blocks(disk, layout.wal_device, layout.wal_start, layout.wal_blocks)?;
        let superblock = Superblock {
            store_id: options.store_id,
            generation: 0,
            device_bytes,
            wal_bytes: layout.wal_blocks * BLOCK_BYTES as u64,
            wal_is_apart: options.wal_is_apart,
            incarnation: 0,
            wal_position: 0,
            wal_sequence: 1,
            object_count: 0,
            page_count: 0,
            directories: Vec::new(),
            damage: String::new(),
        };
        disk.execute(layout.wal_device, DiskOperation::Sync)?;
        write_block(disk, Device::Data, superblock.encode())?;
        disk.execute(Device::Data, DiskOperation::Sync)?;
        Ok(())
    }

    /// Which store is on a device, without opening it.
    ///
    /// ```
    /// use atoll_store::{Disk, OpenError, Store};
    ///
    /// fn may_be_given_away(disk: &mut dyn Disk) -> Result<bool, OpenError> {
    ///     Ok(!Store::identity(disk)?.was_opened)
    /// }
    /// ```
    pub fn identity(disk: &mut dyn Disk) -> Result<StoreIdentity, OpenError> {
        let Superblock { store_id, incarnation, generation, .. } = Superblock::load(disk)?;
        Ok(StoreIdentity { store_id, was_opened: incarnation != 0, generation })
    }

    /// Opens the store on a device and recovers every transaction that was durable. `incarnation` must be a fresh
    /// random number: it distinguishes this run's log records from all others.
    ///
    /// ```
    /// use atoll_store::{Disk, OpenError, Store};
    ///
    /// fn count_objects(disk: &mut dyn Disk, random: u64) -> Result<u64, OpenError> {
    ///     let store = Store::open(disk, random)?;
    ///     Ok(store.usage().object_count)
    /// }
    /// ```
    pub fn open(disk: &mut dyn Disk, incarnation: u64) -> Result<Self, OpenError> {
        refuse_damage(&load_superblock(disk)?.0)?;
        Store::recover(disk, incarnation)
    }

    /// Opens the store, whatever it remembers of damage.
    pub(crate) fn recover(disk: &mut dyn Disk, incarnation: u64) -> Result<Self, OpenError> {
        let recovered = Recovered::load(disk)?;
        let mut store = Store::from_parts(recovered.into_parts(incarnation)?);
        store.start_checkpoint();
        store.finish_blocking(disk)?;
        assert!(!store.is_checkpointing(), "the opening checkpoint runs to its end");
        Ok(store)
    }

    /// Makes a change durable before an event loop serves the store.
    ///
    /// ```
    /// use atoll_types::Transaction;
    /// use atoll_store::{Disk, OpenError, Store};
    ///
    /// fn change_all(store: &mut Store, disk: &mut dyn Disk, changes: &[Transaction]) -> Result<(), OpenError> {
    ///     changes.iter().try_for_each(|change| store.apply_blocking(disk, change))
    /// }
    /// ```
    pub fn apply_blocking(&mut self, disk: &mut dyn Disk, change: &Transaction) -> Result<(), OpenError> {
        loop {
            match self.has_log_room().then(|| self.submit(change)) {
                Some(Ok(_)) => break,
                Some(Err(StoreError::Cold(cold))) => drop(self.load(LoadRequest::Pages(cold))),
                Some(Err(error)) => return Err(OpenError::Io(std::io::Error::other(error.to_string()))),
                None => self.start_checkpoint(),
            }
            self.finish_blocking(disk)?;
        }
        self.flush();
        self.finish_blocking(disk)?;
        // No event loop waits for what was loaded and committed here.
        while self.next_event().is_some() {}
        Ok(())
    }

    /// Makes everything durable and writes a last checkpoint, so that the next opening has nothing
    /// to replay. For a store that no event loop serves any more.
    ///
    /// ```
    /// use atoll_store::{Disk, OpenError, Store};
    ///
    /// fn end(store: Store, disk: &mut dyn Disk) -> Result<(), OpenError> {
    ///     store.close(disk)
    /// }
    /// ```
    pub fn close(mut self, disk: &mut dyn Disk) -> Result<(), OpenError> {
        loop {
            self.flush();
            self.finish_blocking(disk)?;
            // What waited for its data, or for room in a record, is in the log's queue only now.
            if self.log.oldest_uncommitted_number().is_none() {
                break;
            }
        }
        self.start_checkpoint();
        self.finish_blocking(disk)
    }

    fn finish_blocking(&mut self, disk: &mut dyn Disk) -> Result<(), OpenError> {
        while let Some(request) = self.next_request() {
            let result = disk.execute(request.device, request.operation);
            self.complete(request.id, result);
            if let Some(cause) = self.poisoned_by().filter(|_| !self.is_noting_damage()) {
                return Err(OpenError::Io(std::io::Error::other(cause.to_owned())));
            }
        }
        Ok(())
    }
}

fn write_block(disk: &mut dyn Disk, device: Device, block: BlockBuffer) -> Result<(), OpenError> {
    let segments = vec![Segment { buffer: Arc::new(block), first_block: 0, block_count: 1 }];
    disk.execute(device, DiskOperation::Write { offset: 0, segments, durable: false })?;
    Ok(())
}

fn zero_blocks(disk: &mut dyn Disk, device: Device, first: u64, count: u64) -> Result<(), OpenError> {
    let zeros = Arc::new(BlockBuffer::zeroed(ZERO_BLOCKS));
    let mut block = first;
    while block < first + count {
        let block_count = ZERO_BLOCKS.min((first + count - block) as usize);
        let segments = vec![Segment { buffer: Arc::clone(&zeros), first_block: 0, block_count }];
        let offset = block * BLOCK_BYTES as u64;
        disk.execute(device, DiskOperation::Write { offset, segments, durable: false })?;
        block += block_count as u64;
    }
    Ok(())
}

/// A store as it is found on its devices: the checkpoint, and the log replayed on it.
pub(crate) struct Recovered {
    pub superblock: Superblock,
    pub layout: Layout,
    pub metadata: Metadata,
    pub page_table: PageTable,
    pub pgs: BTreeMap<PgId, PgHistory>,
    pub overlay: Overlay,
    /// Blocks that the checkpoint refers to and the log has freed.
    pub freed: Vec<u32>,
    next_number: u64,
    pub replayed_records: u64,
}

impl Recovered {
    pub fn load(disk: &mut dyn Disk) -> Result<Self, OpenError> {
        let (superblock, layout) = load_superblock(disk)?;
        let (page_table, mut metadata) = load_checkpoint(disk, &superblock, &layout)?;
        for number in 0..metadata.tree.root {
            load_page(disk, &mut metadata.tree.pages, number)?;
        }
        let (pgs, parts) = warm(disk, &mut metadata, crate::pgs::load)?;
        metadata.parts = parts;
        metadata.pool_counts = warm(disk, &mut metadata, Metadata::load_pool_counts)?;
        let next_number = pgs.values().map(|pg| pg.applied_number + 1).max().unwrap_or(1);
        let mut recovered = Recovered {
            superblock,
            layout,
            metadata,
            page_table,
            pgs,
            overlay: Overlay::default(),
            freed: Vec::new(),
            next_number,
            replayed_records: 0,
        };
        recovered.replay(disk)?;
        Ok(recovered)
    }

    fn replay(&mut self, disk: &mut dyn Disk) -> Result<(), OpenError> {
        let mut position = self.superblock.wal_position;
        let mut sequence = self.superblock.wal_sequence;
        let incarnation = self.superblock.incarnation;
        let layout = self.layout;
        loop {
            // A record that did not fit before the end of the ring is at its beginning.
            let candidates = [position, 0];
            let found = candidates.iter().find_map(|&candidate| {
                read_record(disk, &layout, candidate, incarnation, sequence)
                    .transpose()
                    .map(|record| (candidate, record))
            });
            let Some((candidate, record)) = found else { break };
            let (header, transactions, buffer) = record?;
            let mut data_block = header.data_start();
            for logged in transactions {
                let home = RecordHome { buffer: &buffer, position: candidate };
                data_block = self.replay_transaction(disk, logged, home, data_block)?;
            }
            position = candidate + header.blocks();
            sequence += 1;
            self.replayed_records += 1;
            self.overlay.drop_down_to(REPLAYED_BYTES_MAX, u64::MAX);
            self.metadata.tree.pages.evict(REPLAYED_BYTES_MAX, None);
        }
        refuse_what_later_records_deny(disk, &layout, &self.superblock, sequence)
    }

    fn replay_transaction(
        &mut self,
        disk: &mut dyn Disk,
        logged: LoggedTransaction,
        home: RecordHome,
        mut data_block: usize,
    ) -> Result<usize, OpenError> {
        let mut blocks = logged.placements.iter().flat_map(|placement| placement.blocks());
        if let Some(block) = blocks.find(|&block| !self.metadata.bitmap.covers(block)) {
            let detail =
                format!("transaction {} writes to block {block}, which is outside the data", logged.number);
            return Err(OpenError::Damaged { what: "the log", detail });
        }
        let pg = self.pgs.entry(logged.transaction.pg).or_default();
        if logged.number > pg.applied_number {
            pg.record(logged.number, &logged.transaction);
            let prepared = warm(disk, &mut self.metadata, |metadata| {
                prepare_logged(&logged.transaction, &logged.placements, metadata)
            })?;
            prepared.freed.iter().for_each(|&block| self.overlay.remove(block));
            self.freed.extend(&prepared.freed);
            let damaged = |unready: Unready| OpenError::Damaged {
                what: "the metadata",
                detail: StoreError::from(unready).to_string(),
            };
            self.metadata.apply(&prepared).map_err(damaged)?;
            self.metadata.count(logged.transaction.pg.pool, &prepared);
            record_split(&mut self.pgs, &mut self.metadata.parts, &logged.transaction);
        }
        self.next_number = self.next_number.max(logged.number + 1);
        if logged.is_inline {
            // Also of transactions that the checkpoint holds: it need not have applied their data.
            for block in logged.placements.iter().flat_map(|placement| placement.blocks()) {
                let buffer = Some((Arc::clone(home.buffer), data_block));
                // It counts as a record before all of this run, so that the next checkpoint, which
                // trims it, applies it.
                let home = Home::Log { sequence: 0, block: home.position + data_block as u64 };
                self.overlay.insert(block, PendingBlock { buffer, number: logged.number, home });
                data_block += 1;
            }
        } else {
            // The log may still hold a small write to a block that a checkpoint has freed since and
            // that this write has got.
            let blocks = logged.placements.iter().flat_map(|placement| placement.blocks());
            blocks.for_each(|block| self.overlay.remove(block));
        }
        Ok(data_block)
    }

    fn into_parts(mut self, incarnation: u64) -> Result<StoreParts, OpenError> {
        // The log may hold small writes to blocks that transactions of the checkpoint have freed
        // since; such a block may get a metadata page before the data is applied to it.
        let (bitmap, pages) = (&self.metadata.bitmap, &self.metadata.tree.pages);
        self.overlay.retain(|block| bitmap.is_referenced(pages, block));
        let allocator = self.rebuild_allocator()?;
        Ok(StoreParts {
            layout: self.layout,
            superblock: self.superblock,
            incarnation,
            metadata: self.metadata,
            page_table: self.page_table,
            pgs: self.pgs,
            allocator,
            overlay: self.overlay,
            freed: self.freed,
            next_number: self.next_number,
        })
    }

    /// Rebuilds the allocator from the blocks of objects, those that the log has freed since the checkpoint, and
    /// those of metadata.
    pub fn rebuild_allocator(&self) -> Result<Allocator, OpenError> {
        let mut allocator = Allocator::new(self.layout.data_start, self.layout.data_blocks);
        let mut twice = None;
        let mut claim = |block: u32| {
            if !allocator.claim(block) {
                twice = Some(block);
            }
        };
        self.metadata.bitmap.for_each(&self.metadata.tree.pages, &mut claim);
        let pages = &self.metadata.tree.pages;
        let of_pages = (0..pages.count()).map(|number| pages.location(number).block);
        of_pages.filter(|&block| block != 0).chain(self.page_table.blocks()).for_each(&mut claim);
        // A block may have been freed twice by the log only if it was allocated in between, for
        // which a checkpoint would have been needed.
        self.freed.iter().copied().for_each(&mut claim);
        match twice {
            None => {
                allocator.finish_claims();
                Ok(allocator)
            }
            Some(block) => Err(OpenError::Damaged {
                what: "the metadata",
                detail: format!("block {block} is used twice or outside the data region"),
            }),
        }
    }
}

/// Loads the superblock, and checks that the log belongs to it.
pub(crate) fn load_superblock(disk: &mut dyn Disk) -> Result<(Superblock, Layout), OpenError> {
    let superblock = Superblock::load(disk)?;
    if superblock.wal_is_apart {
        check_log_mark(disk, &superblock)?;
    }
    let layout = Layout::new(superblock.device_bytes, superblock.wal_bytes, superblock.wal_is_apart)?;
    Ok((superblock, layout))
}

/// The metadata of the checkpoint. None of it is in memory yet, except pages that were never written.
pub(crate) fn load_checkpoint(
    disk: &mut dyn Disk,
    superblock: &Superblock,
    layout: &Layout,
) -> Result<(PageTable, Metadata), OpenError> {
    let (page_table, mut pages) = PageTable::load(disk, superblock.page_count, &superblock.directories)?;
    let bitmap = Bitmap::new(layout.data_start, layout.data_blocks);
    let root = bitmap.page_count();
    while pages.count() <= root {
        pages.add(Location::default());
    }
    bitmap.create_missing(&mut pages);
    if !pages.is_live(root) {
        pages.create_as(root, PageKind::Leaf);
    }
    pages.collect_free_numbers(root + 1);
    let object_count = superblock.object_count;
    Ok((
        page_table,
        Metadata {
            tree: Tree::new(pages, root),
            bitmap,
            object_count,
            pool_counts: None,
            parts: crate::metadata::Parts::default(),
        },
    ))
}

struct RecordHome<'a> {
    buffer: &'a Arc<BlockBuffer>,
    position: u64,
}

/// Memory that replayed data and pages may take each, in bytes.
const REPLAYED_BYTES_MAX: u64 = 256 << 20;

/// Reads a page and waits for it.
pub(crate) fn load_page(disk: &mut dyn Disk, pages: &mut Pages, number: u32) -> Result<(), OpenError> {
    if pages.is_resident(number) {
        return Ok(());
    }
    let damaged = || OpenError::Damaged { what: "the metadata", detail: format!("page {number} does not check") };
    if !pages.is_live(number) {
        return Err(damaged());
    }
    let block = read_blocks(disk, u64::from(pages.location(number).block), 1)?;
    if pages.loaded(number, block) { Ok(()) } else { Err(damaged()) }
}

/// Repeats an operation until all pages that it needs are in memory.
pub(crate) fn warm<T>(
    disk: &mut dyn Disk,
    metadata: &mut Metadata,
    operation: impl Fn(&Metadata) -> Result<T, Unready>,
) -> Result<T, OpenError> {
    loop {
        match operation(metadata) {
            Ok(value) => return Ok(value),
            Err(Unready::Cold(Cold(pages))) => {
                for number in pages {
                    load_page(disk, &mut metadata.tree.pages, number)?;
                }
            }
            Err(Unready::Damaged(error)) => return Err(OpenError::damaged("the metadata")(error)),
            Err(Unready::Invalid(detail)) => return Err(OpenError::Damaged { what: "the log", detail }),
        }
    }
}

type WholeRecord = (RecordHeader, Vec<LoggedTransaction>, Arc<BlockBuffer>);

/// Reads the record with this number at this place of the ring, if it is there whole.
fn read_record(
    disk: &mut dyn Disk,
    layout: &Layout,
    position: u64,
    incarnation: u64,
    sequence: u64,
) -> Result<Option<WholeRecord>, OpenError> {
    if position >= layout.wal_blocks {
        return Ok(None);
    }
    let first = read_device(disk, layout.wal_device, layout.wal_start + position, 1)?;
    let Some(header) = RecordHeader::parse(first.as_slice()) else { return Ok(None) };
    let is_expected = header.head.incarnation == incarnation && header.head.sequence == sequence;
    if !is_expected || position + header.blocks() > layout.wal_blocks {
        return Ok(None);
    }
    let buffer =
        Arc::new(read_device(disk, layout.wal_device, layout.wal_start + position, header.blocks() as usize)?);
    Ok(header.decode(&buffer).map(|transactions| (header, transactions, buffer)))
}

/// Replay stopped before record `missing`. If any later record has it as durable, it was damaged afterwards, and
/// continuing without it would lose acknowledged writes in silence. So would continuing from a superblock when a
/// record has a newer one as in force.
fn refuse_what_later_records_deny(
    disk: &mut dyn Disk,
    layout: &Layout,
    superblock: &Superblock,
    missing: u64,
) -> Result<(), OpenError> {
    let mut block = 0;
    while block < layout.wal_blocks {
        let count = (layout.wal_blocks - block).min(ZERO_BLOCKS as u64);
        let buffer = read_device(disk, layout.wal_device, layout.wal_start + block, count as usize)?;
        for (index, bytes) in buffer.as_slice().chunks_exact(BLOCK_BYTES).enumerate() {
            let Some(RecordHeader { head, .. }) = RecordHeader::parse(bytes) else { continue };
            let position = block + index as u64;
            let denies_superblock = head.generation > superblock.generation;
            let denies_end = head.incarnation == superblock.incarnation
                && head.sequence > missing
                && head.durable_through >= missing;
            let is_suspicious = denies_superblock || denies_end;
            if !is_suspicious || read_record(disk, layout, position, head.incarnation, head.sequence)?.is_none() {
                continue;
            }
            let sequence = head.sequence;
            return Err(match denies_superblock {
                true => OpenError::Damaged {
                    what: "the superblock",
                    detail: format!(
                        "it has generation {}, the log knows {}",
                        superblock.generation, head.generation
                    ),
                },
                false => OpenError::Damaged {
                    what: "the log",
                    detail: format!(
                        "record {missing} was durable and does not check any more, record {sequence} behind it does"
                    ),
                },
            });
        }
        block += count;
    }
    Ok(())
}
