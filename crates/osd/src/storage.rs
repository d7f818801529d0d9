//! The store on its devices: what was submitted, is read, loaded or examined, and for whom.
//!
//! What becomes of it comes out as [`StorageEvent`]s, which `effects.rs` hands to the PGs.

mod device_watch;
mod listing;
mod object_reads;
mod recovery_reads;
mod submissions;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use atoll_buffers::BLOCK_BYTES;
use atoll_pending::Pending;
use atoll_pg::{ObjectParts, Token};
use atoll_store::{
    BackingRoom, Device, DiskOperation, DiskRequest, LoadId, LoadRequest, ObjectKey, ReadData, ScrubError,
    ScrubResult, Store, StoreEvent,
};
use atoll_types::{ObjectName, PgId, SharedTransaction, Version};

pub(crate) use listing::ObjectList;
pub(crate) use object_reads::ReadAnswer;
use recovery_reads::PartRead;

use crate::config::OsdError;
use crate::context::Context;
use crate::device::{Backing, RingDevice};
use crate::invariants;
use crate::metrics::{DeviceOperation, Metrics};
use crate::recovery::RecoveryRead;
use device_watch::DeviceWatch;

/// The result of something that was asked of the store.
pub(crate) enum StorageEvent {
    /// A PG's submission is durable.
    Committed { pg: PgId, token: Token },
    /// The store has refused it.
    SubmitFailed { pg: PgId, token: Token, error: String },
    /// Something that a PG's submissions waited for is there.
    MayGoOn(PgId),
    /// The removal of an object of a removed pool is durable.
    RemovalCommitted,
    /// What a PG wanted to look at is in memory.
    Loaded { pg: PgId, token: Token },
    /// A read of a PG is done.
    Read { pg: PgId, token: Token, result: ReadAnswer },
    /// Objects of a PG are listed.
    Listed { pg: PgId, token: Token, objects: Vec<(ObjectName, Version)>, more: bool },
    /// An object, or a part of one, was read for another OSD.
    RecoveryRead { read: RecoveryRead, answer: Result<ObjectParts, String> },
    /// An object was examined.
    Scrubbed { pg: PgId, token: Token, result: Result<ScrubResult, ScrubError> },
    /// What a new PG begins with is in memory.
    NewPgLoaded(PgId),
    /// What the next removal needs is in memory.
    RemovedPoolLoaded,
}

/// Who has submitted.
enum Submitter {
    Pg { pg: PgId, token: Token },
    RemovedPool,
}

/// Who waits for a read.
enum Reader {
    Pg { pg: PgId, token: Token },
    Recovery(Box<PartRead>),
}

/// Who waits for metadata.
enum Loader {
    Pg {
        pg: PgId,
        token: Token,
    },
    /// The PG's submissions.
    Submissions(PgId),
    List(ObjectList),
    Recovery(Box<(PartRead, ReadData)>),
    NewPg(PgId),
    RemovedPool,
}

/// A device that says nothing for so long is told in the log.
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
        };
        DeviceRequest { device: request.device, operation, bytes: bytes as u64, started_us, started_seconds }
    }
}

pub(crate) struct Storage {
    store: Store,
    devices: RingDevice,
    backing: Backing,
    events: VecDeque<StorageEvent>,
    submitted: Pending<Submitter>,
    /// Submissions that wait for room in the log or for metadata, in order per PG.
    backlog: BTreeMap<PgId, VecDeque<(Token, SharedTransaction)>>,
    /// PGs whose next submission waits for metadata.
    loading_for_submit: BTreeSet<PgId>,
    waits_for_room: bool,
    loads: BTreeMap<LoadId, Loader>,
    reads: Pending<Reader>,
    scrubs: BTreeMap<u64, (PgId, Token)>,
    /// Requests that devices have not completed, by number.
    in_flight: Pending<DeviceRequest>,
    watch: DeviceWatch,
    failure: Option<OsdError>,
}

impl Storage {
    pub fn new(store: Store, devices: RingDevice, backing: Backing) -> Self {
        Storage {
            store,
            devices,
            backing,
            events: VecDeque::new(),
            submitted: Pending::default(),
            backlog: BTreeMap::new(),
            loading_for_submit: BTreeSet::new(),
            waits_for_room: false,
            loads: BTreeMap::new(),
            reads: Pending::default(),
            scrubs: BTreeMap::new(),
            in_flight: Pending::default(),
            watch: DeviceWatch::default(),
            failure: None,
        }
    }

    /// The store, for reading.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Why the device cannot be used any more, if that is so.
    pub fn failure(&mut self) -> Option<OsdError> {
        self.failure.take()
    }

    /// Gives the store's caches what the rest of the process leaves of a target.
    pub fn share_memory(&mut self, target_bytes: u64) {
        let usage = self.store.usage();
        let cached_bytes = usage.metadata_memory_bytes + usage.pending_memory_bytes;
        let budgets = crate::memory::share(target_bytes, crate::memory::resident_bytes(), cached_bytes);
        self.store.set_memory_budget(budgets.pages_bytes, budgets.pending_bytes);
    }

    pub fn forget_pre_images(&mut self, pg: PgId, through: Version) {
        self.store.forget_pre_images(pg, through);
    }

