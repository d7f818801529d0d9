//! Reading object data: from the overlay, from the device, or both; every block that comes from
//! the device is checked against its CRC before it is given out.

use std::sync::Arc;

use atoll_base::{BLOCK_BYTES, BlockBuffer, Seals, crc32c};
use bytes::Bytes;

use crate::disk::{DiskOperation, DiskResult};
use crate::metadata::{Metadata, ObjectKey};
use crate::onode::{BlockMeta, HOLE};
use crate::store::{Purpose, Store, StoreEvent};

/// What a read found.
#[derive(Clone, Debug)]
pub struct ReadData {
    /// The data: shorter than asked where the object ends.
    pub data: Bytes,
    /// Size of the whole object, in bytes.
    pub object_bytes: u64,
    /// Seals of the units that overlap the range.
    pub seals: Option<Seals>,
}

/// Why a read failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The object does not exist.
    #[error("no such object")]
    NoSuchObject,
    /// The offset is not a multiple of the block size.
    #[error("offset {offset} is not a multiple of the block size")]
    Unaligned {
        /// The offset in bytes.
        offset: u64,
    },
    /// Blocks of this copy are damaged or unreadable.
    #[error("blocks {blocks:?} of the object are damaged on this device")]
    Corrupt {
        /// The object's blocks concerned.
        blocks: Vec<u32>,
    },
}

/// A read that finds blocks changed under it starts again; that can happen only while a checkpoint
/// applies newer bytes to the same place, so a few attempts are plenty.
const ATTEMPTS_MAX: u32 = 8;

pub(crate) struct ReadInProgress {
    key: ObjectKey,
    offset: u64,
    length: u32,
    attempt: u32,
    expected: Vec<BlockMeta>,
    from_device: Vec<bool>,
    /// The assembled data, unless one device read gives all of it.
    output: Option<BlockBuffer>,
    pieces_left: usize,
    failed: Vec<u32>,
    data_bytes: usize,
    object_bytes: u64,
    seals: Option<Seals>,
}

/// Part of a read that one disk request brings.
#[derive(Clone, Copy)]
pub(crate) struct ReadPiece {
    pub read_id: u64,
    first: usize,
    count: usize,
}

impl<M: Metadata> Store<M> {
    /// Starts a read of `length` bytes from block-aligned `offset` on. Its result comes as
    /// [`StoreEvent::Read`] with the id that is returned.
    pub fn read(&mut self, key: ObjectKey, offset: u64, length: u32) -> u64 {
        let id = self.next_id();
        self.start_read(id, key, offset, length, 0);
        id
    }

    fn start_read(&mut self, id: u64, key: ObjectKey, offset: u64, length: u32, attempt: u32) {
        if !offset.is_multiple_of(BLOCK_BYTES as u64) {
            return self.events.push_back(StoreEvent::Read { id, result: Err(ReadError::Unaligned { offset }) });
        }
        let Some(onode) = self.metadata.get(&key) else {
            return self.events.push_back(StoreEvent::Read { id, result: Err(ReadError::NoSuchObject) });
        };
        let end = onode.size_bytes.min(offset.saturating_add(u64::from(length)));
        let data_bytes = end.saturating_sub(offset) as usize;
        let first_block = (offset / BLOCK_BYTES as u64) as usize;
        let block_count = data_bytes.div_ceil(BLOCK_BYTES);
        let expected: Vec<BlockMeta> = (first_block..first_block + block_count).map(|i| onode.block(i)).collect();
        let mut read = ReadInProgress {
            offset,
            length,
            attempt,
            from_device: vec![false; block_count],
            output: None,
            pieces_left: 0,
            failed: Vec::new(),
            data_bytes,
            object_bytes: onode.size_bytes,
            seals: onode.seals(offset, data_bytes as u64),
            expected,
            key,
        };
        self.gather(id, &mut read);
        if read.pieces_left == 0 {
            let output = read.output.take().unwrap_or_default();
            self.finish_read(id, read, output);
        } else {
            self.reads.insert(id, read);
        }
    }

