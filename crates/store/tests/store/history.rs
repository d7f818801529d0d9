//! A long random history of one store: transactions, reads, checkpoints and completions in any
//! order, and the model beside it.

use std::collections::{BTreeMap, VecDeque};

use atoll_store::{
    Device, Disk, DiskOperation, DiskRequest, LoadId, LoadRequest, ObjectKey, OpenError, ReadError, Store,
    StoreError, StoreEvent,
};
use atoll_types::{Epoch, LogEntry, Mutation, ObjectName, Transaction, Version};

use crate::model::{ModelObject, ModelPg, pg_id};
use crate::random::Random;
use crate::small::is_record;
use crate::verify::{Damage, verify_log, verify_pg};
use crate::workload::Profile;
use atoll_store::simulated_disk::SimulatedDisk;

/// Reads that a history has under way at once.
const READS_MAX: usize = 8;

/// The states that a PG may be found in after a power cut.
#[derive(Clone)]
pub struct PgHistory {
    /// Number of transactions before the first state that is kept.
    first: u64,
    states: VecDeque<ModelPg>,
    acknowledged: u64,
    /// The same when the newest record was written.
    acknowledged_before_record: u64,
}

impl PgHistory {
    pub fn newest(&self) -> &ModelPg {
        self.states.back().expect("there is always a state")
    }

    pub fn submitted(&mut self, next: ModelPg) {
        // What waited for metadata has not heard of what was forgotten meanwhile.
        let pre_images_forgotten = self.newest().pre_images_forgotten;
        self.states.push_back(ModelPg { pre_images_forgotten, ..next });
    }

    /// Whichever state is found, it may have forgotten these.
    fn pre_images_forgotten(&mut self, through: u64) {
        let forgotten = self.newest().pre_images_forgotten.max(through);
        self.states.iter_mut().for_each(|state| state.pre_images_forgotten = forgotten);
    }

    pub fn all_acknowledged(&mut self) {
        self.recovered_at(self.first + self.states.len() as u64 - 1);
    }

    /// Writes acknowledged since the newest record was written are lost with it.
    pub fn forget_newest_record(&mut self) {
        self.acknowledged = self.acknowledged_before_record.max(self.first);
    }

    /// Later writes are lost, and all earlier ones are there for good.
    pub fn recovered_at(&mut self, head: u64) {
        self.acknowledged_before_record = head;
        self.states.truncate((head - self.first) as usize + 1);
        self.acknowledged = head;
        self.forget_below(head);
        self.states.iter_mut().for_each(|state| state.pre_images_forgotten = state.pre_images_forgotten.min(head));
    }

    fn forget_below(&mut self, sequence: u64) {
        while self.first < sequence {
            self.states.pop_front();
            self.first += 1;
        }
    }
}

/// Compares a store that was just opened with its possible states: each PG's history must be a prefix with all
/// acknowledged writes. Returns the prefixes' lengths.
pub fn verify_recovered(
    store: &mut Store,
    disk: &mut SimulatedDisk,
    pgs: &[PgHistory],
    share: u64,
) -> Result<Vec<u64>, Damage> {
    let mut heads = Vec::new();
    let mut object_count = 0;
    for (pg, history) in pgs.iter().enumerate() {
        let head = store.head(pg_id(pg)).sequence;
        let acknowledged = history.acknowledged;
        assert!(head >= acknowledged, "PG {pg}: {acknowledged} were acknowledged but {head} found");
        let expected = history.states.get((head - history.first) as usize).expect("nothing unknown is found");
        heads.push(head);
        object_count += expected.objects.len() as u64;
    }
    assert_eq!(store.usage().object_count, object_count);
    let mut outcome = Ok(heads.clone());
    for (pg, history) in pgs.iter().enumerate() {
        let expected = &history.states[(heads[pg] - history.first) as usize];
        if let Err(damage) = verify_pg(store, disk, pg, expected, share) {
            outcome = Err(damage);
        }
    }
    outcome
}

struct WatchedRead {
    pg: usize,
    name: ObjectName,
    /// Number of transactions of the PG when it began.
    since: u64,
}

/// Where a record of the log was written.
#[derive(Clone, Copy)]
pub struct RecordPlace {
    pub device: Device,
    pub block: u64,
    pub block_count: u64,
    incarnation: u64,
    sequence: u64,
}

impl RecordPlace {
    pub fn covers(&self, device: Device, block: u64) -> bool {
        device == self.device && (self.block..self.block + self.block_count).contains(&block)
    }
}

