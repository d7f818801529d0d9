//! Where things are, in blocks:
//!
//! ```text
//! data device: superblock A | superblock B | WAL ring, unless it is apart | data and metadata pages
//! log device:  mark | WAL ring
//! ```

use atoll_buffers::BLOCK_BYTES;

use crate::disk::Device;
use crate::error::OpenError;

/// Smallest device that can hold a store, in bytes.
pub const DEVICE_BYTES_MIN: u64 = 512 << 20;
/// Smallest log, in bytes: a few of the largest records.
pub const WAL_BYTES_MIN: u64 = WAL_BLOCKS_MIN * BLOCK_BYTES as u64;

/// Choices made when a device is formatted.
#[derive(Clone, Copy, Debug)]
pub struct FormatOptions {
    /// Random id of the store.
    pub store_id: [u8; 16],
    /// Size of the WAL ring in bytes; bounds the memory that unapplied small writes take.
    pub wal_bytes: u64,
    /// True if the ring is on the log device, where it may be large: it then absorbs bursts of random writes for a
    /// slow data device.
    pub wal_is_apart: bool,
}

/// The regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub wal_device: Device,
    pub wal_start: u64,
    pub wal_blocks: u64,
    pub data_start: u64,
    pub data_blocks: u64,
}

pub(crate) const SUPERBLOCK_COPIES: u64 = 2;
const LOG_MARK_BLOCKS: u64 = 1;
/// The WAL takes at most this share of the data device, and no less than a few of the largest
/// records.
const WAL_SHARE: u64 = 32;
const WAL_BLOCKS_MIN: u64 = 4096;
/// Block numbers are 32 bits wide: 16 TiB.
const DEVICE_BLOCKS_MAX: u64 = u32::MAX as u64;

impl Layout {
    pub fn new(device_bytes: u64, wal_bytes: u64, wal_is_apart: bool) -> Result<Self, OpenError> {
        if device_bytes < DEVICE_BYTES_MIN {
            return Err(OpenError::TooSmall { size_bytes: device_bytes, minimum_bytes: DEVICE_BYTES_MIN });
        }
        let device_blocks = (device_bytes / BLOCK_BYTES as u64).min(DEVICE_BLOCKS_MAX);
        let wal_blocks = (wal_bytes / BLOCK_BYTES as u64).max(WAL_BLOCKS_MIN);
        if wal_is_apart {
            return Ok(Layout {
                wal_device: Device::Log,
                wal_start: LOG_MARK_BLOCKS,
                wal_blocks,
                data_start: SUPERBLOCK_COPIES,
                data_blocks: device_blocks - SUPERBLOCK_COPIES,
            });
        }
        let wal_blocks = wal_blocks.min(device_blocks / WAL_SHARE);
        let data_start = SUPERBLOCK_COPIES + wal_blocks;
        Ok(Layout {
            wal_device: Device::Data,
            wal_start: SUPERBLOCK_COPIES,
            wal_blocks,
            data_start,
            data_blocks: device_blocks - data_start,
        })
    }
}
