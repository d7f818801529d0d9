//! A store's devices: blocking before the loop runs, through the ring afterwards. The load generator
//! that measures a store alone uses them in the same way as the OSD.

mod at_rest;
mod backing;
mod claims;
mod damaged;
mod format;
pub(crate) mod health;
mod probe;
mod read_only;

use std::io;
use std::path::{Path, PathBuf};

use atoll_buffers::BlockBuffer;
use atoll_reactor::{DirectFile, FileId, FileOperation, Reactor};
use atoll_store::{Device, Disk, DiskOperation, DiskResult, Segment, Store};

pub use at_rest::{AtRestError, DeviceKey, encrypt_device};
pub(crate) use backing::Backing;
pub use backing::free_bytes;
pub use damaged::DamagedStore;
pub use format::{
    FormatError, FormatRequest, Formatted, LOG_DEVICE_BYTES_MIN, format_device, make_file, store_identity,
};
pub use read_only::ReadOnlyDevice;

/// Most bytes of a device file, beyond the store's need, that are kept without a walk at a start.
const KEPT_BYTES_MAX: u64 = 64 << 20;

/// Why a file or block device cannot be used: in use, read-only, not there, ...
#[derive(Debug, thiserror::Error)]
#[error("cannot use {}: {reason}", path.display())]
pub struct DeviceError {
    /// The file or block device.
    pub path: PathBuf,
    /// The reason and the remedy.
    pub reason: io::Error,
}

/// The devices before they are handed to the loop.
///
/// Encryption at rest goes in here ([`BlockingDevice::encrypt`], [`BlockingDevice::unlock`]):
/// everything above, blocking or in the ring, sees plain data from offset 0 on.
pub struct BlockingDevice {
    data: Named,
    log: Option<Named>,
    /// The store may be smaller than its device.
    data_bytes_max: u64,
}

/// A device and its name, which is for messages.
struct Named {
    path: PathBuf,
    file: DirectFile,
}

impl Named {
    fn take(path: &Path) -> Result<Self, DeviceError> {
        Ok(Named { path: path.to_owned(), file: take(path)? })
    }

    fn encrypt(self, key: &DeviceKey) -> Result<Self, AtRestError> {
        let file = encrypt_device(&self.path, self.file, key)?;
        Ok(Named { file, ..self })
    }

    fn unlock(self, key: Option<&DeviceKey>) -> Result<Self, AtRestError> {
        let file = at_rest::unlock(&self.path, self.file, key)?;
        Ok(Named { file, ..self })
    }
}

/// The devices in the loop.
#[derive(Clone, Copy)]
pub struct RingDevice {
    data: FileId,
    log: Option<FileId>,
}

/// Takes one device for this process alone.
fn take(path: &Path) -> Result<DirectFile, DeviceError> {
    DirectFile::open(path).map_err(|error| {
        let users = claims::users_of(path);
        let reason = if error.kind() == io::ErrorKind::ResourceBusy && !users.is_empty() {
            io::Error::new(error.kind(), format!("it is in use: {}; end that use first", users.join(", ")))
        } else {
            error
        };
        DeviceError { path: path.to_owned(), reason }
    })
}

impl BlockingDevice {
    /// Takes the data device and, if there is one, the log device.
    pub fn open(data: &Path, log: Option<&Path>) -> Result<Self, DeviceError> {
        Ok(BlockingDevice {
            data: Named::take(data)?,
            log: log.map(Named::take).transpose()?,
            data_bytes_max: u64::MAX,
        })
    }

    /// No more than the first `size_bytes` of the data device.
    pub fn first_bytes(self, size_bytes: u64) -> Self {
        BlockingDevice { data_bytes_max: size_bytes, ..self }
    }

    /// Makes each device a new LUKS2 volume, each with a volume key of its own.
    pub fn encrypt(self, key: &DeviceKey) -> Result<Self, AtRestError> {
        let log = self.log.map(|log| log.encrypt(key)).transpose()?;
        Ok(BlockingDevice { data: self.data.encrypt(key)?, log, ..self })
    }

