//! Objects that are read of a store, whole or damaged, are as they were written. They fit into a file, and into another
//! store.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use atoll_store::simulated_disk::SimulatedDisk;
use atoll_store::{
    ArchiveError, ArchiveReader, ArchiveRecord, ArchiveWriter, DEVICE_BYTES_MIN, Device, FormatOptions,
    SalvageOptions, Salvaged, Store, salvage,
};
use atoll_types::{Mutation, ObjectName, PgId, Transaction};
use bytes::Bytes;

use crate::driver::{Driver, PG, key};

/// An object: the mutations that make it and their data, and its omap.
#[derive(Clone, Debug, Default, PartialEq)]
struct Found {
    data: Option<(Vec<Mutation>, Bytes)>,
    omap: BTreeMap<Bytes, Bytes>,
}

type Objects = BTreeMap<(PgId, ObjectName), Found>;

fn salvaged(disk: &mut SimulatedDisk, options: &SalvageOptions) -> (Vec<Transaction>, Vec<String>) {
    let (mut changes, mut losses) = (Vec::new(), Vec::new());
    let read = salvage(disk, options, &mut |found| {
        match found {
            Salvaged::Change(change) => changes.push(change),
            Salvaged::Lost(what) => losses.push(what),
        }
        ControlFlow::Continue(())
    });
    losses.extend(read.err().map(|error| error.to_string()));
    (changes, losses)
}

fn objects(changes: &[Transaction]) -> Objects {
    let mut all = Objects::new();
    for change in changes {
        let object = all.entry((change.pg, change.object.clone())).or_default();
        let is_omap = |mutation: &Mutation| matches!(mutation, Mutation::OmapSet { .. });
        if change.mutations.iter().all(is_omap) {
            for mutation in &change.mutations {
                let Mutation::OmapSet { key, value } = mutation else { unreachable!("looked at above") };
                assert_eq!(object.omap.insert(key.clone(), value.clone()), None, "each entry comes once");
            }
        } else {
            assert!(object.omap.is_empty(), "the data comes before the omap");
            let data = (change.mutations.clone(), change.payload.clone());
            assert_eq!(object.data.replace(data), None, "and once");
        }
    }
    all
}

#[test]
fn what_is_read_of_a_store_makes_the_same_one_elsewhere() {
    for seed in 1..=12 {
        let mut driver = Driver::new(seed);
        for _ in 0..300 {
            driver.random_change();
            if driver.random.chance(5) {
                driver.run();
            }
            if driver.random.chance(2) {
                driver.checkpoint();
            }
        }
        // Some of it is in the log only.
        driver.run();
        let (changes, losses) = salvaged(&mut driver.disk, &SalvageOptions::default());
        assert_eq!(losses, Vec::<String>::new());
        assert!(changes.len() > 10);
        let mut disk = SimulatedDisk::new(DEVICE_BYTES_MIN, None);
        let options = FormatOptions { store_id: [2; 16], wal_bytes: 0, wal_is_apart: false };
        Store::format(&mut disk, options).unwrap();
        let mut store = Store::open(&mut disk, 1).unwrap();
        changes.iter().for_each(|change| store.apply_blocking(&mut disk, change).unwrap());
        store.close(&mut disk).unwrap();
        let (again, losses) = salvaged(&mut disk, &SalvageOptions::default());
        assert_eq!(losses, Vec::<String>::new());
        assert_eq!(objects(&changes), objects(&again), "seed {seed}");
    }
}

/// A store with two objects of data, one of them with a hole, and many with entries.
fn known() -> Driver {
    let mut driver = Driver::new(1);
    driver.write("one", 0, 3, 7);
    driver.write("one", 30, 20, 8);
    driver.write("two", 0, 2, 9);
    for number in 0..400 {
        driver.set_omap(&format!("index{number}"), "key", vec![number as u8; 900]);
    }
    driver.set_omap("index0", "long", vec![5; 9_000]);
    driver.checkpoint();
    driver
}

fn data_of(all: &Objects, name: &str) -> Option<Vec<u8>> {
    let (mutations, payload) = all.get(&(PG, key(name).name))?.data.clone()?;
    let mut data = Vec::new();
    let mut rest = &payload[..];
    for mutation in mutations {
        if let Mutation::Write { offset, length, .. } = mutation {
            let (bytes, after) = rest.split_at(length as usize);
            data.resize(data.len().max(offset as usize + bytes.len()), 0);
            data[offset as usize..][..bytes.len()].copy_from_slice(bytes);
            rest = after;
        }
    }
    Some(data)
}

