//! The store of an OSD as its PGs use it: submissions, reads, loads and examinations, each with its PG.
//!
//! Sans-IO, as the store is: all results come out as [`StorageEvent`]s. The OSD joins it with devices, the
//! simulator with a disk that it has made up.

mod backlog;
mod invariants;
mod listing;
mod object_reads;
mod recovery_reads;
mod scrubs;
mod submissions;

use std::collections::{BTreeMap, VecDeque};

use atoll_pending::Pending;
use atoll_pg::{ObjectParts, ReadFailure, Token};
use atoll_store::{LoadId, LoadRequest, ObjectKey, ReadData, ScrubError, ScrubResult, Store, StoreEvent};
use atoll_types::{ObjectName, PgId, Version};

use backlog::Backlog;
pub use listing::ObjectList;
pub use object_reads::ReadAnswer;
use recovery_reads::PartRead;
pub use recovery_reads::RecoveryRead;
pub use scrubs::finding;

/// The result of something that was asked of the store. A token is a PG's name of its request.
#[allow(missing_docs)] // a name says it
pub enum StorageEvent {
    /// A PG's submission is durable.
    Committed { pg: PgId, token: Token },
    /// The store has refused it.
    SubmitFailed { pg: PgId, token: Token, error: String },
    /// Something that a PG's submissions waited for is there.
    MayGoOn(PgId),
    /// The removal of an object of a removed pool is durable.
    RemovalCommitted,
    /// Metadata that a PG has requested is in memory.
    Loaded { pg: PgId, token: Token },
    /// A read of a PG is done.
    Read { pg: PgId, token: Token, result: ReadAnswer },
    /// Objects of a PG are listed.
    Listed { pg: PgId, token: Token, objects: Vec<(ObjectName, Version)>, more: bool },
    /// An object, or a part of one, was read for another OSD.
    RecoveryRead { read: RecoveryRead, answer: Result<ObjectParts, String> },
    /// An object was examined.
    Scrubbed { pg: PgId, token: Token, result: Result<ScrubResult, ScrubError> },
    /// The metadata of a new PG is in memory.
    NewPgLoaded(PgId),
    /// The metadata for the next removal is in memory.
    RemovedPoolLoaded,
}

/// Owner of a submission.
enum Submitter {
    Pg { pg: PgId, token: Token },
    RemovedPool,
}

/// Owner of a read.
enum Reader {
    Pg { pg: PgId, token: Token },
    Recovery(Box<PartRead>),
}

/// Owner of a load of metadata.
enum Loader {
    Pg {
        pg: PgId,
        token: Token,
    },
    /// A read of a PG that must look again.
    Read {
        pg: PgId,
        token: Token,
    },
    /// The PG's submissions.
    Submissions(PgId),
    List(ObjectList),
    Recovery(Box<(PartRead, ReadData)>),
    NewPg(PgId),
    RemovedPool,
}

/// A store, and the owners of its pending requests.
pub struct Storage {
    store: Store,
    events: VecDeque<StorageEvent>,
    submitted: Pending<Submitter>,
    /// Submissions that wait for room in the log or for metadata.
    backlog: Backlog,
    waits_for_room: bool,
    loads: BTreeMap<LoadId, Loader>,
    reads: Pending<Reader>,
    scrubs: BTreeMap<u64, (PgId, Token)>,
    failure: Option<String>,
    /// Bytes of data that are read together of an object for another OSD.
    part_bytes: u64,
}

impl Storage {
    /// Nothing is under way yet.
    pub fn new(store: Store) -> Self {
        Storage {
            store,
            events: VecDeque::new(),
            submitted: Pending::default(),
            backlog: Backlog::default(),
            waits_for_room: false,
            loads: BTreeMap::new(),
            reads: Pending::default(),
            scrubs: BTreeMap::new(),
            failure: None,
            part_bytes: recovery_reads::PART_BYTES,
        }
    }

    /// Lets a simulation, whose objects are small, read them in parts.
    #[doc(hidden)]
    pub fn set_part_bytes(&mut self, bytes: u64) {
        self.part_bytes = bytes;
    }

