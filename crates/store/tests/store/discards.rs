//! Free places are discarded under the device: all of them in the end, and none that is still needed. The crash
//! tests run with them, too.

use atoll_store::{BackingRoom, Device, Disk, DiskOperation, StoreEvent};
use atoll_types::Mutation;

use crate::driver::{Driver, key};

const MIB_BLOCKS: u64 = 256;

fn remove(driver: &mut Driver, object: &str) {
    driver.submit(object, vec![Mutation::Remove], Vec::new());
}

/// Runs without ever seeing a checkpoint that was asked for.
fn run_for(driver: &mut Driver, turns: usize) {
    for _ in 0..turns {
        driver.store.flush();
        driver.step();
        while let Some(event) = driver.store.next_event() {
            assert!(!matches!(event, StoreEvent::Poisoned { .. }), "{event:?}");
        }
    }
}

fn filled(driver: &mut Driver, blocks: impl Fn(u64) -> u64, count: u64) -> u64 {
    let before = driver.store.usage().used_bytes;
    (0..count).for_each(|number| driver.write(&format!("object{number}"), 0, blocks(number), number as u8 | 1));
    driver.checkpoint();
    (driver.store.usage().used_bytes - before) / 4096
}

#[test]
fn what_was_deleted_is_given_back_after_the_next_checkpoint() {
    let mut driver = Driver::new(1);
    filled(&mut driver, |_| 4 * MIB_BLOCKS, 10);
    driver.write("stays", 0, 100, 9);
    (0..10).for_each(|number| remove(&mut driver, &format!("object{number}")));
    driver.run();
    assert_eq!(driver.disk.discarded_blocks, 0, "the checkpoint in force needs them");
    driver.checkpoint();
    assert!(driver.disk.discarded_blocks >= 39 * MIB_BLOCKS, "{}", driver.disk.discarded_blocks);
    driver.reopen();
    let problems = driver.store.examine(&mut driver.disk);
    assert!(problems.is_empty(), "{problems:?}");
    driver.store.scrub(key("stays"), true);
    let found = driver.run();
    assert!(matches!(&found[..], [StoreEvent::Scrubbed { result: Ok(found), .. }] if found.bad_blocks.is_empty()));
}

/// Small objects lie side by side, and are deleted in any order.
#[test]
fn small_ones_are_given_back_when_their_neighbours_are_gone() {
    let mut driver = Driver::new(2);
    let taken = filled(&mut driver, |number| 1 + number % 3, 600);
    for part in 0..5 {
        (part..600).step_by(5).for_each(|number| remove(&mut driver, &format!("object{number}")));
        driver.checkpoint();
    }
    assert!(driver.disk.discarded_blocks * 10 >= taken * 8, "{} of {taken}", driver.disk.discarded_blocks);
}

/// Clients may not write any more, so nothing else would ever start a checkpoint.
#[test]
fn a_full_file_system_gets_back_what_was_deleted() {
    for room in [BackingRoom::Low, BackingRoom::None] {
        let mut driver = Driver::new(3);
        filled(&mut driver, |_| 4 * MIB_BLOCKS, 10);
        driver.store.set_backing_room(room);
        (0..10).for_each(|number| remove(&mut driver, &format!("object{number}")));
        run_for(&mut driver, 300);
        assert!(driver.disk.discarded_blocks >= 39 * MIB_BLOCKS, "{}", driver.disk.discarded_blocks);
        let checkpoints = driver.store.usage().checkpoint_count;
        run_for(&mut driver, 300);
        assert_eq!(driver.store.usage().checkpoint_count, checkpoints, "and that is all");
    }
}

/// An unsupported operation is tried once on a device, and takes nothing away.
#[test]
fn a_device_that_cannot_is_asked_once() {
    let mut driver = Driver::new(4);
    filled(&mut driver, |_| 4 * MIB_BLOCKS, 20);
    let mut asked = 0;
    for half in 0..2 {
        (half..20).step_by(2).for_each(|number| remove(&mut driver, &format!("object{number}")));
        driver.store.start_checkpoint();
        loop {
            driver.store.flush();
            let Some(request) = driver.store.next_request() else { break };
            let is_discard = matches!(request.operation, DiskOperation::Discard { .. });
            asked += u64::from(is_discard);
            let result = match is_discard {
                true => Err(std::io::ErrorKind::Unsupported.into()),
                false => driver.disk.execute(request.device, request.operation),
            };
            driver.store.complete(request.id, result);
            driver.store.check_invariants();
        }
    }
    assert_eq!(asked, 1);
    assert!(driver.store.poisoned_by().is_none());
    assert!(driver.store.usage().used_bytes < 4 << 20, "what was free is free");
}

/// A store of an earlier release has kept all that it ever had.
#[test]
fn what_was_free_before_is_given_back_on_demand() {
    let mut driver = Driver::new(5);
    driver.store.set_discards(false);
    filled(&mut driver, |_| 4 * MIB_BLOCKS, 10);
    (0..10).for_each(|number| remove(&mut driver, &format!("object{number}")));
    driver.write("stays", 0, 100, 9);
    driver.checkpoint();
    assert_eq!(driver.disk.discarded_blocks, 0);
    let in_use = |driver: &Driver| driver.disk.blocks(Device::Data).len() as u64;
    let before = in_use(&driver);
    driver.store.set_discards(true);
    driver.store.discard_free_space();
    driver.run();
    assert!(before - in_use(&driver) >= 38 * MIB_BLOCKS, "{before} blocks, now {}", in_use(&driver));
    driver.reopen();
    let problems = driver.store.examine(&mut driver.disk);
    assert!(problems.is_empty(), "{problems:?}");
}

/// Blocks that are being discarded are not allocated until that is done.
#[test]
fn what_is_written_meanwhile_goes_elsewhere() {
    let mut driver = Driver::new(6);
    filled(&mut driver, |_| 4 * MIB_BLOCKS, 10);
    (0..10).for_each(|number| remove(&mut driver, &format!("object{number}")));
    driver.store.start_checkpoint();
    let discard = loop {
        driver.store.flush();
        let request = driver.store.next_request().expect("the checkpoint goes on");
        if matches!(request.operation, DiskOperation::Discard { .. }) {
            break request;
        }
        let result = driver.disk.execute(request.device, request.operation);
        driver.store.complete(request.id, result);
    };
    let used = driver.store.usage().used_bytes;
    (0..10).for_each(|number| driver.write(&format!("new{number}"), 0, 2 * MIB_BLOCKS, 7));
    driver.run();
    assert!(driver.store.usage().used_bytes >= used + (20 << 20), "none of it counts twice");
    let result = driver.disk.execute(discard.device, discard.operation);
    driver.store.complete(discard.id, result);
    driver.run();
    for number in 0..10 {
        driver.store.scrub(key(&format!("new{number}")), true);
        let found = driver.run();
        assert!(
            matches!(&found[..], [StoreEvent::Scrubbed { result: Ok(found), .. }] if found.bad_blocks.is_empty())
        );
    }
}