/// A store in use.
pub struct History {
    pub random: Random,
    pub profile: Profile,
    pub disk: SimulatedDisk,
    pub pgs: Vec<PgHistory>,
    pub pending: Vec<DiskRequest>,
    pub store: Store,
    /// No reads, which would end the test when they report damage.
    pub only_writes: bool,
    /// The store has noticed damage; only heard of when there are only writes.
    pub poisoned: bool,
    newest_record: Option<RecordPlace>,
    incarnation: u64,
    /// PG and sequence of transactions that are not acknowledged.
    owners: BTreeMap<u64, (usize, u64)>,
    /// Transactions that wait for metadata to be loaded.
    stalled: BTreeMap<usize, (Transaction, ModelPg)>,
    loads: BTreeMap<LoadId, usize>,
    reads: BTreeMap<u64, WatchedRead>,
}

impl History {
    pub fn new(profile: Profile, random: Random) -> Self {
        let mut disk = profile.format();
        let store = Store::open(&mut disk, 1).expect("a fresh store opens");
        let history = PgHistory {
            first: 0,
            states: [ModelPg::default()].into(),
            acknowledged: 0,
            acknowledged_before_record: 0,
        };
        let pgs = vec![history; profile.pg_count];
        History {
            random,
            profile,
            disk,
            pgs,
            pending: Vec::new(),
            store,
            only_writes: false,
            poisoned: false,
            newest_record: None,
            incarnation: 1,
            owners: BTreeMap::new(),
            stalled: BTreeMap::new(),
            loads: BTreeMap::new(),
            reads: BTreeMap::new(),
        }
    }

    pub fn next_incarnation(&mut self) -> u64 {
        self.incarnation += 1;
        self.incarnation
    }

    /// Does something. True if the device has just finished a write or a sync.
    pub fn step(&mut self) -> bool {
        let mut has_written = false;
        match self.random.below(20) {
            0..7 if self.store.has_log_room() => self.submit(),
            7 if self.random.chance(10) => self.store.start_checkpoint(),
            7 if self.random.chance(5) => self.change_budgets(),
            7 if self.random.chance(20) => self.forget_pre_images(),
            // A device that does requests in any order would never come to the end of more of them.
            8 if !self.only_writes && self.reads.len() < READS_MAX => self.start_read(),
            9..12 => self.store.flush(),
            _ => has_written = self.complete_one(),
        }
        self.take_requests_and_events();
        self.store.check_invariants();
        has_written
    }

    /// Continues until this many transactions were submitted in all.
    pub fn prologue(&mut self) {
        while self.submitted_count() < self.profile.prologue {
            self.step();
        }
    }

    fn submitted_count(&self) -> u64 {
        self.pgs.iter().map(|history| history.newest().head).sum()
    }

    /// Lets everything that was begun end.
    fn settle(&mut self) {
        while !self.poisoned && (!self.pending.is_empty() || !self.owners.is_empty()) {
            self.store.flush();
            self.take_requests_and_events();
            self.complete_one();
            self.take_requests_and_events();
        }
    }

    /// Ends with two records; the last one has everything before it as durable. False if the store has noticed
    /// damage.
    pub fn try_to_settle_with_two_more_records(&mut self) -> bool {
        for _ in 0..2 {
            self.settle();
            self.stalled.clear();
            let before = self.submitted_count();
            self.only_small_changes();
            while self.submitted_count() == before && !self.poisoned {
                if self.store.has_log_room() {
                    self.submit();
                }
                self.settle();
                self.take_requests_and_events();
            }
            self.settle();
        }
        !self.poisoned
    }

    pub fn settle_with_two_more_records(&mut self) {
        assert!(self.try_to_settle_with_two_more_records());
    }

    /// One record each, and no reason for a checkpoint between them.
    fn only_small_changes(&mut self) {
        self.store.set_memory_budget(1 << 30, 1 << 30);
        self.profile = Profile {
            omap_percent: 100,
            pre_image_percent: 0,
            omap_keys: 2,
            omap_key_bytes: 8,
            omap_value_bytes: 8,
            ..self.profile.clone()
        };
    }

    pub fn newest_record(&self) -> Option<RecordPlace> {
        self.newest_record
    }

    /// A write that the device has not done yet.
    pub fn take_pending_write(&mut self) -> Option<DiskRequest> {
        let is_write = |request: &DiskRequest| request.operation.written().is_some();
        let writes: Vec<usize> = (0..self.pending.len()).filter(|&index| is_write(&self.pending[index])).collect();
        (!writes.is_empty()).then(|| self.pending.swap_remove(self.random.pick(&writes)))
    }

