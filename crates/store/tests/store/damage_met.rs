//! Damage of metadata that a store meets while it is in use: it is remembered on the device, also when the power is cut at
//! any moment of that, and a store that remembers damage does not open.

use atoll_store::{
    CheckOptions, Device, Disk, DiskOperation, DiskRequest, DiskResult, DumpOptions, LoadRequest, OpenError,
    Store, StoreEvent, check, dump,
};
use atoll_types::{Mutation, ObjectName, ReadRequest, Transaction};
use bytes::Bytes;

use crate::driver::{Driver, PG};
use crate::random::Random;
use atoll_store::simulated_disk::SimulatedDisk;

const OBJECT: &str = "object7";

/// A store with many pages, all of them outside of memory.
fn cold_store() -> Driver {
    let mut driver = Driver::new(5);
    for number in 0..400 {
        driver.set_omap(&format!("object{number}"), "key", vec![1; 900]);
    }
    driver.checkpoint();
    driver.store.set_memory_budget(0, 0);
    (0..8).for_each(|_| driver.store.flush());
    driver
}

/// Has the store look at an object, and returns the request for the leaf with it, which opening a store does not read.
fn wanted_leaf(driver: &mut Driver) -> DiskRequest {
    let object = ObjectName::new(OBJECT).unwrap();
    driver.store.load(LoadRequest::Read { pg: PG, object, request: ReadRequest::OmapGet { key: "key".into() } });
    let root = next_read(&mut driver.store);
    driver.store.complete(root.id, driver.disk.execute_request(&root));
    next_read(&mut driver.store)
}

fn next_read(store: &mut Store) -> DiskRequest {
    let request = store.next_request().expect("a page is wanted");
    assert!(matches!(request.operation, DiskOperation::Read { .. }), "nothing else is wanted");
    request
}

fn place(request: &DiskRequest) -> u64 {
    let DiskOperation::Read { offset, .. } = request.operation else { panic!("it reads") };
    offset / 4096
}

/// Damages the page that the store wants, and has it read as often as the store likes.
fn meet_damage(driver: &mut Driver) {
    let request = wanted_leaf(driver);
    driver.disk.rot(Device::Data, place(&request), &mut driver.random);
    let mut wanted = Some(request);
    while let Some(request) = wanted.take() {
        let result = driver.disk.execute_request(&request);
        driver.store.complete(request.id, result);
        if driver.store.poisoned_by().is_none() {
            wanted = Some(next_read(&mut driver.store));
        }
    }
}

/// Writes the remaining notes before the process ends.
fn note(driver: &mut Driver) {
    while driver.store.is_noting_damage() {
        let request = driver.store.next_request().expect("the damage is to be written");
        let result = driver.disk.execute_request(&request);
        driver.store.complete(request.id, result);
    }
}

fn refusal(disk: &mut SimulatedDisk) -> String {
    match Store::open(disk, 77) {
        Err(error @ OpenError::Damaged { .. }) => error.to_string(),
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("a store with damage opens as if nothing were missing"),
    }
}

fn was_told(driver: &mut Driver) -> bool {
    std::iter::from_fn(|| driver.store.next_event()).any(|event| matches!(event, StoreEvent::Poisoned { .. }))
}

#[test]
fn a_store_that_met_a_damaged_page_does_not_open_again() {
    let mut driver = cold_store();
    meet_damage(&mut driver);
    assert!(was_told(&mut driver));
    note(&mut driver);
    let said = refusal(&mut driver.disk.clone());
    assert!(said.contains("metadata page"), "{said}");
    assert_eq!(refusal(&mut driver.disk), said, "each time");
}

/// A change of a PG's own object that says that its copy cannot be trusted.
fn distrust(pg: atoll_types::PgId) -> Transaction {
    let object = ObjectName::new(atoll_types::operation::PG_META_OBJECT).unwrap();
    let mutations = vec![Mutation::OmapSet { key: "incomplete".into(), value: "1".into() }];
    Transaction { pg, object, mutations, payload: Bytes::new(), payload_sealed: false, log: Vec::new() }
}

