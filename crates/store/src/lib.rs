//! The object store on one device (DESIGN section 7): a write-ahead log with group commit, data in
//! 4 KiB blocks with CRC-32C, object metadata and omap behind the [`Metadata`] trait, checkpoints
//! and recovery.
//!
//! Sans-IO: [`Store`] takes transactions, reads and disk completions, and gives out disk requests
//! and events. Only opening and formatting a device read and write through the blocking [`Disk`]
//! trait, before any event loop runs. This room knows nothing of placement groups beyond their
//! ids and logs, nothing of the network, of time or of keys.

#[doc(hidden)]
pub mod allocator;
mod checkpoint;
mod disk;
mod error;
mod layout;
mod metadata;
mod onode;
mod overlay;
mod plan;
mod read;
mod recovery;
mod store;
mod superblock;
mod wal;

pub use disk::{Device, Disk, DiskOperation, DiskRequest, DiskResult, Segment};
pub use error::{OpenError, StoreError};
pub use layout::{DEVICE_BYTES_MIN, FormatOptions};
pub use metadata::{MemoryMetadata, Metadata, ObjectKey};
pub use onode::Onode;
pub use read::{ReadData, ReadError};
pub use store::{Store, StoreEvent, StoreUsage, TransactionId};
