//! Formatting a device, and opening one: load the newest checkpoint, replay the log, and write a
//! fresh checkpoint under a new incarnation before anything is served.

use std::collections::BTreeMap;
use std::sync::Arc;

use atoll_base::{BLOCK_BYTES, BlockBuffer};

use crate::allocator::Allocator;
use crate::checkpoint::{CHUNK_BLOCKS, Record, RecordReader, decode_chunk};
use crate::disk::{Device, Disk, DiskOperation, Segment, read_blocks};
use crate::error::OpenError;
use crate::layout::{FormatOptions, Layout};
use crate::metadata::{MemoryMetadata, Metadata, ObjectKey};
use crate::onode::HOLE;
use crate::overlay::{Overlay, PendingBlock};
use crate::plan::apply;
use crate::store::{PgState, Store};
use crate::superblock::Superblock;
use crate::wal::{LoggedTransaction, RecordHeader};

const ZERO_BLOCKS: usize = 256;

impl<M: Metadata> Store<M> {
    /// Makes an empty store on the device. Whatever was there is lost.
    pub fn format(disk: &mut dyn Disk, options: FormatOptions) -> Result<(), OpenError> {
        let device_bytes = disk.size_bytes(Device::Data).unwrap_or(0);
        let layout = Layout::new(device_bytes, options.wal_bytes)?;
        // The ring is written once, so that later synced writes find their blocks allocated when
        // the device is a file.
        let zeros = Arc::new(BlockBuffer::zeroed(ZERO_BLOCKS));
        let mut block = 0;
        while block < layout.wal_start + layout.wal_blocks {
            let block_count = ZERO_BLOCKS.min((layout.wal_start + layout.wal_blocks - block) as usize);
            let segments = vec![Segment { buffer: Arc::clone(&zeros), first_block: 0, block_count }];
            let offset = block * BLOCK_BYTES as u64;
            disk.execute(Device::Data, DiskOperation::Write { offset, segments, durable: false })?;
            block += block_count as u64;
        }
        let superblock = Superblock {
            store_id: options.store_id,
            generation: 0,
            device_bytes,
            wal_bytes: options.wal_bytes,
            slot: 0,
            chunk_count: 0,
            incarnation: 0,
            wal_position: 0,
            wal_sequence: 1,
        };
        let segments = vec![Segment { buffer: Arc::new(superblock.encode()), first_block: 0, block_count: 1 }];
        disk.execute(Device::Data, DiskOperation::Write { offset: 0, segments, durable: false })?;
        disk.execute(Device::Data, DiskOperation::Sync)?;
        Ok(())
    }
}

impl Store<MemoryMetadata> {
    /// Opens the store on a device and recovers every transaction that was durable. `incarnation`
    /// must be a fresh random number: it tells this run's log records from all others.
    pub fn open(disk: &mut dyn Disk, incarnation: u64) -> Result<Self, OpenError> {
        let superblock = Superblock::load(disk)?;
        let layout = Layout::new(superblock.device_bytes, superblock.wal_bytes)?;
        let mut recovered = Recovered::default();
        recovered.load_checkpoint(disk, &superblock, &layout)?;
        recovered.replay(disk, &superblock, &layout)?;
        let allocator = recovered.rebuild_allocator(&layout)?;
        let Recovered { metadata, pgs, overlay, next_number, .. } = recovered;
        let mut store =
            Store::from_parts(layout, superblock, incarnation, metadata, pgs, allocator, overlay, next_number);
        store.start_checkpoint();
        while let Some(request) = store.next_request() {
            let result = disk.execute(request.device, request.operation);
            store.complete(request.id, result);
            if let Some(cause) = store.poisoned_by() {
                return Err(OpenError::Io(std::io::Error::other(cause.to_owned())));
            }
        }
        assert!(!store.is_checkpointing(), "the opening checkpoint runs to its end");
        Ok(store)
    }
}

#[derive(Default)]
struct Recovered {
    metadata: MemoryMetadata,
    pgs: BTreeMap<atoll_base::PgId, PgState>,
    overlay: Overlay,
    next_number: u64,
}

impl Recovered {
    fn load_checkpoint(
        &mut self,
        disk: &mut dyn Disk,
        superblock: &Superblock,
        layout: &Layout,
    ) -> Result<(), OpenError> {
        let damaged = OpenError::damaged("the metadata checkpoint");
        let mut records = RecordReader::default();
        let mut current: Option<ObjectKey> = None;
        for index in 0..superblock.chunk_count {
            let block = layout.slot_start[usize::from(superblock.slot)] + index * CHUNK_BLOCKS as u64;
            let buffer = read_blocks(disk, block, CHUNK_BLOCKS)?;
            let chunk = decode_chunk(&buffer, superblock.generation, index).ok_or(OpenError::Damaged {
                what: "the metadata checkpoint",
                detail: format!("chunk {index} does not check"),
            })?;
            records.push(chunk);
            while let Some(record) = records.next().map_err(&damaged)? {
                match record {
                    Record::Pg(pg, state) => {
                        self.next_number = self.next_number.max(state.applied_number + 1);
                        self.pgs.insert(pg, state);
                    }
                    Record::Object(key, onode) => {
                        *self.metadata.edit(&key) = onode;
                        current = Some(key);
                    }
                    Record::Omap(entries) => {
                        let key = current.as_ref().ok_or(OpenError::Damaged {
                            what: "the metadata checkpoint",
                            detail: "omap entries before any object".into(),
                        })?;
                        self.metadata.edit(key).omap.extend(entries);
                    }
                }
            }
        }
        records.finish().map_err(&damaged)
    }

