//! A store that fills up: clear refusals at any point, everything stays readable, also after opening again, and
//! deletes bring the space back.

use atoll_store::{LoadRequest, ObjectKey, Store, StoreError, StoreEvent};
use atoll_types::{Mutation, ObjectName, Room};
use bytes::Bytes;

use crate::model::{Builder, ModelPg, ZEROS, pg_id};
use crate::random::Random;
use crate::verify::{run, verify_pg};
use crate::workload::Profile;
use atoll_store::simulated_disk::SimulatedDisk;

/// Metadata pages that clients may not take.
const RESERVED_PAGES: u32 = 1 << 16;

struct Filled {
    disk: SimulatedDisk,
    store: Store,
    state: ModelPg,
    /// True if writes are checked first, as by a primary, false if they are only submitted, as on a replica.
    is_primary: bool,
    /// Most metadata pages, if they are to be full.
    page_count_max: Option<u32>,
}

impl Filled {
    fn new(is_primary: bool, page_bytes: u64) -> Self {
        let mut disk = Profile::random(&mut Random::new(2)).format();
        let mut store = Store::open(&mut disk, 1).unwrap();
        store.set_memory_budget(page_bytes, 0);
        Filled { disk, store, state: ModelPg::default(), is_primary, page_count_max: None }
    }

    fn limit_pages(&mut self) {
        if let Some(count_max) = self.page_count_max {
            self.store.limit_pages(count_max);
        }
    }

    fn turn(&mut self) {
        self.store.flush();
        run(&mut self.store, &mut self.disk);
        while let Some(event) = self.store.next_event() {
            assert!(!matches!(event, StoreEvent::Poisoned { .. }), "{event:?}");
        }
    }

