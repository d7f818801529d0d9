//! The real store under a member: on a simulated disk, which completes requests in any order, and whose unsynced
//! data a crash keeps, drops or tears. The stand-in beside it is its model: it has the expected content.

use std::collections::{BTreeMap, VecDeque};
use std::sync::OnceLock;

use atoll_buffers::BLOCK_BYTES;
use atoll_pg::Token;
use atoll_storage::Storage;
use atoll_store::simulated_disk::{Chance, SimulatedDisk};
use atoll_store::{
    DEVICE_BYTES_MIN, Disk, DiskOperation, DiskRequest, FormatOptions, LoadRequest, ObjectKey, ReadData, Store,
    StoreError, StoreEvent,
};
use atoll_types::operation::PG_META_OBJECT;
use atoll_types::{ObjectName, PgId, ReadRequest, SharedTransaction, Transaction};
use bytes::Bytes;

use crate::random::Random;
use crate::state::{Object, Pgs, State, name};
use crate::store::BLOCKS_PER_PART;
use crate::world::ReadResult;

/// Omap entries that are looked at together.
const ENTRIES_AT_ONCE: usize = 100;

/// Memory of a store, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// For metadata pages. With few of them metadata is cold, and checkpoints come often.
    pub page_bytes: u64,
    /// For data that is not at its place yet.
    pub pending_bytes: u64,
}

/// Store's budget for metadata pages.
#[derive(Clone, Copy)]
pub enum Memory {
    /// It takes nothing until a checkpoint has written all pages that have changed.
    None,
    Budget,
    Enough,
}

/// Records of the log that a disk may forget at once.
pub const RECORDS_FORGOTTEN_MAX: usize = 3;

/// Memory for all metadata of a run.
const ENOUGH_BYTES: u64 = 1 << 20;

/// A read of a PG, and all answers that were right since it began.
pub struct ReadUnderWay {
    pub pg: PgId,
    pub token: Token,
    pub object: ObjectName,
    pub request: ReadRequest,
    pub right: Vec<ReadResult>,
}

/// A store and its disk.
pub struct Device {
    pub storage: Storage,
    disk: SimulatedDisk,
    /// Requests that the disk has not done, by number.
    in_flight: BTreeMap<u64, DiskRequest>,
    /// Submissions that the store has neither accepted nor refused, in order per PG.
    waiting: BTreeMap<PgId, VecDeque<(Token, SharedTransaction)>>,
    pub reads: Vec<ReadUnderWay>,
    budget: Budget,
    /// PGs that the pool begins with.
    pgs: u32,
    /// The disk before each of the newest records of the log, the oldest first.
    before_records: VecDeque<SimulatedDisk>,
    /// True if it may be made to forget.
    pub keeps_past: bool,
}

impl Chance for Random {
    fn below(&mut self, bound: u64) -> u64 {
        Random::below(self, bound)
    }
}

/// An empty store.
fn formatted() -> SimulatedDisk {
    static DISK: OnceLock<SimulatedDisk> = OnceLock::new();
    let format = || {
        let mut disk = SimulatedDisk::new(DEVICE_BYTES_MIN, None);
        let options = FormatOptions { store_id: [1; 16], wal_bytes: 0, wal_is_apart: false };
        Store::format(&mut disk, options).unwrap();
        disk
    };
    DISK.get_or_init(format).clone()
}

fn open(disk: &mut SimulatedDisk, random: &mut Random) -> Store {
    // Tells the records of this run from all others.
    let incarnation = random.next().max(1);
    Store::open(disk, incarnation).unwrap_or_else(|error| panic!("a store does not open after a crash: {error}"))
}

fn storage_of(store: Store) -> Storage {
    let mut storage = Storage::new(store);
    storage.set_part_bytes((BLOCKS_PER_PART * BLOCK_BYTES) as u64);
    storage
}

impl Device {
    /// An empty one.
    pub fn new(budget: Budget, pgs: u32, random: &mut Random) -> Self {
        let mut disk = formatted();
        let store = open(&mut disk, random);
        let (in_flight, waiting, reads) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
        let mut device = Device {
            storage: storage_of(store),
            disk,
            in_flight,
            waiting,
            reads,
            budget,
            pgs,
            before_records: VecDeque::new(),
            keeps_past: false,
        };
        device.set_memory(Memory::Budget);
        device
    }

    /// An empty one of the same kind.
    pub fn replaced(&self, random: &mut Random) -> Self {
        Device::new(self.budget, self.pgs, random)
    }

    pub fn set_memory(&mut self, memory: Memory) {
        let page_bytes = match memory {
            Memory::None => 0,
            Memory::Budget => self.budget.page_bytes,
            Memory::Enough => self.budget.page_bytes.max(ENOUGH_BYTES),
        };
        self.storage.store_mut().set_memory_budget(page_bytes, self.budget.pending_bytes);
    }