    fn replay(&mut self, disk: &mut dyn Disk, superblock: &Superblock, layout: &Layout) -> Result<(), OpenError> {
        let mut position = superblock.wal_position;
        let mut sequence = superblock.wal_sequence;
        loop {
            // A record that did not fit before the end of the ring is at its beginning.
            let candidates = [position, 0];
            let found = candidates.iter().find_map(|&candidate| {
                read_record(disk, layout, candidate, superblock.incarnation, sequence)
                    .transpose()
                    .map(|r| (candidate, r))
            });
            let Some((candidate, record)) = found else { break };
            let (header, transactions, buffer) = record?;
            let mut data_block = header.data_start();
            for logged in transactions {
                data_block = self.replay_transaction(logged, &buffer, data_block);
            }
            position = candidate + header.blocks();
            sequence += 1;
        }
        refuse_damaged_middle(disk, layout, superblock.incarnation, sequence)
    }

    fn replay_transaction(
        &mut self,
        logged: LoggedTransaction,
        record: &Arc<BlockBuffer>,
        mut data_block: usize,
    ) -> usize {
        let pg = self.pgs.entry(logged.transaction.pg).or_default();
        let is_new = logged.number > pg.applied_number;
        if is_new {
            pg.record(logged.number, &logged.transaction.log);
            let mut freed = Vec::new();
            apply(&logged.transaction, &logged.placements, &mut self.metadata, &mut freed);
            freed.iter().for_each(|&block| self.overlay.remove(block));
        }
        self.next_number = self.next_number.max(logged.number + 1);
        if logged.is_inline {
            for block in logged.placements.iter().flat_map(|placement| placement.blocks()) {
                if is_new {
                    let buffer = Arc::clone(record);
                    self.overlay.insert(block, PendingBlock { buffer, index: data_block, in_log: true });
                }
                data_block += 1;
            }
        }
        data_block
    }

    fn rebuild_allocator(&self, layout: &Layout) -> Result<Allocator, OpenError> {
        let mut allocator = Allocator::new(layout.data_start, layout.data_blocks);
        for (key, onode) in self.metadata.snapshot() {
            for meta in onode.blocks.iter().filter(|meta| **meta != HOLE) {
                if !allocator.claim(meta.device_block) {
                    return Err(OpenError::Damaged {
                        what: "the metadata",
                        detail: format!(
                            "object {} of {} uses block {} twice or outside the data region",
                            key.name, key.pg, meta.device_block
                        ),
                    });
                }
            }
        }
        Ok(allocator)
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
    let first = read_blocks(disk, layout.wal_start + position, 1)?;
    let Some(header) = RecordHeader::parse(first.as_slice()) else { return Ok(None) };
    let is_expected = header.head.incarnation == incarnation && header.head.sequence == sequence;
    if !is_expected || position + header.blocks() > layout.wal_blocks {
        return Ok(None);
    }
    let buffer = Arc::new(read_blocks(disk, layout.wal_start + position, header.blocks() as usize)?);
    Ok(header.decode(&buffer).map(|transactions| (header, transactions, buffer)))
}

/// Replay stopped before record `missing`. If any later record says that it was durable, it was
/// damaged afterwards, and going on without it would lose acknowledged writes in silence.
fn refuse_damaged_middle(
    disk: &mut dyn Disk,
    layout: &Layout,
    incarnation: u64,
    missing: u64,
) -> Result<(), OpenError> {
    let mut block = 0;
    while block < layout.wal_blocks {
        let count = (layout.wal_blocks - block).min(ZERO_BLOCKS as u64);
        let buffer = read_blocks(disk, layout.wal_start + block, count as usize)?;
        for (index, bytes) in buffer.as_slice().chunks_exact(BLOCK_BYTES).enumerate() {
            let Some(header) = RecordHeader::parse(bytes) else { continue };
            let position = block + index as u64;
            let suspicious = header.head.incarnation == incarnation
                && header.head.sequence > missing
                && header.head.durable_through >= missing;
            if suspicious && read_record(disk, layout, position, incarnation, header.head.sequence)?.is_some() {
                return Err(OpenError::Damaged {
                    what: "the log",
                    detail: format!(
                        "record {missing} was durable and does not check any more, record {} behind it does",
                        header.head.sequence
                    ),
                });
            }
        }
        block += count;
    }
    Ok(())
}
