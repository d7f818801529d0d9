//! The world: three members, their connections, cluster state and clients, driven by one queue of
//! events in simulated time (microseconds).

use std::collections::{BTreeMap, BTreeSet};

use atoll_base::records::PgRecord;
use atoll_base::{ObjectName, OsdId, ReadOutcome, RequestId};
use atoll_pg::{ClientId, Lookup, Pg, PgState, ReadFailure, Token};
use atoll_wire::Message;
use bytes::Bytes;

use crate::clients::Clients;
use crate::cluster::ClusterState;
use crate::network::Network;
use crate::random::Random;
use crate::store::Store;

pub const MEMBERS: usize = 3;
pub const TICK: u64 = 10_000;
/// Faults stop here.
pub const QUIET_AT: u64 = 300_000;
const DEADLINE: u64 = QUIET_AT + 2_000_000;

pub type ReadResult = Result<(ReadOutcome, Bytes), ReadFailure>;

pub enum Event {
    PeerMessage { from: usize, to: usize, generation: u64, message: Message },
    PeerUp { at: usize, other: usize, generation: u64 },
    PeerDown { at: usize, other: usize, generation: u64 },
    Request { conn: ClientId, to: usize, incarnation: u64, message: Message },
    Answer { conn: ClientId, message: Message },
    Commit { at: usize, incarnation: u64 },
    Loaded { at: usize, incarnation: u64, token: Token, lookup: Lookup },
    Listed { at: usize, incarnation: u64, token: Token, objects: Vec<ObjectName> },
    ReadDone { at: usize, incarnation: u64, token: Token, answer: ReadResult },
    SyncRead { at: usize, incarnation: u64, token: Token, result: Result<Vec<atoll_base::Transaction>, String> },
    Record { at: usize, incarnation: u64, record: PgRecord },
    Swap { expected: PgRecord, record: PgRecord },
    Tick { at: usize, incarnation: u64 },
    Run { at: usize },
    Restart { at: usize },
    Crash { at: usize },
    Room { at: usize, out_of_room: bool },
    Fault,
    Quiet,
    ClientWakes { session: usize },
    ClientRetries { op: usize, attempt: u32 },
}

impl Event {
    /// Whether something may still follow from it when all else is quiet: a member whose device was
    /// replaced last of all is filled only after its connections have come and gone.
    fn may_unsettle(&self) -> bool {
        use Event::{PeerDown, PeerMessage, PeerUp, Request};
        matches!(self, Request { .. } | PeerMessage { .. } | PeerUp { .. } | PeerDown { .. })
    }
}

pub struct Member {
    pub incarnation: u64,
    pub pg: Option<Pg>,
    pub store: Store,
    pub last_commit: u64,
    /// Until then its device is slow.
    pub slow_until: u64,
    /// Requests given to this process that it owes an answer.
    pub owed_reads: BTreeMap<(ClientId, u64), u32>,
    pub owed_writes: BTreeSet<RequestId>,
}

#[derive(Default, Clone, Debug)]
pub struct Statistics {
    pub activations: u64,
    pub crashes: u64,
    pub wipes: u64,
    pub breaks: u64,
    pub copy_reads: u64,
    pub syncs: u64,
    pub whole_syncs: u64,
    pub retries: u64,
    pub swaps_failed: u64,
    pub corrupt_refusals: u64,
    pub backlogged: u64,
    pub loads: u64,
    pub lists: u64,
}

pub struct World {
    pub now: u64,
    pub random: Random,
    queue: BTreeMap<(u64, u64), Event>,
    next_event: u64,
    pub members: Vec<Member>,
    pub network: Network,
    pub cluster: ClusterState,
    pub clients: Clients,
    pub trace: u64,
    pub statistics: Statistics,
    pub verbose: bool,
    /// The usual time between faults.
    pub fault_pace: u64,
    /// How often something is evicted from memory when a group has come to rest.
    pub eviction_percent: u64,
}

pub fn osd(index: usize) -> OsdId {
    OsdId(index as u32 + 1)
}