fn is_distrusted(disk: &mut SimulatedDisk) -> bool {
    let mut is_marked = false;
    let options = DumpOptions { pg: Some(PG), object: ObjectName::new("@pg") };
    dump(disk, &options, &mut |record| {
        is_marked |= format!("{record:?}").contains("incomplete");
        std::ops::ControlFlow::Continue(())
    })
    .unwrap();
    is_marked
}

/// The power may be cut at any moment of that: a store that opens has said before that no copy of it counts.
#[test]
fn accepted_damage_leaves_no_copy_that_counts() {
    let mut driver = cold_store();
    let healthy = driver.disk.clone();
    assert_eq!(Store::remembered_damage(&mut driver.disk.clone()).unwrap(), None);
    meet_damage(&mut driver);
    note(&mut driver);
    let mut disk = driver.disk;
    // It reads well again.
    for block in healthy.blocks(Device::Data).into_iter().filter(|block| *block > 1) {
        disk.set_block(Device::Data, block, &healthy.block(Device::Data, block));
    }
    assert!(Store::remembered_damage(&mut disk).unwrap().unwrap().contains("metadata page"));
    let (mut was_refused, mut opened) = (0, 0);
    for writes in 0.. {
        let mut cut = Cut { disk: disk.clone(), writes_left: writes };
        let is_done = Store::forget_damage(&mut cut, 78, distrust).is_ok();
        match Store::open(&mut cut.disk, 79) {
            Ok(_) => {
                opened += 1;
                assert!(is_distrusted(&mut cut.disk), "after {writes} writes");
            }
            Err(_) => was_refused += 1,
        }
        if is_done {
            break;
        }
    }
    assert!(was_refused > 0 && opened > 0, "{was_refused}, {opened}");
}

#[test]
fn damage_that_is_met_again_is_remembered_again() {
    let mut driver = cold_store();
    meet_damage(&mut driver);
    note(&mut driver);
    let said = refusal(&mut driver.disk);
    Store::forget_damage(&mut driver.disk, 78, distrust).unwrap();
    assert!(is_distrusted(&mut driver.disk));
    driver.reopen();
    driver.store.set_memory_budget(0, 0);
    let object = ObjectName::new(OBJECT).unwrap();
    driver.store.load(LoadRequest::Read { pg: PG, object, request: ReadRequest::OmapGet { key: "key".into() } });
    while driver.store.poisoned_by().is_none() {
        let request = next_read(&mut driver.store);
        driver.store.complete(request.id, driver.disk.execute_request(&request));
    }
    note(&mut driver);
    assert_eq!(refusal(&mut driver.disk), said);
}

/// A disk whose power is cut after some writes.
struct Cut {
    disk: SimulatedDisk,
    writes_left: usize,
}

impl Disk for Cut {
    fn size_bytes(&self, device: Device) -> Option<u64> {
        self.disk.size_bytes(device)
    }

    fn execute(&mut self, device: Device, operation: DiskOperation) -> DiskResult {
        if !matches!(operation, DiskOperation::Read { .. }) {
            self.writes_left = self.writes_left.checked_sub(1).ok_or(std::io::ErrorKind::TimedOut)?;
        }
        self.disk.execute(device, operation)
    }
}

/// An accidental repair of the page, such as a controller that reads it well the next time, does not clear the damage.
#[test]
fn what_was_met_stays_remembered_when_the_page_reads_well_again() {
    let mut driver = cold_store();
    let healthy = driver.disk.clone();
    meet_damage(&mut driver);
    note(&mut driver);
    for block in healthy.blocks(Device::Data).into_iter().filter(|block| *block > 1) {
        driver.disk.set_block(Device::Data, block, &healthy.block(Device::Data, block));
    }
    refusal(&mut driver.disk);
    let report = check(&mut driver.disk, CheckOptions { data: true }, &mut |_, _, _| {}).unwrap();
    let problems: Vec<String> = report.problems.iter().map(|finding| finding.problem.to_string()).collect();
    assert!(problems.len() == 1 && problems[0].contains("while the store was in use"), "{problems:?}");
}