#[test]
fn what_was_written_is_read() {
    let mut driver = known();
    driver.write("two", 1, 1, 10);
    driver.run();
    let (changes, losses) = salvaged(&mut driver.disk, &SalvageOptions::default());
    assert_eq!(losses, Vec::<String>::new());
    let all = objects(&changes);
    let one = [vec![7; 3 * 4096], vec![0; 27 * 4096], vec![8; 20 * 4096]].concat();
    assert_eq!(data_of(&all, "one"), Some(one));
    assert_eq!(data_of(&all, "two"), Some([vec![9; 4096], vec![10; 4096]].concat()));
    let (mutations, payload) = all[&(PG, key("one").name)].data.clone().unwrap();
    assert!(mutations.len() == 3 && payload.len() == 23 * 4096, "the hole stays one");
    let index = &all[&(PG, key("index0").name)].omap;
    assert_eq!(index[&b"long"[..]], vec![5; 9_000]);
    assert_eq!(all[&(PG, key("index399").name)].omap.len(), 1);
    let other = SalvageOptions { pgs: vec![PgId { index: 9, ..PG }], ..SalvageOptions::default() };
    assert!(salvaged(&mut driver.disk, &other).0.is_empty());
}

/// One block after the other is damaged: each byte that is given out was there, and losses are reported.
#[test]
fn what_is_read_of_a_damaged_store_was_there() {
    let mut driver = known();
    let healthy = objects(&salvaged(&mut driver.disk, &SalvageOptions::default()).0);
    let mut lost_some = 0;
    // The first two blocks are the superblock, of which there is an older copy.
    for block in driver.disk.blocks(Device::Data).into_iter().filter(|block| *block > 1) {
        for keeps_gaps in [false, true] {
            let mut disk = driver.disk.clone();
            disk.rot(Device::Data, block, &mut driver.random);
            let (changes, losses) = salvaged(&mut disk, &SalvageOptions { pgs: Vec::new(), keeps_gaps });
            let found = objects(&changes);
            assert!(!losses.is_empty() || found == healthy, "block {block}: in silence");
            lost_some += u32::from(!found.is_empty() && found != healthy);
            for (name, object) in &found {
                let whole = &healthy[name];
                let is_data = object.data.is_none() || object.data == whole.data;
                assert!(is_data || keeps_gaps, "block {block}: data of {name:?}");
                let is_there = |(key, value): (&Bytes, &Bytes)| whole.omap.get(key) == Some(value);
                assert!(object.omap.iter().all(is_there), "block {block}: entries of {name:?}");
            }
        }
    }
    assert!(lost_some > 20, "{lost_some}");
}

#[test]
fn objects_with_gaps_are_kept_if_that_is_wanted() {
    let mut driver = known();
    let block = driver
        .disk
        .blocks(Device::Data)
        .into_iter()
        .find(|block| *block > 1 && driver.disk.block(Device::Data, *block) == [8; 4096]);
    driver.disk.set_block(Device::Data, block.unwrap(), &[1; 4096]);
    let read = |driver: &mut Driver, keeps_gaps| {
        let (changes, losses) = salvaged(&mut driver.disk, &SalvageOptions { pgs: vec![PG], keeps_gaps });
        assert!(losses.len() == 1 && losses[0].contains("one: 1 of its blocks"), "{losses:?}");
        (data_of(&objects(&changes), "one"), data_of(&objects(&changes), "two"))
    };
    let (one, two) = read(&mut driver, false);
    assert!(one.is_none() && two.is_some());
    let (one, _) = read(&mut driver, true);
    let one = one.unwrap();
    let count = |fill: u8| one.iter().filter(|byte| **byte == fill).count();
    assert_eq!((count(7), count(8), count(1)), (3 * 4096, 19 * 4096, 0), "one block is absent");
}

#[test]
fn a_file_has_all_or_says_that_it_has_not() {
    let mut driver = known();
    let (changes, _) = salvaged(&mut driver.disk, &SalvageOptions::default());
    let mut writer = ArchiveWriter::new(Vec::new()).unwrap();
    for change in &changes {
        writer.add(&Salvaged::Change(change.clone())).unwrap();
    }
    writer.add(&Salvaged::Lost("a page".into())).unwrap();
    let file = writer.finish().unwrap();
    let read = |bytes: &[u8]| {
        let mut reader = ArchiveReader::new(bytes)?;
        let (mut found, mut losses) = (Vec::new(), Vec::new());
        loop {
            match reader.read()? {
                ArchiveRecord::Found(Salvaged::Change(change)) => found.push(change),
                ArchiveRecord::Found(Salvaged::Lost(what)) => losses.push(what),
                ArchiveRecord::End => return Ok((found, losses)),
            }
        }
    };
    let (found, losses) = read(&file).unwrap();
    assert_eq!((objects(&found), losses), (objects(&changes), vec!["a page".to_owned()]));
    assert!(matches!(read(b"ATOLLxxx, and more"), Err(ArchiveError::Foreign)));
    for cut in [8, 12, file.len() / 2, file.len() - 1] {
        assert!(matches!(read(&file[..cut]), Err(ArchiveError::CutShort)), "{cut}");
    }
    for _ in 0..100 {
        let mut damaged = file.clone();
        let at = 8 + driver.random.below(file.len() as u64 - 8) as usize;
        damaged[at] ^= 1 << driver.random.below(8);
        let error = read(&damaged).unwrap_err();
        assert!(matches!(error, ArchiveError::Damaged { .. } | ArchiveError::CutShort), "{error}");
    }
}
