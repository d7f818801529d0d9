//! Reading object data: from memory, from the device, from the log, or all of them; every block that
//! comes from a device is checked against its CRC before it is given out.

use std::collections::BTreeMap;

use atoll_buffers::{BLOCK_BYTES, BlockBuffer};
use atoll_codec::crc32c;
use atoll_types::{Seals, Version};
use bytes::Bytes;

use crate::disk::{DiskOperation, DiskResult};
use crate::event::{ReadData, ReadError, StoreEvent};
use crate::loads::Waiter;
use crate::metadata::{BlockMeta, HOLE, ObjectKey, Unready};
use crate::outbox::{Purpose, ReadPiece};
use crate::overlay::Home;
use crate::store::Store;

/// A read that finds blocks changed under it starts again; that can happen only while a checkpoint
/// applies newer bytes to the same place, so a few attempts are plenty.
const ATTEMPTS_MAX: u32 = 8;

/// The range to read, and how often it was tried.
#[derive(Clone)]
struct ReadOrder {
    key: ObjectKey,
    offset: u64,
    length: u32,
    attempt: u32,
}

/// Reads that wait: for metadata, or for blocks.
#[derive(Default)]
pub(crate) struct Reads {
    cold: BTreeMap<u64, ReadOrder>,
    in_progress: BTreeMap<u64, ReadInProgress>,
}

struct ReadInProgress {
    order: ReadOrder,
    expected: Vec<BlockMeta>,
    from_device: Vec<bool>,
    /// Some blocks come from the log, where they may be overwritten once they are applied.
    uses_log: bool,
    /// The assembled data, unless one device read gives all of it.
    output: Option<BlockBuffer>,
    pieces_left: usize,
    failed: Vec<u32>,
    data_bytes: usize,
    object_bytes: u64,
    version: Version,
    seals: Option<Seals>,
}

/// Returns a buffer to be overwritten except for the holes, which read as zeros.
fn with_holes_zeroed(expected: &[BlockMeta]) -> BlockBuffer {
    let mut buffer = BlockBuffer::for_overwriting(expected.len());
    let blocks = buffer.as_mut_slice().chunks_exact_mut(BLOCK_BYTES).zip(expected);
    blocks.filter(|(_, meta)| **meta == HOLE).for_each(|(block, _)| block.fill(0));
    buffer
}

impl Store {
    /// Starts a read of `length` bytes from block-aligned `offset` on. Its result comes as
    /// [`StoreEvent::Read`] with the id that is returned.
    ///
    /// ```
    /// use atoll_store::{ObjectKey, ReadData, Store, StoreEvent};
    ///
    /// /// Reads an object whose blocks are all in memory; otherwise the device must answer first.
    /// fn read_at_once(store: &mut Store, key: ObjectKey) -> Option<ReadData> {
    ///     let wanted = store.read(key, 0, 4096);
    ///     match store.next_event()? {
    ///         StoreEvent::Read { id, result } if id == wanted => result.ok(),
    ///         _ => None,
    ///     }
    /// }
    /// ```
    pub fn read(&mut self, key: ObjectKey, offset: u64, length: u32) -> u64 {
        let id = self.outbox.next_id();
        self.start_read(id, ReadOrder { key, offset, length, attempt: 0 });
        id
    }

    fn read_ended(&mut self, id: u64, result: Result<ReadData, ReadError>) {
        self.outbox.tell(StoreEvent::Read { id, result });
    }

    /// Metadata that a read waits for is there.
    pub(crate) fn continue_cold_read(&mut self, id: u64) {
        let order = self.reads.cold.remove(&id).expect("a read waits for its metadata");
        self.start_read(id, order);
    }

