//! The stand-in and the real store get the same submissions, among them such as no PG should make: they take the same
//! ones, and hold the same afterwards.

use atoll_buffers::BLOCK_BYTES;
use atoll_store::{LoadRequest, StoreError};
use atoll_types::limits::PG_LOG_ENTRIES;
use atoll_types::operation::PG_META_OBJECT;
use atoll_types::{Epoch, LogEntry, Mutation, PgId, Touched, Transaction, Version};

use crate::device::{Budget, Device, difference};
use crate::random::Random;
use crate::state::{PG, SPLIT_PG, name, pg_of};
use crate::store::Store;
use crate::workload::{BLOCK, block_of, key, object_name};

const RUNS: u64 = 40;
const SUBMISSIONS: u64 = 150;

#[test]
fn the_store_takes_what_its_model_takes() {
    for seed in 0..RUNS {
        let mut random = Random::new(seed);
        let budget = Budget { page_bytes: 1 << 20, pending_bytes: 1 << 20 };
        let device = Device::new(budget, 1, &mut random);
        let mut store = Store::new(PG_LOG_ENTRIES, 1, Some(device));
        let mut refused = 0;
        for _ in 0..SUBMISSIONS {
            let transaction = draw(&store, &mut random);
            let takes = store.takes(&transaction);
            let is_taken = submit(&mut store, &transaction);
            assert_eq!(is_taken, takes, "seed {seed}: the real store, and its model: {transaction:?}");
            if takes {
                store.visible.apply(&transaction, PG_LOG_ENTRIES);
            } else {
                refused += 1;
            }
        }
        let device = store.device.as_mut().expect("it was given");
        device.run();
        let found = device.crash(&mut random);
        let differs = difference(&store.visible, &found);
        assert_eq!(differs, None, "seed {seed}");
        assert!(refused > 0, "seed {seed}: nothing was refused");
    }
}

fn submit(store: &mut Store, transaction: &Transaction) -> bool {
    let device = store.device.as_mut().expect("it was given");
    loop {
        match device.storage.store_mut().submit(transaction) {
            Ok(_) => {
                device.run();
                return true;
            }
            Err(StoreError::Invalid { .. }) => return false,
            Err(StoreError::Cold(cold)) => {
                device.storage.store_mut().load(LoadRequest::Pages(cold));
                device.run();
            }
            Err(error) => panic!("{error}"),
        }
    }
}

fn draw(store: &Store, random: &mut Random) -> Transaction {
    let pg_num = store.visible.of(PG).pg_num.unwrap_or(1);
    let object = object_name(random.below(6));
    let owner = pg_of(&object, pg_num);
    // A PG that missed the split may name what the other has by now.
    let is_stale = pg_num == 2 && random.chance(20);
    let pg = PgId { index: owner.index ^ u32::from(is_stale), ..owner };
    let head = store.visible.of(pg).head;
    let next = head.sequence + if random.chance(5) { 2 } else { 1 };
    let version = Version { epoch: Epoch(head.epoch.0 + random.below(2)), sequence: next };
    if random.chance(10) {
        return of_own_object(store, pg, pg_num, random);
    }
    let size = store.visible.of(pg).objects.get(&object).map_or(0, |found| found.size);
    let other = object_name(random.below(6));
    let copy = name(&format!("@kept/{:x}.{}", pg.index, random.below(6)));
    let offset = random.below(6) * BLOCK;
    let write = Mutation::Write { offset, length: BLOCK as u32, seals: None };
    let mut payload = Vec::new();
    let mutations = match random.below(9) {
        0 => vec![Mutation::Create],
        1 => vec![Mutation::Remove],
        2 => vec![Mutation::Zero { offset, length: BLOCK }],
        3 => vec![Mutation::Truncate { size_bytes: offset.min(size) }],
        4 if random.chance(30) => vec![Mutation::CloneFrom { source: copy }],
        4 if random.chance(80) => vec![Mutation::CloneFrom { source: other }],
        4 => vec![Mutation::OmapRemove { key: key(0) }],
        5 => vec![Mutation::OmapSet { key: key(random.below(3)), value: vec![7; 40].into() }],
        6 => vec![Mutation::RemoveOther { object: copy }, Mutation::Create],
        kind => {
            payload = block_of(next);
            assert_eq!(payload.len(), BLOCK_BYTES);
            let keeps = (kind == 7).then_some(Mutation::ClonePreImage { copy });
            keeps.into_iter().chain([write]).collect()
        }
    };
    let touched = Touched::by(&mutations);
    let (pre_image, committed_sequence) = (None, 0);
    let entry =
        LogEntry { version, request: None, object: object.clone(), touched, committed_sequence, pre_image };
    let log = if random.chance(85) { vec![entry] } else { Vec::new() };
    Transaction { pg, object, mutations, payload: payload.into(), payload_sealed: false, log }
}

/// Resets of the log, back or ahead, and a split.
fn of_own_object(store: &Store, pg: PgId, pg_num: u32, random: &mut Random) -> Transaction {
    let log = &store.visible.of(pg).log;
    let head = match random.below(3) {
        0 => Version::default(),
        1 if !log.is_empty() => log[random.below(log.len() as u64) as usize].version,
        _ => Version { epoch: Epoch(9), sequence: store.visible.of(pg).head.sequence + 5 },
    };
    let has_new = store.visible.of(SPLIT_PG).pg_num.is_some();
    let mutation = if pg_num == 1 && !has_new && random.chance(30) {
        Mutation::Split { pg_num_before: 1, pg_num: 2, is_whole: random.chance(50) }
    } else {
        Mutation::ResetLog { head }
    };
    let (object, payload) = (name(PG_META_OBJECT), Vec::new().into());
    Transaction { pg, object, mutations: vec![mutation], payload, payload_sealed: false, log: Vec::new() }
}
