//! The devices of a store that no OSD uses.

use std::path::PathBuf;

use anyhow::anyhow;
use atoll_node::{DataDir, osd_of_device};
use atoll_osd::{DeviceKey, OpenError, ReadOnlyDevice};
use clap::Args;

use crate::commands::osd::{UnlockArguments, unlock_with};

#[derive(Args)]
pub struct StoreDevices {
    /// The OSD's block device or file
    #[arg(long, value_name = "PATH")]
    pub device: PathBuf,
    /// The device with its log, if it has its own
    #[arg(long, value_name = "PATH")]
    pub wal_device: Option<PathBuf>,
    /// The data directory with the secret that unlocks the device, and the key service's file, if the device is
    /// elsewhere
    #[arg(long, value_name = "DIR", env = "ATOLL_DATA", default_value = "./atoll-data")]
    pub data_directory: PathBuf,
    #[command(flatten)]
    pub unlock: UnlockArguments,
}

/// Opens the devices, unlocked as the OSD would.
pub fn open(devices: &StoreDevices) -> anyhow::Result<ReadOnlyDevice> {
    let (log, key) = log_and_key(devices)?;
    Ok(ReadOnlyDevice::open(&devices.device, log.as_deref(), key.as_ref())?)
}

/// Returns the log device, if there is one, and the key that unlocks both.
pub fn log_and_key(devices: &StoreDevices) -> anyhow::Result<(Option<PathBuf>, Option<DeviceKey>)> {
    let directory = DataDir::new(&devices.data_directory);
    let osd = osd_of_device(&devices.device, &directory);
    let remembered = osd.as_ref().map(|(directory, osd)| directory.unlock_with(*osd)).transpose()?.flatten();
    let own_log = osd.as_ref().and_then(|(directory, osd)| directory.wal_device(*osd));
    let log = devices.wal_device.clone().or(own_log);
    let directory = osd.map_or(directory, |(directory, _)| directory);
    let unlock_with = unlock_with(&devices.unlock).or(remembered);
    Ok((log, unlock_with.map(|choice| choice.device_key(&directory)).transpose()?))
}

/// Describes a device without a store, without advice to destroy its content: it may be the wrong device, or one
/// whose LUKS2 header is lost.
pub fn without_store(error: OpenError) -> anyhow::Error {
    match error {
        OpenError::NotAStore => anyhow!(
            "there is no Atoll store on this device (no valid superblock): is it the right one? An encrypted device whose \
             LUKS2 header is lost looks like this, too ('cryptsetup luksHeaderRestore' brings the header back)"
        ),
        other => other.into(),
    }
}

/// Returns the beginning of the message of a failure.
pub fn context(devices: &StoreDevices) -> String {
    format!("the store on {}", devices.device.display())
}
