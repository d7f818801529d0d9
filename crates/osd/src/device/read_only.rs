//! A store's devices for tools that look at them while no OSD runs.

use std::io;
use std::path::Path;

use atoll_store::{Device, Disk, DiskOperation, DiskResult};

use super::{AtRestError, BlockingDevice, DeviceKey};

/// Devices that are read and never written. They are taken for this process alone all the same: changes by an OSD
/// meanwhile would look like damage.
pub struct ReadOnlyDevice(BlockingDevice);

impl ReadOnlyDevice {
    /// Takes the data device and, if there is one, the log device, and unlocks them if they are encrypted.
    pub fn open(data: &Path, log: Option<&Path>, key: Option<&DeviceKey>) -> Result<Self, AtRestError> {
        Ok(ReadOnlyDevice(BlockingDevice::open(data, log)?.unlock(key)?))
    }
}

impl Disk for ReadOnlyDevice {
    fn size_bytes(&self, device: Device) -> Option<u64> {
        self.0.size_bytes(device)
    }

    fn execute(&mut self, device: Device, operation: DiskOperation) -> DiskResult {
        match operation {
            DiskOperation::Read { .. } => self.0.execute(device, operation),
            _ => Err(io::Error::new(io::ErrorKind::PermissionDenied, "the device was opened for reading only")),
        }
    }
}
