//! Making a device Atoll's: nothing that holds anything is overwritten unless the user says so.

use atoll_files::Access;
use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use atoll_buffers::{BLOCK_BYTES, BlockBuffer};
use atoll_luks2::HEADER_BYTES;
use atoll_store::{DEVICE_BYTES_MIN, FormatOptions, OpenError, Store, StoreIdentity};
use atoll_types::size::format_size;

use super::probe::{Ends, PROBE_BYTES};
use super::{AtRestError, BlockingDevice, DeviceError, DeviceKey, Named, claims};

/// Smallest device that the log may have for itself, in bytes.
pub const LOG_DEVICE_BYTES_MIN: u64 = 64 << 20;

/// Size of a log that shares the device with the data, in bytes.
const WAL_BYTES_DEFAULT: u64 = 256 << 20;

/// Blocks outside the first and last MiB where others keep copies of the start, in bytes: second LUKS2 headers,
/// btrfs' superblocks, BlueStore's labels. Wiping clears them, so that no tool "repairs" the device from them.
const COPIES: [u64; 9] =
    [1 << 20, 2 << 20, 4 << 20, 64 << 20, 256 << 30, 1 << 30, 10 << 30, 100 << 30, 1000 << 30];

/// Devices to format, and options.
pub struct FormatRequest<'a> {
    /// The file or block device for data, metadata and, unless it has its own device, the log.
    pub device: &'a Path,
    /// The file or block device for the log alone.
    pub log_device: Option<&'a Path>,
    /// Size of the log in bytes, at most as large as fits. Otherwise all of the log device, or 256 MiB beside the
    /// data.
    pub wal_bytes: Option<u64>,
    /// Random id of the store.
    pub store_id: [u8; 16],
    /// True if the content of the devices may be destroyed.
    pub wipe: bool,
    /// Makes each device a LUKS2 volume that this opens; otherwise they stay plain.
    pub encrypt: Option<&'a DeviceKey>,
}

/// Sizes of a formatted device, without LUKS2 headers.
#[derive(Clone, Copy, Debug)]
pub struct Formatted {
    /// The data device, in bytes.
    pub device_bytes: u64,
    /// The log device, in bytes.
    pub log_device_bytes: Option<u64>,
}

/// Why a device was not formatted. Unless it says that formatting or encrypting failed, nothing was
/// written.
#[derive(Debug, thiserror::Error)]
pub enum FormatError {
    /// It cannot be taken or read.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// It could not be encrypted.
    #[error(transparent)]
    AtRest(#[from] AtRestError),
    /// It holds something.
    #[error(
        "{} holds {contents}; nothing was written. If all of it may be destroyed, repeat with --wipe",
        path.display()
    )]
    Occupied {
        /// The device.
        path: PathBuf,
        /// The found content.
        contents: String,
    },
    /// It has partitions.
    #[error(
        "{} has partitions ({partitions}); name an unused partition, or remove the partitions first ('wipefs --all' \
         of each and of the device, then 'blockdev --rereadpt')",
        path.display()
    )]
    Partitioned {
        /// The device.
        path: PathBuf,
        /// Their names.
        partitions: String,
    },
    /// It is too small.
    #[error("{} has {}; it needs at least {}", path.display(), format_size(*size_bytes), format_size(*minimum_bytes))]
    TooSmall {
        /// The device.
        path: PathBuf,
        /// Its size.
        size_bytes: u64,
        /// The least.
        minimum_bytes: u64,
    },
    /// Data and log on one device under two names.
    #[error("{} and {} are the same device; leave the WAL device out to keep the log with the data", .0.display(), .1.display())]
    SameDevice(PathBuf, PathBuf),
    /// The content of the device cannot be read.
    #[error("{}: {reason}", path.display())]
    Unreadable {
        /// The device.
        path: PathBuf,
        /// Why.
        reason: OpenError,
    },
    /// Formatting began and failed.
    #[error("formatting {} failed: {reason}; its former content may be lost", path.display())]
    Store {
        /// The device.
        path: PathBuf,
        /// Why.
        reason: OpenError,
    },
}

/// Makes a sparse file of `size_bytes` for use as a device. A file that exists is an error.
pub fn make_file(path: &Path, size_bytes: u64) -> Result<(), DeviceError> {
    let make = || {
        let file = atoll_files::make(path, Access::Owner)?;
        file.set_len(size_bytes)?;
        file.sync_all()?;
        atoll_files::sync_directory_of(path)
    };
    make().map_err(|reason| DeviceError { path: path.to_owned(), reason })
}