    fn start_read(&mut self, id: u64, order: ReadOrder) {
        if !order.offset.is_multiple_of(BLOCK_BYTES as u64) {
            return self.read_ended(id, Err(ReadError::Unaligned { offset: order.offset }));
        }
        match self.look_up_read(&order) {
            Ok(Some(mut read)) => {
                self.gather(id, &mut read);
                if read.pieces_left == 0 {
                    let output = read.output.take().unwrap_or_default();
                    self.finish_read(id, read, output);
                } else {
                    self.reads.in_progress.insert(id, read);
                }
            }
            Ok(None) => self.read_ended(id, Err(ReadError::NoSuchObject)),
            Err(Unready::Cold(cold)) => {
                self.reads.cold.insert(id, order);
                self.wait_for(cold, Waiter::Read(id));
            }
            Err(Unready::Damaged(error)) => {
                self.read_ended(id, Err(ReadError::DamagedMetadata { detail: error.to_string() }));
            }
            Err(Unready::Invalid(detail)) => self.read_ended(id, Err(ReadError::DamagedMetadata { detail })),
        }
    }

    fn look_up_read(&self, order: &ReadOrder) -> Result<Option<ReadInProgress>, Unready> {
        let object = self.metadata.parts.object(order.key.pg, &order.key.name);
        let Some(info) = self.metadata.info(&object)? else { return Ok(None) };
        let end = info.size_bytes.min(order.offset.saturating_add(u64::from(order.length)));
        let data_bytes = end.saturating_sub(order.offset) as usize;
        let (expected, seals) = self.metadata.blocks_and_seals(&object, &info, order.offset, data_bytes as u64)?;
        Ok(Some(ReadInProgress {
            order: order.clone(),
            from_device: vec![false; expected.len()],
            uses_log: false,
            output: None,
            pieces_left: 0,
            failed: Vec::new(),
            data_bytes,
            object_bytes: info.size_bytes,
            version: info.version,
            seals,
            expected,
        }))
    }

    /// Copies blocks in memory and requests the rest in runs as long as they are on the device.
    fn gather(&mut self, id: u64, read: &mut ReadInProgress) {
        let mut runs: Vec<(usize, usize)> = Vec::new();
        let mut from_log = Vec::new();
        for (index, meta) in read.expected.iter().enumerate() {
            if *meta == HOLE {
                continue;
            }
            if let Some(pending) = self.overlay.get(meta.device_block) {
                match (pending.bytes, pending.home) {
                    (Some(bytes), _) => {
                        let output = read.output.get_or_insert_with(|| with_holes_zeroed(&read.expected));
                        output.as_mut_slice()[index * BLOCK_BYTES..][..BLOCK_BYTES].copy_from_slice(bytes);
                    }
                    (None, Home::Log { block, .. }) => from_log.push((index, block)),
                    (None, _) => unreachable!("only bytes that are in the log are dropped from memory"),
                }
                continue;
            }
            read.from_device[index] = true;
            match runs.last_mut() {
                Some((first, count))
                    if *first + *count == index && read.expected[*first].is_before(*count, *meta) =>
                {
                    *count += 1;
                }
                _ => runs.push((index, 1)),
            }
        }
        let is_one_run = runs.len() == 1 && runs[0].1 == read.expected.len() && from_log.is_empty();
        if !is_one_run {
            read.output.get_or_insert_with(|| with_holes_zeroed(&read.expected));
        }
        read.pieces_left = runs.len() + from_log.len();
        read.uses_log = !from_log.is_empty();
        for (first, log_block) in from_log {
            read.from_device[first] = true;
            let offset = (self.layout.wal_start + log_block) * BLOCK_BYTES as u64;
            let piece = ReadPiece { read_id: id, first, count: 1 };
            let operation = DiskOperation::Read { offset, block_count: 1 };
            self.outbox.request_on(self.layout.wal_device, Purpose::Read(piece), operation);
        }
        for (first, count) in runs {
            let offset = u64::from(read.expected[first].device_block) * BLOCK_BYTES as u64;
            let piece = ReadPiece { read_id: id, first, count };
            self.outbox.request(Purpose::Read(piece), DiskOperation::Read { offset, block_count: count });
        }
    }

