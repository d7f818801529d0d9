//! Turns of an OSD with the real store: store and PGs run until both are quiet, then the log is written once, as
//! the daemon does it. The store's answers are compared with the stand-in, its model.

use atoll_buffers::BLOCK_BYTES;
use atoll_pg::{Lookup, ReadFailure, Token};
use atoll_storage::{ObjectList, RecoveryRead, StorageEvent};
use atoll_store::LoadRequest;
use atoll_types::operation::PG_META_OBJECT;
use atoll_types::{
    Condition, ObjectName, PgId, ReadOutcome, ReadRequest, SharedTransaction, Touched, Transaction,
};
use atoll_wire::ScrubFinding;
use bytes::Bytes;

use crate::device::{Device, Memory, ReadUnderWay};
use crate::state::{name, pg_of};
use crate::world::{Event, ReadResult, World};

/// Token of the simulator's own submissions. PGs do not hear of it.
pub const OWN_TOKEN: Token = Token(u64::MAX);
/// How often a checkpoint begins by chance with a tick, in percent.
const CHECKPOINT_PERCENT: u64 = 2;
/// How often it gets another share of the memory.
const MEMORY_CHANGES_PERCENT: u64 = 10;

impl World {
    fn device(&mut self, at: usize) -> &mut Device {
        self.members[at].store.device.as_mut().expect("it has the real store")
    }

    pub fn has_real_store(&self, at: usize) -> bool {
        self.members[at].store.device.is_some()
    }

    /// Ends the turns of all OSDs at which something happened.
    pub fn end_turns(&mut self) {
        while let Some(at) = self.turns.pop_first() {
            if self.members[at].is_up && self.has_real_store(at) {
                self.settle(at);
            }
        }
    }

    fn settle(&mut self, at: usize) {
        loop {
            while let Some(event) = self.device(at).storage.next_event() {
                self.note_taken(at);
                self.storage_event(at, event);
            }
            let has_room = self.device(at).storage.submit_backlog();
            self.note_taken(at);
            if has_room {
                self.run_pgs(at);
            }
            if !self.device(at).storage.has_events() {
                break;
            }
        }
        let cause = self.device(at).storage.take_failure();
        assert_eq!(cause, None, "the store at {at} has failed");
        // What a PG has looked at stays in memory until it has done what it decided.
        if self.members[at].not_run.is_empty() {
            self.device(at).storage.store_mut().flush();
        }
        let usual = if self.now < self.members[at].slow_until { 5_000 } else { 200 };
        let incarnation = self.members[at].incarnation;
        while let Some(id) = self.device(at).next_request() {
            self.after(usual + self.store_pause, Event::DiskDone { at, incarnation, id });
        }
        self.turns.remove(&at);
    }

    pub fn disk_done(&mut self, at: usize, id: u64) {
        self.note("disk", &[at as u64, id]);
        self.turns.insert(at);
        self.device(at).disk_done(id);
    }

    /// A tick of an OSD with the real store: now and then a checkpoint begins.
    pub fn tick_store(&mut self, at: usize) {
        if self.has_real_store(at) {
            self.turns.insert(at);
            // With always too little of it a write might never have all that it looks at in memory at once.
            if self.random.chance(MEMORY_CHANGES_PERCENT) {
                let has_enough = self.random.chance(50);
                self.device(at).set_memory(if has_enough { Memory::Enough } else { Memory::Budget });
            }
            if self.random.chance(CHECKPOINT_PERCENT) {
                self.device(at).storage.store_mut().start_checkpoint();
            }
        }
    }

    /// Notes the transactions that the store has taken since the last call.
    fn note_taken(&mut self, at: usize) {
        while let Some((token, transaction)) = self.device(at).next_taken() {
            let pg = transaction.pg;
            if !self.members[at].store.takes(&transaction) {
                self.members[at].will_fail.insert((pg, token));
                continue;
            }
            self.count_submission(at, token, &transaction);
            let store = &mut self.members[at].store;
            store.submit(token, transaction);
            store.note_right_answers();
        }
        let store = &self.members[at].store;
        for pg in store.visible.ids() {
            let real = store.real().expect("it is here").head(pg);
            assert_eq!(real, store.visible.of(pg).head, "head of pg {pg} at {at}, and that of its model");
        }
    }

