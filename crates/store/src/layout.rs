//! Where things are on the device, in blocks:
//!
//! ```text
//! superblock A | superblock B | WAL ring | metadata slot 0 | metadata slot 1 | data
//! ```

use atoll_base::BLOCK_BYTES;

use crate::error::OpenError;

/// Smallest device that can hold a store, in bytes.
pub const DEVICE_BYTES_MIN: u64 = 512 << 20;

/// Choices made when a device is formatted.
#[derive(Clone, Copy, Debug)]
pub struct FormatOptions {
    /// Random id of the store.
    pub store_id: [u8; 16],
    /// Size of the WAL ring in bytes; bounds the memory that unapplied small writes take.
    pub wal_bytes: u64,
}

/// The regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub wal_start: u64,
    pub wal_blocks: u64,
    pub slot_start: [u64; 2],
    pub slot_blocks: u64,
    pub data_start: u64,
    pub data_blocks: u64,
}

pub(crate) const SUPERBLOCK_COPIES: u64 = 2;
/// Each metadata slot takes this share of the device: enough for 36 bytes per data block and as
/// much again for object names and omap.
const SLOT_SHARE: u64 = 32;
/// The WAL takes at most this share of the device, and no less than a few of the largest records.
const WAL_SHARE: u64 = 32;
const WAL_BLOCKS_MIN: u64 = 4096;
/// Block numbers are 32 bits wide: 16 TiB.
const DEVICE_BLOCKS_MAX: u64 = u32::MAX as u64;

impl Layout {
    pub fn new(device_bytes: u64, wal_bytes: u64) -> Result<Self, OpenError> {
        if device_bytes < DEVICE_BYTES_MIN {
            return Err(OpenError::TooSmall { size_bytes: device_bytes, minimum_bytes: DEVICE_BYTES_MIN });
        }
        let device_blocks = (device_bytes / BLOCK_BYTES as u64).min(DEVICE_BLOCKS_MAX);
        let wal_blocks = (wal_bytes / BLOCK_BYTES as u64).clamp(WAL_BLOCKS_MIN, device_blocks / WAL_SHARE);
        let slot_blocks = device_blocks / SLOT_SHARE;
        let first_slot = SUPERBLOCK_COPIES + wal_blocks;
        let data_start = first_slot + 2 * slot_blocks;
        Ok(Layout {
            wal_start: SUPERBLOCK_COPIES,
            wal_blocks,
            slot_start: [first_slot, first_slot + slot_blocks],
            slot_blocks,
            data_start,
            data_blocks: device_blocks - data_start,
        })
    }
}
