//! Requests of the store to a device.

use std::io;
use std::sync::Arc;

use atoll_buffers::{BLOCK_BYTES, BlockBuffer};
use bytes::Bytes;

/// Blocks of a buffer that take part in a write.
#[derive(Clone)]
pub struct Segment {
    /// The buffer.
    pub buffer: Arc<BlockBuffer>,
    /// First block of the buffer.
    pub first_block: usize,
    /// Number of blocks.
    pub block_count: usize,
}

impl Segment {
    /// The bytes, aligned to the block size.
    pub fn bytes(&self) -> &[u8] {
        let start = self.first_block * BLOCK_BYTES;
        &self.buffer.as_slice()[start..start + self.block_count * BLOCK_BYTES]
    }
}

/// Operations on the device. Offsets and lengths are multiples of the block size.
pub enum DiskOperation {
    /// Read into a fresh buffer.
    Read {
        /// Offset in bytes.
        offset: u64,
        /// Length in blocks.
        block_count: usize,
    },
    /// Write the segments one after the other. When `durable`, the bytes must survive a power cut
    /// once the operation is complete (RWF_DSYNC).
    Write {
        /// Offset in bytes.
        offset: u64,
        /// Data to write, at most `WRITE_SEGMENTS_MAX` pieces.
        segments: Vec<Segment>,
        /// True if completion means durability.
        durable: bool,
    },
    /// Write bytes that may lie anywhere in memory, durably, as above. The bytes are copied or
    /// encrypted on the way to where the device takes them from.
    WriteBytes {
        /// Offset in bytes.
        offset: u64,
        /// Data to write: whole blocks.
        bytes: Bytes,
    },
    /// Make everything written before durable (fdatasync).
    Sync,
    /// Free the blocks under the device. Their content is undefined afterwards.
    Discard {
        /// Offset in bytes.
        offset: u64,
        /// Length in blocks.
        block_count: usize,
    },
}

impl DiskOperation {
    /// For writes: the offset in bytes, and the pieces that are written one after the other.
    pub fn written(&self) -> Option<(u64, Vec<&[u8]>)> {
        match self {
            DiskOperation::Write { offset, segments, .. } => {
                Some((*offset, segments.iter().map(Segment::bytes).collect()))
            }
            DiskOperation::WriteBytes { offset, bytes } => Some((*offset, vec![bytes])),
            DiskOperation::Read { .. } | DiskOperation::Sync | DiskOperation::Discard { .. } => None,
        }
    }
}

/// Most segments in one write: well below the kernel's limit of 1,024 I/O vectors.
pub const WRITE_SEGMENTS_MAX: usize = 256;

/// Which of a store's devices an operation is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    /// The device with superblocks, metadata and data, and the log unless it has its own.
    Data,
    /// The separate device with the log.
    Log,
}

impl std::fmt::Display for Device {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Device::Data => "data",
            Device::Log => "log",
        })
    }
}

/// An operation with the number under which its completion is reported.
pub struct DiskRequest {
    /// Number of the request.
    pub id: u64,
    /// The device.
    pub device: Device,
    /// The operation.
    pub operation: DiskOperation,
}

/// How an operation ended: a read gives its buffer, everything else `None`.
pub type DiskResult = io::Result<Option<BlockBuffer>>;

/// A device as it is used before the event loop runs: blocking, whole blocks only.
pub trait Disk {
    /// Size in bytes; `None` if there is no such device.
    fn size_bytes(&self, device: Device) -> Option<u64>;

    /// Does one operation and waits for it.
    fn execute(&mut self, device: Device, operation: DiskOperation) -> DiskResult;
}

/// Reads whole blocks from the blocking data device.
pub(crate) fn read_blocks(disk: &mut dyn Disk, block: u64, block_count: usize) -> io::Result<BlockBuffer> {
    read_device(disk, Device::Data, block, block_count)
}

/// Reads whole blocks from the blocking log device.
pub(crate) fn read_log_blocks(disk: &mut dyn Disk, block: u64, block_count: usize) -> io::Result<BlockBuffer> {
    read_device(disk, Device::Log, block, block_count)
}

pub(crate) fn read_device(
    disk: &mut dyn Disk,
    device: Device,
    block: u64,
    block_count: usize,
) -> io::Result<BlockBuffer> {
    let offset = block * BLOCK_BYTES as u64;
    let buffer = disk.execute(device, DiskOperation::Read { offset, block_count })?;
    buffer.ok_or_else(|| io::Error::other("the device returned no data for a read"))
}