    pub fn submit_to_device(&mut self, at: usize, token: Token, transaction: SharedTransaction) {
        let pg = transaction.pg;
        self.device(at).submit(pg, token, transaction);
        self.note_taken(at);
        self.statistics.backlogged += u64::from(self.device(at).is_waiting());
    }

    pub fn load_from_device(&mut self, at: usize, pg: PgId, token: Token, lookup: Lookup) {
        let request = match lookup {
            Lookup::Read { object, request } => LoadRequest::Read { pg, object, request },
            Lookup::Write { object, conditions, mutations } => {
                LoadRequest::Write { pg, object, conditions, mutations }
            }
        };
        self.device(at).storage.load_for_pg(pg, token, request);
    }

    pub fn list_device(&mut self, at: usize, pg: PgId, token: Token, after: Option<ObjectName>) {
        self.device(at).storage.list_objects(ObjectList { pg, token, after, objects: Vec::new() });
    }

    pub fn read_device(&mut self, at: usize, pg: PgId, token: Token, object: ObjectName, request: ReadRequest) {
        let read = ReadUnderWay { pg, token, object: object.clone(), request: request.clone(), right: Vec::new() };
        self.device(at).reads.push(read);
        self.members[at].store.note_right_answers();
        self.device(at).storage.read_object(pg, token, object, request);
    }

    pub fn read_device_for_backfill(&mut self, at: usize, read: RecoveryRead) {
        self.device(at).storage.read_for_recovery(read);
    }

    pub fn scrub_device(&mut self, at: usize, pg: PgId, token: Token, object: ObjectName, deep: bool) {
        self.members[at].scrubs.insert((pg, token), (object.clone(), deep));
        self.device(at).storage.scrub(pg, token, object, deep);
    }

    /// Returns true if the metadata of a new PG is in memory; if not, it is loaded.
    pub fn is_new_pg_loaded(&mut self, at: usize, pg: PgId) -> bool {
        let own = name(PG_META_OBJECT);
        let Some(device) = &mut self.members[at].store.device else { return true };
        let has_key = |key: &[u8]| Condition::OmapExists { key: Bytes::copy_from_slice(key) };
        let conditions: Vec<Condition> = atoll_pg::KEYS_AT_START.into_iter().map(has_key).collect();
        let is_loaded = device.storage.store().is_write_loaded(pg, &own, &conditions, &[]);
        if !is_loaded {
            self.turns.insert(at);
            let request = LoadRequest::Write { pg, object: own, conditions, mutations: Vec::new() };
            device.storage.load_new_pg(pg, request);
        }
        is_loaded
    }

