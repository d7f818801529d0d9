//! The OSD daemon: one event-loop thread that joins the reactor, the placement groups, the store
//! and the wire, and one control thread that speaks with cluster state. No protocol decisions are
//! made here; whoever looks for one finds it in `pg`, `store` or `wire`.

mod admission;
mod control;
mod daemon;
mod device;
mod groups;
mod memory;
mod object_reads;
mod peers;
mod pg_actions;
mod recovery;
mod removed_pools;
mod scrubs;
mod sync_reads;
mod view;

pub use daemon::{Osd, OsdConfig, OsdError};
pub use device::{
    AtRestError, BlockingDevice, DeviceError, DeviceKey, FormatError, FormatRequest, Formatted,
    LOG_DEVICE_BYTES_MIN, ReadOnlyDevice, RingDevice, encrypt_device, file_operation, format_device, make_file,
};
pub use memory::MEMORY_TARGET_BYTES_MIN;