/// Makes an empty store on existing files or block devices. Those that hold anything are refused
/// unless `wipe` is set; those in use and those with partitions always are. The devices are taken
/// for this process alone before they are looked at and until the store is made.
pub fn format_device(request: &FormatRequest<'_>) -> Result<Formatted, FormatError> {
    refuse_same_device(request)?;
    std::iter::once(request.device).chain(request.log_device).try_for_each(refuse_partitions)?;
    let mut devices = BlockingDevice::open(request.device, request.log_device)?;
    let header_bytes = if request.encrypt.is_some() { HEADER_BYTES as u64 } else { 0 };
    let data = (&devices.data, DEVICE_BYTES_MIN + header_bytes);
    let log = devices.log.as_ref().map(|log| (log, LOG_DEVICE_BYTES_MIN + header_bytes));
    let named = || std::iter::once(data).chain(log);
    // All are checked before the first is written.
    named().try_for_each(|(device, minimum_bytes)| device.check(minimum_bytes, request.wipe))?;
    if request.wipe {
        named().try_for_each(|(device, _)| device.wipe())?;
    }
    if let Some(key) = request.encrypt {
        devices = devices.encrypt(key)?;
    }
    let formatted = Formatted {
        device_bytes: devices.data.file.size_bytes(),
        log_device_bytes: devices.log.as_ref().map(|log| log.file.size_bytes()),
    };
    let options = format_options(request, formatted);
    let format = Store::format(&mut devices, options);
    format.map_err(|reason| FormatError::Store { path: request.device.to_owned(), reason })?;
    Ok(formatted)
}

/// Which store is on these devices.
pub fn store_identity(
    device: &Path,
    log_device: Option<&Path>,
    key: Option<&DeviceKey>,
) -> Result<StoreIdentity, FormatError> {
    let mut devices = BlockingDevice::open(device, log_device)?.unlock(key)?;
    let found = Store::identity(&mut devices);
    found.map_err(|reason| FormatError::Unreadable { path: device.to_owned(), reason })
}

/// The store's options for a request.
fn format_options(request: &FormatRequest<'_>, devices: Formatted) -> FormatOptions {
    // A log device begins with a block that says whose it is.
    let room_bytes = devices.log_device_bytes.map(|size_bytes| size_bytes - BLOCK_BYTES as u64);
    let wal_bytes = request.wal_bytes.or(room_bytes).unwrap_or(WAL_BYTES_DEFAULT);
    let wal_bytes = wal_bytes.min(room_bytes.unwrap_or(u64::MAX));
    FormatOptions { store_id: request.store_id, wal_bytes, wal_is_apart: devices.log_device_bytes.is_some() }
}

impl Named {
    fn check(&self, minimum_bytes: u64, wipe: bool) -> Result<(), FormatError> {
        let (path, size_bytes) = (self.path.clone(), self.file.size_bytes());
        if size_bytes < minimum_bytes {
            return Err(FormatError::TooSmall { path, size_bytes, minimum_bytes });
        }
        if wipe {
            return Ok(());
        }
        let contents = self.contents().map_err(|reason| self.error(reason))?;
        if contents.is_empty() {
            Ok(())
        } else {
            Err(FormatError::Occupied { path, contents: contents.join(", ") })
        }
    }

    fn contents(&self) -> io::Result<Vec<String>> {
        let blocks = PROBE_BYTES / BLOCK_BYTES;
        let first = self.file.read_at(0, blocks)?;
        let last = self.file.read_at(self.file.size_bytes() - PROBE_BYTES as u64, blocks)?;
        Ok(Ends { first: first.as_slice(), last: last.as_slice() }.contents())
    }

    /// Clears both ends and the known copies of superblocks between them.
    fn wipe(&self) -> Result<(), FormatError> {
        let end = self.file.size_bytes();
        let zeros = BlockBuffer::zeroed(PROBE_BYTES / BLOCK_BYTES);
        let clear = || {
            self.file.write_at(0, zeros.as_slice())?;
            for offset in COPIES.into_iter().filter(|offset| offset + BLOCK_BYTES as u64 <= end) {
                self.file.write_at(offset, &zeros.as_slice()[..BLOCK_BYTES])?;
            }
            self.file.write_at(end - PROBE_BYTES as u64, zeros.as_slice())?;
            self.file.sync()
        };
        clear().map_err(|reason| self.error(reason).into())
    }

    fn error(&self, reason: io::Error) -> DeviceError {
        DeviceError { path: self.path.to_owned(), reason }
    }
}

/// Two names may be links to one file, or two device nodes of one device.
fn refuse_same_device(request: &FormatRequest<'_>) -> Result<(), FormatError> {
    let identity = |path: &Path| {
        let metadata = fs::metadata(path).ok()?;
        let is_device = metadata.file_type().is_block_device();
        Some(if is_device { (true, 0, metadata.rdev()) } else { (false, metadata.dev(), metadata.ino()) })
    };
    let Some(log_device) = request.log_device else { return Ok(()) };
    match (identity(request.device), identity(log_device)) {
        (Some(data), Some(log)) if data == log => {
            Err(FormatError::SameDevice(request.device.to_owned(), log_device.to_owned()))
        }
        _ => Ok(()),
    }
}

fn refuse_partitions(path: &Path) -> Result<(), FormatError> {
    let partitions = claims::partitions_of(path);
    if partitions.is_empty() {
        return Ok(());
    }
    // What the partitions are used for is what the user wants to know first.
    let names = partitions.into_iter().chain(claims::users_of(path)).collect::<Vec<_>>().join(", ");
    Err(FormatError::Partitioned { path: path.to_owned(), partitions: names })
}

#[cfg(test)]
mod tests;
