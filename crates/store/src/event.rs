//! Reports of a store: events and figures.

use crate::lookup::LoadId;
use crate::read::{ReadData, ReadError};
use crate::scrub::{ScrubError, ScrubResult};

/// Names an accepted transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TransactionId(pub u64);

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
