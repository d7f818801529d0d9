//! Cuts the power at random points of random histories and compares what is recovered with a plain
//! model: the history of each placement group must be a prefix that holds everything acknowledged.
//! `ATOLL_CRASH_RUNS` sets the number of histories, `ATOLL_CRASH_SEED` the first seed.

use std::collections::BTreeMap;

use crate::simulated_disk::{Random, SimulatedDisk};
use atoll_base::{
    BLOCK_BYTES, Epoch, LogEntry, Mutation, ObjectName, PgId, PoolId, Seals, Touched, Transaction, Version,
};
use atoll_store::{
    DEVICE_BYTES_MIN, Disk, DiskRequest, FormatOptions, ObjectKey, ReadError, Store, StoreError, StoreEvent, Wish,
};
use bytes::Bytes;

const PG_COUNT: u64 = 3;
const OBJECTS_PER_PG: u64 = 4;

#[derive(Clone, Default, PartialEq, Debug)]
struct ModelObject {
    data: Vec<u8>,
    /// One byte per block stands for the block's seal: 0 means none.
    seals: Vec<u8>,
    omap: BTreeMap<Bytes, Bytes>,
}

type ModelPg = BTreeMap<ObjectName, ModelObject>;

fn pg_id(index: u64) -> PgId {
    PgId { pool: PoolId(1), index: index as u32 }
}

fn random_transaction(random: &mut Random, pg: u64, sequence: u64, model: &ModelPg) -> Transaction {
    let object = ObjectName::new(&format!("object{}", random.below(OBJECTS_PER_PG))).unwrap();
    let size = model.get(&object).map_or(0, |object| object.data.len());
    let (mutations, payload) = match random.below(20) {
        0 => match model.keys().find(|name| **name != object) {
            Some(source) => (vec![Mutation::CloneFrom { source: source.clone() }], Vec::new()),
            None => (vec![Mutation::Create], Vec::new()),
        },
        1 => {
            let blocks = random.below((size / BLOCK_BYTES) as u64 + 1);
            (vec![Mutation::Truncate { size_bytes: blocks * BLOCK_BYTES as u64 }], Vec::new())
        }
        _ => random_mutations(random, size),
    };
    let version = Version { epoch: Epoch(1), sequence };
    let touched = Touched::by(&mutations);
    let log = vec![LogEntry { version, request: None, object: object.clone(), touched }];
    Transaction { pg: pg_id(pg), object, mutations, payload: payload.into(), payload_sealed: true, log }
}

fn random_mutations(random: &mut Random, size: usize) -> (Vec<Mutation>, Vec<u8>) {
    let key = Bytes::from(format!("key{}", random.below(5)));
    // Some values are stored in several parts.
    let length = if random.chance(20) { random.below(4000) } else { 8 };
    let value = Bytes::from(vec![random.next() as u8; length as usize]);
    let block = |random: &mut Random| random.below(40) * BLOCK_BYTES as u64;
    let single = match random.below(12) {
        0 => Mutation::Remove,
        1 => Mutation::Create,
        2 => Mutation::Zero { offset: block(random), length: block(random) },
        3 => Mutation::OmapSet { key, value },
        4 => Mutation::OmapRemove { key },
        5 => Mutation::OmapReplace { key, value: Some(value), displaced_to: Bytes::from_static(b"displaced") },
        choice => {
            let blocks = if choice < 10 { 1 + random.below(4) } else { 17 + random.below(20) };
            let offset = block(random);
            let mut length = blocks * BLOCK_BYTES as u64;
            if random.chance(30) && offset + length > size as u64 {
                length -= random.below(BLOCK_BYTES as u64).min(offset + length - size as u64);
            }
            let fill = random.next() as u8 | 1;
            let seals = Seals { unit_bytes: 4096, seal_bytes: 1, bytes: vec![fill; blocks as usize].into() };
            let write = Mutation::Write { offset, length: length as u32, seals: Some(seals) };
            let omap = Mutation::OmapSet { key, value };
            let payload = (0..length).map(|i| fill.wrapping_add((i / 512) as u8)).collect();
            let zero = Mutation::Zero { offset, length: blocks * BLOCK_BYTES as u64 };
            let mutations = match random.below(4) {
                0 => vec![write],
                // What the transaction frees itself must not be written in place.
                1 => vec![zero, write],
                _ => vec![write, omap],
            };
            return (mutations, payload);
        }
    };
    (vec![single], Vec::new())
}