    fn note_record(&mut self, request: &DiskRequest) {
        if let DiskOperation::Write { offset, segments, .. } = &request.operation
            && is_record(request)
        {
            let number = |from: usize| u64::from_le_bytes(segments[0].bytes()[from..from + 8].try_into().unwrap());
            let (incarnation, sequence) = (number(8), number(16));
            // Of two that are in flight the device may do the second one first.
            if self
                .newest_record
                .is_some_and(|newest| newest.incarnation == incarnation && newest.sequence > sequence)
            {
                return;
            }
            let block_count = segments.iter().map(|segment| segment.block_count as u64).sum();
            let block = offset / atoll_buffers::BLOCK_BYTES as u64;
            self.pgs.iter_mut().for_each(|history| history.acknowledged_before_record = history.acknowledged);
            let device = request.device;
            self.newest_record = Some(RecordPlace { device, block, block_count, incarnation, sequence });
        }
    }

    fn change_budgets(&mut self) {
        let (pages, pending) = (self.random.below(4), self.random.below(3));
        let bytes = |choice: u64| [16 << 10, 64 << 10, 1 << 20, 64 << 20][choice as usize];
        self.store.set_memory_budget(bytes(pages), bytes(pending) - (16 << 10));
    }

    fn submit(&mut self) {
        if self.poisoned {
            return;
        }
        let pg = self.random.below(self.pgs.len() as u64) as usize;
        if !self.stalled.contains_key(&pg) || self.random.chance(10) {
            self.submit_to(pg);
        }
    }

