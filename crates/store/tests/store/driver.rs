//! A store on a simulated disk under random transactions, for tests that do not need a model of its content.

use atoll_buffers::BLOCK_BYTES;
use atoll_store::{
    Cold, DEVICE_BYTES_MIN, Disk, DiskRequest, FormatOptions, LoadRequest, ObjectKey, Store, StoreError,
    StoreEvent,
};
use atoll_types::{
    Epoch, LogEntry, Mutation, ObjectName, PgId, PoolId, PreImage, Seals, Touched, Transaction, Version,
};
use bytes::Bytes;

use crate::random::Random;
use atoll_store::simulated_disk::SimulatedDisk;

pub const PG: PgId = PgId { pool: PoolId(1), index: 3 };
const BLOCK: u64 = BLOCK_BYTES as u64;

pub fn key(name: &str) -> ObjectKey {
    ObjectKey { pg: PG, name: ObjectName::new(name).unwrap() }
}

pub struct Driver {
    pub random: Random,
    pub disk: SimulatedDisk,
    pub store: Store,
    /// Requests that the disk has not done yet.
    pub pending: Vec<DiskRequest>,
    /// Pre-image of every transaction from now on.
    pub pre_image: Option<PreImage>,
    incarnation: u64,
}

impl Driver {
    pub fn new(seed: u64) -> Self {
        let mut disk = SimulatedDisk::new(DEVICE_BYTES_MIN, None);
        let options = FormatOptions { store_id: [1; 16], wal_bytes: 0, wal_is_apart: false };
        Store::format(&mut disk, options).unwrap();
        let store = Store::open(&mut disk, 1).unwrap();
        Driver { random: Random::new(seed), disk, store, pending: Vec::new(), pre_image: None, incarnation: 1 }
    }

    /// Submits one transaction, loading its metadata.
    pub fn submit(&mut self, object: &str, mutations: Vec<Mutation>, payload: Vec<u8>) {
        while let Err(cold) = self.try_submit(object, mutations.clone(), payload.clone()) {
            self.store.load(LoadRequest::Pages(cold));
            self.settle(false);
        }
    }

    /// Submits one transaction, unless something must be loaded for it.
    pub fn try_submit(&mut self, object: &str, mutations: Vec<Mutation>, payload: Vec<u8>) -> Result<(), Cold> {
        if !self.store.has_log_room() {
            self.run();
        }
        let object = key(object).name;
        let version = Version { epoch: Epoch(1), sequence: self.store.head(PG).sequence + 1 };
        let log = vec![LogEntry {
            version,
            request: None,
            object: object.clone(),
            touched: Touched::by(&mutations),
            committed_sequence: 0,
            pre_image: self.pre_image.clone(),
        }];
        let payload = payload.into();
        let transaction = Transaction { pg: PG, object, mutations, payload, payload_sealed: true, log };
        match self.store.submit(&transaction) {
            // A clone of what is not there, a truncation to more: random histories do that.
            Ok(_) | Err(StoreError::Invalid { .. }) => Ok(()),
            Err(StoreError::Cold(cold)) => Err(cold),
            Err(error) => panic!("{error}"),
        }
    }

    pub fn write(&mut self, object: &str, first: u64, blocks: u64, fill: u8) {
        let length = blocks * BLOCK;
        let seals = Seals { unit_bytes: 4096, seal_bytes: 4, bytes: vec![fill; 4 * blocks as usize].into() };
        let write = Mutation::Write { offset: first * BLOCK, length: length as u32, seals: Some(seals) };
        self.submit(object, vec![write], vec![fill; length as usize]);
    }

    pub fn set_omap(&mut self, object: &str, key: &str, value: Vec<u8>) {
        let key = Bytes::copy_from_slice(key.as_bytes());
        self.submit(object, vec![Mutation::OmapSet { key, value: value.into() }], Vec::new());
    }

