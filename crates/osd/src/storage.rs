//! The store on its devices. PGs use it through `crates/storage`; results come out as
//! [`atoll_storage::StorageEvent`]s, which `effects.rs` passes to the PGs.

mod device_watch;

use std::ops::{Deref, DerefMut};

use atoll_buffers::BLOCK_BYTES;
use atoll_pending::Pending;
use atoll_store::{BackingRoom, Device, DiskOperation, DiskRequest, Store};

use crate::config::OsdError;
use crate::context::Context;
use crate::device::{Backing, RingDevice};
use crate::metrics::{DeviceOperation, Metrics};
use device_watch::DeviceWatch;

/// Silence of a device after which it is logged.
const SILENCE_TOLD_SECONDS: u64 = 5;

/// A request that a device has not completed.
struct DeviceRequest {
    device: Device,
    operation: DeviceOperation,
    bytes: u64,
    started_us: u64,
    /// The same by the clock of the [`DeviceWatch`].
    started_seconds: u64,
}

impl DeviceRequest {
    fn new(request: &DiskRequest, started_us: u64, started_seconds: u64) -> Self {
        let (operation, bytes) = match &request.operation {
            DiskOperation::Read { block_count, .. } => (DeviceOperation::Read, block_count * BLOCK_BYTES),
            DiskOperation::Write { segments, .. } => {
                let blocks: usize = segments.iter().map(|segment| segment.block_count).sum();
                (DeviceOperation::Write, blocks * BLOCK_BYTES)
            }
            DiskOperation::WriteBytes { bytes, .. } => (DeviceOperation::Write, bytes.len()),
            DiskOperation::Sync => (DeviceOperation::Sync, 0),
            DiskOperation::Discard { block_count, .. } => (DeviceOperation::Discard, block_count * BLOCK_BYTES),
        };
        DeviceRequest { device: request.device, operation, bytes: bytes as u64, started_us, started_seconds }
    }
}

/// A store on its devices.
pub(crate) struct Storage {
    asked: atoll_storage::Storage,
    devices: RingDevice,
    backing: Backing,
    /// Requests that devices have not completed, by number.
    in_flight: Pending<DeviceRequest>,
    watch: DeviceWatch,
    failure: Option<OsdError>,
}

impl Deref for Storage {
    type Target = atoll_storage::Storage;

    fn deref(&self) -> &Self::Target {
        &self.asked
    }
}

impl DerefMut for Storage {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.asked
    }
}

impl Storage {
    pub fn new(store: Store, devices: RingDevice, backing: Backing) -> Self {
        Storage {
            asked: atoll_storage::Storage::new(store),
            devices,
            backing,
            in_flight: Pending::default(),
            watch: DeviceWatch::default(),
            failure: None,
        }
    }

    /// Why the device cannot be used any more, if that is so.
    pub fn failure(&mut self) -> Option<OsdError> {
        self.failure.take().or_else(|| self.take_failure().map(OsdError::Device))
    }

    /// Gives the store's caches the part of a target that the rest of the process leaves.
    pub fn share_memory(&mut self, target_bytes: u64) {
        let usage = self.store().usage();
        let cached_bytes = usage.metadata_memory_bytes + usage.pending_memory_bytes;
        let budgets = crate::memory::share(target_bytes, crate::memory::resident_bytes(), cached_bytes);
        self.store_mut().set_memory_budget(budgets.pages_bytes, budgets.pending_bytes);
    }

    /// Looks how much room there is under device files.
    pub fn look_at_backing(&mut self) {
        let usage = self.store().usage();
        let room = self.backing.room(usage.pending_memory_bytes);
        if room != self.store().backing_room() {
            match room {
                BackingRoom::Enough => tracing::info!("the file system under the device has room again"),
                _ => tracing::warn!("the file system under the device is almost full: no new data is taken"),
            }
        }
        self.store_mut().set_backing_room(room);
    }

    /// The same in each turn, if there is so little that it may be gone before the next second.
    pub fn look_at_backing_if_near(&mut self) {
        if self.backing.is_near() {
            self.look_at_backing();
        }
    }

    /// Says when the store is full.
    pub fn set_full_percent(&mut self, percent: u32) {
        self.store_mut().set_full_percent(percent);
    }

    pub fn start_checkpoint(&mut self) {
        self.store_mut().start_checkpoint();
    }

    /// An operation of a device is complete.
    pub fn complete(&mut self, tag: u64, result: atoll_store::DiskResult, now_us: u64, metrics: &Metrics) {
        if let Some(request) = self.in_flight.remove(tag) {
            let DeviceRequest { device, operation, bytes, started_us, .. } = request;
            self.watch.answered(device);
            metrics.device_done(device, operation, bytes, now_us.saturating_sub(started_us));
        }
        self.store_mut().complete(tag, result);
    }

    /// Writes the log for everything that was submitted in this turn.
    pub fn flush(&mut self) {
        self.store_mut().flush();
    }

    /// Once a second: whether devices answer. One that does not for `limit_seconds` is a failure.
    pub fn watch_devices(&mut self, limit_seconds: u64) {
        self.watch.second();
        for device in [Device::Data, Device::Log] {
            let mut requests = self.in_flight.iter().filter(|(_, request)| request.device == device);
            let Some((_, oldest)) = requests.next() else { continue };
            if self.watch.silence_seconds(device, oldest.started_seconds) == SILENCE_TOLD_SECONDS {
                let waiting = 1 + requests.count();
                tracing::warn!(
                    "the {device} device has not answered for {SILENCE_TOLD_SECONDS} s; {waiting} requests wait"
                );
            } else if let Some(cause) = self.watch.verdict(device, oldest.started_seconds, limit_seconds) {
                self.failure.get_or_insert(OsdError::DeviceSilent(cause));
            }
        }
    }

    /// Hands the store's requests to the devices.
    pub fn start_requests(&mut self, context: &mut Context) {
        while let Some(request) = self.store_mut().next_request() {
            let pending = DeviceRequest::new(&request, context.now_us(), self.watch.now_seconds());
            self.in_flight.insert(request.id, pending);
            let operation = crate::device::file_operation(request.operation);
            context.reactor.start_file(self.devices.file(request.device), request.id, operation);
        }
    }
}
