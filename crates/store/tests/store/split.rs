//! PGs that split, against a model that keeps each PG's objects in a map of its own: through
//! splits, splits that are rolled back, checkpoints and power cuts.

use std::collections::BTreeMap;

use atoll_buffers::BLOCK_BYTES;
use atoll_store::{DEVICE_BYTES_MIN, Disk, DiskRequest, FormatOptions, ObjectKey, Store, StoreError, StoreEvent};
use atoll_types::operation::PG_META_OBJECT;
use atoll_types::{
    Epoch, LogEntry, Mutation, ObjectName, PgId, PoolId, Touched, Transaction, Version, pg_of_object,
};
use bytes::Bytes;

use crate::random::{Random, on_all_cores, setting};
use crate::verify::{listed, look, look_and_submit};
use atoll_store::simulated_disk::SimulatedDisk;

const POOL: PoolId = PoolId(1);
/// The pool is made with one PG.
const PG_NUM_FIRST: u32 = 1;
const PG_NUM_MAX: u32 = 16;
const VALUE_KEY: Bytes = Bytes::from_static(b"value");

#[derive(Clone, Debug, Default, PartialEq)]
struct ModelPg {
    /// 0 if it was never set.
    pg_num: u32,
    log: Vec<u64>,
    /// Value of its own object.
    own: Option<u8>,
    /// Their values and the sequences of their last changes.
    objects: BTreeMap<ObjectName, (u8, u64)>,
}

type Pgs = BTreeMap<u32, ModelPg>;

fn pg(index: u32) -> PgId {
    PgId { pool: POOL, index }
}

fn own_name() -> ObjectName {
    ObjectName::new(PG_META_OBJECT).unwrap()
}

/// Splits in the model, as the store should.
fn split(pgs: &mut Pgs, index: u32, pg_num: u32, is_whole: bool) {
    let parent = pgs[&index].clone();
    let first = if parent.pg_num == 0 { pg(index).first_pg_num(PG_NUM_FIRST) } else { parent.pg_num };
    let made = std::iter::successors(Some(first), |number| Some(number * 2)).take_while(|number| *number < pg_num);
    let made: Vec<u32> = made.collect();
    let exists = |number: &u32| pgs.get(&(index + number)).is_some_and(|model| model.pg_num > 0);
    if !is_whole && made.iter().any(exists) {
        return;
    }
    pgs.get_mut(&index).unwrap().pg_num = pg_num;
    for number in made {
        let child = index + number;
        let mut model = ModelPg { pg_num: number * 2, ..ModelPg::default() };
        if is_whole {
            (model.log, model.own) = (parent.log.clone(), parent.own);
        }
        let moves = |name: &ObjectName| pg_of_object(POOL, name, number * 2).index == child;
        model.objects = pgs.get_mut(&index).unwrap().objects.extract_if(.., |name, _| moves(name)).collect();
        pgs.insert(child, model);
    }
    if pg_num < first {
        let undone: Vec<u32> =
            pgs.keys().copied().filter(|other| *other != index && other & (pg_num - 1) == index).collect();
        for other in undone {
            let objects = std::mem::take(pgs.get_mut(&other).unwrap()).objects;
            pgs.get_mut(&index).unwrap().objects.extend(objects);
        }
    }
}

/// Changes by a PG of an object that is another's, and of its own by means of that.
fn changes_of(index: u32, other: &ObjectName, own: &ObjectName) -> Vec<(ObjectName, Vec<Mutation>)> {
    let kept = ObjectName::new(&format!("@kept/{index:x}.1")).unwrap();
    let write = Mutation::Write { offset: 0, length: BLOCK_BYTES as u32, seals: None };
    let set = Mutation::OmapSet { key: VALUE_KEY, value: vec![0xee].into() };
    let of_other = vec![
        vec![write.clone()],
        vec![Mutation::Remove, Mutation::Create, write],
        vec![set.clone()],
        vec![Mutation::OmapRemove { key: VALUE_KEY }],
        vec![Mutation::Create],
        vec![Mutation::Zero { offset: 0, length: BLOCK_BYTES as u64 }],
        vec![Mutation::Truncate { size_bytes: 0 }],
        vec![Mutation::CloneFrom { source: own.clone() }],
        vec![Mutation::ClonePreImage { copy: kept }, Mutation::Remove],
        vec![Mutation::SetVersion { version: Version { epoch: Epoch(9), sequence: 9 } }],
        vec![Mutation::SetShardOf {
            object_bytes: 1 << 17,
            shard_bytes: 1 << 17,
            seal_unit_bytes: 0,
            seal_bytes: 0,
        }],
        Vec::new(),
    ];
    let of_own = vec![
        vec![Mutation::CloneFrom { source: other.clone() }],
        vec![Mutation::ClonePreImage { copy: other.clone() }, set],
    ];
    let of = |object: &ObjectName, all: Vec<Vec<Mutation>>| {
        let object = object.clone();
        all.into_iter().map(move |mutations| (object.clone(), mutations))
    };
    of(other, of_other).chain(of(own, of_own)).collect()
}

