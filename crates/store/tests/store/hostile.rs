//! Metadata and log records that make no sense although all their checksums fit: as a bug or a stranger could
//! write them. The store may refuse them, report them or serve their content, but it never panics and never loops
//! for ever. `ATOLL_HOSTILE_RUNS` sets the number of damaged stores, `ATOLL_HOSTILE_SEED` the first seed.

use std::ops::ControlFlow;

use atoll_buffers::BLOCK_BYTES;
use atoll_codec::crc32c;
use atoll_store::{
    CheckOptions, Device, DumpOptions, LoadRequest, ObjectKey, Store, StoreError, check, dump, fuzz,
};
use atoll_types::{Epoch, LogEntry, Mutation, ObjectName, PgId, ReadRequest, Touched, Transaction, Version};
use bytes::Bytes;

use crate::driver::{Driver, PG, key};
use crate::random::{Random, on_all_cores, setting};
use crate::verify::run;
use atoll_store::simulated_disk::SimulatedDisk;

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Bytes in front of a record's text, and where its length is.
const RECORD_HEADER_BYTES: usize = 52;
const TEXT_BYTES_AT: usize = 40;

/// A store with objects of all kinds: some in the checkpoint, some in the log only.
fn filled(seed: u64) -> SimulatedDisk {
    let mut driver = Driver::new(seed);
    for _ in 0..150 + driver.random.below(300) {
        driver.random_change();
    }
    driver.checkpoint();
    for _ in 0..driver.random.below(30) {
        driver.random_change();
    }
    driver.run();
    driver.disk
}

/// Changes some bytes: where a page has its entries and their values, or anywhere.
fn change_bytes(bytes: &mut [u8], random: &mut Random) {
    for _ in 0..1 + random.below(6) {
        let position = random.below(bytes.len() as u64) as usize;
        bytes[position] = match random.below(4) {
            0 => bytes[position] ^ (1 << random.below(8)),
            1 => bytes[position].wrapping_add(1),
            2 => random.pick(&[0, 1, 0x7f, 0xff]),
            _ => random.next() as u8,
        };
    }
}

fn damage_pages(disk: &mut SimulatedDisk, random: &mut Random) {
    let mut pages = Vec::new();
    fuzz::rewrite_pages(disk, &mut |page| pages.push(page.to_vec())).expect("there is a store");
    let damaged = random.below(pages.len() as u64) as usize;
    let other = &pages[random.below(pages.len() as u64) as usize];
    let mut bytes = pages[damaged].clone();
    match random.below(4) {
        // Another page, or an old version of one, under this one's number.
        0 => bytes[4..].copy_from_slice(&other[4..]),
        1 => {
            // Entries of another page, of the same size: their keys are not this one's.
            let from = BLOCK_BYTES / 2 + random.below(BLOCK / 2) as usize;
            bytes[from..].copy_from_slice(&other[from..]);
        }
        2 => change_bytes(&mut bytes[BLOCK_BYTES - 200..], random),
        _ => change_bytes(&mut bytes[16..], random),
    }
    let mut index = 0;
    fuzz::rewrite_pages(disk, &mut |page| {
        if index == damaged {
            page.copy_from_slice(&bytes);
        }
        index += 1;
    });
}

fn damage_log(disk: &mut SimulatedDisk, random: &mut Random) {
    let blocks = disk.blocks(Device::Data);
    let is_record = |block: &u64| disk.block(Device::Data, *block).starts_with(b"AWAL");
    let records: Vec<u64> = blocks.into_iter().filter(is_record).collect();
    let Some(&record) = records.iter().rev().nth(random.below(20) as usize) else { return };
    let mut block = disk.block(Device::Data, record);
    let text_bytes = u32::from_le_bytes(*block[TEXT_BYTES_AT..].first_chunk().unwrap()) as usize;
    let Some(text) = block.get_mut(RECORD_HEADER_BYTES..RECORD_HEADER_BYTES + text_bytes) else { return };
    change_bytes(text, random);
    let check = crc32c(&block[8..RECORD_HEADER_BYTES + text_bytes]);
    block[4..8].copy_from_slice(&check.to_le_bytes());
    disk.set_block(Device::Data, record, &block);
}

/// Loads missing pages for a look, as long as that makes progress.
fn look<T>(
    store: &mut Store,
    disk: &mut SimulatedDisk,
    look: impl Fn(&Store) -> Result<T, StoreError>,
) -> Option<T> {
    for _ in 0..1_000 {
        match look(store) {
            Ok(value) => return Some(value),
            Err(StoreError::Cold(cold)) if store.poisoned_by().is_none() => {
                store.load(LoadRequest::Pages(cold));
            }
            Err(_) => return None,
        }
        run(store, disk);
    }
    panic!("the same page is loaded for ever");
}

