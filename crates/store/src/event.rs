//! Reports of a store: events, with the results that they bring, and figures.

use atoll_types::{Seals, Version};
use bytes::Bytes;

/// Names an accepted transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TransactionId(pub u64);

/// Identifies a load that [`crate::Store::load`] began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LoadId(pub u64);

/// Result of a read.
#[derive(Clone, Debug)]
pub struct ReadData {
    /// The data: shorter than asked where the object ends.
    pub data: Bytes,
    /// Size of the whole object, in bytes.
    pub object_bytes: u64,
    /// Version of the object's last change.
    pub version: Version,
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
    /// The object's metadata makes no sense.
    #[error("the object's metadata is damaged on this device: {detail}")]
    DamagedMetadata {
        /// The found state.
        detail: String,
    },
}

/// Result of a scrub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScrubResult {
    /// Size of the object in bytes.
    pub size_bytes: u64,
    /// Size of the whole object, if it is a shard of one.
    pub whole_bytes: Option<u64>,
    /// Bytes of data per seal and length of a seal, if it has seals.
    pub seal_shape: Option<(u32, u16)>,
    /// Version of its last change.
    pub version: Version,
    /// CRC-64 of its size, the checksums of its blocks, its seals and its omap: the same on all
    /// healthy replicas that have the same version. A hole counts as a block of zeros, and nothing
    /// depends on where the blocks are.
    pub digest: u64,
    /// Blocks of the object whose bytes are damaged or cannot be read; only a deep scrub finds them.
    pub bad_blocks: Vec<u32>,
}

/// Why there is no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScrubError {
    /// The object does not exist.
    #[error("no such object")]
    NoSuchObject,
    /// The object's metadata makes no sense.
    #[error("the object's metadata is damaged on this device: {detail}")]
    DamagedMetadata {
        /// The found state.
        detail: String,
    },
    /// The object changed again and again; scrub it later.
    #[error("the object changes all the time")]
    Busy,
}

/// Events of the store.
#[derive(Debug)]
pub enum StoreEvent {
    /// The transaction is durable.
    Committed(TransactionId),
    /// A read is done.
    Read {
        /// The id that [`crate::Store::read`] returned.
        id: u64,
        /// Result of the read.
        result: Result<ReadData, ReadError>,
    },
    /// A scrub is done.
    Scrubbed {
        /// The id that [`crate::Store::scrub`] returned.
        id: u64,
        /// Result of the scrub.
        result: Result<ScrubResult, ScrubError>,
    },
    /// The metadata of a [`crate::Store::load`] is in memory, until the next [`crate::Store::flush`].
    Loaded(LoadId),
    /// The device failed; nothing more will be committed.
    Poisoned {
        /// The failure.
        cause: String,
    },
}

/// Room under a device that is a sparse file: the free space of its file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum BackingRoom {
    /// The device may grow as it likes.
    #[default]
    Enough,
    /// Clients must not add data.
    Low,
    /// No operation may: the rest is for checkpoints.
    None,
}

/// A pool's usage in a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolUsage {
    /// Objects, as in [`StoreUsage`].
    pub object_count: u64,
    /// Bytes of the blocks that they refer to; blocks shared by clones count once. Metadata does not count.
    pub used_bytes: u64,
}

/// Figures about a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreUsage {
    /// Size of the data region in bytes.
    pub total_bytes: u64,
    /// Bytes of the data region in use. Blocks freed since the last checkpoint do not count, though they can be
    /// used again only after the next one.
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
    /// Size of the log, in bytes.
    pub log_size_bytes: u64,
    /// Bytes of the log that no checkpoint has made needless yet, or that are promised to transactions.
    pub log_used_bytes: u64,
    /// Metadata pages of the store, in memory or not; each has one block.
    pub metadata_page_count: u32,
    /// Looks at metadata pages that were in memory, since the store was opened.
    pub metadata_page_hit_count: u64,
    /// Metadata pages that had to be read from the device because something waited for them or soon would.
    pub metadata_page_miss_count: u64,
}
