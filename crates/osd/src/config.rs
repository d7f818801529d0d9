//! How an OSD is set up, and why it cannot start or must stop.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use atoll_cluster::ConnectOptions;
use atoll_reactor::ReactorError;
use atoll_store::OpenError;
use atoll_types::OsdId;
use atoll_wire::KeyPair;

use crate::device::{AtRestError, DeviceError, DeviceKey};

/// How an OSD is set up.
pub struct OsdConfig {
    /// Its number.
    pub id: OsdId,
    /// The file or block device with its store.
    pub device: PathBuf,
    /// The file or block device with the store's log, if it has its own.
    pub log_device: Option<PathBuf>,
    /// Secret that unlocks the devices if they are LUKS2 volumes. It is forgotten when it has done so.
    pub device_key: Option<DeviceKey>,
    /// Where to listen; port 0 lets the system choose.
    pub listen: SocketAddr,
    /// The address to announce, if it is not the one that is listened on.
    pub advertise: Option<IpAddr>,
    /// The provider of libfabric with which it listens over RDMA too, at the announced address, if it does.
    pub rdma_provider: Option<String>,
    /// Its static key.
    pub key: KeyPair,
    /// True if the device is an older copy of this OSD's device. Then none of its copies of PGs counts before it
    /// is backfilled.
    pub device_is_old: bool,
    /// Memory that the process should take, in bytes, at least [`crate::MEMORY_TARGET_BYTES_MIN`].
    pub memory_target_bytes: u64,
    /// Bytes per second that recovery may read while clients are at work.
    pub recovery_bytes_per_second: u64,
    /// Where cluster state is.
    pub cluster: ConnectOptions,
}

/// Why an OSD could not start or had to stop.
#[derive(Debug, thiserror::Error)]
pub enum OsdError {
    /// The event loop could not be set up or failed.
    #[error(transparent)]
    Reactor(#[from] ReactorError),
    /// A device could not be taken.
    #[error(transparent)]
    Take(#[from] DeviceError),
    /// A device could not be unlocked.
    #[error(transparent)]
    Unlock(#[from] AtRestError),
    /// It could, but it holds something else.
    #[error(
        "{} unlocks as a LUKS2 volume, but there is no Atoll store in it; name the device that \
         'atoll osd create --encrypt' has made, or make one of this with --wipe if its contents may be destroyed",
        path.display()
    )]
    NoStoreInVolume {
        /// The device.
        path: PathBuf,
    },
    /// The store could not be opened.
    #[error("cannot open the store in {}: {reason}", path.display())]
    Store {
        /// The device.
        path: PathBuf,
        /// Why.
        reason: OpenError,
    },
    /// The listening address could not be had.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// The loop itself failed.
    #[error("the event loop failed: {0}")]
    Loop(#[from] io::Error),
    /// The device failed; its content is unknown until it is opened again.
    #[error("the device failed and is not trusted any more: {0}; restart the OSD to recover from its log")]
    Device(String),
    /// The device does not answer. Operations that wait for it would hold up clients for as long as this OSD is a
    /// member.
    #[error(
        "{0}; this OSD ends, so that its PGs fail over to their other members, and can be started again when the \
         device answers"
    )]
    DeviceSilent(String),
}
