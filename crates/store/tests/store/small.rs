//! A store with one PG, for short histories that are written out.

use atoll_store::{DEVICE_BYTES_MIN, Disk, DiskOperation, DiskRequest, FormatOptions, Store, StoreEvent};
use atoll_types::{ObjectName, Transaction};

use crate::model::{Builder, ModelPg, ZEROS, pg_id};
use crate::random::Random;
use crate::verify::{look_and_submit, run, verify_pg};
use crate::workload::Profile;
use atoll_store::simulated_disk::SimulatedDisk;

/// One PG, and its expected content.
pub struct Small {
    pub disk: SimulatedDisk,
    pub store: Store,
    pub state: ModelPg,
    incarnation: u64,
}

impl Small {
    pub fn new() -> Self {
        Small::on(Profile::random(&mut Random::new(1)).format())
    }

    /// With a log device that holds `wal_bytes`.
    pub fn with_log_apart(wal_bytes: u64) -> Self {
        let mut disk = SimulatedDisk::new(DEVICE_BYTES_MIN, Some(wal_bytes + (1 << 20)));
        let options = FormatOptions { store_id: [1; 16], wal_bytes, wal_is_apart: true };
        Store::format(&mut disk, options).unwrap();
        Small::on(disk)
    }

    fn on(mut disk: SimulatedDisk) -> Self {
        let store = Store::open(&mut disk, 1).unwrap();
        Small { disk, store, state: ModelPg::default(), incarnation: 1 }
    }

    /// A transaction that is not submitted yet.
    pub fn prepare(&mut self, name: &str, change: impl FnOnce(&mut Builder)) -> Transaction {
        let mut builder = Builder::new(0, &ObjectName::new(name).unwrap(), &self.state);
        change(&mut builder);
        let (transaction, next) = builder.finish();
        self.state = next;
        transaction
    }

    pub fn submit(&mut self, name: &str, change: impl FnOnce(&mut Builder)) {
        let transaction = self.prepare(name, change);
        look_and_submit(&mut self.store, &mut self.disk, &transaction);
    }

    /// Completes everything that was begun.
    pub fn settle(&mut self) {
        while !self.is_settled() {
            self.store.flush();
            run(&mut self.store, &mut self.disk);
        }
    }

    fn is_settled(&mut self) -> bool {
        let wanted = self.state.head;
        while let Some(event) = self.store.next_event() {
            assert!(!matches!(event, StoreEvent::Poisoned { .. }), "{event:?}");
        }
        self.store.flush();
        let mut requests = 0;
        while let Some(request) = self.store.next_request() {
            let result = self.disk.execute(request.device, request.operation);
            self.store.complete(request.id, result);
            requests += 1;
        }
        requests == 0 && self.store.head(pg_id(0)).sequence == wanted
    }

    pub fn checkpoint(&mut self) {
        self.settle();
        self.store.start_checkpoint();
        self.settle();
    }

    /// Opens the present content of the device, as after a power cut.
    pub fn reopen(&mut self) {
        self.incarnation += 1;
        self.store = Store::open(&mut self.disk, self.incarnation).unwrap();
        verify_pg(&mut self.store, &mut self.disk, 0, &self.state, 1).unwrap();
    }

    /// Makes large writes until all blocks that were free have been given out, wherever the allocator
    /// begins.
    pub fn fill_device(&mut self, is_held_back: impl Fn(&DiskRequest) -> bool) {
        for index in 0.. {
            if self.store.is_full() {
                return;
            }
            self.submit(&format!("large{index}"), |builder| builder.write(0, 1000, 0, ZEROS, false));
            self.complete_all_but(&is_held_back);
        }
    }

    /// Completes requests, and whatever follows from them, except those that are held back.
    pub fn complete_all_but(&mut self, is_held_back: impl Fn(&DiskRequest) -> bool) {
        loop {
            self.store.flush();
            let Some(request) = self.store.next_request() else { return };
            if !is_held_back(&request) {
                let result = self.disk.execute(request.device, request.operation);
                self.store.complete(request.id, result);
            }
        }
    }
}

/// Returns true if a request writes a record of the log.
pub fn is_record(request: &DiskRequest) -> bool {
    const MAGIC: &[u8; 4] = b"AWAL";
    matches!(&request.operation, DiskOperation::Write { segments, .. } if segments[0].bytes().starts_with(MAGIC))
}