struct Test {
    random: Random,
    disk: SimulatedDisk,
    store: Store,
    incarnation: u64,
    pending: Vec<DiskRequest>,
    /// The model after each transaction.
    history: Vec<Pgs>,
    committed: usize,
}

impl Test {
    fn new(seed: u64) -> Self {
        let mut disk = SimulatedDisk::new(DEVICE_BYTES_MIN, None);
        Store::format(&mut disk, FormatOptions { store_id: [1; 16], wal_bytes: 0, wal_is_apart: false }).unwrap();
        let store = Store::open(&mut disk, 1).unwrap();
        let history = vec![Pgs::from([(0, ModelPg::default())])];
        let (random, pending) = (Random::new(seed), Vec::new());
        Test { random, disk, store, incarnation: 1, pending, history, committed: 0 }
    }

    fn transaction(
        &self,
        index: u32,
        object: ObjectName,
        mutations: Vec<Mutation>,
        payload: Vec<u8>,
    ) -> Transaction {
        let sequence = self.store.head(pg(index)).sequence + 1;
        let version = Version { epoch: Epoch(1), sequence };
        let log = vec![LogEntry {
            version,
            request: None,
            object: object.clone(),
            touched: Touched::by(&mutations),
            committed_sequence: 0,
            pre_image: None,
        }];
        Transaction { pg: pg(index), object, mutations, payload: payload.into(), payload_sealed: true, log }
    }

    fn submit(&mut self, index: u32, object: ObjectName, mutations: Vec<Mutation>, payload: Vec<u8>) {
        let transaction = self.transaction(index, object, mutations, payload);
        if !self.store.has_log_room() {
            self.steps(usize::MAX);
        }
        self.pending.extend(std::iter::from_fn(|| self.store.next_request()));
        look_and_submit(&mut self.store, &mut self.disk, &transaction);
    }