fn apply_to_model(model: &mut ModelPg, transaction: &Transaction) {
    for mutation in &transaction.mutations {
        if *mutation == Mutation::Remove {
            model.remove(&transaction.object);
            continue;
        }
        if let Mutation::CloneFrom { source } = mutation {
            let copy = model[source].clone();
            model.insert(transaction.object.clone(), copy);
            continue;
        }
        let object = model.entry(transaction.object.clone()).or_default();
        match mutation {
            Mutation::Write { offset, length, seals } => {
                let (offset, end) = (*offset as usize, *offset as usize + *length as usize);
                object.data.resize(object.data.len().max(end), 0);
                object.data[offset..end].copy_from_slice(&transaction.payload);
                let seals = &seals.as_ref().unwrap().bytes;
                let first = offset / BLOCK_BYTES;
                object.seals.resize(object.seals.len().max(first + seals.len()), 0);
                object.seals[first..first + seals.len()].copy_from_slice(seals);
            }
            Mutation::Zero { offset, length } => {
                let size = object.data.len();
                let range = |unit: usize, limit: usize| {
                    let start = (*offset as usize / unit).min(limit);
                    start..((offset + length) as usize / unit).clamp(start, limit)
                };
                object.data[range(1, size)].fill(0);
                let seal_count = object.seals.len();
                object.seals[range(BLOCK_BYTES, seal_count)].fill(0);
            }
            Mutation::OmapSet { key, value } => drop(object.omap.insert(key.clone(), value.clone())),
            Mutation::OmapRemove { key } => drop(object.omap.remove(key)),
            Mutation::OmapReplace { key, value, displaced_to } => {
                if let Some(old) = object.omap.insert(key.clone(), value.clone().unwrap()) {
                    object.omap.insert(displaced_to.clone(), old);
                }
            }
            Mutation::Truncate { size_bytes } => {
                object.data.truncate(*size_bytes as usize);
                object.seals.truncate(*size_bytes as usize / BLOCK_BYTES);
            }
            Mutation::Create | Mutation::Remove | Mutation::CloneFrom { .. } => {}
        }
    }
}

struct History {
    random: Random,
    disk: SimulatedDisk,
    /// All states of each group: entry `n` is the state after its first `n` transactions.
    states: Vec<Vec<ModelPg>>,
    acknowledged: Vec<u64>,
    /// Transactions that wait for metadata to be loaded.
    stalled: BTreeMap<usize, Transaction>,
}

impl History {
    fn new(seed: u64) -> Self {
        let mut disk = SimulatedDisk::new(DEVICE_BYTES_MIN);
        // The smallest ring, so that it wraps often.
        let options = FormatOptions { store_id: [1; 16], wal_bytes: 0, wal_is_apart: false };
        Store::format(&mut disk, options).unwrap();
        let states = vec![vec![ModelPg::new()]; PG_COUNT as usize];
        let acknowledged = vec![0; PG_COUNT as usize];
        History { random: Random::new(seed), disk, states, acknowledged, stalled: BTreeMap::new() }
    }

    /// Runs until the power is cut, opens the store anew and checks it.
    fn run_and_crash(&mut self, opened: &mut u64) {
        *opened += 1;
        let mut store = Store::open(&mut self.disk, *opened).expect("a store opens after any power cut");
        self.check(&mut store);
        self.stalled.clear();
        if self.random.chance(50) {
            store.set_memory_budget(64 << 10, 64 << 10);
        }
        let mut pending: Vec<DiskRequest> = Vec::new();
        let mut owners = BTreeMap::new();
        let steps = self.random.below(400);
        for _ in 0..steps {
            self.step(&mut store, &mut pending, &mut owners);
        }
        for request in pending {
            self.disk.write_partly(&request.operation, &mut self.random);
        }
        self.disk.crash(&mut self.random);
    }

