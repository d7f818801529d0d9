//! OSDs with one PG: their stores on devices in memory, and messages that arrive at once.

use std::collections::{BTreeMap, VecDeque};

use atoll_buffers::{BLOCK_BYTES, BlockBuffer};
use atoll_pg::{Action, ClientId, CodeShape, Leases, Lookup, Pg, PgState, PoolPolicy, Sender};
use atoll_storage::{ObjectList, RecoveryRead, Storage, StorageEvent, finding};
use atoll_store::{DEVICE_BYTES_MIN, Device, Disk, DiskOperation, DiskResult, FormatOptions, LoadRequest, Store};
use atoll_types::records::{PgRecord, RECORD_FORMAT};
use atoll_types::{
    Epoch, Mutation, ObjectName, OsdId, PgId, PoolId, ReadOutcome, ReadRequest, Refusal, RequestId, Version,
    WriteRequest,
};
use atoll_wire::Message;
use bytes::Bytes;

use super::result_of;
use crate::links::Links;
use crate::view::StoreView;

const PG: PgId = PgId { pool: PoolId(1), index: 0 };
const CLIENT: ClientId = ClientId(1);
/// Largest number of turns for one request.
const TURNS_MAX: usize = 3_000;

pub fn name(text: &str) -> ObjectName {
    ObjectName::new(text).expect("a name of a test is neither empty nor too long")
}

/// A device in memory; blocks that were never written read as zeros.
#[derive(Default)]
struct MemoryDisk(BTreeMap<u64, Vec<u8>>);

impl Disk for MemoryDisk {
    fn size_bytes(&self, device: Device) -> Option<u64> {
        (device == Device::Data).then_some(DEVICE_BYTES_MIN)
    }

    fn execute(&mut self, _: Device, operation: DiskOperation) -> DiskResult {
        if let DiskOperation::Read { offset, block_count } = operation {
            let mut buffer = BlockBuffer::zeroed(block_count);
            let first = offset / BLOCK_BYTES as u64;
            for (block, output) in (first..).zip(buffer.as_mut_slice().chunks_exact_mut(BLOCK_BYTES)) {
                self.0.get(&block).into_iter().for_each(|bytes| output.copy_from_slice(bytes));
            }
            return Ok(Some(buffer));
        }
        if let Some((offset, pieces)) = operation.written() {
            for (block, bytes) in (offset / BLOCK_BYTES as u64..).zip(pieces.concat().chunks_exact(BLOCK_BYTES)) {
                self.0.insert(block, bytes.to_vec());
            }
        }
        Ok(None)
    }
}

struct Member {
    disk: MemoryDisk,
    storage: Storage,
    links: Links,
    leases: Leases,
    pg: Option<Pg>,
}

impl Member {
    fn new() -> Self {
        let mut disk = MemoryDisk::default();
        let options = FormatOptions { store_id: [1; 16], wal_bytes: 0, wal_is_apart: false };
        Store::format(&mut disk, options).expect("the device is large enough");
        let store = Store::open(&mut disk, 1).expect("it was just formatted");
        Member { disk, storage: Storage::new(store), links: Links::new(1 << 30), leases: Leases::new(0), pg: None }
    }
}

pub struct World {
    members: Vec<Member>,
    record: PgRecord,
    messages: VecDeque<(usize, usize, Message)>,
    answers: BTreeMap<u64, Result<Option<ReadOutcome>, Refusal>>,
    last_sequence: u64,
    /// The newest write that an answer has reported.
    known: Version,
    now_us: u64,
    pub first_epoch: Epoch,
}

fn osd(index: usize) -> OsdId {
    OsdId(index as u32)
}

impl World {
    /// An active PG of one copy, or of shards.
    pub fn new(shape: Option<CodeShape>) -> Self {
        let size = shape.map_or(1, |shape| usize::from(shape.data + shape.parity));
        let osds: Vec<OsdId> = (0..size).map(osd).collect();
        let record = PgRecord {
            format: RECORD_FORMAT,
            epoch: Epoch(1),
            members: osds.clone(),
            primary: osd(0),
            activated_epoch: Epoch(0),
            last_active_members: Vec::new(),
            pg_num: 0,
            shards: if shape.is_some() { (0..size as u8).collect() } else { Vec::new() },
            last_active_shards: Vec::new(),
            accepted: None,
        };
        let mut world = World {
            members: (0..size).map(|_| Member::new()).collect(),
            record,
            messages: VecDeque::new(),
            answers: BTreeMap::new(),
            last_sequence: 0,
            known: Version::default(),
            now_us: 1_000_000,
            first_epoch: Epoch(0),
        };
        let policy = PoolPolicy {
            pg_num: 1,
            pg_num_first: 1,
            size: size as u32,
            min_size: size as u32,
            may_backfill: true,
            shape,
        };
        world.start(&osds, policy);
        world
    }