    /// Copies what is in memory and requests the rest in runs as long as they are on the device.
    fn gather(&mut self, id: u64, read: &mut ReadInProgress) {
        let mut runs: Vec<(usize, usize)> = Vec::new();
        for (index, meta) in read.expected.iter().enumerate() {
            if *meta == HOLE {
                continue;
            }
            if let Some(pending) = self.overlay.get(meta.device_block) {
                let output = read.output.get_or_insert_with(|| BlockBuffer::zeroed(read.expected.len()));
                output.as_mut_slice()[index * BLOCK_BYTES..][..BLOCK_BYTES].copy_from_slice(pending.bytes());
                continue;
            }
            read.from_device[index] = true;
            match runs.last_mut() {
                Some((first, count))
                    if *first + *count == index
                        && read.expected[*first].device_block + *count as u32 == meta.device_block =>
                {
                    *count += 1;
                }
                _ => runs.push((index, 1)),
            }
        }
        let is_one_run = runs.len() == 1 && runs[0].1 == read.expected.len();
        if !is_one_run {
            read.output.get_or_insert_with(|| BlockBuffer::zeroed(read.expected.len()));
        }
        read.pieces_left = runs.len();
        for (first, count) in runs {
            let offset = u64::from(read.expected[first].device_block) * BLOCK_BYTES as u64;
            let piece = ReadPiece { read_id: id, first, count };
            self.request(Purpose::Read(piece), DiskOperation::Read { offset, block_count: count });
        }
    }

    pub(crate) fn read_piece_done(&mut self, piece: ReadPiece, result: DiskResult) {
        let read = self.reads.get_mut(&piece.read_id).expect("a read waits for its pieces");
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
            let mut read = self.reads.remove(&piece.read_id).expect("looked up above");
            let output = whole.or(read.output.take()).unwrap_or_else(|| BlockBuffer::zeroed(read.expected.len()));
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
        let first_block = (read.offset / BLOCK_BYTES as u64) as u32;
        if read.failed.is_empty() {
            let data = Bytes::from_owner(output).slice(..read.data_bytes);
            let found = ReadData { data, object_bytes: read.object_bytes, seals: read.seals };
            return self.events.push_back(StoreEvent::Read { id, result: Ok(found) });
        }
        let onode = self.metadata.get(&read.key).cloned();
        let changed = |&index: &u32| {
            let now = onode.as_ref().map_or(HOLE, |onode| onode.block((first_block + index) as usize));
            let expected = read.expected[index as usize];
            now != expected || self.overlay.get(now.device_block).is_some()
        };
        if read.failed.iter().all(changed) && read.attempt < ATTEMPTS_MAX {
            return self.start_read(id, read.key, read.offset, read.length, read.attempt + 1);
        }
        read.failed.sort_unstable();
        let blocks: Vec<u32> = read.failed.iter().map(|index| first_block + index).collect();
        self.usage.corrupt_block_count += blocks.len() as u64;
        self.events.push_back(StoreEvent::Read { id, result: Err(ReadError::Corrupt { blocks }) });
    }

    /// Whether `data`, read from another copy, is what this copy's block checks say it must be.
    /// Then it may be written back to repair the damaged blocks.
    pub fn matches_checks(&self, key: &ObjectKey, offset: u64, data: &[u8]) -> bool {
        let Some(onode): Option<&Arc<crate::Onode>> = self.metadata.get(key) else { return false };
        let first = (offset / BLOCK_BYTES as u64) as usize;
        let padded = BlockBuffer::from_bytes(data);
        let mut blocks = padded.as_slice().chunks_exact(BLOCK_BYTES).enumerate();
        blocks.all(|(index, bytes)| {
            let meta = onode.block(first + index);
            if meta == HOLE { bytes.iter().all(|&byte| byte == 0) } else { crc32c(bytes) == meta.crc }
        })
    }
}