    fn step(
        &mut self,
        store: &mut Store,
        pending: &mut Vec<DiskRequest>,
        owners: &mut BTreeMap<u64, (usize, u64)>,
    ) {
        match self.random.below(10) {
            0..4 if store.has_log_room() => {
                let pg = self.random.below(PG_COUNT) as usize;
                self.submit(store, pg, owners);
            }
            4 if self.random.chance(20) => store.start_checkpoint(),
            5 | 6 => store.flush(),
            _ => {
                if !pending.is_empty() {
                    let index = self.random.below(pending.len() as u64) as usize;
                    let request = pending.swap_remove(index);
                    let result = self.disk.execute(request.device, request.operation);
                    store.complete(request.id, result);
                }
            }
        }
        while let Some(request) = store.next_request() {
            pending.push(request);
        }
        while let Some(event) = store.next_event() {
            match event {
                StoreEvent::Committed(id) => {
                    let (pg, sequence) = owners[&id.0];
                    assert_eq!(self.acknowledged[pg] + 1, sequence, "commits are in order");
                    self.acknowledged[pg] = sequence;
                }
                StoreEvent::Loaded(_) => {}
                event => panic!("{event:?}"),
            }
        }
    }

    fn submit(&mut self, store: &mut Store, pg: usize, owners: &mut BTreeMap<u64, (usize, u64)>) {
        let sequence = self.states[pg].len() as u64;
        let mut next = self.states[pg].last().unwrap().clone();
        let transaction = match self.stalled.remove(&pg) {
            Some(transaction) => transaction,
            None => random_transaction(&mut self.random, pg as u64, sequence, &next),
        };
        match store.submit(&transaction) {
            Ok(id) => {
                apply_to_model(&mut next, &transaction);
                self.states[pg].push(next);
                owners.insert(id.0, (pg, sequence));
            }
            Err(StoreError::Cold(cold)) => {
                store.load(Wish::Pages(cold));
                self.stalled.insert(pg, transaction);
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn check(&mut self, store: &mut Store) {
        for pg in 0..PG_COUNT as usize {
            let head = store.head(pg_id(pg as u64)).sequence;
            assert!(head >= self.acknowledged[pg], "acknowledged {} but found {head}", self.acknowledged[pg]);
            assert!((head as usize) < self.states[pg].len());
            self.states[pg].truncate(head as usize + 1);
            self.acknowledged[pg] = head;
            let expected = self.states[pg].last().unwrap().clone();
            for index in 0..OBJECTS_PER_PG {
                let name = ObjectName::new(&format!("object{index}")).unwrap();
                let key = ObjectKey { pg: pg_id(pg as u64), name: name.clone() };
                assert_eq!(
                    read_all(store, &mut self.disk, &key).unwrap(),
                    expected.get(&name).cloned(),
                    "{key:?}"
                );
            }
        }
    }
}

/// Repeats a look-up until everything that it needs is loaded.
fn look<T>(
    store: &mut Store,
    disk: &mut SimulatedDisk,
    look: impl Fn(&Store) -> Result<T, StoreError>,
) -> Result<T, ReadError> {
    loop {
        match look(store) {
            Ok(value) => return Ok(value),
            Err(StoreError::Cold(cold)) => {
                let load = store.load(Wish::Pages(cold));
                run(store, disk);
                match store.next_event() {
                    Some(StoreEvent::Loaded(id)) => assert_eq!(id, load),
                    event => return Err(ReadError::DamagedMetadata { detail: format!("{event:?}") }),
                }
            }
            Err(error) => return Err(ReadError::DamagedMetadata { detail: error.to_string() }),
        }
    }
}

fn run(store: &mut Store, disk: &mut SimulatedDisk) {
    while let Some(request) = store.next_request() {
        let result = disk.execute(request.device, request.operation);
        store.complete(request.id, result);
    }
}

fn read_all(
    store: &mut Store,
    disk: &mut SimulatedDisk,
    key: &ObjectKey,
) -> Result<Option<ModelObject>, ReadError> {
    let read_id = store.read(key.clone(), 0, 4 << 20);
    run(store, disk);
    let result = match store.next_event() {
        Some(StoreEvent::Read { id, result }) => {
            assert_eq!(id, read_id);
            result
        }
        // A read whose metadata is damaged ends with the store.
        Some(StoreEvent::Poisoned { cause }) => return Err(ReadError::DamagedMetadata { detail: cause }),
        event => panic!("{event:?}"),
    };
    match result {
        Err(ReadError::NoSuchObject) => Ok(None),
        Err(error) => Err(error),
        Ok(found) => {
            let (entries, more) = look(store, disk, |store| store.omap_page(key, b"", b"", 1000))?;
            assert!(!more);
            let seals = look(store, disk, |store| store.seals(key, 0, 4 << 20))?;
            let mut seals = seals.map_or(vec![], |seals| seals.bytes.to_vec());
            let used = seals.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
            seals.truncate(used);
            let mut object = ModelObject { data: found.data.to_vec(), seals, omap: entries.into_iter().collect() };
            object.seals.resize(object.data.len().div_ceil(BLOCK_BYTES), 0);
            Ok(Some(object))
        }
    }
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

#[test]
fn nothing_acknowledged_is_lost_and_nothing_is_half_there() {
    let first = setting("ATOLL_CRASH_SEED", 1);
    for seed in first..first + setting("ATOLL_CRASH_RUNS", 40) {
        println!(
            "replay with: ATOLL_CRASH_SEED={seed} ATOLL_CRASH_RUNS=1 cargo test -p atoll-store --test store crash"
        );
        let mut history = History::new(seed);
        let mut opened = 0;
        for _ in 0..8 {
            history.run_and_crash(&mut opened);
        }
    }
}

#[test]
fn rot_is_detected_and_never_served() {
    let (mut detected, mut harmless) = (0, 0);
    for seed in 0..setting("ATOLL_ROT_RUNS", 60) {
        let mut history = History::new(seed);
        let mut opened = 0;
        history.run_and_crash(&mut opened);
        history.run_and_crash(&mut opened);
        history.disk.sync();
        history.disk.rot(0, &mut history.random);
        let mut store = match Store::open(&mut history.disk, 99) {
            Ok(store) => store,
            Err(error) => {
                let text = error.to_string();
                assert!(text.contains("damaged") || text.contains("no valid superblock"), "{text}");
                detected += 1;
                continue;
            }
        };
        let mut found_corrupt = false;
        'groups: for pg in 0..PG_COUNT as usize {
            let head = store.head(pg_id(pg as u64)).sequence as usize;
            let expected = history.states[pg][head].clone();
            for index in 0..OBJECTS_PER_PG {
                let name = ObjectName::new(&format!("object{index}")).unwrap();
                let key = ObjectKey { pg: pg_id(pg as u64), name: name.clone() };
                match read_all(&mut store, &mut history.disk, &key) {
                    Ok(object) => {
                        assert_eq!(object, expected.get(&name).cloned(), "seed {seed}: wrong data served")
                    }
                    Err(ReadError::Corrupt { .. } | ReadError::DamagedMetadata { .. }) => {
                        found_corrupt = true;
                        if store.poisoned_by().is_some() {
                            break 'groups;
                        }
                    }
                    Err(error) => panic!("{error}"),
                }
            }
        }
        if found_corrupt { detected += 1 } else { harmless += 1 }
    }
    println!("{detected} detected, {harmless} in bytes that nothing refers to");
    assert!(detected > 0, "the test must be able to hit live data");
}

#[test]
fn a_gap_in_a_groups_history_is_refused() {
    let mut history = History::new(1);
    let mut store = Store::open(&mut history.disk, 1).unwrap();
    let model = ModelPg::new();
    let write = |sequence, random: &mut Random| random_transaction(random, 0, sequence, &model);
    store.submit(&write(1, &mut history.random)).unwrap();
    assert!(store.submit(&write(3, &mut history.random)).is_err());
    store.submit(&write(2, &mut history.random)).unwrap();
}
