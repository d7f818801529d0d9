//! The object store on one device: a write-ahead log with group commit, data in 4 KiB blocks with CRC-32C, object
//! metadata and omap in a checkpointed copy-on-write B+tree, only partly in memory, checkpoints and recovery.
//!
//! Sans-IO: [`Store`] takes transactions, reads and disk completions, and gives out disk requests
//! and events. Only opening, closing, formatting and checking a device read and write through the
//! blocking [`Disk`] trait, outside of any event loop. This crate knows placement groups (PGs) by their
//! ids, logs and splits only, and nothing of the network, of time or of keys.
//!
//! A turn of an event loop around a store:
//!
//! ```
//! use atoll_types::Transaction;
//! use atoll_store::{Disk, Store, StoreError, StoreEvent};
//!
//! fn turn(store: &mut Store, disk: &mut dyn Disk, transaction: &Transaction) -> Result<(), StoreError> {
//!     if store.has_log_room() {
//!         store.submit(transaction)?;
//!     }
//!     store.flush();
//!     while let Some(request) = store.next_request() {
//!         let result = disk.execute(request.device, request.operation);
//!         store.complete(request.id, result);
//!     }
//!     while let Some(event) = store.next_event() {
//!         match event {
//!             StoreEvent::Committed(id) => println!("{id:?} is durable"),
//!             StoreEvent::Poisoned { cause } => println!("the device failed: {cause}"),
//!             _ => {}
//!         }
//!     }
//!     Ok(())
//! }
//! ```

mod admission;
#[doc(hidden)]
pub mod allocator;
mod check;
mod checkpoint;
mod damage;
mod discarding;
mod discards;
mod disk;
mod dump;
mod error;
mod event;
#[doc(hidden)]
pub mod fuzz;
mod invariants;
mod invariants_in_memory;
mod layout;
mod loads;
mod log;
mod lookup;
mod metadata;
mod outbox;
mod overlay;
mod overwrite;
mod pgs;
mod places;
mod plan;
mod read;
mod recovery;
mod salvage;
mod scrub;
#[doc(hidden)]
pub mod simulated_disk;
mod space;
mod store;
mod superblock;
mod validate;
mod walk;

pub use check::{BytePlace, CheckOptions, CheckPhase, CheckReport, Finding, Problem, check};
pub use disk::{Device, Disk, DiskOperation, DiskRequest, DiskResult, Segment};
pub use dump::{DumpOptions, DumpRecord, ExtentRecord, LayoutRecord, ObjectRecord, SuperblockRecord, dump};
pub use error::{OpenError, StoreError};
pub use event::{
    BackingRoom, LoadId, PoolUsage, ReadData, ReadError, ScrubError, ScrubResult, StoreEvent, StoreUsage,
    TransactionId,
};
pub use layout::{DEVICE_BYTES_MIN, FormatOptions, WAL_BYTES_MIN};
pub use loads::LoadRequest;
pub use lookup::Examined;
pub use metadata::{Cold, ObjectInfo, ObjectKey, ObjectsPage, OmapPage};
pub use recovery::StoreIdentity;
pub use salvage::{ArchiveError, ArchiveReader, ArchiveRecord, ArchiveWriter, SalvageOptions, Salvaged, salvage};
pub use store::Store;
pub use validate::validate_shapes;
