//! The object store on one device (DESIGN section 7): a write-ahead log with group commit, data in
//! 4 KiB blocks with CRC-32C, object metadata and omap in a checkpointed copy-on-write B+tree of
//! which only a part is in memory, checkpoints and recovery.
//!
//! Sans-IO: [`Store`] takes transactions, reads and disk completions, and gives out disk requests
//! and events. Only opening, closing, formatting and checking a device read and write through the
//! blocking [`Disk`] trait, outside of any event loop. This room knows nothing of placement groups
//! beyond their ids and logs, nothing of the network, of time or of keys.

#[doc(hidden)]
pub mod allocator;
mod check;
mod checkpoint;
mod disk;
mod dump;
mod error;
#[doc(hidden)]
pub mod fuzz;
mod group_commit;
mod groups;
mod layout;
mod lookup;
mod metadata;
mod overlay;
mod plan;
mod read;
mod recovery;
mod scrub;
mod store;
mod superblock;
mod validate;
mod wal;
mod walk;

pub use check::{BytePlace, CheckOptions, CheckPhase, CheckReport, Finding, Problem, check};
pub use disk::{Device, Disk, DiskOperation, DiskRequest, DiskResult, Segment};
pub use dump::{DumpOptions, DumpRecord, ExtentRecord, LayoutRecord, ObjectRecord, SuperblockRecord, dump};
pub use error::{OpenError, StoreError};
pub use layout::{DEVICE_BYTES_MIN, FormatOptions, WAL_BYTES_MIN};
pub use lookup::{LoadId, Wish};
pub use metadata::{Cold, ObjectInfo, ObjectKey, OmapPage};
pub use read::{ReadData, ReadError};
pub use scrub::{ScrubError, ScrubResult};
pub use store::{Store, StoreEvent, StoreUsage, TransactionId};
