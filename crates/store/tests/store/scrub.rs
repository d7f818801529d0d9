//! Scrubbing objects of a running store.

use std::ops::ControlFlow;

use atoll_buffers::BLOCK_BYTES;
use atoll_store::{
    Device, Disk, DiskOperation, DumpOptions, DumpRecord, ScrubError, ScrubResult, StoreEvent, dump,
};
use atoll_types::Mutation;

use crate::driver::{Driver, PG, key};

fn scrub(driver: &mut Driver, object: &str, deep: bool) -> Result<ScrubResult, ScrubError> {
    let wanted = driver.store.scrub(key(object), deep);
    match &driver.run()[..] {
        [StoreEvent::Scrubbed { id, result }] if *id == wanted => result.clone(),
        events => panic!("{events:?}"),
    }
}

fn fill(driver: &mut Driver) {
    driver.write("object", 0, 20, 1);
    driver.write("object", 30, 2, 2);
    for index in 0..1200 {
        driver.set_omap("object", &format!("key{index}"), vec![index as u8; 100]);
    }
    driver.run();
}

#[test]
fn replicas_that_came_about_differently_have_one_digest() {
    let mut first = Driver::new(1);
    fill(&mut first);
    let mut second = Driver::new(2);
    // Elsewhere on the device, some in one piece, cold, and a hole filled with zeros.
    second.write("other", 0, 7, 9);
    fill(&mut second);
    second.write("object", 25, 1, 3);
    second.submit("object", vec![Mutation::Zero { offset: 25 * 4096, length: 4096 }], Vec::new());
    second.store.set_memory_budget(512 << 10, 0);
    second.checkpoint();
    second.checkpoint();
    let light = scrub(&mut first, "object", false).unwrap();
    let deep = scrub(&mut second, "object", true).unwrap();
    assert_eq!((light.digest, light.size_bytes), (deep.digest, deep.size_bytes));
    assert_eq!(
        (light.version.sequence + 3, deep.version.sequence),
        (deep.version.sequence, deep.version.sequence)
    );
    assert_eq!(scrub(&mut first, "object", true).unwrap(), light);
    let unlike = |driver: &mut Driver| {
        let found = scrub(driver, "object", false).unwrap();
        assert_ne!(found.digest, light.digest);
    };
    first.set_omap("object", "key77", vec![0; 99]);
    unlike(&mut first);
    second.write("object", 31, 1, 4);
    unlike(&mut second);
    assert_eq!(scrub(&mut first, "nothing", true), Err(ScrubError::NoSuchObject));
}

/// Ranges come from clients and peers: none may cause a panic.
#[test]
fn ranges_far_outside_are_looked_at_safely() {
    let mut driver = Driver::new(1);
    fill(&mut driver);
    let name = key("object").name;
    for offset in [u64::MAX, u64::MAX - 4095, 1 << 50, 8 << 20] {
        let zero = Mutation::Zero { offset, length: offset };
        assert!(driver.store.is_write_loaded(PG, &name, &[], &[zero]));
        let write = Mutation::Write { offset, length: u32::MAX, seals: None };
        assert!(driver.store.is_write_loaded(PG, &name, &[], &[write]));
        driver.store.is_read_loaded(PG, &name, &atoll_types::ReadRequest::checked_data(offset, 4096));
        driver.store.read(key("object"), offset / 4096 * 4096, 4096);
        assert!(matches!(driver.store.next_event(), Some(StoreEvent::Read { .. })));
    }
}

#[test]
fn rot_is_found_by_deep_scrubs_alone() {
    let mut driver = Driver::new(1);
    fill(&mut driver);
    driver.checkpoint();
    driver.disk.execute(Device::Data, DiskOperation::Sync).unwrap();
    let healthy = scrub(&mut driver, "object", true).unwrap();
    assert_eq!(healthy.bad_blocks, [0; 0]);
    let block = find_block(&mut driver, "object", 30);
    flip(&mut driver, block);
    assert_eq!(scrub(&mut driver, "object", false).unwrap(), healthy);
    let found = scrub(&mut driver, "object", true).unwrap();
    assert_eq!((found.bad_blocks, found.digest), (vec![30], healthy.digest));
    assert_eq!(driver.store.usage().corrupt_block_count, 1);
    // A repair makes it whole.
    driver.write("object", 30, 1, 2);
    assert_eq!(scrub(&mut driver, "object", true).unwrap().bad_blocks, [0; 0]);
}