impl World {
    pub fn new(seed: u64, verbose: bool) -> Self {
        let mut random = Random::new(seed);
        // A short ring makes a replaced device start from a log that does not reach back.
        let ring_entries = if random.chance(25) { 64 } else { atoll_base::limits::PG_LOG_ENTRIES };
        let fault_pace = [4_000, 8_000, 20_000][random.below(3) as usize];
        let eviction_percent = [0, 5, 50][random.below(3) as usize];
        let member = || Member {
            incarnation: 0,
            pg: None,
            store: Store::new(ring_entries),
            last_commit: 0,
            slow_until: 0,
            owed_reads: BTreeMap::new(),
            owed_writes: BTreeSet::new(),
        };
        let mut world = World {
            now: 0,
            queue: BTreeMap::new(),
            next_event: 0,
            members: (0..MEMBERS).map(|_| member()).collect(),
            network: Network::new(),
            cluster: ClusterState::new((0..MEMBERS).map(osd).collect()),
            clients: Clients::new(&mut random),
            random,
            trace: 0xcbf2_9ce4_8422_2325,
            statistics: Statistics::default(),
            verbose,
            fault_pace,
            eviction_percent,
        };
        for at in 0..MEMBERS {
            world.after(1, Event::Restart { at });
        }
        for session in 0..world.clients.sessions.len() {
            world.after(100, Event::ClientWakes { session });
        }
        world.after(1_000, Event::Fault);
        world.at(QUIET_AT, Event::Quiet);
        world
    }

    pub fn is_quiet(&self) -> bool {
        self.now >= QUIET_AT
    }

    pub fn at(&mut self, time: u64, event: Event) {
        self.next_event += 1;
        self.queue.insert((time.max(self.now), self.next_event), event);
    }

    pub fn after(&mut self, usual_delay: u64, event: Event) {
        let delay = self.random.delay(usual_delay);
        self.at(self.now + delay, event);
    }

