//! A store whose metadata slot fills up: clear refusals, nothing lost, and room again after deletes.

use crate::simulated_disk::SimulatedDisk;
use atoll_base::{Epoch, LogEntry, Mutation, ObjectName, PgId, PoolId, Touched, Transaction, Version};
use atoll_store::{
    DEVICE_BYTES_MIN, Disk, FormatOptions, MemoryMetadata, ObjectKey, Store, StoreError, StoreEvent,
};
use bytes::Bytes;

const PG: PgId = PgId { pool: PoolId(1), index: 0 };
const VALUE_BYTES: usize = 900;

/// Completes everything that is under way and returns how many transactions became durable.
fn run(store: &mut Store, disk: &mut SimulatedDisk) -> usize {
    store.flush();
    let mut committed = 0;
    while let Some(request) = store.next_request() {
        let result = disk.execute(request.device, request.operation);
        store.complete(request.id, result);
        store.flush();
    }
    while let Some(event) = store.next_event() {
        match event {
            StoreEvent::Committed(_) => committed += 1,
            other => panic!("{other:?}"),
        }
    }
    committed
}

/// What a client's write goes through: the check, then the transaction.
fn write(store: &mut Store, object: u64, mutation: Mutation) -> Result<(), StoreError> {
    let name = ObjectName::new(&format!("object{object}")).unwrap();
    let key = ObjectKey { pg: PG, name: name.clone() };
    let mutations = vec![mutation];
    store.check(&key, &mutations, 0)?;
    let version = Version { epoch: Epoch(1), sequence: store.head(PG).sequence + 1 };
    let touched = Touched::by(&mutations);
    let log = vec![LogEntry { version, request: None, object: name.clone(), touched }];
    let transaction =
        Transaction { pg: PG, object: name, mutations, payload: Bytes::new(), payload_sealed: false, log };
    store.submit(&transaction).map(|_| ())
}

#[test]
fn a_full_metadata_slot_refuses_and_recovers() {
    let mut disk = SimulatedDisk::new(DEVICE_BYTES_MIN);
    Store::<MemoryMetadata>::format(&mut disk, FormatOptions { store_id: [1; 16], wal_bytes: 0 }).unwrap();
    let mut store = Store::open(&mut disk, 1).unwrap();
    let value = Bytes::from(vec![7; VALUE_BYTES]);
    let entry = |number: u64| Mutation::OmapSet { key: format!("key{number:08}").into(), value: value.clone() };
    let mut count = 0;
    loop {
        match write(&mut store, count % 50, entry(count)) {
            Ok(()) => count += 1,
            Err(StoreError::NoSpace) => break,
            Err(other) => panic!("{other}"),
        }
        if count % 20 == 0 || !store.has_log_room() {
            run(&mut store, &mut disk);
        }
        assert!(count < 100_000, "a slot of 16 MiB must fill up");
    }
    run(&mut store, &mut disk);
    assert!(count > 10_000, "the slot was called full after {count} entries of {VALUE_BYTES} bytes");

    // Deletes are always possible, and everything survives opening anew.
    write(&mut store, 0, Mutation::Remove).unwrap();
    run(&mut store, &mut disk);
    drop(store);
    let mut store = Store::open(&mut disk, 2).expect("a full store opens");
    let held: usize = (0..50)
        .filter_map(|object| {
            let name = ObjectName::new(&format!("object{object}")).unwrap();
            store.object(&ObjectKey { pg: PG, name }).map(|onode| onode.omap().len())
        })
        .sum();
    assert_eq!(held as u64, count - count.div_ceil(50));
    for object in 1..25 {
        write(&mut store, object, Mutation::Remove).unwrap();
        run(&mut store, &mut disk);
    }
    store.start_checkpoint();
    run(&mut store, &mut disk);
    write(&mut store, 60, entry(0)).expect("there is room again");
    assert_eq!(run(&mut store, &mut disk), 1);
}
