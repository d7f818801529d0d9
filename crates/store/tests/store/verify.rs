//! Looking at a whole store and comparing it with the model.

use std::collections::BTreeMap;

use atoll_buffers::BLOCK_BYTES;
use atoll_store::{Disk, LoadRequest, ObjectKey, ReadError, Store, StoreError, StoreEvent};
use atoll_types::operation::PRE_IMAGE_PREFIX;
use atoll_types::{ListedObject, ObjectName, PgId, Transaction};
use bytes::Bytes;

use crate::model::{ModelObject, ModelPg, SEAL_BYTES, pg_id};
use atoll_store::simulated_disk::SimulatedDisk;

/// Share of a PG's newest transactions whose objects are always read: one of this many.
const RECENT_CHANGES: u64 = 30;

/// The store says that something is damaged.
#[derive(Debug)]
pub struct Damage(pub String);

/// Does everything that the store asks for.
pub fn run(store: &mut Store, disk: &mut SimulatedDisk) {
    while let Some(request) = store.next_request() {
        let result = disk.execute(request.device, request.operation);
        store.complete(request.id, result);
    }
}

/// Repeats a look-up until everything that it needs is loaded.
pub fn look<T>(
    store: &mut Store,
    disk: &mut SimulatedDisk,
    look: impl Fn(&Store) -> Result<T, StoreError>,
) -> Result<T, Damage> {
    loop {
        match look(store) {
            Ok(value) => return Ok(value),
            Err(StoreError::Cold(cold)) => {
                let load = store.load(LoadRequest::Pages(cold));
                run(store, disk);
                match store.next_event() {
                    Some(StoreEvent::Loaded(id)) => assert_eq!(id, load),
                    Some(StoreEvent::Poisoned { cause }) => {
                        // Pages may have come, too. The next look-up would take that for its own.
                        while store.next_event().is_some() {}
                        return Err(Damage(cause));
                    }
                    None if store.poisoned_by().is_some() => return Err(Damage("poisoned before".into())),
                    event => panic!("{event:?}"),
                }
            }
            Err(StoreError::Damaged { detail }) => return Err(Damage(detail)),
            Err(error) => panic!("{error}"),
        }
    }
}

/// Submits a transaction, after loading its metadata and making room in the log.
pub fn look_and_submit(store: &mut Store, disk: &mut SimulatedDisk, transaction: &Transaction) {
    loop {
        if !store.has_log_room() {
            store.flush();
            run(store, disk);
            continue;
        }
        match store.submit(transaction) {
            Ok(_) => return,
            Err(StoreError::Cold(cold)) => {
                store.load(LoadRequest::Pages(cold));
                run(store, disk);
            }
            Err(error) => panic!("{error}"),
        }
    }
}

fn read(store: &mut Store, disk: &mut SimulatedDisk, key: &ObjectKey) -> Result<Option<Bytes>, Damage> {
    let read_id = store.read(key.clone(), 0, 4 << 20);
    run(store, disk);
    loop {
        match store.next_event() {
            Some(StoreEvent::Read { id, result }) if id == read_id => {
                return match result {
                    Ok(found) => Ok(Some(found.data)),
                    Err(ReadError::NoSuchObject) => Ok(None),
                    Err(error) => Err(Damage(error.to_string())),
                };
            }
            // Of a read that was given up when the store was poisoned.
            Some(StoreEvent::Read { id, .. }) if id < read_id && store.poisoned_by().is_some() => {}
            Some(StoreEvent::Poisoned { cause }) => return Err(Damage(cause)),
            None if store.poisoned_by().is_some() => return Err(Damage("poisoned before".into())),
            event => panic!("{event:?}"),
        }
    }
}

fn names(store: &mut Store, disk: &mut SimulatedDisk, pg: PgId) -> Result<Vec<ObjectName>, Damage> {
    let mut names: Vec<ObjectName> = Vec::new();
    loop {
        let page = look(store, disk, |store| store.names_after(pg, names.last(), 100))?;
        if page.is_empty() {
            return Ok(names);
        }
        names.extend(page);
    }
}

/// All objects whose names begin so, with the numbers of their blocks.
pub fn listed(
    store: &mut Store,
    disk: &mut SimulatedDisk,
    pg: PgId,
    prefix: &str,
) -> Result<Vec<ListedObject>, Damage> {
    let (mut objects, mut after) = (Vec::new(), None);
    loop {
        let page = look(store, disk, |store| store.objects_page(pg, prefix.as_bytes(), after.as_ref(), true))?;
        objects.extend(page.objects);
        after = page.next;
        if after.is_none() {
            return Ok(objects);
        }
    }
}

