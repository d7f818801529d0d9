//! How long a store with many small objects takes to open: after a clean stop, and after a crash with
//! a full log. `cargo run --release -p atoll-bench --example store_startup -- FILE [OBJECTS]`

use std::path::Path;
use std::time::Instant;

use atoll_buffers::BLOCK_BYTES;
use atoll_osd::BlockingDevice;
use atoll_store::{Disk, FormatOptions, LoadRequest, Store, StoreError};
use atoll_types::{Epoch, LogEntry, Mutation, ObjectName, PgId, PoolId, Touched, Transaction, Version};
use bytes::Bytes;

const PG_COUNT: u32 = 64;
const WAL_BYTES: u64 = 256 << 20;
/// Transactions per record of the log.
const BATCH: u64 = 128;

struct Filler {
    store: Store,
    device: BlockingDevice,
    sequences: Vec<u64>,
    data: Bytes,
}

impl Filler {
    fn run(&mut self) {
        while let Some(request) = self.store.next_request() {
            let result = self.device.execute(request.device, request.operation);
            self.store.complete(request.id, result);
        }
        while self.store.next_event().is_some() {}
    }

    fn write(&mut self, number: u64) {
        let index = (number % u64::from(PG_COUNT)) as usize;
        let pg = PgId { pool: PoolId(1), index: index as u32 };
        // Names come in no order, as those of S3 data do.
        let name = format!("{:016x}", number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let object = ObjectName::new(&name).expect("the name is short");
        let mutations = vec![Mutation::Write { offset: 0, length: BLOCK_BYTES as u32, seals: None }];
        let version = Version { epoch: Epoch(1), sequence: self.sequences[index] + 1 };
        let touched = Touched::by(&mutations);
        let log = vec![LogEntry {
            version,
            request: None,
            object: object.clone(),
            touched,
            committed_sequence: 0,
            pre_image: None,
        }];
        let payload = self.data.clone();
        let transaction = Transaction { pg, object, mutations, payload, payload_sealed: true, log };
        loop {
            match self.store.submit(&transaction) {
                Ok(_) => break,
                Err(StoreError::Cold(cold)) => drop(self.store.load(LoadRequest::Pages(cold))),
                Err(error) => panic!("{error}"),
            }
            self.run();
        }
        self.sequences[index] += 1;
    }

    fn fill(&mut self, numbers: std::ops::Range<u64>) {
        for number in numbers {
            while !self.store.has_log_room() {
                self.store.flush();
                self.run();
            }
            self.write(number);
            if number % BATCH == 0 {
                self.store.flush();
                self.run();
            }
        }
        self.store.flush();
        self.run();
    }
}

fn open(path: &Path, incarnation: u64) -> (BlockingDevice, Store) {
    let started = Instant::now();
    let mut device = BlockingDevice::open(path, None).expect("the file can be used");
    let store = Store::open(&mut device, incarnation).expect("the store opens");
    let usage = store.usage();
    println!(
        "opened in {:.3} s: {} objects, {} metadata pages ({} MiB), {} MiB of them in memory",
        started.elapsed().as_secs_f64(),
        usage.object_count,
        usage.metadata_page_count,
        (u64::from(usage.metadata_page_count) * BLOCK_BYTES as u64) >> 20,
        usage.metadata_memory_bytes >> 20,
    );
    (device, store)
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().expect("usage: store_startup FILE [OBJECTS]; the file is overwritten");
    let count = arguments.next().map_or(1_000_000, |text| text.parse().expect("a number of objects"));
    let path = Path::new(&path);
    let size_bytes = count * 5 * BLOCK_BYTES as u64 / 4 + (2 << 30);
    std::fs::File::create(path).and_then(|file| file.set_len(size_bytes)).expect("the file can be made");
    let mut device = BlockingDevice::open(path, None).expect("the file can be used");
    let options = FormatOptions { store_id: [7; 16], wal_bytes: WAL_BYTES, wal_is_apart: false };
    Store::format(&mut device, options).expect("the file is large enough");
    drop(device);

    let (device, store) = open(path, 1);
    let data = Bytes::from(vec![7; BLOCK_BYTES]);
    let mut filler = Filler { store, device, sequences: vec![0; PG_COUNT as usize], data };
    filler.fill(0..count);
    println!("filled with {count} objects; a clean stop:");
    let Filler { store, mut device, sequences, data } = filler;
    store.close(&mut device).expect("the store closes");
    drop(device);

    let (device, store) = open(path, 2);
    let mut filler = Filler { store, device, sequences, data };
    // Less than half of the log, so that no checkpoint trims it.
    filler.fill(count..count + WAL_BYTES / BLOCK_BYTES as u64 / 3);
    println!("a crash with a third of the log of {} MiB in use:", WAL_BYTES >> 20);
    drop(filler);
    drop(open(path, 3));
}