    /// Looks how much room there is under device files.
    pub fn look_at_backing(&mut self) {
        let usage = self.store.usage();
        let room = self.backing.room(usage.pending_memory_bytes);
        if room != self.store.backing_room() {
            match room {
                BackingRoom::Enough => tracing::info!("the file system under the device has room again"),
                _ => tracing::warn!("the file system under the device is almost full: no new data is taken"),
            }
        }
        self.store.set_backing_room(room);
    }

    /// The same in each turn, if there is so little that it may be gone before the next second.
    pub fn look_at_backing_if_near(&mut self) {
        if self.backing.is_near() {
            self.look_at_backing();
        }
    }

    /// Says when the store is full.
    pub fn set_full_percent(&mut self, percent: u32) {
        self.store.set_full_percent(percent);
    }

    pub fn start_checkpoint(&mut self) {
        self.store.start_checkpoint();
    }

    /// An operation of a device is complete.
    pub fn complete(&mut self, tag: u64, result: atoll_store::DiskResult, now_us: u64, metrics: &Metrics) {
        if let Some(request) = self.in_flight.remove(tag) {
            let DeviceRequest { device, operation, bytes, started_us, .. } = request;
            self.watch.answered(device);
            metrics.device_done(device, operation, bytes, now_us.saturating_sub(started_us));
        }
        self.store.complete(tag, result);
    }

    /// Writes the log for everything that was submitted in this turn.
    pub fn flush(&mut self) {
        self.store.flush();
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

    /// Hands what the store wants to the devices.
    pub fn start_requests(&mut self, context: &mut Context) {
        while let Some(request) = self.store.next_request() {
            let pending = DeviceRequest::new(&request, context.now_us(), self.watch.now_seconds());
            self.in_flight.insert(request.id, pending);
            let operation = crate::device::file_operation(request.operation);
            context.reactor.start_file(self.devices.file(request.device), request.id, operation);
        }
    }

    /// Whether there are events that no device has caused.
    pub fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// The result of something that was asked of the store.
    pub fn next_event(&mut self) -> Option<StorageEvent> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Some(event);
            }
            match self.store.next_event()? {
                StoreEvent::Committed(id) => return Some(self.committed(id)),
                StoreEvent::Read { id, result } => {
                    match self.reads.remove(id).expect(invariants::EVERY_READ_HAS_A_READER) {
                        Reader::Pg { pg, token } => {
                            let result = object_reads::answer(result);
                            return Some(StorageEvent::Read { pg, token, result });
                        }
                        Reader::Recovery(read) => self.part_read(*read, result),
                    }
                }
                StoreEvent::Loaded(load) => self.loaded(load),
                StoreEvent::Scrubbed { id, result } => {
                    let (pg, token) = self.scrubs.remove(&id).expect(invariants::EVERY_SCRUB_HAS_AN_ASKER);
                    return Some(StorageEvent::Scrubbed { pg, token, result });
                }
                StoreEvent::Poisoned { cause } => self.failure = Some(OsdError::Device(cause)),
            }
        }
    }

    fn loaded(&mut self, load: LoadId) {
        match self.loads.remove(&load).expect(invariants::EVERY_LOAD_HAS_A_LOADER) {
            Loader::Pg { pg, token } => self.events.push_back(StorageEvent::Loaded { pg, token }),
            Loader::Submissions(pg) => {
                self.loading_for_submit.remove(&pg);
                self.submit_waiting(pg);
            }
            Loader::List(list) => self.list_objects(list),
            Loader::Recovery(read) => self.part_data_ready(*read),
            Loader::NewPg(pg) => self.events.push_back(StorageEvent::NewPgLoaded(pg)),
            Loader::RemovedPool => self.events.push_back(StorageEvent::RemovedPoolLoaded),
        }
    }

    fn load(&mut self, request: LoadRequest, loader: Loader) {
        let load = self.store.load(request);
        let before = self.loads.insert(load, loader);
        invariants::ids_are_fresh("load", before.is_some());
    }

    /// Loads what a PG wants to look at.
    pub fn load_for_pg(&mut self, pg: PgId, token: Token, request: LoadRequest) {
        self.load(request, Loader::Pg { pg, token });
    }

    /// Loads what a new PG begins with.
    pub fn load_new_pg(&mut self, pg: PgId, request: LoadRequest) {
        self.load(request, Loader::NewPg(pg));
    }

    /// Loads what the next removal needs.
    pub fn load_for_removal(&mut self, request: LoadRequest) {
        self.load(request, Loader::RemovedPool);
    }

    /// Begins to examine an object.
    pub fn scrub(&mut self, pg: PgId, token: Token, object: ObjectName, deep: bool) {
        let id = self.store.scrub(ObjectKey { pg, name: object }, deep);
        let before = self.scrubs.insert(id, (pg, token));
        invariants::ids_are_fresh("scrub", before.is_some());
    }

    fn read(&mut self, key: ObjectKey, offset: u64, length: u32, reader: Reader) {
        let id = self.store.read(key, offset, length);
        let before = self.reads.insert(id, reader);
        invariants::ids_are_fresh("read", before.is_some());
    }
}