    fn change(&mut self) {
        let mut pgs = self.history.last().unwrap().clone();
        let known: Vec<u32> = pgs
            .iter()
            .filter(|(_, model)| **model != ModelPg::default() || pgs.len() == 1)
            .map(|(index, _)| *index)
            .collect();
        let index = self.random.pick(&known);
        let value = self.random.next() as u8;
        let set = Mutation::OmapSet { key: VALUE_KEY, value: vec![value].into() };
        let sequence = self.store.head(pg(index)).sequence + 1;
        pgs.get_mut(&index).unwrap().log.push(sequence);
        match self.random.below(10) {
            0 => {
                let old = pgs[&index].pg_num.max(pg(index).first_pg_num(PG_NUM_FIRST));
                let lowest = pg(index).first_pg_num(PG_NUM_FIRST);
                let pg_num = match self.random.below(3) {
                    0 => (old / 2).max(lowest),
                    1 => (old * 2).min(PG_NUM_MAX),
                    _ => (old * 4).min(PG_NUM_MAX),
                };
                // A new PG that has a history is not split off again.
                let has_history = |number: &u32| pgs.get(&(index + number)).is_some_and(|new| !new.log.is_empty());
                let numbers = std::iter::successors(Some(old), |number| Some(number * 2));
                let splits_again =
                    numbers.take_while(|number| *number < pg_num).any(|number| has_history(&number));
                let is_whole = !splits_again && self.random.chance(70);
                let pg_num_before = if is_whole { old } else { PG_NUM_FIRST };
                pgs.get_mut(&index).unwrap().own = Some(value);
                split(&mut pgs, index, pg_num, is_whole);
                let split = Mutation::Split { pg_num_before, pg_num, is_whole };
                self.submit(index, own_name(), vec![set, split], Vec::new());
            }
            1 => {
                pgs.get_mut(&index).unwrap().own = Some(value);
                self.submit(index, own_name(), vec![set], Vec::new());
            }
            kind => {
                let pg_num = pgs[&index].pg_num;
                let mut names = (0..).map(|number| ObjectName::new(&format!("o{number}")).unwrap());
                let chosen = self.random.below(8) as usize;
                // Who does not know of a split removes what another PG has by now, which is no change.
                let is_stale = kind == 2 && self.random.chance(50);
                let is_own = |name: &ObjectName| pg_num == 0 || pg(index).holds(name, pg_num);
                let name = names.by_ref().filter(|name| is_stale || is_own(name)).nth(chosen).unwrap();
                let objects = &mut pgs.get_mut(&index).unwrap().objects;
                if kind == 2 {
                    objects.remove(&name);
                    self.submit(index, name, vec![Mutation::Remove], Vec::new());
                } else {
                    let mut mutations = vec![set];
                    if self.random.chance(30) {
                        // The object as it was is kept, which is for this PG alone.
                        let copy = format!("@kept/{index:x}.{}", self.random.below(4));
                        let copy = ObjectName::new(&copy).unwrap();
                        match objects.get(&name).copied() {
                            Some(before) => objects.insert(copy.clone(), before),
                            None => objects.remove(&copy),
                        };
                        mutations.insert(0, Mutation::ClonePreImage { copy });
                    }
                    objects.insert(name.clone(), (value, sequence));
                    // Large ones are in the log later than small ones that come after them.
                    let blocks = if self.random.chance(30) { 17 } else { 1 };
                    let write = Mutation::Write { offset: 0, length: (blocks * BLOCK_BYTES) as u32, seals: None };
                    mutations.push(write);
                    self.submit(index, name, mutations, vec![value; blocks * BLOCK_BYTES]);
                }
            }
        }
        self.history.push(pgs);
    }

    /// A PG that does not know of a split changes objects of another PG: all of that is refused, and nothing happens.
    fn change_of_another(&mut self) {
        let pgs = self.history.last().unwrap().clone();
        let split: Vec<u32> = pgs.iter().filter(|(_, model)| model.pg_num > 1).map(|(index, _)| *index).collect();
        if split.is_empty() {
            return;
        }
        let index = self.random.pick(&split);
        let pg_num = pgs[&index].pg_num;
        let mut names = (0..).map(|number| ObjectName::new(&format!("o{number}")).unwrap());
        let chosen = self.random.below(8) as usize;
        let other = names.by_ref().filter(|name| !pg(index).holds(name, pg_num)).nth(chosen).unwrap();
        let own = names.find(|name| pg(index).holds(name, pg_num)).unwrap();
        let mut kinds = changes_of(index, &other, &own);
        let split_again = |new: &u32| {
            let first = 1 << new.ilog2();
            let model = &pgs[new];
            (new & (first - 1) == index && !model.log.is_empty()).then_some(first)
        };
        if let Some(pg_num_before) = split.iter().filter(|new| **new > 0).find_map(split_again) {
            let (pg_num, is_whole) = (pg_num_before * 2, true);
            kinds.push((own_name(), vec![Mutation::Split { pg_num_before, pg_num, is_whole }]));
        }
        for (object, mutations) in kinds {
            let writes = mutations.iter().any(|mutation| matches!(mutation, Mutation::Write { .. }));
            let payload = vec![0xee; if writes { BLOCK_BYTES } else { 0 }];
            let transaction = self.transaction(index, object.clone(), mutations, payload);
            if !self.store.has_log_room() {
                self.steps(usize::MAX);
            }
            self.pending.extend(std::iter::from_fn(|| self.store.next_request()));
            let result = self.store.submit(&transaction);
            let is_refused = matches!(result, Err(StoreError::Invalid { .. }));
            assert!(is_refused, "{result:?}: {object} is not PG {index}'s, and got {:?}", transaction.mutations);
        }
    }