    /// Unlocks the devices: all of them are LUKS2 volumes if there is a key, and none otherwise.
    pub fn unlock(self, key: Option<&DeviceKey>) -> Result<Self, AtRestError> {
        let log = self.log.map(|log| log.unlock(key)).transpose()?;
        Ok(BlockingDevice { data: self.data.unlock(key)?, log, ..self })
    }

    /// Returns true if the data device is a block device that must not show which of its blocks are in use.
    fn hides_free_blocks(&self) -> bool {
        self.data.file.is_encrypted() && self.data.file.allocated_bytes().is_none()
    }

    /// Makes a store free unused blocks: of a file at once, if that has much more than it needs. A store that was
    /// made by an earlier release has kept all that it ever had.
    pub fn give_back_free_space(&self, store: &mut Store) {
        if self.hides_free_blocks() {
            return store.set_discards(false);
        }
        let usage = store.usage();
        let log_bytes = if self.log.is_none() { usage.log_size_bytes } else { 0 };
        let needed_bytes = usage.used_bytes + log_bytes + KEPT_BYTES_MAX;
        if self.data.file.allocated_bytes().is_some_and(|allocated_bytes| allocated_bytes > needed_bytes) {
            store.discard_free_space();
        }
    }

    /// Hands the devices to the loop.
    pub fn into_ring(self, reactor: &mut Reactor) -> RingDevice {
        RingDevice { data: reactor.add_file(self.data.file), log: self.log.map(|log| reactor.add_file(log.file)) }
    }

    fn file(&self, device: Device) -> Option<&DirectFile> {
        match device {
            Device::Data => Some(&self.data.file),
            Device::Log => self.log.as_ref().map(|log| &log.file),
        }
    }
}

impl Disk for BlockingDevice {
    fn size_bytes(&self, device: Device) -> Option<u64> {
        let size_bytes = self.file(device)?.size_bytes();
        Some(if device == Device::Data { size_bytes.min(self.data_bytes_max) } else { size_bytes })
    }

    fn execute(&mut self, device: Device, operation: DiskOperation) -> DiskResult {
        let missing = || io::Error::other("this store has its log on a device of its own, which was not named");
        let file = self.file(device).ok_or_else(missing)?;
        match operation {
            DiskOperation::Read { offset, block_count } => file.read_at(offset, block_count).map(Some),
            DiskOperation::Write { offset, segments, durable } => {
                let mut offset = offset;
                for segment in &segments {
                    file.write_at(offset, segment.bytes())?;
                    offset += segment.bytes().len() as u64;
                }
                if durable {
                    file.sync()?;
                }
                Ok(None)
            }
            DiskOperation::WriteBytes { offset, bytes } => {
                file.write_at(offset, BlockBuffer::from_bytes(&bytes).as_slice())?;
                file.sync().map(|()| None)
            }
            DiskOperation::Sync => file.sync().map(|()| None),
            // The store asks for no more.
            DiskOperation::Discard { .. } if self.hides_free_blocks() => Err(io::ErrorKind::Unsupported.into()),
            DiskOperation::Discard { offset, block_count } => file.discard(offset, block_count).map(|()| None),
        }
    }
}

impl RingDevice {
    /// The loop's file for a request of the store.
    pub fn file(self, device: Device) -> FileId {
        match device {
            Device::Data => self.data,
            Device::Log => self.log.expect("a store opens with all the devices that it asks for"),
        }
    }
}

/// The store's request in the reactor's terms.
pub fn file_operation(operation: DiskOperation) -> FileOperation {
    match operation {
        DiskOperation::Read { offset, block_count } => FileOperation::Read { offset, block_count },
        DiskOperation::Write { offset, segments, durable } => {
            let piece = |segment: Segment| (segment.buffer, segment.first_block, segment.block_count);
            FileOperation::Write { offset, pieces: segments.into_iter().map(piece).collect(), durable }
        }
        DiskOperation::WriteBytes { offset, bytes } => FileOperation::WriteBytes { offset, bytes },
        DiskOperation::Sync => FileOperation::Sync,
        DiskOperation::Discard { offset, block_count } => FileOperation::Discard { offset, block_count },
    }
}