    /// A copy of the disk.
    pub fn copy(&self) -> SimulatedDisk {
        self.disk.clone()
    }

    /// Puts an older copy of the disk in, and starts from it. Returns the content then.
    pub fn put_back(&mut self, copy: &SimulatedDisk, random: &mut Random) -> Pgs {
        self.in_flight.clear();
        self.disk = copy.clone();
        self.before_records.clear();
        self.crash(random)
    }

    /// Makes a change before the OSD serves.
    pub fn apply_blocking(&mut self, transaction: &Transaction) {
        let store = self.storage.store_mut();
        store
            .apply_blocking(&mut self.disk, transaction)
            .unwrap_or_else(|error| panic!("before it serves: {error}"));
    }

    /// The disk forgets the newest records of its log. Returns the content then; none if there is no record.
    pub fn forget(&mut self, records: usize, random: &mut Random) -> Option<Pgs> {
        let first = self.before_records.len().checked_sub(records)?;
        let copy = self.before_records[first].clone();
        let found = self.put_back(&copy, random);
        Some(found)
    }

    /// Cuts the power and starts again. Returns the content then.
    pub fn crash(&mut self, random: &mut Random) -> Pgs {
        for request in std::mem::take(&mut self.in_flight).into_values() {
            self.disk.write_partly(request.device, &request.operation, random);
        }
        self.disk.crash(random);
        let mut store = open(&mut self.disk, random);
        let found = contents(&mut store, &mut self.disk, self.pgs);
        self.storage = storage_of(store);
        self.waiting.clear();
        self.reads.clear();
        self.set_memory(Memory::Budget);
        found
    }

    pub fn submit(&mut self, pg: PgId, token: Token, transaction: SharedTransaction) {
        self.waiting.entry(pg).or_default().push_back((token, transaction.clone()));
        self.storage.submit(pg, token, transaction);
    }

    /// The next submission that the store has accepted or refused by now.
    pub fn next_taken(&mut self) -> Option<(Token, Transaction)> {
        for (pg, waiting) in &mut self.waiting {
            if waiting.len() > self.storage.waiting_count(*pg) {
                let (token, transaction) = waiting.pop_front().expect("more than none");
                return Some((token, Transaction::clone(&transaction)));
            }
        }
        None
    }

    pub fn is_waiting(&self) -> bool {
        self.waiting.values().any(|waiting| !waiting.is_empty())
    }

    /// Returns the store's next request to the disk, whose end [`Device::disk_done`] reports.
    pub fn next_request(&mut self) -> Option<u64> {
        let request = self.storage.store_mut().next_request()?;
        let id = request.id;
        self.in_flight.insert(id, request);
        Some(id)
    }

    /// The disk does all that it is asked to.
    #[cfg(test)]
    pub fn run(&mut self) {
        self.storage.store_mut().flush();
        while let Some(id) = self.next_request() {
            self.disk_done(id);
        }
    }

    /// The disk carries out a request.
    pub fn disk_done(&mut self, id: u64) {
        let request = self.in_flight.remove(&id).expect("it was asked to");
        if self.keeps_past && matches!(request.operation, DiskOperation::Write { durable: true, .. }) {
            self.before_records.push_back(self.disk.clone());
            if self.before_records.len() > RECORDS_FORGOTTEN_MAX {
                self.before_records.pop_front();
            }
        }
        let result = self.disk.execute(request.device, request.operation);
        self.storage.store_mut().complete(id, result);
    }
}

/// Everything that a store holds of the PGs of a run. Nothing may be under way.
fn contents(store: &mut Store, disk: &mut SimulatedDisk, pgs: u32) -> Pgs {
    let mut all = Pgs::new(pgs);
    for pg in all.ids() {
        let state = all.of_mut(pg);
        state.head = store.head(pg);
        state.log = store.log(pg).cloned().collect();
        state.pg_num = store.pg_num(pg);
        // Lists of a PG that was split off do not have its own object.
        let mut names = vec![name(PG_META_OBJECT)];
        let mut after = None;
        while let Some(next) = looked_up(store, disk, |store| store.names_after(pg, after.as_ref(), 1)).pop() {
            names.push(next.clone());
            after = Some(next);
        }
        for name in names {
            if let Some(object) = object_of(store, disk, &ObjectKey { pg, name: name.clone() }) {
                all.of_mut(pg).objects.insert(name, object);
            }
        }
    }
    all
}

/// Looks something up, and loads missing metadata for it.
fn looked_up<T>(store: &mut Store, disk: &mut SimulatedDisk, look: impl Fn(&Store) -> Result<T, StoreError>) -> T {
    loop {
        match look(store) {
            Ok(found) => return found,
            Err(StoreError::Cold(cold)) => {
                store.load(LoadRequest::Pages(cold));
                run(store, disk);
                while store.next_event().is_some() {}
            }
            Err(error) => panic!("a store cannot be looked at: {error}"),
        }
    }
}

