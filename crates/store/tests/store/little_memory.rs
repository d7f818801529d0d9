//! Operations that look at more metadata pages than the store has memory for must come to an end
//! nevertheless.

use atoll_store::{Disk, LoadRequest, ObjectKey, Store, StoreError, StoreEvent};
use atoll_types::{ObjectName, Transaction};

use crate::model::{Builder, ModelPg};
use crate::random::Random;
use crate::small::Small;
use crate::verify::{look_and_submit, run, verify_pg};
use crate::workload::Profile;
use atoll_store::simulated_disk::SimulatedDisk;

/// Disk requests after which an operation that loads a few hundred pages must be over.
const REQUESTS_MAX: usize = 10_000;

/// An object whose omap takes hundreds of pages, all of them outside of memory.
fn large_omap() -> Small {
    let mut small = Small::new();
    for batch in 0..30 {
        small.submit("object", |builder| {
            for index in 0..20 {
                let key = format!("key{batch:03}{index:03}").into_bytes().into();
                builder.omap_set(key, vec![1; 1200].into());
            }
        });
    }
    small.checkpoint();
    small.store.set_memory_budget(0, 0);
    (0..8).for_each(|_| small.store.flush());
    assert!(small.store.usage().metadata_memory_bytes < 64 << 10);
    small
}

/// Does one disk request after the other, with a flush behind each, until something has happened.
fn next_event(small: &mut Small, requests: &mut usize) -> StoreEvent {
    loop {
        if let Some(event) = small.store.next_event() {
            return event;
        }
        small.store.flush();
        let request = small.store.next_request().expect("something is under way");
        let result = small.disk.execute(request.device, request.operation);
        small.store.complete(request.id, result);
        *requests += 1;
        assert!(*requests < REQUESTS_MAX, "pages are loaded round and round");
    }
}

fn remove(small: &mut Small) -> Transaction {
    small.prepare("object", Builder::remove)
}

fn wish(transaction: &Transaction) -> LoadRequest {
    LoadRequest::Write {
        pg: transaction.pg,
        object: transaction.object.clone(),
        conditions: Vec::new(),
        mutations: transaction.mutations.clone(),
    }
}

#[test]
fn a_wish_is_granted() {
    let mut small = large_omap();
    let transaction = remove(&mut small);
    let load = small.store.load(wish(&transaction));
    let event = next_event(&mut small, &mut 0);
    assert!(matches!(event, StoreEvent::Loaded(id) if id == load), "{event:?}");
    small.store.submit(&transaction).expect("everything was loaded");
    small.settle();
    small.reopen();
}

/// As on a replica: it finds the missing pages by trying.
#[test]
fn trying_again_comes_to_an_end() {
    let mut small = large_omap();
    let transaction = remove(&mut small);
    let mut requests = 0;
    while let Err(error) = small.store.submit(&transaction) {
        let StoreError::Cold(cold) = error else { panic!("{error}") };
        small.store.load(LoadRequest::Pages(cold));
        let event = next_event(&mut small, &mut requests);
        assert!(matches!(event, StoreEvent::Loaded(_)), "{event:?}");
    }
    small.settle();
    small.reopen();
}

#[test]
fn a_scrub_comes_to_an_end() {
    let mut small = large_omap();
    let transaction = remove(&mut small);
    small.store.scrub(ObjectKey { pg: transaction.pg, name: transaction.object }, true);
    let event = next_event(&mut small, &mut 0);
    assert!(matches!(event, StoreEvent::Scrubbed { result: Ok(_), .. }), "{event:?}");
}

/// Memory is freed when no operation waits any more.
#[test]
fn what_was_loaded_is_dropped_again() {
    let mut small = large_omap();
    let transaction = remove(&mut small);
    small.store.load(wish(&transaction));
    next_event(&mut small, &mut 0);
    assert!(small.store.usage().metadata_memory_bytes > 200 * 4096);
    (0..8).for_each(|_| small.store.flush());
    assert!(small.store.usage().metadata_memory_bytes < 64 << 10);
}

/// A loaded page counts once for any number of looks, and pages in memory are found without a miss.
#[test]
fn looks_at_pages_are_counted() {
    let counts = |small: &Small| {
        let usage = small.store.usage();
        (usage.metadata_page_hit_count, usage.metadata_page_miss_count)
    };
    let mut small = large_omap();
    let transaction = remove(&mut small);
    let (_, misses_before) = counts(&small);
    small.store.load(wish(&transaction));
    let mut requests = 0;
    next_event(&mut small, &mut requests);
    let (hits, misses) = counts(&small);
    assert_eq!(misses - misses_before, requests as u64, "each page was read once, and nothing else");
    assert!(requests > 100, "the omap takes hundreds of pages");

    small.store.load(wish(&transaction));
    assert!(matches!(small.store.next_event(), Some(StoreEvent::Loaded(_))), "all is in memory");
    let (hits_after, misses_after) = counts(&small);
    assert_eq!(misses_after, misses);
    assert!(hits_after - hits >= misses - misses_before, "each page was looked at again");
}

/// A store of many PGs, each with entries in its log that take some pages.
struct AllPgs {
    disk: SimulatedDisk,
    store: Store,
    states: Vec<ModelPg>,
}

impl AllPgs {
    const COUNT: usize = 64;

    fn new() -> Self {
        let mut disk = Profile::random(&mut Random::new(1)).format();
        let store = Store::open(&mut disk, 1).unwrap();
        AllPgs { disk, store, states: vec![ModelPg::default(); AllPgs::COUNT] }
    }

    fn write_to_each(&mut self, round: u32) {
        let name = ObjectName::new(&format!("{}{round}", "a long name ".repeat(10))).unwrap();
        for pg in 0..AllPgs::COUNT {
            let mut builder = Builder::new(pg, &name, &self.states[pg]);
            builder.create();
            let (transaction, next) = builder.finish();
            look_and_submit(&mut self.store, &mut self.disk, &transaction);
            self.states[pg] = next;
        }
    }

    /// Does all that is under way at once, again and again until nothing is. Says how often.
    fn settle(&mut self) -> usize {
        for rounds in 0.. {
            self.store.flush();
            let requests: Vec<_> = std::iter::from_fn(|| self.store.next_request()).collect();
            if requests.is_empty() && !self.store.is_checkpointing() {
                return rounds;
            }
            for request in requests {
                let result = self.disk.execute(request.device, request.operation);
                self.store.complete(request.id, result);
            }
        }
        unreachable!("the loop has no end")
    }
}

/// One page after the other would take a checkpoint hundreds of reads in a row, while writes wait.
#[test]
fn pages_of_all_pgs_are_loaded_side_by_side() {
    let mut pgs = AllPgs::new();
    (0..40).for_each(|round| pgs.write_to_each(round));
    pgs.store.start_checkpoint();
    pgs.settle();
    pgs.store.set_memory_budget(0, 0);
    (0..8).for_each(|_| pgs.store.flush());
    assert!(pgs.store.usage().metadata_memory_bytes < 128 << 10);
    pgs.store.set_memory_budget(1 << 30, 1 << 30);
    pgs.write_to_each(40);
    pgs.store.start_checkpoint();
    let rounds = pgs.settle();
    assert!(rounds < 20, "{rounds} rounds of requests, one after the other");
    run(&mut pgs.store, &mut pgs.disk);
    pgs.store = Store::open(&mut pgs.disk, 2).unwrap();
    for (pg, state) in pgs.states.iter().enumerate() {
        verify_pg(&mut pgs.store, &mut pgs.disk, pg, state, 1).unwrap();
    }
}