    /// The store, for reading.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Returns the store, for tasks of no PG: its devices, its budgets, its checkpoints.
    pub fn store_mut(&mut self) -> &mut Store {
        &mut self.store
    }

    /// Why the store cannot be used any more, if that is so; said once.
    pub fn take_failure(&mut self) -> Option<String> {
        self.failure.take()
    }

    /// Forgets the pre-images of a PG's writes up to `through`, which will not be rolled back.
    pub fn forget_pre_images(&mut self, pg: PgId, through: Version) {
        self.store.forget_pre_images(pg, through);
    }

    /// Returns true if there are events that no device has caused.
    pub fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// The result of something that was asked of the store.
    pub fn next_event(&mut self) -> Option<StorageEvent> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Some(event);
            }
            match self.store.next_event()? {
                StoreEvent::Committed(id) => return Some(self.committed(id)),
                StoreEvent::Read { id, result } => {
                    match self.reads.remove(id).expect(invariants::EVERY_READ_HAS_A_READER) {
                        Reader::Pg { pg, token } => {
                            let result = object_reads::answer(result);
                            return Some(StorageEvent::Read { pg, token, result });
                        }
                        Reader::Recovery(read) => self.part_read(*read, result),
                    }
                }
                StoreEvent::Loaded(load) => self.loaded(load),
                StoreEvent::Scrubbed { id, result } => {
                    let (pg, token) = self.scrubs.remove(&id).expect(invariants::EVERY_SCRUB_HAS_AN_ASKER);
                    return Some(StorageEvent::Scrubbed { pg, token, result });
                }
                StoreEvent::Poisoned { cause } => self.failure = Some(cause),
            }
        }
    }

    fn loaded(&mut self, load: LoadId) {
        match self.loads.remove(&load).expect(invariants::EVERY_LOAD_HAS_A_LOADER) {
            Loader::Pg { pg, token } => self.events.push_back(StorageEvent::Loaded { pg, token }),
            Loader::Submissions(pg) => {
                self.events.push_back(StorageEvent::MayGoOn(pg));
                self.backlog.resume(pg);
                self.submit_waiting();
            }
            Loader::List(list) => self.list_objects(list),
            Loader::Read { pg, token } => {
                let result = Err(ReadFailure::WasCold);
                self.events.push_back(StorageEvent::Read { pg, token, result });
            }
            Loader::Recovery(read) => self.part_data_ready(*read),
            Loader::NewPg(pg) => self.events.push_back(StorageEvent::NewPgLoaded(pg)),
            Loader::RemovedPool => self.events.push_back(StorageEvent::RemovedPoolLoaded),
        }
    }

    fn load(&mut self, request: LoadRequest, loader: Loader) {
        let load = self.store.load(request);
        let before = self.loads.insert(load, loader);
        invariants::ids_are_fresh("load", before.is_some());
    }

    /// Loads metadata that a PG has requested.
    pub fn load_for_pg(&mut self, pg: PgId, token: Token, request: LoadRequest) {
        self.load(request, Loader::Pg { pg, token });
    }

    /// Loads the metadata of a new PG.
    pub fn load_new_pg(&mut self, pg: PgId, request: LoadRequest) {
        self.load(request, Loader::NewPg(pg));
    }

    /// Loads the metadata for the next removal.
    pub fn load_for_removal(&mut self, request: LoadRequest) {
        self.load(request, Loader::RemovedPool);
    }

    /// Begins to examine an object.
    pub fn scrub(&mut self, pg: PgId, token: Token, object: ObjectName, deep: bool) {
        let id = self.store.scrub(ObjectKey { pg, name: object }, deep);
        let before = self.scrubs.insert(id, (pg, token));
        invariants::ids_are_fresh("scrub", before.is_some());
    }

    fn read(&mut self, key: ObjectKey, offset: u64, length: u32, reader: Reader) {
        let id = self.store.read(key, offset, length);
        let before = self.reads.insert(id, reader);
        invariants::ids_are_fresh("read", before.is_some());
    }
}