#[test]
fn a_page_that_reads_well_the_second_time_is_no_damage() {
    let mut driver = cold_store();
    let request = wanted_leaf(&mut driver);
    let mut garbled = driver.disk.clone();
    garbled.rot(Device::Data, place(&request), &mut Random::new(1));
    driver.store.complete(request.id, garbled.execute_request(&request));
    assert!(!driver.store.is_noting_damage());
    let again = next_read(&mut driver.store);
    assert_eq!(place(&again), place(&request));
    driver.store.complete(again.id, driver.disk.execute_request(&again));
    driver.run();
    assert_eq!(driver.store.usage().corrupt_block_count, 1, "it is counted");
    driver.reopen();
}

/// The kernel reports ENODATA for data that the medium has lost, and EIO for a device that is away, too.
#[test]
fn what_the_medium_has_lost_is_remembered_and_a_device_that_is_away_is_not() {
    for (error, is_lost) in [(61, true), (84, true), (5, false)] {
        let mut driver = cold_store();
        let mut request = wanted_leaf(&mut driver);
        loop {
            driver.store.complete(request.id, Err(std::io::Error::from_raw_os_error(error)));
            if driver.store.poisoned_by().is_some() {
                break;
            }
            request = next_read(&mut driver.store);
        }
        assert_eq!(driver.store.is_noting_damage(), is_lost);
        note(&mut driver);
        match is_lost {
            true => drop(refusal(&mut driver.disk)),
            false => driver.reopen(),
        }
    }
}

/// The two copies of the superblock are written in turn, so damage waits for a checkpoint's.
#[test]
fn damage_that_is_met_while_a_superblock_is_written_is_remembered() {
    for is_written in [true, false] {
        let mut driver = cold_store();
        driver.store.set_memory_budget(1 << 30, 1 << 30);
        driver.write("other", 0, 2, 7);
        driver.run();
        driver.store.set_memory_budget(0, 0);
        (0..8).for_each(|_| driver.store.flush());
        driver.store.start_checkpoint();
        let superblock = loop {
            driver.store.flush();
            let request = driver.store.next_request().expect("the checkpoint goes on");
            if matches!(request.operation, DiskOperation::Write { offset, .. } if offset < 2 * 4096) {
                break request;
            }
            let result = driver.disk.execute_request(&request);
            driver.store.complete(request.id, result);
        };
        (0..8).for_each(|_| driver.store.flush());
        meet_damage(&mut driver);
        assert!(driver.store.is_noting_damage());
        assert!(driver.store.next_request().is_none(), "it waits for the superblock that is under way");
        let result = match is_written {
            true => driver.disk.execute_request(&superblock),
            false => Err(std::io::Error::from_raw_os_error(5)),
        };
        driver.store.complete(superblock.id, result);
        note(&mut driver);
        refusal(&mut driver.disk);
    }
}

#[test]
fn a_power_cut_while_damage_is_noted_leaves_a_store() {
    for seed in 0..60 {
        let mut driver = cold_store();
        driver.random = Random::new(seed);
        let healthy = driver.disk.clone();
        meet_damage(&mut driver);
        let request = driver.store.next_request().expect("the damage is to be written");
        driver.disk.write_partly(request.device, &request.operation, &mut driver.random);
        driver.disk.crash(&mut driver.random);
        match Store::open(&mut driver.disk.clone(), 77) {
            // It was not noted; whoever looks at the page meets the damage again.
            Ok(_) => {}
            Err(error) => assert!(error.to_string().contains("metadata page"), "{error}"),
        }
        let copies =
            [0, 1].map(|block| driver.disk.block(Device::Data, block) == healthy.block(Device::Data, block));
        assert!(copies.contains(&true), "the superblock in force is not written over");
    }
}