fn omap(store: &mut Store, disk: &mut SimulatedDisk, key: &ObjectKey) -> Result<BTreeMap<Bytes, Bytes>, Damage> {
    let (mut entries, mut from) = (BTreeMap::new(), Bytes::new());
    loop {
        let (page, more) = look(store, disk, |store| store.omap_page(key, b"", &from, 100))?;
        if let Some((last, _)) = page.last() {
            from = [&last[..], &[0]].concat().into();
        }
        entries.extend(page);
        if !more {
            return Ok(entries);
        }
    }
}

fn verify_object(
    store: &mut Store,
    disk: &mut SimulatedDisk,
    key: &ObjectKey,
    expected: &ModelObject,
) -> Result<(), Damage> {
    let info = look(store, disk, |store| store.object(key))?.expect("the object is in the listing");
    let found = (info.size_bytes, info.whole_bytes, info.version.sequence);
    assert_eq!(found, (expected.size_bytes, expected.whole_bytes, expected.version), "{key:?}");
    let seal_shape = expected.is_sealed.then_some((BLOCK_BYTES as u32, SEAL_BYTES as u16));
    assert_eq!(info.seal_shape(), seal_shape, "{key:?}");
    let data = read(store, disk, key)?.expect("the object is in the listing");
    assert!(expected.data_is(&data), "{key:?} has other data than it must");
    let entries = omap(store, disk, key)?;
    let differs = |(omap_key, value): &(&Bytes, &Bytes)| expected.omap.get(*omap_key) != Some(*value);
    let wrong: Vec<_> = entries.iter().filter(differs).map(|(omap_key, value)| (omap_key, value.len())).collect();
    let missing: Vec<_> = expected.omap.keys().filter(|omap_key| !entries.contains_key(*omap_key)).collect();
    assert!(wrong.is_empty() && missing.is_empty(), "{key:?}: omap has {wrong:?} and lacks {missing:?}");
    let seals = look(store, disk, |store| store.seals(key, 0, expected.size_bytes))?;
    let seals = seals.map(|seals| seals.bytes.to_vec());
    let expected_seals = expected.is_sealed.then(|| {
        let seals: Vec<u8> = expected.seals.iter().flat_map(|seal| seal.to_le_bytes()).collect();
        assert_eq!(seals.len(), expected.size_bytes.div_ceil(4096) as usize * SEAL_BYTES);
        seals
    });
    assert_eq!(seals, expected_seals, "{key:?} has other seals than it must");
    let mapped = look(store, disk, |store| store.mapped_blocks(key, 0, expected.size_bytes as u32))?;
    assert_eq!(mapped, expected.mapped_blocks(), "{key:?} has other extents than it must");
    let listed = listed(store, disk, key.pg, key.name.as_str())?;
    let block_count = mapped.iter().filter(|is_mapped| **is_mapped).count() as u32;
    assert_eq!(listed.first().map(|object| (&object.name, object.block_count)), Some((&key.name, block_count)));
    assert!(listed.iter().all(|object| object.shared_block_count <= object.block_count));
    Ok(())
}

/// Compares a PG's log with the expected one. Of an entry whose pre-image was forgotten, storage may still have
/// it.
pub fn verify_log(store: &Store, pg: usize, expected: &ModelPg) {
    let log = || store.log(pg_id(pg));
    let numbered = expected.log.iter().map(|entry| (entry.sequence, &entry.object));
    let is_same = log().map(|entry| (entry.version.sequence, &entry.object)).eq(numbered);
    assert!(is_same, "PG {pg} has another log than it must");
    for (found, entry) in log().zip(&expected.log) {
        let is_forgotten = entry.sequence <= expected.pre_images_forgotten && found.pre_image.is_none();
        assert!(
            is_forgotten || found.pre_image == entry.pre_image,
            "PG {pg} has another pre-image of {}",
            entry.sequence
        );
    }
}

/// Compares a PG with its expected content. Wrong data is a panic, damage that is noticed is not. With damage,
/// everything else is looked at nevertheless. Of objects that did not change lately only one in `share` is read,
/// another one each time.
pub fn verify_pg(
    store: &mut Store,
    disk: &mut SimulatedDisk,
    pg: usize,
    expected: &ModelPg,
    share: u64,
) -> Result<(), Damage> {
    let id = pg_id(pg);
    assert_eq!(store.head(id).sequence, expected.head);
    verify_log(store, pg, expected);
    let found = names(store, disk, id)?;
    assert!(found.iter().eq(expected.objects.keys()), "PG {pg} has other objects than it must");
    let mut outcome = Ok(());
    let recent = expected.head.saturating_sub(RECENT_CHANGES);
    for (index, (name, object)) in expected.objects.iter().enumerate() {
        // A copy has the version of its original, which may be old.
        let is_recent = object.version > recent || name.as_str().starts_with(PRE_IMAGE_PREFIX);
        let is_due = is_recent || (index as u64 + expected.head).is_multiple_of(share);
        if !is_due {
            continue;
        }
        if let Err(damage) = verify_object(store, disk, &ObjectKey { pg: id, name: name.clone() }, object) {
            outcome = Err(damage);
        }
    }
    outcome
}