    fn start(&mut self, osds: &[OsdId], policy: PoolPolicy) {
        for at in 0..self.members.len() {
            let Member { storage, links, leases, pg, .. } = &mut self.members[at];
            let view = StoreView::at(storage, links, leases, osd(at), self.now_us);
            *pg = Some(Pg::new(PG, osd(at), policy, osds.to_vec(), self.record.clone(), &view));
        }
        for at in 0..self.members.len() {
            for other in osds.iter().filter(|other| **other != osd(at)) {
                self.with_pg(at, |pg, view| pg.peer_up(*other, view));
            }
        }
        for _ in 0..100 {
            self.tick();
        }
        assert_eq!(self.state(), &PgState::Active);
        self.first_epoch = self.record.epoch;
        self.known = Version { epoch: self.first_epoch, sequence: 0 };
    }

    fn primary(&self) -> usize {
        self.record.primary.0 as usize
    }

    pub fn state(&self) -> &PgState {
        self.members[self.primary()].pg.as_ref().expect("it has started").state()
    }

    pub fn epoch(&self) -> Epoch {
        self.record.epoch
    }

    fn with_pg(&mut self, at: usize, event: impl FnOnce(&mut Pg, &StoreView<'_>)) {
        let Member { storage, links, leases, pg, .. } = &mut self.members[at];
        let view = StoreView::at(storage, links, leases, osd(at), self.now_us);
        event(pg.as_mut().expect("it has started"), &view);
    }

    /// Some time passes, and all leases are renewed.
    fn tick(&mut self) {
        self.now_us += 20_000;
        let now_ms = self.now_us / 1_000;
        for at in 0..self.members.len() {
            for other in (0..self.members.len()).filter(|other| *other != at) {
                self.members[at].leases.granted(osd(other), now_ms);
                self.members[at].leases.renewed(osd(other), now_ms, now_ms);
            }
            self.with_pg(at, |pg, view| pg.tick(view));
        }
        self.come_to_rest();
    }

    /// Makes enough objects for the metadata of two of them to be in different pages.
    pub fn fill(&mut self) {
        for number in 0..30 {
            for prefix in ["a", "b", "c", "object", "o"] {
                let object = name(&format!("{prefix}{} {number}", " and many more".repeat(14)));
                let mutations = vec![Mutation::Create];
                let conditions = Vec::new();
                let request =
                    WriteRequest { object, conditions, mutations, payload: Bytes::new(), payload_sealed: false };
                assert_eq!(self.write(request), Some(Ok(())));
            }
        }
    }

    /// Writes everything to the devices and drops all metadata from memory.
    pub fn cool(&mut self) {
        self.members.iter_mut().for_each(|member| member.storage.store_mut().start_checkpoint());
        self.come_to_rest();
        for Member { storage, .. } in &mut self.members {
            let store = storage.store_mut();
            store.set_memory_budget(0, 0);
            (0..8).for_each(|_| store.flush());
            store.set_memory_budget(64 << 20, 64 << 20);
        }
        self.come_to_rest();
    }

    /// Sends a write; the answer, if there is one.
    pub fn write(&mut self, request: WriteRequest) -> Option<Result<(), Refusal>> {
        let (id, epoch, primary) = (self.next_request(), self.record.epoch, self.primary());
        let (client, answered_below, known) = (CLIENT, id.sequence, self.known);
        let sender = Sender { client, id, answered_below, known, epoch };
        self.with_pg(primary, |pg, view| pg.client_write(sender, request, view));
        self.answer(id).map(|answer| answer.map(drop))
    }

    /// Sends a read; the answer, if there is one.
    pub fn read(&mut self, object: ObjectName, request: ReadRequest) -> Option<Result<ReadOutcome, Refusal>> {
        let (id, primary) = (self.next_request(), self.primary());
        self.with_pg(primary, |pg, view| pg.client_read(CLIENT, id, object, request, view));
        self.answer(id).map(|answer| answer.map(|found| found.expect("a read finds something")))
    }

    fn next_request(&mut self) -> RequestId {
        self.last_sequence += 1;
        RequestId { session: 1, sequence: self.last_sequence }
    }

    fn answer(&mut self, id: RequestId) -> Option<Result<Option<ReadOutcome>, Refusal>> {
        self.come_to_rest();
        if !self.answers.contains_key(&id.sequence) {
            (0..5).for_each(|_| self.tick());
        }
        self.answers.remove(&id.sequence)
    }

    /// Continues until nothing happens any more.
    fn come_to_rest(&mut self) {
        for _ in 0..TURNS_MAX {
            let mut goes_on = false;
            for at in 0..self.members.len() {
                goes_on |= self.turn(at);
            }
            while let Some((from, to, message)) = self.messages.pop_front() {
                self.with_pg(to, |pg, view| pg.message(osd(from), message, view));
                goes_on = true;
            }
            if !goes_on {
                return;
            }
        }
        panic!("it does not come to rest");
    }

    /// One turn of an OSD's loop. False if nothing happened in it.
    fn turn(&mut self, at: usize) -> bool {
        let mut goes_on = false;
        while let Some(event) = self.members[at].storage.next_event() {
            self.storage_event(at, event);
            goes_on = true;
        }
        while let Some(action) = self.next_action(at) {
            self.perform(at, action);
            goes_on = true;
        }
        let Member { disk, storage, .. } = &mut self.members[at];
        goes_on |= storage.submit_backlog();
        storage.store_mut().flush();
        while let Some(request) = storage.store_mut().next_request() {
            let result = disk.execute(request.device, request.operation);
            storage.store_mut().complete(request.id, result);
            goes_on = true;
        }
        assert!(storage.take_failure().is_none(), "the store is intact");
        storage.check();
        goes_on
    }

    fn next_action(&mut self, at: usize) -> Option<Action> {
        let mut action = None;
        self.with_pg(at, |pg, view| {
            action = pg.next_action().or_else(|| {
                pg.proceed(view);
                pg.next_action()
            });
        });
        action
    }

    fn storage_event(&mut self, at: usize, event: StorageEvent) {
        match event {
            StorageEvent::Committed { token, .. } => self.with_pg(at, |pg, view| pg.committed(token, view)),
            StorageEvent::SubmitFailed { token, error, .. } => {
                self.with_pg(at, |pg, view| pg.submit_failed(token, &error, view));
            }
            StorageEvent::Loaded { token, .. } => self.with_pg(at, |pg, view| pg.loaded(token, view)),
            StorageEvent::Read { token, result, .. } => {
                self.with_pg(at, |pg, view| pg.read_done(token, result, view));
            }
            StorageEvent::Listed { token, objects, more, .. } => {
                self.with_pg(at, |pg, _| pg.objects_listed(token, objects, more));
            }
            StorageEvent::RecoveryRead { read, answer } => {
                self.with_pg(at, |pg, view| pg.object_read(read.token, answer, view));
            }
            StorageEvent::Scrubbed { token, result, .. } => {
                self.with_pg(at, |pg, view| pg.scrubbed(token, finding(result), view));
            }
            StorageEvent::MayGoOn(_) => {}
            StorageEvent::RemovalCommitted | StorageEvent::NewPgLoaded(_) | StorageEvent::RemovedPoolLoaded => {
                unreachable!("no pool is removed, and no PG added")
            }
        }
    }

    fn perform(&mut self, at: usize, action: Action) {
        let storage = &mut self.members[at].storage;
        match action {
            Action::Submit { token, transaction } => storage.submit(PG, token, transaction),
            Action::Load { token, lookup } => storage.load_for_pg(PG, token, load_request(lookup)),
            Action::ListObjects { token, after } => {
                storage.list_objects(ObjectList { pg: PG, token, after, objects: Vec::new() });
            }
            Action::Read { token, object, request } => storage.read_object(PG, token, object, request),
            Action::ReadObject { token, object, touched, from, .. } => {
                storage.read_for_recovery(RecoveryRead { pg: PG, token, object, touched, from });
            }
            Action::Scrub { token, object, deep } => storage.scrub(PG, token, object, deep),
            Action::Send { to, message } => self.messages.push_back((at, to.0 as usize, message)),
            Action::Reply { message, .. } => {
                if let Message::WriteReply { committed, .. } = &message {
                    self.known = self.known.max(*committed);
                }
                let (sequence, result) = result_of(message);
                assert!(self.answers.insert(sequence, result).is_none(), "a request is answered once");
            }
            Action::Propose { expected, record, .. } => self.propose(&expected, *record),
            Action::ForgetPreImages { through } => storage.forget_pre_images(PG, through),
            Action::Warn { text } => assert!(self.first_epoch == Epoch(0), "{text}"),
            Action::ScrubDone { .. }
            | Action::ReadTookLong { .. }
            | Action::Durable { .. }
            | Action::ReadForBackfill { .. } => {}
        }
    }

    /// Cluster state answers at once.
    fn propose(&mut self, expected: &PgRecord, record: PgRecord) {
        if self.record != *expected {
            return;
        }
        self.record = record;
        for at in 0..self.members.len() {
            let record = self.record.clone();
            self.with_pg(at, |pg, view| pg.set_record(record, view));
        }
    }
}

fn load_request(lookup: Lookup) -> LoadRequest {
    match lookup {
        Lookup::Read { object, request } => LoadRequest::Read { pg: PG, object, request },
        Lookup::Write { object, conditions, mutations } => {
            LoadRequest::Write { pg: PG, object, conditions, mutations }
        }
    }
}
