//! The OSD daemon: one event-loop thread that joins the reactor, the PGs, the store and the wire, and one control
//! thread that speaks with cluster state. It also formats, encrypts and unlocks the devices of an OSD. Protocol
//! decisions are made in `pg`, `store` and `wire`, not here.
//!
//! Each component keeps its own state (`links`, `pgs`, `storage`, `recovery`, `scrubs`, `removed_pools`,
//! `reports`, `metrics`), uses the `context`, and returns effects, which `effects` passes on. `daemon` is the turn
//! of the loop.

#[cfg(test)]
mod any_request;
mod clients;
mod config;
mod context;
mod control;
mod copies_told;
mod daemon;
mod device;
mod effects;
mod invariants;
mod links;
mod map_changes;
mod memory;
mod metrics;
mod operation_kind;
mod operations;
mod pgs;
mod proposals;
mod rdma;
mod recovery;
mod removed_pools;
mod reports;
mod scrubs;
mod storage;
mod traced;
mod view;

pub use atoll_store::{OpenError, StoreIdentity};
pub use config::{OsdConfig, OsdError};
pub use copies_told::copies_told;
pub use daemon::Osd;
pub use device::{
    AtRestError, BlockingDevice, DamagedStore, DeviceError, DeviceKey, FormatError, FormatRequest, Formatted,
    LOG_DEVICE_BYTES_MIN, ReadOnlyDevice, RingDevice, encrypt_device, file_operation, format_device, free_bytes,
    make_file, store_identity,
};
pub use memory::MEMORY_TARGET_BYTES_MIN;
