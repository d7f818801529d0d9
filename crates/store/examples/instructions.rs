//! 4 KiB random writes and reads of a store on a device in memory, the same ones in every run, so
//! that callgrind can count their instructions: a figure that no noise of the machine touches.
//!
//! `crates/lab/tools/instructions.py` builds this, runs it under valgrind and prints instructions per operation by
//! function. The counted code is [`measured_writes`] and [`measured_reads`], the OSD's calls of its store for each
//! operation of a client that goes to a primary.

use std::collections::HashMap;

use atoll_buffers::{BLOCK_BYTES, BlockBuffer};
use atoll_store::{Device, Disk, DiskOperation, DiskResult, FormatOptions, ObjectKey, Store, StoreEvent};
use atoll_types::operation::Touched;
use atoll_types::{
    Epoch, LogEntry, Mutation, ObjectName, PgId, PoolId, ReadRequest, RequestId, Seals, Transaction, Version,
};
use bytes::Bytes;

const DEVICE_BYTES: u64 = 4 << 30;
const GROUP_COUNT: u32 = 22;
const WAL_BYTES: u64 = 256 << 20;
const OBJECT_COUNT: u64 = 64;
const OBJECT_BLOCKS: u64 = 1024;
/// Operations that arrive in one turn of the event loop.
const TURN_OPERATIONS: u64 = 8;
const SEAL_BYTES: u16 = 28;

/// Blocks that were written; all else reads as zeros.
#[derive(Default)]
struct MemoryDisk(HashMap<u64, Box<[u8]>>);

impl Disk for MemoryDisk {
    fn size_bytes(&self, device: Device) -> Option<u64> {
        (device == Device::Data).then_some(DEVICE_BYTES)
    }

    fn execute(&mut self, _device: Device, operation: DiskOperation) -> DiskResult {
        if let Some((offset, pieces)) = operation.written() {
            let blocks = pieces.iter().flat_map(|piece| piece.chunks_exact(BLOCK_BYTES));
            self.0.extend((offset / BLOCK_BYTES as u64..).zip(blocks.map(Box::from)));
        }
        let DiskOperation::Read { offset, block_count } = operation else { return Ok(None) };
        let first = offset / BLOCK_BYTES as u64;
        Ok(Some(BlockBuffer::filled(block_count, |index, block| match self.0.get(&(first + index as u64)) {
            Some(bytes) => block.copy_from_slice(bytes),
            None => block.fill(0),
        })))
    }
}

/// SplitMix64: the same sequence on every run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((u128::from(mixed ^ (mixed >> 31)) * u128::from(bound)) >> 64) as u64
    }
}

fn object(number: u64) -> ObjectKey {
    let pg = PgId { pool: PoolId(1), index: number as u32 % GROUP_COUNT };
    let name = format!("data.0123456789abcdef.{number:016x}");
    ObjectKey { pg, name: ObjectName::new(&name).expect("the name is short") }
}

/// A client's write, as the primary gives it to the store.
fn write(store: &Store, key: &ObjectKey, offset: u64, payload: &Bytes) -> Transaction {
    let seal_count = payload.len() / BLOCK_BYTES;
    let bytes = Bytes::from(vec![7; seal_count * usize::from(SEAL_BYTES)]);
    let seals = Some(Seals { unit_bytes: BLOCK_BYTES as u32, seal_bytes: SEAL_BYTES, bytes });
    let mutations = vec![Mutation::Write { offset, length: payload.len() as u32, seals }];
    let sequence = store.head(key.pg).sequence + 1;
    let log = vec![LogEntry {
        version: Version { epoch: Epoch(1), sequence },
        request: Some(RequestId { session: 1, sequence }),
        object: key.name.clone(),
        touched: Touched::by(&mutations),
        committed_sequence: 0,
        pre_image: None,
    }];
    let (pg, object, payload) = (key.pg, key.name.clone(), payload.clone());
    Transaction { pg, object, mutations, payload, payload_sealed: true, log }
}

/// Carries out the store's requests to its device. Returns how many reads and writes of clients are done.
fn settle(store: &mut Store, disk: &mut MemoryDisk) -> u64 {
    let mut done_count = 0;
    loop {
        while let Some(request) = store.next_request() {
            let result = disk.execute(request.device, request.operation);
            store.complete(request.id, result);
        }
        let Some(event) = store.next_event() else { return done_count };
        match event {
            StoreEvent::Committed(_) => done_count += 1,
            StoreEvent::Read { result, .. } => {
                assert_eq!(result.expect("the device is sound").data.len(), BLOCK_BYTES);
                done_count += 1;
            }
            event => panic!("{event:?}"),
        }
    }
}

#[inline(never)]
fn measured_writes(store: &mut Store, turn: &[(ObjectKey, u64)], payload: &Bytes) {
    for (key, offset) in turn {
        let transaction = write(store, key, *offset, payload);
        let found = store.examine_write(key.pg, &key.name, &[], &transaction.mutations, payload.len());
        found.expect("its metadata is in memory").check.expect("it can be done");
        store.submit(&transaction).expect("there is room");
    }
    store.flush();
}

#[inline(never)]
fn measured_reads(store: &mut Store, turn: &[(ObjectKey, u64)]) {
    for (key, offset) in turn {
        let request = ReadRequest::checked_data(*offset, BLOCK_BYTES as u32);
        assert!(store.is_read_loaded(key.pg, &key.name, &request));
        store.read(key.clone(), *offset, BLOCK_BYTES as u32);
    }
}

fn main() {
    let operation_count: u64 = std::env::args().nth(1).map_or(4_000, |count| count.parse().expect("a number"));
    let mut disk = MemoryDisk::default();
    let options = FormatOptions { store_id: [1; 16], wal_bytes: WAL_BYTES, wal_is_apart: false };
    Store::format(&mut disk, options).expect("a device in memory does not fail");
    let mut store = Store::open(&mut disk, 1).expect("it was formatted");
    let piece = Bytes::from(vec![3; 16 * BLOCK_BYTES]);
    for number in 0..OBJECT_COUNT {
        for first in (0..OBJECT_BLOCKS).step_by(16) {
            let transaction = write(&store, &object(number), first * BLOCK_BYTES as u64, &piece);
            store.submit(&transaction).expect("there is room");
            store.flush();
            settle(&mut store, &mut disk);
        }
    }
    let (mut random, payload) = (Random(1), Bytes::from(vec![5; BLOCK_BYTES]));
    let mut turn = |count| -> Vec<_> {
        let one = |_| (object(random.below(OBJECT_COUNT)), random.below(OBJECT_BLOCKS) * BLOCK_BYTES as u64);
        (0..count).map(one).collect()
    };
    let (mut writes, mut reads) = (0, 0);
    while reads < operation_count {
        measured_writes(&mut store, &turn(TURN_OPERATIONS), &payload);
        writes += settle(&mut store, &mut disk);
        measured_reads(&mut store, &turn(TURN_OPERATIONS));
        reads += settle(&mut store, &mut disk);
    }
    println!("{writes} writes, {reads} reads");
}