fn submit(
    store: &mut Store,
    disk: &mut SimulatedDisk,
    object: &ObjectName,
    mutations: Vec<Mutation>,
    payload: Bytes,
) {
    let version = Version { epoch: Epoch(1), sequence: store.head(PG).sequence.saturating_add(1) };
    let (touched, pre_image) = (Touched::by(&mutations), None);
    let log = vec![LogEntry {
        version,
        request: None,
        object: object.clone(),
        touched,
        committed_sequence: 0,
        pre_image,
    }];
    let transaction =
        Transaction { pg: PG, object: object.clone(), mutations, payload, payload_sealed: true, log };
    for _ in 0..1_000 {
        if store.poisoned_by().is_some() || !store.has_log_room() {
            return;
        }
        match store.submit(&transaction) {
            Err(StoreError::Cold(cold)) => {
                store.load(LoadRequest::Pages(cold));
            }
            _ => return,
        }
        run(store, disk);
    }
    panic!("the same page is loaded for ever");
}

fn names(store: &mut Store, disk: &mut SimulatedDisk, pg: PgId) -> Vec<ObjectName> {
    let mut names: Vec<ObjectName> = (0..30).map(|number| key(&format!("object{number}")).name).collect();
    let mut last: Option<ObjectName> = None;
    for _ in 0..100 {
        let page = look(store, disk, |store| store.names_after(pg, last.as_ref(), 20)).unwrap_or_default();
        let Some(name) = page.last() else { break };
        last = Some(name.clone());
        names.extend(page);
    }
    names
}

/// Uses everything that the store has.
fn use_all(store: &mut Store, disk: &mut SimulatedDisk, random: &mut Random) {
    store.set_memory_budget(random.pick(&[40 << 10, 1 << 20, 64 << 20]), 64 << 10);
    for pg in store.pgs().collect::<Vec<_>>() {
        for name in names(store, disk, pg) {
            let object = ObjectKey { pg, name: name.clone() };
            store.read(object.clone(), random.below(60) * BLOCK, random.below(1 << 20) as u32);
            store.scrub(object.clone(), true);
            run(store, disk);
            look(store, disk, |store| store.object(&object));
            look(store, disk, |store| store.seals(&object, 0, 4 << 20));
            look(store, disk, |store| store.omap_page(&object, b"", b"", 100));
            store.matches_checks(&object, 0, &[0; 100_000]);
            store.is_read_loaded(pg, &name, &ReadRequest::checked_data(0, 1 << 20));
            let first = random.below(40);
            let (length, mutation) = match random.below(8) {
                0 => (0, Mutation::Remove),
                1 => (0, Mutation::Zero { offset: first * BLOCK, length: random.below(20) * BLOCK }),
                2 => (0, Mutation::Truncate { size_bytes: first * BLOCK }),
                3 => (0, Mutation::ClonePreImage { copy: key("kept").name }),
                4 => (0, Mutation::OmapSet { key: Bytes::from("key1"), value: vec![1; 3000].into() }),
                5 => (0, Mutation::OmapRemove { key: Bytes::from(format!("key{first}")) }),
                _ => {
                    let length = random.pick(&[1, 3, 20]) * BLOCK_BYTES as u32;
                    (length, Mutation::Write { offset: first * BLOCK, length, seals: None })
                }
            };
            submit(store, disk, &name, vec![mutation], vec![7; length as usize].into());
            store.flush();
            if random.chance(10) {
                store.start_checkpoint();
            }
            run(store, disk);
            while store.next_event().is_some() {}
        }
    }
    store.start_checkpoint();
    run(store, disk);
}

#[test]
fn metadata_that_makes_no_sense_is_an_error() {
    let (first, runs) = (setting("ATOLL_HOSTILE_SEED", 1), setting("ATOLL_HOSTILE_RUNS", 300));
    let (opened, ended) = (std::sync::atomic::AtomicU64::new(0), std::sync::atomic::AtomicU64::new(0));
    on_all_cores(first, |seed| {
        if seed >= first + runs {
            return false;
        }
        println!(
            "replay with: ATOLL_HOSTILE_SEED={seed} ATOLL_HOSTILE_RUNS=1 cargo test -p atoll-store --test store hostile"
        );
        let mut random = Random::new(seed);
        let mut disk = filled(seed % 16);
        if random.chance(30) {
            damage_log(&mut disk, &mut random);
        } else {
            (0..1 + random.below(3)).for_each(|_| damage_pages(&mut disk, &mut random));
        }
        let mut progress = |_, _, _| {};
        let _ = check(&mut disk, CheckOptions { data: true }, &mut progress);
        let _ = dump(&mut disk, &DumpOptions::default(), &mut |_| ControlFlow::Continue(()));
        if let Ok(mut store) = Store::open(&mut disk, 99) {
            opened.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            use_all(&mut store, &mut disk, &mut random);
            if store.poisoned_by().is_none() && store.close(&mut disk).is_ok() {
                ended.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                drop(Store::open(&mut disk, 100));
            }
        }
        true
    });
    let (opened, ended) = (opened.into_inner(), ended.into_inner());
    println!("{opened} of {runs} damaged stores opened, {ended} were closed in order");
    assert!(runs < 100 || (runs / 10..runs).contains(&opened), "damage is neither always refused nor never");
}