fn run(store: &mut Store, disk: &mut SimulatedDisk) {
    while let Some(request) = store.next_request() {
        let result = disk.execute(request.device, request.operation);
        store.complete(request.id, result);
    }
}

fn object_of(store: &mut Store, disk: &mut SimulatedDisk, key: &ObjectKey) -> Option<Object> {
    let info = looked_up(store, disk, |store| store.object(key))?;
    let size_bytes = info.size_bytes as u32;
    let mapped = looked_up(store, disk, |store| store.mapped_blocks(key, 0, size_bytes));
    let ReadData { data, seals, .. } = data_of(store, disk, key, size_bytes);
    let block = |index: usize| data.slice(index * BLOCK_BYTES..data.len().min((index + 1) * BLOCK_BYTES));
    let blocks = mapped.iter().enumerate().filter(|(_, is_mapped)| **is_mapped);
    let mut object = Object {
        blocks: blocks.map(|(index, _)| (index as u32, block(index))).collect(),
        size: info.size_bytes,
        whole_size: info.whole_bytes,
        version: info.version,
        seal_shape: info.seal_shape(),
        ..Object::default()
    };
    if let Some(seals) = seals {
        let each = seals.bytes.chunks(seals.seal_bytes.into()).map(Bytes::copy_from_slice);
        object.seals = (0..).zip(each).collect();
    }
    loop {
        let from = object.omap.last_key_value().map_or(Vec::new(), |(last, _)| [last, &b"\0"[..]].concat());
        let (entries, more) = looked_up(store, disk, |store| store.omap_page(key, b"", &from, ENTRIES_AT_ONCE));
        object.omap.extend(entries);
        if !more {
            return Some(object);
        }
    }
}

fn data_of(store: &mut Store, disk: &mut SimulatedDisk, key: &ObjectKey, size_bytes: u32) -> ReadData {
    let read = store.read(key.clone(), 0, size_bytes);
    loop {
        run(store, disk);
        match store.next_event().expect("the read comes to an end") {
            StoreEvent::Read { id, result } if id == read => return result.expect("nothing is damaged"),
            _ => {}
        }
    }
}

/// Describes an item that a store has and its model has not, or the reverse. Pre-images are forgotten in memory
/// first, so that the store may still have them.
pub fn difference(model: &Pgs, found: &Pgs) -> Option<String> {
    model.ids().find_map(|pg| {
        let difference = state_difference(model.of(pg), found.of(pg));
        difference.map(|difference| format!("pg {pg}: {difference}"))
    })
}

fn state_difference(model: &State, found: &State) -> Option<String> {
    if (model.head, model.pg_num) != (found.head, found.pg_num) {
        return Some(format!("{:?}, not {:?}", (found.head, found.pg_num), (model.head, model.pg_num)));
    }
    if let Some(name) = model.objects.keys().find(|name| !found.objects.contains_key(name)) {
        return Some(format!("{name} is missing"));
    }
    for (name, found) in &found.objects {
        let Some(model) = model.objects.get(name) else { return Some(format!("{name} is there")) };
        let is_same = object_shape(model) == object_shape(found)
            && model.omap == found.omap
            && model.blocks == found.blocks
            && model.seals(0, model.size) == found.seals(0, found.size);
        if !is_same {
            return Some(format!("{name} is\n{}, not\n{}", told(found), told(model)));
        }
    }
    if model.log.len() != found.log.len() {
        return Some(format!("a log of {} entries, not {}", found.log.len(), model.log.len()));
    }
    let differ = model.log.iter().zip(&found.log).find(|(model, found)| {
        let is_forgotten = found.pre_image.is_none() || model.pre_image.is_none();
        let plain = |entry: &atoll_types::LogEntry| atoll_types::LogEntry { pre_image: None, ..entry.clone() };
        plain(model) != plain(found) || !is_forgotten && model.pre_image != found.pre_image
    });
    differ.map(|(model, found)| format!("a log with {found:?}, not {model:?}"))
}

type Shape = (u64, Option<u64>, atoll_types::Version, Option<(u32, u16)>);

fn object_shape(object: &Object) -> Shape {
    (object.size, object.whole_size, object.version, object.seal_shape)
}

fn told(object: &Object) -> String {
    let blocks = object.blocks.iter().map(|(block, data)| format!("{block}: {:?}", &data[..8.min(data.len())]));
    let blocks: Vec<_> = blocks.collect();
    format!("{:?}, omap {:?}, blocks {blocks:?}", object_shape(object), object.omap)
}