    fn storage_event(&mut self, at: usize, event: StorageEvent) {
        match event {
            StorageEvent::Committed { pg, token } => {
                self.members[at].store.commit_of(pg, token);
                self.note("commit", &[at as u64, token.0]);
                self.histories_of_electors_are_prefixes(pg, at);
                if token != OWN_TOKEN {
                    self.with_pg(at, pg, |pg, view| pg.committed(token, view));
                }
            }
            StorageEvent::SubmitFailed { pg, token, error } => {
                let is_expected = self.members[at].will_fail.remove(&(pg, token));
                assert!(is_expected, "the store at {at} refuses {token:?} of pg {pg}, its model did not: {error}");
                self.statistics.refused += 1;
                self.note("refuse", &[at as u64, token.0]);
                self.with_pg(at, pg, |pg, view| pg.submit_failed(token, &error, view));
            }
            StorageEvent::MayGoOn(pg) => self.run_pg(at, pg),
            StorageEvent::Loaded { pg, token } => {
                self.note("loaded", &[at as u64, token.0]);
                self.with_pg(at, pg, |pg, view| pg.loaded(token, view));
            }
            StorageEvent::Read { pg, token, result } => {
                self.note("read", &[at as u64, token.0]);
                let answer = self.read_done_at_device(at, pg, token, result);
                self.with_pg(at, pg, |pg, view| pg.read_done(token, answer, view));
            }
            StorageEvent::Listed { pg, token, objects, more } => {
                self.note("listed", &[at as u64, token.0]);
                self.with_pg(at, pg, |pg, _| pg.objects_listed(token, objects, more));
            }
            StorageEvent::RecoveryRead { read, answer } => {
                let (pg, token) = (read.pg, read.token);
                let damaged = self.members[at].store.damaged_of(pg, &read.object, &read.touched).first().copied();
                let result = match damaged {
                    Some(block) => Err(self.backfill_read_meets_damage(at, pg, read.object, block)),
                    None => answer,
                };
                self.note("backfill read", &[at as u64, token.0, u64::from(result.is_ok())]);
                self.with_pg(at, pg, |pg, view| pg.object_read(token, result, view));
            }
            StorageEvent::Scrubbed { pg, token, result } => {
                self.note("examined", &[at as u64, token.0]);
                let asked = self.members[at].scrubs.remove(&(pg, token)).expect("it was asked for");
                let finding = self.with_damage(at, pg, asked, atoll_storage::finding(result));
                self.with_pg(at, pg, |pg, view| pg.scrubbed(token, finding, view));
            }
            StorageEvent::NewPgLoaded(pg) => self.add_pg(at, pg),
            StorageEvent::RemovalCommitted | StorageEvent::RemovedPoolLoaded => unreachable!("no pool is removed"),
        }
    }

    /// Returns the answer to a read, which must match the model at some time since it began. Damage is put over
    /// it.
    fn read_done_at_device(&mut self, at: usize, pg: PgId, token: Token, found: ReadResult) -> ReadResult {
        let reads = &mut self.device(at).reads;
        let place = reads.iter().position(|read| (read.pg, read.token) == (pg, token)).expect("it was asked for");
        let read = reads.remove(place);
        let store = &self.members[at].store;
        if let ReadRequest::Data { offset, length, .. } = read.request {
            let (first, count) = (offset / BLOCK_BYTES as u64, length.div_ceil(BLOCK_BYTES as u32));
            let range = Touched { block_ranges: vec![(first as u32, count)], ..Touched::default() };
            let blocks = store.damaged_of(pg, &read.object, &range);
            if !blocks.is_empty() {
                self.read_meets_damage(pg, at, &read.object, &blocks);
                return Err(ReadFailure::Corrupt { blocks });
            }
        }
        // An object that has gone to another PG meanwhile is none of this one's.
        let has_gone = store.visible.of(pg).pg_num.is_some_and(|pg_num| pg_of(&read.object, pg_num) != pg);
        let is_right = has_gone
            || match (&found, &read.request) {
                // The store knows which blocks have a place, its model which differ from zeros.
                (Ok((ReadOutcome::Extents { .. } | ReadOutcome::ObjectPage { .. }, _)), _) => true,
                _ => read.right.contains(&found),
            };
        assert!(is_right, "{:?} of {} at {at}: {found:?}, not one of {:?}", read.request, read.object, read.right);
        found
    }

    fn with_damage(
        &self,
        at: usize,
        pg: PgId,
        (object, deep): (ObjectName, bool),
        mut finding: ScrubFinding,
    ) -> ScrubFinding {
        if let ScrubFinding::Present { bad_block_count, .. } = &mut finding {
            let all = Touched { whole: true, ..Touched::default() };
            let damaged = self.members[at].store.damaged_of(pg, &object, &all);
            *bad_block_count = if deep { damaged.len() as u32 } else { 0 };
        }
        finding
    }

    /// Changes a copy without the PG's knowledge.
    pub fn change_copy(&mut self, at: usize, transaction: Transaction) {
        if self.has_real_store(at) {
            self.turns.insert(at);
            return self.submit_to_device(at, OWN_TOKEN, transaction.into());
        }
        let store = &mut self.members[at].store;
        store.visible.apply(&transaction, store.ring_entries);
        store.durable.apply(&transaction, store.ring_entries);
    }
}