    fn submit_to(&mut self, pg: usize) {
        let newest = self.pgs[pg].newest();
        let (transaction, next) = match self.stalled.remove(&pg) {
            Some(stalled) => stalled,
            None => self.profile.transaction(pg, newest, &mut self.random),
        };
        let key = ObjectKey { pg: transaction.pg, name: transaction.object.clone() };
        let is_cold =
            !self.store.is_write_loaded(transaction.pg, &transaction.object, &[], &transaction.mutations);
        if is_cold && self.random.chance(50) {
            // As the primary does.
            let load = self.store.load(LoadRequest::Write {
                pg: transaction.pg,
                object: transaction.object.clone(),
                conditions: Vec::new(),
                mutations: transaction.mutations.clone(),
            });
            self.loads.insert(load, pg);
            self.stalled.insert(pg, (transaction, next));
            return;
        }
        if !is_cold && self.random.chance(50) {
            let payload_bytes = transaction.payload.len();
            let checked = self.store.check(&key, &transaction.mutations, payload_bytes);
            checked.unwrap_or_else(|error| panic!("{error}"));
        }
        match self.store.submit(&transaction) {
            Ok(id) => {
                let history = &mut self.pgs[pg];
                self.owners.insert(id.0, (pg, next.head));
                history.submitted(next);
                self.read_what_is_kept(pg, &transaction);
            }
            Err(StoreError::Cold(cold)) => {
                self.loads.insert(self.store.load(LoadRequest::Pages(cold)), pg);
                self.stalled.insert(pg, (transaction, next));
            }
            Err(StoreError::Poisoned { .. } | StoreError::Damaged { .. }) if self.only_writes => {
                self.poisoned = true
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// Forgets pre-images of any PG, up to any entry.
    fn forget_pre_images(&mut self) {
        let pg = self.random.below(self.pgs.len() as u64) as usize;
        let history = &mut self.pgs[pg];
        let sequence = self.random.below(history.newest().head + 1);
        self.store.forget_pre_images(pg_id(pg), Version { epoch: Epoch(1), sequence });
        history.pre_images_forgotten(sequence);
        verify_log(&self.store, pg, history.newest());
        let is_there = |entry: &&LogEntry| entry.version.sequence <= sequence && entry.pre_image.is_some();
        assert_eq!(self.store.log(pg_id(pg)).find(is_there), None, "it was forgotten up to {sequence}");
    }

    /// An object and its pre-image clone must not be mixed up at any time.
    fn read_what_is_kept(&mut self, pg: usize, transaction: &Transaction) {
        for mutation in &transaction.mutations {
            let Mutation::ClonePreImage { copy } = mutation else { continue };
            for name in [copy, &transaction.object] {
                if !self.only_writes && self.reads.len() < READS_MAX {
                    self.start_read_of(pg, name.clone());
                }
            }
        }
    }

    fn start_read(&mut self) {
        let pg = self.random.below(self.pgs.len() as u64) as usize;
        let history = &self.pgs[pg];
        let state = history.newest();
        if state.objects.is_empty() {
            return;
        }
        let index = self.random.below(state.objects.len() as u64) as usize;
        let name = state.objects.keys().nth(index).unwrap().clone();
        self.start_read_of(pg, name);
    }

    fn start_read_of(&mut self, pg: usize, name: ObjectName) {
        let history = &self.pgs[pg];
        let since = history.first + history.states.len() as u64 - 1;
        let id = self.store.read(ObjectKey { pg: pg_id(pg), name: name.clone() }, 0, 4 << 20);
        self.reads.insert(id, WatchedRead { pg, name, since });
    }

    fn complete_one(&mut self) -> bool {
        if self.pending.is_empty() {
            return false;
        }
        let index = self.random.below(self.pending.len() as u64) as usize;
        if self.profile.log_is_slow && is_record(&self.pending[index]) && self.random.chance(97) {
            return false;
        }
        let request = self.pending.swap_remove(index);
        let is_write = !matches!(request.operation, DiskOperation::Read { .. });
        let result = self.disk.execute(request.device, request.operation);
        self.store.complete(request.id, result);
        is_write
    }

    fn take_requests_and_events(&mut self) {
        while let Some(event) = self.store.next_event() {
            match event {
                StoreEvent::Committed(id) => {
                    let (pg, sequence) = self.owners.remove(&id.0).expect("it was submitted");
                    assert_eq!(self.pgs[pg].acknowledged + 1, sequence, "commits are in order");
                    self.pgs[pg].acknowledged = sequence;
                    self.forget(pg);
                }
                StoreEvent::Read { id, result } => {
                    let read = self.reads.remove(&id).expect("it was begun");
                    self.check_read(&read, result.map(|found| found.data));
                    self.forget(read.pg);
                }
                // At once: with little memory it may be dropped again at the next flush.
                StoreEvent::Loaded(id) => {
                    if let Some(pg) = self.loads.remove(&id)
                        && self.store.has_log_room()
                    {
                        self.submit_to(pg);
                    }
                }
                StoreEvent::Scrubbed { .. } => unreachable!("nothing is scrubbed"),
                StoreEvent::Poisoned { .. } if self.only_writes => self.poisoned = true,
                event @ StoreEvent::Poisoned { .. } => panic!("{event:?}"),
            }
        }
        while let Some(request) = self.store.next_request() {
            self.note_record(&request);
            self.pending.push(request);
        }
    }

    /// Forgets states that neither a power cut nor a read can bring back.
    fn forget(&mut self, pg: usize) {
        let reads = self.reads.values().filter(|read| read.pg == pg).map(|read| read.since);
        let history = &self.pgs[pg];
        let known = history.acknowledged.min(history.acknowledged_before_record);
        let oldest = reads.min().unwrap_or(u64::MAX).min(known);
        self.pgs[pg].forget_below(oldest);
    }

    /// A read shows one of the states that the object had while it ran.
    fn check_read(&self, read: &WatchedRead, found: Result<bytes::Bytes, ReadError>) {
        let history = &self.pgs[read.pg];
        let mut states = history.states.range((read.since - history.first) as usize..);
        let object = |state: &ModelPg| -> Option<ModelObject> {
            state.objects.get(&read.name).map(|object| (**object).clone())
        };
        let fits = match &found {
            Ok(data) => states.any(|state| object(state).is_some_and(|object| object.data_is(data))),
            Err(ReadError::NoSuchObject) => states.any(|state| object(state).is_none()),
            Err(_) if self.only_writes => return,
            Err(error) => panic!("{error}"),
        };
        assert!(fits, "a read of {:?} shows what never was", read.name);
    }

    /// The devices as a power cut would leave them now.
    pub fn disk_after_power_cut(&mut self) -> SimulatedDisk {
        let mut disk = self.disk.clone();
        for request in &self.pending {
            disk.write_partly(request.device, &request.operation, &mut self.random);
        }
        disk.crash(&mut self.random);
        disk
    }

    /// Continues with these devices, which a power cut left.
    pub fn go_on_with(&mut self, mut disk: SimulatedDisk) {
        let incarnation = self.next_incarnation();
        self.store = Store::open(&mut disk, incarnation).expect("it was opened just before");
        self.disk = disk;
        self.pending.clear();
        self.owners.clear();
        self.stalled.clear();
        self.loads.clear();
        self.reads.clear();
        for (pg, history) in self.pgs.iter_mut().enumerate() {
            history.recovered_at(self.store.head(pg_id(pg)).sequence);
        }
    }

    /// Opens the store that a power cut has left; perhaps the power goes a second time meanwhile.
    pub fn open_after_power_cut(&mut self, disk: &mut SimulatedDisk) -> Result<Store, OpenError> {
        if self.random.chance(25) {
            disk.writes_left = Some(self.random.below(8));
            let incarnation = self.next_incarnation();
            let opened = Store::open(disk, incarnation);
            if let Ok(store) = opened {
                disk.writes_left = None;
                return Ok(store);
            }
            disk.crash(&mut self.random);
        }
        let incarnation = self.next_incarnation();
        Store::open(disk, incarnation)
    }
}