    pub fn random_change(&mut self) {
        let object = format!("object{}", self.random.below(30));
        let fill = self.random.next() as u8 | 1;
        let first = self.random.below(40);
        match self.random.below(15) {
            12 => {
                let copy = key(&format!("@kept/{}", self.random.below(5))).name;
                let write = Mutation::Write { offset: first * BLOCK, length: BLOCK as u32, seals: None };
                self.submit(&object, vec![Mutation::ClonePreImage { copy }, write], vec![fill; BLOCK as usize]);
            }
            13 => {
                let object = key(&format!("@kept/{}", self.random.below(5))).name;
                self.submit("@pg", vec![Mutation::RemoveOther { object }], Vec::new());
            }
            14 => {
                let (seal_unit_bytes, seal_bytes) = if self.random.chance(80) { (4096, 4) } else { (0, 0) };
                let (object_bytes, shard_bytes) = (first * 10_000, 60 * BLOCK);
                let shard_of = Mutation::SetShardOf { object_bytes, shard_bytes, seal_unit_bytes, seal_bytes };
                let payload = Bytes::from(vec![fill; 100 * first as usize]);
                self.pre_image = Some(PreImage { mutations: vec![shard_of.clone()], payload });
                self.submit(&object, vec![shard_of], Vec::new());
                self.pre_image = None;
            }
            0 => self.submit(&object, vec![Mutation::Remove], Vec::new()),
            1 => {
                let source = key(&format!("object{}", self.random.below(30))).name;
                self.submit(&object, vec![Mutation::CloneFrom { source }], Vec::new());
            }
            2 => {
                let length = self.random.below(20) * BLOCK;
                self.submit(&object, vec![Mutation::Zero { offset: first * BLOCK, length }], Vec::new());
            }
            3 => self.submit(&object, vec![Mutation::Truncate { size_bytes: first * BLOCK }], Vec::new()),
            4 | 5 => {
                let length = if self.random.chance(20) { self.random.below(4000) } else { 20 };
                self.set_omap(&object, &format!("key{first}"), vec![fill; length as usize]);
            }
            6 => {
                let key = Bytes::from(format!("key{first}"));
                self.submit(&object, vec![Mutation::OmapRemove { key }], Vec::new());
            }
            7 => {
                let blocks = 17 + self.random.below(10);
                self.write(&object, first, blocks, fill);
            }
            _ => {
                let blocks = 1 + self.random.below(3);
                self.write(&object, first, blocks, fill);
            }
        }
    }

    /// Takes the store's requests to the disk, and carries out one of them at random.
    pub fn step(&mut self) {
        while let Some(request) = self.store.next_request() {
            self.pending.push(request);
        }
        if !self.pending.is_empty() {
            let index = self.random.below(self.pending.len() as u64) as usize;
            let request = self.pending.swap_remove(index);
            let result = self.disk.execute(request.device, request.operation);
            self.store.complete(request.id, result);
        }
        self.store.check_invariants();
    }

    /// Does everything that the store wants of the disk, and returns the events of scrubs.
    pub fn run(&mut self) -> Vec<StoreEvent> {
        self.settle(true)
    }

    /// Loaded pages stay in memory only until the next flush.
    fn settle(&mut self, with_flushes: bool) -> Vec<StoreEvent> {
        let mut events = Vec::new();
        loop {
            if with_flushes {
                self.store.flush();
            }
            self.step();
            while let Some(event) = self.store.next_event() {
                assert!(!matches!(event, StoreEvent::Poisoned { .. }), "{event:?}");
                if matches!(event, StoreEvent::Scrubbed { .. }) {
                    events.push(event);
                }
            }
            if with_flushes {
                self.store.flush();
            }
            self.pending.extend(self.store.next_request());
            if self.pending.is_empty() {
                return events;
            }
        }
    }

    pub fn checkpoint(&mut self) {
        self.store.start_checkpoint();
        self.run();
    }

    /// Cuts the power.
    pub fn crash(&mut self) {
        for request in std::mem::take(&mut self.pending) {
            self.disk.write_partly(request.device, &request.operation, &mut self.random);
        }
        self.disk.crash(&mut self.random);
    }

    pub fn reopen(&mut self) {
        self.incarnation += 1;
        self.store = Store::open(&mut self.disk, self.incarnation).unwrap();
    }
}