    pub(crate) fn read_piece_done(&mut self, piece: ReadPiece, result: DiskResult) {
        let read = self.reads.in_progress.get_mut(&piece.read_id).expect("a read waits for its pieces");
        read.pieces_left -= 1;
        let mut whole = None;
        match result {
            Ok(Some(buffer)) if buffer.block_count() == piece.count => match &mut read.output {
                Some(output) => {
                    let start = piece.first * BLOCK_BYTES;
                    output.as_mut_slice()[start..start + buffer.len()].copy_from_slice(buffer.as_slice());
                }
                None => whole = Some(buffer),
            },
            _ => read.failed.extend(piece.first as u32..(piece.first + piece.count) as u32),
        }
        if read.pieces_left == 0 {
            let mut read = self.reads.in_progress.remove(&piece.read_id).expect("looked up above");
            let output = whole.or(read.output.take()).unwrap_or_else(|| with_holes_zeroed(&read.expected));
            self.finish_read(piece.read_id, read, output);
        }
    }

    fn finish_read(&mut self, id: u64, mut read: ReadInProgress, output: BlockBuffer) {
        for (index, bytes) in output.as_slice().chunks_exact(BLOCK_BYTES).enumerate() {
            let is_checked = read.from_device[index] && !read.failed.contains(&(index as u32));
            if is_checked && crc32c(bytes) != read.expected[index].crc {
                read.failed.push(index as u32);
            }
        }
        let first_block = (read.order.offset / BLOCK_BYTES as u64) as u32;
        if read.failed.is_empty() {
            let data = Bytes::from_owner(output).slice(..read.data_bytes);
            let (object_bytes, version) = (read.object_bytes, read.version);
            let found = ReadData { data, object_bytes, version, seals: read.seals };
            return self.read_ended(id, Ok(found));
        }
        if read.order.attempt < ATTEMPTS_MAX && self.may_have_changed(&read) {
            let order = ReadOrder { attempt: read.order.attempt + 1, ..read.order };
            return self.start_read(id, order);
        }
        read.failed.sort_unstable();
        let blocks: Vec<u32> = read.failed.iter().map(|index| first_block + index).collect();
        self.usage.corrupt_block_count += blocks.len() as u64;
        self.read_ended(id, Err(ReadError::Corrupt { blocks }));
    }

    /// Returns true if blocks failed their checks perhaps only because they were written meanwhile.
    fn may_have_changed(&self, read: &ReadInProgress) -> bool {
        if read.uses_log {
            return true;
        }
        let first = (read.order.offset / BLOCK_BYTES as u64) as usize;
        let object = self.metadata.parts.object(read.order.key.pg, &read.order.key.name);
        // If the metadata is not in memory, the read starts again and waits for it.
        let Ok(now) = self.metadata.blocks(&object, first, read.expected.len()) else { return true };
        read.failed.iter().all(|&index| {
            let index = index as usize;
            now[index] != read.expected[index] || self.overlay.get(now[index].device_block).is_some()
        })
    }

    /// Returns true if `data`, read from another copy, matches this copy's block checks. Then it may be written
    /// back to repair the damaged blocks. The metadata of the range is loaded ([`Store::is_read_loaded`]).
    pub fn matches_checks(&self, key: &ObjectKey, offset: u64, data: &[u8]) -> bool {
        let first = (offset / BLOCK_BYTES as u64) as usize;
        let padded = BlockBuffer::from_bytes(data);
        let Ok(expected) =
            self.metadata.blocks(&self.metadata.parts.object(key.pg, &key.name), first, padded.block_count())
        else {
            return false;
        };
        let mut blocks = padded.as_slice().chunks_exact(BLOCK_BYTES).zip(expected);
        blocks.all(
            |(bytes, meta)| {
                if meta == HOLE { bytes.iter().all(|&byte| byte == 0) } else { crc32c(bytes) == meta.crc }
            },
        )
    }
}
