//! The OSD daemon: one event-loop thread that joins the reactor, the placement groups, the store
//! and the wire, and one control thread that speaks with cluster state. No protocol decisions are
//! made here; whoever looks for one finds it in `pg`, `store` or `wire`.

mod control;
mod daemon;
mod device;
mod object_reads;
mod peers;
mod pg_actions;
mod sync_reads;
mod view;

pub use daemon::{Osd, OsdConfig, OsdError};
pub use device::{
    AtRestError, DeviceError, DeviceKey, FormatError, FormatRequest, Formatted, LOG_DEVICE_BYTES_MIN,
    encrypt_device, format_device, make_file,
};