#[test]
fn changes_meanwhile_give_no_false_alarm() {
    for seed in 1..60 {
        let mut driver = Driver::new(seed);
        for _ in 0..150 {
            driver.random_change();
            if driver.random.chance(10) {
                driver.run();
            }
        }
        driver.run();
        driver.store.set_memory_budget(512 << 10, 0);
        let mut waiting = 0;
        for _ in 0..300 {
            if driver.random.chance(20) {
                let object = format!("object{}", driver.random.below(30));
                driver.store.scrub(key(&object), true);
                waiting += 1;
            }
            if driver.random.chance(30) && driver.store.has_log_room() {
                let object = format!("object{}", driver.random.below(30));
                let (first, fill) = (driver.random.below(40), driver.random.next() as u8);
                let is_loaded = driver.store.object(&key(&object)).is_ok();
                if is_loaded {
                    try_write(&mut driver, &object, first, fill);
                }
            }
            if driver.random.chance(5) {
                driver.store.start_checkpoint();
            }
            driver.store.flush();
            driver.step();
            while let Some(event) = driver.store.next_event() {
                waiting -= u32::from(is_good(&event));
            }
        }
        waiting -= driver.run().iter().filter(|event| is_good(event)).count() as u32;
        assert_eq!(waiting, 0, "seed {seed}: every scrub ends");
    }
}

/// A write that is left out when it would have to wait.
fn try_write(driver: &mut Driver, object: &str, first: u64, fill: u8) {
    let length = (1 + driver.random.below(2) * 20) as u32 * BLOCK_BYTES as u32;
    let write = Mutation::Write { offset: first * BLOCK_BYTES as u64, length, seals: None };
    let _ = driver.try_submit(object, vec![write], vec![fill; length as usize]);
}

fn is_good(event: &StoreEvent) -> bool {
    match event {
        StoreEvent::Scrubbed { result: Ok(found), .. } => {
            assert_eq!(found.bad_blocks, [0; 0]);
            true
        }
        StoreEvent::Scrubbed { result: Err(ScrubError::NoSuchObject | ScrubError::Busy), .. } => true,
        StoreEvent::Scrubbed { .. } | StoreEvent::Poisoned { .. } => panic!("{event:?}"),
        _ => false,
    }
}

/// Where a block of the object is.
fn find_block(driver: &mut Driver, object: &str, index: usize) -> u64 {
    let options = DumpOptions { pg: Some(PG), object: Some(key(object).name) };
    let mut found = None;
    dump(&mut driver.disk, &options, &mut |record| {
        if let DumpRecord::Object(object) = record {
            let extent = object.extents.iter().rfind(|extent| extent.index <= index).unwrap();
            found = Some(u64::from(extent.device_block) + (index - extent.index) as u64);
        }
        ControlFlow::Continue(())
    })
    .unwrap();
    found.unwrap()
}

fn read(driver: &mut Driver, block: u64) -> Vec<u8> {
    let read = atoll_store::DiskOperation::Read { offset: block * BLOCK_BYTES as u64, block_count: 1 };
    driver.disk.execute(atoll_store::Device::Data, read).unwrap().unwrap().as_slice().to_vec()
}

fn flip(driver: &mut Driver, block: u64) {
    let mut buffer = atoll_buffers::BlockBuffer::from_bytes(&read(driver, block));
    buffer.as_mut_slice()[99] ^= 1;
    let segment = atoll_store::Segment { buffer: buffer.into(), first_block: 0, block_count: 1 };
    let offset = block * BLOCK_BYTES as u64;
    let write = atoll_store::DiskOperation::Write { offset, segments: vec![segment], durable: true };
    driver.disk.execute(atoll_store::Device::Data, write).unwrap();
}