    /// Lets the disk carry out some requests, in any order.
    fn steps(&mut self, count_max: usize) {
        for _ in 0..count_max {
            self.store.flush();
            self.pending.extend(std::iter::from_fn(|| self.store.next_request()));
            if self.pending.is_empty() {
                return;
            }
            let index = self.random.below(self.pending.len() as u64) as usize;
            let request = self.pending.swap_remove(index);
            let result = self.disk.execute(request.device, request.operation);
            self.store.complete(request.id, result);
            while let Some(event) = self.store.next_event() {
                match event {
                    StoreEvent::Committed(_) => self.committed += 1,
                    StoreEvent::Poisoned { cause } => panic!("{cause}"),
                    _ => {}
                }
            }
        }
    }

    fn found(&mut self, model: &Pgs) -> Pgs {
        let mut found = Pgs::new();
        for index in model.keys() {
            let (store, disk) = (&mut self.store, &mut self.disk);
            let value = |store: &mut Store, disk: &mut SimulatedDisk, name: ObjectName| {
                let key = ObjectKey { pg: pg(*index), name };
                look(store, disk, |store| store.omap_value(&key, &VALUE_KEY)).unwrap().map(|value| value[0])
            };
            let names = look(store, disk, |store| store.names_after(pg(*index), None, 1_000)).unwrap();
            let names: Vec<_> = names.into_iter().filter(|name| *name != own_name()).collect();
            for prefix in ["o", "o1", "@kept/", "none"] {
                let listed =
                    listed(store, disk, pg(*index), prefix).unwrap().into_iter().map(|object| object.name);
                let expected: Vec<_> = names.iter().filter(|name| name.as_str().starts_with(prefix)).collect();
                assert!(
                    listed.eq(expected.into_iter().cloned()),
                    "objects of PG {index} that begin with {prefix}"
                );
            }
            let sequence = |store: &mut Store, disk: &mut SimulatedDisk, name: ObjectName| {
                let key = ObjectKey { pg: pg(*index), name };
                look(store, disk, |store| store.object(&key)).unwrap().unwrap().version.sequence
            };
            let objects = names.into_iter().map(|name| {
                let found = (value(store, disk, name.clone()).unwrap(), sequence(store, disk, name.clone()));
                (name, found)
            });
            let objects = objects.collect();
            let own = value(store, disk, own_name());
            let log = store.log(pg(*index)).map(|entry| entry.version.sequence).collect();
            let pg_num = store.pg_num(pg(*index)).unwrap_or(0);
            found.insert(*index, ModelPg { pg_num, log, own, objects });
        }
        found
    }

    fn crash(&mut self) {
        for request in std::mem::take(&mut self.pending) {
            self.disk.write_partly(request.device, &request.operation, &mut self.random);
        }
        self.disk.crash(&mut self.random);
        self.incarnation += 1;
        self.store = Store::open(&mut self.disk, self.incarnation).unwrap();
        let candidates: Vec<usize> = (self.committed..self.history.len()).collect();
        let is_found = |test: &mut Self, index: usize| {
            let model = test.history[index].clone();
            test.found(&model) == model
        };
        let Some(index) = candidates.into_iter().rev().find(|index| is_found(self, *index)) else {
            let model = self.history[self.committed].clone();
            let found = self.found(&model);
            panic!("no state since transaction {}: {found:#?}\nand not {model:#?}", self.committed);
        };
        self.history.truncate(index + 1);
        self.committed = index;
    }
}

fn check(seed: u64) {
    let mut test = Test::new(seed);
    for _ in 0..150 {
        test.change();
        if test.random.chance(20) {
            test.change_of_another();
        }
        let count = test.random.below(6) as usize;
        test.steps(count);
        match test.random.below(30) {
            0 => test.crash(),
            1 => test.store.start_checkpoint(),
            2 => {
                test.steps(usize::MAX);
                assert_eq!(test.committed + 1, test.history.len(), "everything is durable");
                let model = test.history.last().unwrap().clone();
                assert_eq!(test.found(&model), model);
            }
            _ => {}
        }
    }
    test.steps(usize::MAX);
    test.crash();
    assert_eq!(test.committed + 1, test.history.len(), "everything is durable");
}

#[test]
fn groups_split_as_a_model_says() {
    let runs = setting("ATOLL_SPLIT_RUNS", 60);
    on_all_cores(0, |seed| {
        if seed < runs {
            check(seed);
        }
        seed < runs
    });
}