    pub fn note(&mut self, what: &str, numbers: &[u64]) {
        if self.verbose {
            println!("{:>8} {what} {numbers:?}", self.now);
        }
        let bytes = what.bytes().chain(numbers.iter().chain([&self.now]).flat_map(|number| number.to_le_bytes()));
        for byte in bytes {
            self.trace = (self.trace ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }

    /// Runs until everything has settled after the faults.
    pub fn run(&mut self) {
        let mut has_read_all = false;
        while let Some(((time, _), event)) = self.queue.pop_first() {
            self.now = time;
            self.step(event);
            if self.is_quiet() && self.is_settled() {
                if has_read_all {
                    return;
                }
                has_read_all = true;
                self.read_everything();
            }
            assert!(self.now < DEADLINE, "not settled: {}", self.what_is_missing());
        }
    }

    fn is_settled(&self) -> bool {
        let is_active = |member: &Member| member.pg.as_ref().is_some_and(|pg| *pg.state() == PgState::Active);
        self.clients.all_answered()
            && is_active(&self.members[0])
            && self.members.iter().all(|member| {
                member.pg.is_some()
                    && member.store.pending.is_empty()
                    && member.store.backlog.is_empty()
                    && member.owed_reads.is_empty()
                    && member.owed_writes.is_empty()
            })
            && !self.queue.values().any(Event::may_unsettle)
    }

    fn what_is_missing(&self) -> String {
        let members = self.members.iter().map(|member| {
            let state = member.pg.as_ref().map(|pg| pg.state().clone());
            let owed = (&member.owed_reads, &member.owed_writes);
            format!("{state:?} head {} owes {owed:?}", member.store.visible.head)
        });
        format!("{:#?}, record {:?}", members.collect::<Vec<_>>(), self.cluster.record)
    }

    pub fn is_current(&self, at: usize, incarnation: u64) -> bool {
        self.members[at].incarnation == incarnation && self.members[at].pg.is_some()
    }

    fn step(&mut self, event: Event) {
        match event {
            Event::PeerMessage { from, to, generation, message } => {
                if self.network.arrives(to, from, self.now, generation) && self.members[to].pg.is_some() {
                    let kind = format!("{message:?}");
                    self.note(kind.split([' ', '{']).next().unwrap(), &[from as u64, to as u64]);
                    self.with_pg(to, |pg, store| pg.message(osd(from), message, store));
                }
            }
            Event::PeerUp { at, other, generation } => {
                if self.members[at].pg.is_some() && self.network.comes_up(at, other, generation) {
                    self.note("up", &[at as u64, other as u64]);
                    self.with_pg(at, |pg, store| pg.peer_up(osd(other), store));
                }
            }
            Event::PeerDown { at, other, generation } => {
                if self.network.goes_down(at, other, generation) {
                    self.note("down", &[at as u64, other as u64]);
                    self.with_pg(at, |pg, _| pg.peer_down(osd(other)));
                    self.connect(at, other);
                }
            }
            Event::Request { conn, to, incarnation, message } => {
                if self.is_current(to, incarnation) {
                    self.request(conn, to, message);
                }
            }
            Event::Answer { conn, message } => self.answer_arrives(conn, message),
            Event::Commit { at, incarnation } => {
                if self.is_current(at, incarnation) {
                    let token = self.members[at].store.commit();
                    self.note("commit", &[at as u64, token.0]);
                    self.with_pg(at, |pg, store| pg.committed(token, store));
                }
            }
            Event::Loaded { at, incarnation, token, lookup } => {
                if self.is_current(at, incarnation) {
                    self.note("loaded", &[at as u64, token.0]);
                    self.loaded(at, token, &lookup);
                }
            }
            Event::Listed { at, incarnation, token, objects } => {
                if self.is_current(at, incarnation) {
                    self.note("listed", &[at as u64, token.0]);
                    self.with_pg(at, |pg, _| pg.objects_listed(token, objects));
                }
            }
            Event::ReadDone { at, incarnation, token, answer } => {
                if self.is_current(at, incarnation) {
                    self.note("read", &[at as u64, token.0]);
                    self.with_pg(at, |pg, _| pg.read_done(token, answer));
                }
            }
            Event::SyncRead { at, incarnation, token, result } => {
                if self.is_current(at, incarnation) {
                    self.note("sync read", &[at as u64, token.0, u64::from(result.is_ok())]);
                    self.with_pg(at, |pg, _| pg.sync_ready(token, result));
                }
            }
            Event::Record { at, incarnation, record } => {
                if self.is_current(at, incarnation) {
                    self.note("record", &[at as u64, record.epoch.0, record.activated_epoch.0]);
                    self.with_pg(at, |pg, store| pg.set_record(record, store));
                }
            }
            Event::Swap { expected, record } => self.swap(expected, record),
            Event::Tick { at, incarnation } => {
                if self.is_current(at, incarnation) {
                    self.with_pg(at, |pg, store| pg.tick(store));
                    self.at(self.now + TICK, Event::Tick { at, incarnation });
                }
            }
            Event::Run { at } => self.run_pg(at),
            Event::Restart { at } => self.restart(at),
            Event::Crash { at } => self.crash(at),
            Event::Room { at, out_of_room } => self.set_room(at, out_of_room),
            Event::Fault => self.fault(),
            Event::Quiet => self.heal(),
            Event::ClientWakes { session } => self.client_wakes(session),
            Event::ClientRetries { op, attempt } => self.client_retries(op, attempt),
        }
    }

    fn swap(&mut self, expected: PgRecord, record: PgRecord) {
        let was_done = self.cluster.compare_and_swap(&expected, record);
        self.note("swap", &[u64::from(was_done), self.cluster.record.epoch.0]);
        if !was_done {
            self.statistics.swaps_failed += 1;
            return;
        }
        let record = self.cluster.record.clone();
        self.statistics.activations += u64::from(record.activated_epoch == record.epoch);
        self.tell_record(&record);
    }

    pub fn tell_record(&mut self, record: &PgRecord) {
        for at in 0..MEMBERS {
            let incarnation = self.members[at].incarnation;
            let times = if self.random.chance(20) { 2 } else { 1 };
            for _ in 0..times {
                self.after(1_000, Event::Record { at, incarnation, record: record.clone() });
            }
        }
    }
}