    fn write(&mut self, name: &str, change: impl FnOnce(&mut Builder)) -> Result<(), StoreError> {
        let name = ObjectName::new(name).unwrap();
        let mut builder = Builder::new(0, &name, &self.state);
        change(&mut builder);
        let (transaction, next) = builder.finish();
        let key = ObjectKey { pg: pg_id(0), name };
        loop {
            let check = |store: &Store| store.check(&key, &transaction.mutations, transaction.payload.len());
            let done = match self.is_primary.then(|| check(&self.store)) {
                _ if !self.store.has_log_room() => {
                    self.turn();
                    continue;
                }
                Some(Err(error)) => Err(error),
                _ => self.store.submit(&transaction).map(|_| ()),
            };
            match done {
                Ok(()) => {
                    self.state = next;
                    return Ok(());
                }
                Err(StoreError::Cold(cold)) => {
                    self.store.load(LoadRequest::Pages(cold));
                    run(&mut self.store, &mut self.disk);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Does writes until one is refused. Returns how many were taken.
    fn fill(&mut self, change: impl Fn(u64, &mut Builder) -> String) -> u64 {
        for count in 0..1_000_000 {
            // The name is known only when the change is made.
            let mut probe = Builder::new(0, &ObjectName::new("probe").unwrap(), &ModelPg::default());
            let name = change(u64::MAX, &mut probe);
            let name = if name.is_empty() { format!("object{count:06}") } else { format!("{name}{}", count % 50) };
            match self.write(&name, |builder| drop(change(count, builder))) {
                Ok(()) => {}
                Err(StoreError::NoSpace) => return count,
                Err(error) => panic!("{error}"),
            }
            if count.is_multiple_of(16) {
                self.turn();
            }
        }
        panic!("the device must fill up");
    }

    fn verify(&mut self) {
        (0..8).for_each(|_| self.turn());
        let objects = self.state.objects.len() as u64;
        verify_pg(&mut self.store, &mut self.disk, 0, &self.state, 1 + objects / 200).unwrap();
    }

    fn reopen(&mut self, incarnation: u64) {
        self.store = Store::open(&mut self.disk, incarnation).expect("a full store opens");
        self.limit_pages();
        self.verify();
    }

    /// The full state, opening in it, and the way out of it.
    fn prove(&mut self, refill: impl Fn(&mut Self) -> Result<(), StoreError>) {
        self.verify();
        assert!(matches!(refill(self), Err(StoreError::NoSpace)), "it stays full");
        self.reopen(2);
        assert!(matches!(refill(self), Err(StoreError::NoSpace)), "it stays full");
        let names: Vec<ObjectName> = self.state.objects.keys().cloned().collect();
        for (index, name) in names.iter().enumerate().filter(|(index, _)| index % 3 != 0) {
            self.write(name.as_str(), Builder::remove).expect("deletes are always possible");
            if index % 64 == 0 {
                self.turn();
            }
        }
        (0..8).for_each(|_| self.turn());
        self.store.start_checkpoint();
        (0..8).for_each(|_| self.turn());
        assert!(!self.store.is_full(), "deletes bring space back");
        refill(self).expect("there is room again");
        self.verify();
        self.reopen(3);
    }
}

fn by_data(is_primary: bool) {
    let mut filled = Filled::new(is_primary, 1 << 20);
    let seed = |count: u64| if count.is_multiple_of(10) { count | 1 } else { ZEROS };
    let count = filled.fill(|count, builder| {
        builder.write(0, if count.is_multiple_of(7) { 9 } else { 1000 }, 0, seed(count), true);
        String::new()
    });
    assert!(count > 80, "the device was called full after {count} objects");
    filled.prove(|filled| filled.write("more", |builder| builder.write(0, 100, 0, 3, true)));
}

#[test]
fn full_of_data() {
    by_data(true);
    by_data(false);
}

/// Large writes hardly fill the log, so nothing but the space that they take calls for a checkpoint.
#[test]
fn what_is_overwritten_faster_than_checkpoints_come_does_not_fill_the_device() {
    for is_primary in [true, false] {
        let mut filled = Filled::new(is_primary, 1 << 20);
        for count in 0..500 {
            let name = format!("object{:02}", count % 40);
            let written = filled.write(&name, |builder| builder.write(0, 1000, 0, count, true));
            written.unwrap_or_else(|error| panic!("write {count}: {error}"));
            if count % 100 == 99 {
                filled.turn();
            }
        }
        filled.verify();
    }
}

#[test]
fn full_of_clones_that_are_overwritten() {
    let mut filled = Filled::new(false, 1 << 20);
    filled.write("source", |builder| builder.write(0, 1000, 0, ZEROS, true)).unwrap();
    let source = ObjectName::new("source").unwrap();
    for count in 0..200 {
        filled
            .write(&format!("clone{count:03}"), |builder| builder.clone_from(&source))
            .expect("clones are small");
        filled.turn();
    }
    let mut count = 0;
    let full = loop {
        let name = format!("clone{:03}", count % 200);
        // Small writes too must leave a block that is shared.
        let (first, blocks) = if count < 100 { (0, 12) } else { (12, 988) };
        match filled.write(&name, |builder| builder.write(first, blocks, 0, ZEROS, true)) {
            Ok(()) => count += 1,
            Err(error) => break error,
        }
        filled.turn();
    };
    assert!(matches!(full, StoreError::NoSpace), "{full}");
    assert!(count > 150, "{count}");
    filled.prove(|filled| filled.write("more", |builder| builder.write(0, 1000, 0, 3, true)));
}

fn by_metadata(
    is_primary: bool,
    page_bytes: u64,
    data_percent: u64,
    change: impl Fn(u64, &mut Builder) -> String,
) {
    let mut filled = Filled::new(is_primary, page_bytes);
    // Most of the device is data, so that not all of it has to be filled with metadata.
    while filled.store.usage().used_bytes < filled.store.usage().total_bytes / 100 * data_percent {
        let name = format!("big{}", filled.store.usage().used_bytes);
        filled.write(&name, |builder| builder.write(0, 1000, 0, ZEROS, true)).unwrap();
        filled.turn();
    }
    let count = filled.fill(change);
    println!("{count} changes until {:?}", filled.store.usage());
    filled.prove(|filled| {
        let value = Bytes::from(vec![5; 100_000]);
        filled.write("more", |builder| builder.omap_set(Bytes::from_static(b"key"), value))
    });
}

#[test]
fn full_of_omap_entries() {
    for is_primary in [true, false] {
        by_metadata(is_primary, 4 << 20, 72, |count, builder| {
            let value = Bytes::from(vec![count as u8; 60_000]);
            builder.omap_set(format!("key{count:06}").into(), value);
            "index".into()
        });
    }
}

#[test]
fn full_of_tiny_objects() {
    by_metadata(true, 1 << 20, 79, |count, builder| {
        builder.write(0, 1, 4000, count | 1, true);
        String::new()
    });
}

/// The page table of a large device is full before the device is.
fn full_of_metadata_pages(is_primary: bool, page_count_max: u32) -> Filled {
    let mut filled = Filled::new(is_primary, 4 << 20);
    filled.page_count_max = Some(page_count_max);
    filled.limit_pages();
    let count = filled.fill(|count, builder| {
        builder.omap_set(format!("key{count:06}").into(), Bytes::from(vec![count as u8; 60_000]));
        "index".into()
    });
    assert!(count > 50, "the page table was called full after {count} changes");
    let usage = filled.store.usage();
    assert!(usage.used_bytes < usage.total_bytes / 10, "{usage:?}");
    filled
}

#[test]
fn full_of_metadata_pages_on_a_primary() {
    full_of_metadata_pages(true, RESERVED_PAGES + 2000).prove(|filled| {
        let value = Bytes::from(vec![5; 1000]);
        filled.write("more", |builder| builder.omap_set(Bytes::from_static(b"key"), value))
    });
}

/// Replicas take half of the reserve.
#[test]
fn full_of_metadata_pages_on_a_replica() {
    let mut filled = full_of_metadata_pages(false, RESERVED_PAGES / 2 + 2000);
    filled.write("index1", Builder::remove).expect("deletes are always possible");
    filled.verify();
    filled.reopen(2);
}

/// A primary's question before a write that must need no space: the unshared blocks.
#[test]
fn blocks_that_an_object_has_to_itself_are_known() {
    let mut filled = Filled::new(true, 1 << 20);
    let key = |name: &str| ObjectKey { pg: pg_id(0), name: ObjectName::new(name).unwrap() };
    filled.write("object", |builder| builder.write(1, 2, 0, 7, true)).unwrap();
    assert_eq!(filled.store.own_blocks(&key("object"), 0, 4 * 4096).unwrap(), [false, true, true, false]);
    assert_eq!(filled.store.own_blocks(&key("another"), 0, 4096).unwrap(), [false]);
    filled.write("clone", |builder| builder.clone_from(&key("object").name)).unwrap();
    assert_eq!(filled.store.own_blocks(&key("object"), 4096, 8192).unwrap(), [false, false]);
    // A block that was written since has a place of its own.
    filled.write("object", |builder| builder.write(1, 1, 0, 9, true)).unwrap();
    assert_eq!(filled.store.own_blocks(&key("object"), 4096, 8192).unwrap(), [true, false]);
    filled.write("clone", Builder::remove).unwrap();
    assert_eq!(filled.store.own_blocks(&key("object"), 4096, 8192).unwrap(), [true, true]);
    filled.verify();
}

/// A primary's writes for a shard while members are full: a pre-image that shares blocks, and changes that free
/// them.
fn of_shard(builder: &mut Builder, kept: &ObjectName, change: impl FnOnce(&mut Builder)) {
    builder.clone_pre_image(kept);
    builder.pre_image(vec![Mutation::CloneFrom { source: kept.clone() }], Bytes::new());
    change(builder);
}

/// Replicas take half of the reserve, from backfills and repairs. Then nothing but deletes gives room again.
#[test]
fn deletes_and_trims_of_shards_go_on_when_the_reserve_is_half_gone() {
    let mut filled = Filled::new(false, 1 << 20);
    let count = filled.fill(|_, builder| {
        builder.write(0, 1000, 0, ZEROS, true);
        String::new()
    });
    let kept = |number: u64| ObjectName::new(&format!("@kept/{number}")).unwrap();
    let own = atoll_types::operation::PG_META_OBJECT;
    for number in 0..count / 3 {
        let name = format!("object{number:06}");
        let changed = filled.write(&name, |builder| {
            of_shard(builder, &kept(number), |builder| match number % 3 {
                0 => builder.remove(),
                1 => builder.zero(0, 900),
                // Parity of a trim that begins and ends within stripes.
                _ => {
                    builder.zero(0, 900);
                    builder.write(900, 20, 0, ZEROS, true);
                }
            });
        });
        changed.unwrap_or_else(|error| panic!("change {number} of {count}: {error}"));
        // All members have it.
        filled.write(own, |builder| builder.remove_other(&kept(number))).expect("pre-images go");
        filled.turn();
    }
    filled.verify();
    assert!(!filled.store.is_full(), "that has brought space back");
    filled.write("more", |builder| builder.write(0, 100, 0, 3, true)).expect("there is room again");
    filled.verify();
    filled.reopen(2);
}

/// Parity of trims that free nothing beside it takes no more of the reserve than leaves checkpoints theirs.
#[test]
fn parity_does_not_take_what_checkpoints_need() {
    let mut filled = Filled::new(false, 1 << 20);
    let count = filled.fill(|_, builder| {
        builder.write(0, 1000, 0, ZEROS, true);
        String::new()
    });
    let kept = |number: u64| ObjectName::new(&format!("@kept/{number}")).unwrap();
    let mut taken = 0;
    for number in 0..count {
        let name = format!("object{number:06}");
        let parity = |builder: &mut Builder| builder.write(0, 1000, 0, ZEROS, true);
        match filled.write(&name, |builder| of_shard(builder, &kept(number), parity)) {
            Ok(()) => taken += 1,
            Err(StoreError::NoSpace) => break,
            Err(error) => panic!("{error}"),
        }
        filled.turn();
    }
    assert!(taken > 0 && taken < count, "{taken} of {count}");
    let last = format!("object{:06}", count - 1);
    filled.write(&last, |builder| of_shard(builder, &kept(count), Builder::remove)).expect("deletes go on");
    filled.verify();
    filled.reopen(2);
}

/// A primary whose copy was rebuilt shares nothing with clones, and takes overwrites for such that stay in place here.
#[test]
fn it_tells_in_time_that_overwrites_cost_its_reserve() {
    let mut filled = Filled::new(false, 1 << 20);
    filled.write("source", |builder| builder.write(0, 1000, 0, ZEROS, true)).unwrap();
    let source = ObjectName::new("source").unwrap();
    for count in 0..60 {
        filled
            .write(&format!("clone{count:02}"), |builder| builder.clone_from(&source))
            .expect("clones are small");
    }
    for count in 0.. {
        if filled.store.is_full() {
            break;
        }
        filled.write(&format!("big{count}"), |builder| builder.write(0, 500, 0, ZEROS, true)).unwrap();
        filled.turn();
    }
    let overwrite = |filled: &mut Filled, count: usize| {
        let (name, first) = (format!("clone{:02}", count % 60), count / 60 * 12);
        filled
            .write(&name, |builder| builder.write(first, 12, 0, ZEROS, true))
            .expect("its primary let it through");
        filled.turn();
    };
    let mut count = 0;
    while filled.store.room() != Room::Deletes {
        overwrite(&mut filled, count);
        count += 1;
    }
    // Those that were under way.
    (count..count + 256).for_each(|count| overwrite(&mut filled, count));
    assert_eq!(filled.store.room(), Room::Deletes);
    for number in 0.. {
        if filled.store.room() == Room::Enough {
            break;
        }
        filled.write(&format!("big{number}"), Builder::remove).expect("deletes go on");
        filled.turn();
        filled.store.start_checkpoint();
    }
    filled.verify();
    filled.reopen(2);
}

/// A PG's own promises are taken even when nothing else is.
#[test]
fn promises_are_kept_when_full() {
    let mut filled = Filled::new(true, 1 << 20);
    filled.fill(|_, builder| {
        builder.write(0, 1000, 0, ZEROS, false);
        String::new()
    });
    let own = atoll_types::operation::PG_META_OBJECT;
    let value = Bytes::from_static(b"1");
    filled.write(own, |builder| builder.omap_set(Bytes::from_static(b"epoch"), value)).expect("it is small");
    assert!(Store::adds_metadata(&[Mutation::Create]));
    filled.verify();
}
