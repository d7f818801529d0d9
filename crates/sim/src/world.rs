//! The world: OSDs, their connections, cluster state and clients, driven by one queue of events in
//! simulated time (microseconds).

use std::collections::{BTreeMap, BTreeSet};

use atoll_pg::{ClientId, Leases, Pg, PoolPolicy, Reached, Token};
use atoll_terminal::print_line;
use atoll_types::records::PgRecord;
use atoll_types::{Epoch, ObjectName, OsdId, PgId, RequestId, Version};

use crate::Setup;
use crate::clients::Clients;
use crate::clock::Clock;
use crate::cluster::ClusterState;
use crate::device::Device;
pub use crate::event::{Event, ReadResult, Swap};
use crate::network::Network;
use crate::options::Options;
use crate::random::Random;
use crate::refusing::Refused;
use crate::restoring::Snapshot;
use crate::scrubs::LastScrub;
use crate::standing::Standing;
use crate::state::PG;
use crate::statistics::Statistics;
use crate::store::Store;

pub const TICK: u64 = 100_000;
/// An OSD that hears nothing on a connection for this time gives it up.
pub const SILENCE: u64 = 3_000_000;
/// Simulated time within which everything must have settled after the last fault.
const PATIENCE: u64 = 120_000_000;

pub struct Member {
    pub incarnation: u64,
    pub is_up: bool,
    pub pgs: BTreeMap<PgId, Pg>,
    /// The newest records that this process has heard of.
    pub records: BTreeMap<PgId, PgRecord>,
    pub leases: Leases,
    pub store: Store,
    pub last_commit: u64,
    /// Until then its device is slow.
    pub slow_until: u64,
    /// Until then its process is paused.
    pub paused_until: u64,
    /// Until then it cannot reach cluster state.
    pub state_blocked_until: u64,
    /// Until then its store refuses data.
    pub refuses_until: u64,
    /// Changes that its store refuses for good.
    pub refused: Option<Refused>,
    /// OSDs that are full as far as it knows, perhaps itself.
    pub full: BTreeSet<OsdId>,
    pub clock: Clock,
    /// PGs that the shell will soon let copy another object.
    pub may_copy_soon: BTreeSet<PgId>,
    /// Requests that this process has yet to answer.
    pub owed_reads: BTreeMap<(ClientId, u64), u32>,
    pub owed_writes: BTreeSet<RequestId>,
    /// Writes that it has neither ordered nor answered, as they came in.
    pub waiting_writes: Vec<(PgId, RequestId, ObjectName)>,
    /// Writes that it has answered. Further copies of them may wait, in unknown places.
    pub answered_writes: BTreeSet<RequestId>,
    /// PGs that have had events and will act on them later.
    pub not_run: BTreeSet<PgId>,
    /// Submissions that the real store will refuse, as its model does.
    pub will_fail: BTreeSet<(PgId, Token)>,
    /// Scrubs of objects under way in the real store, and whether they are deep.
    pub scrubs: BTreeMap<(PgId, Token), (ObjectName, bool)>,
}

impl Member {
    /// An OSD that has not started yet, with an empty store.
    fn new(clock_rate: u64, clock_offset: u64, store: Store) -> Self {
        Member {
            incarnation: 0,
            is_up: false,
            pgs: BTreeMap::new(),
            records: BTreeMap::new(),
            leases: Leases::new(0),
            store,
            last_commit: 0,
            slow_until: 0,
            paused_until: 0,
            state_blocked_until: 0,
            refuses_until: 0,
            refused: None,
            full: BTreeSet::new(),
            clock: Clock::new(clock_rate, clock_offset),
            may_copy_soon: BTreeSet::new(),
            owed_reads: BTreeMap::new(),
            owed_writes: BTreeSet::new(),
            waiting_writes: Vec::new(),
            answered_writes: BTreeSet::new(),
            not_run: BTreeSet::new(),
            will_fail: BTreeSet::new(),
            scrubs: BTreeMap::new(),
        }
    }
}

pub struct World {
    pub now: u64,
    pub random: Random,
    pub queue: BTreeMap<(u64, u64), Event>,
    next_event: u64,
    pub members: Vec<Member>,
    pub network: Network,
    pub cluster: ClusterState,
    pub policy: PoolPolicy,
    pub clients: Clients,
    pub trace: u64,
    pub statistics: Statistics,
    pub verbose: bool,
    /// The OSD that lost its device last.
    pub wiped: Option<OsdId>,
    pub options: Options,
    /// Objects with a copy that was damaged at some time.
    pub damaged: BTreeSet<ObjectName>,
    pub last_scrub: Option<LastScrub>,
    /// Writes that were ordered when their primary knew that an OSD was full, by that OSD.
    pub ordered_while_full: BTreeSet<(usize, PgId, Version)>,
    /// Parts of writes that full OSDs took in place.
    pub overwrites_in_place: u64,
    /// Objects in one message that lists them.
    pub objects_listed_max: usize,
    /// Additional time of loads and reads of stores, in simulated microseconds.
    pub store_pause: u64,
    /// Stages of slow reads, in the order of their answers.
    pub slow_reads: Vec<Vec<Reached>>,
    /// OSDs whose devices have lost durable data, and the epochs of the PGs then: until those are active under
    /// later ones, not all members have all acknowledged writes.
    pub losses: BTreeMap<usize, Vec<(PgId, Epoch)>>,
    /// A fault that stands while clients must be served.
    pub standing: Standing,
    /// Cluster state at some time.
    pub snapshot: Option<Snapshot>,
    /// The PGs that cluster state was put back for, and the epochs with which they are to be active again.
    pub restored: Vec<(PgId, Epoch)>,
    /// OSDs with the real store whose turn has not ended.
    pub turns: BTreeSet<usize>,
}

pub fn osd(index: usize) -> OsdId {
    OsdId(index as u32 + 1)
}

impl World {
    pub fn new(seed: u64, setup: Setup) -> Self {
        let mut random = Random::new(seed);
        let mut options = Options::draw(setup.is_coded, &mut random);
        options = options.with_faults_of(setup);
        if setup.has_many_pgs(seed) {
            options = options.with_many_pgs();
        }
        if setup.has_real_store(seed) {
            options = options.with_real_store(&mut random);
        }
        let mut world = Self::with_options(options, random, setup.is_verbose);
        if setup.has_standing_fault {
            world.standing = Standing::Ahead;
        }
        world
    }

    pub fn with_options(options: Options, mut random: Random, verbose: bool) -> Self {
        let count = options.clock_rates.len();
        let mut member = |rate: &u64| {
            let offset = random.below(1 << 40);
            let device = options.real_store.map(|budget| Device::new(budget, options.pgs, &mut random));
            let mut store = Store::new(options.ring_entries, options.pgs, device);
            store.keep_past(options.keeps_past);
            Member::new(*rate, offset, store)
        };
        let members = options.clock_rates.iter().map(&mut member).collect();
        let size = options.size();
        let members_of_pgs =
            (0..options.pgs as usize).map(|pg| (pg..pg + size).map(|at| osd(at % count)).collect());
        let mut world = World {
            now: 0,
            queue: BTreeMap::new(),
            next_event: 0,
            members,
            network: Network::new(count),
            cluster: ClusterState::new(members_of_pgs, options.shape.is_some()),
            policy: PoolPolicy {
                pg_num: options.pgs,
                pg_num_first: options.pgs,
                size: options.size() as u32,
                min_size: options.min_size,
                may_backfill: true,
                shape: options.shape,
            },
            clients: Clients::new(options.sessions, options.objects, options.shape.is_some()),
            random,
            trace: 0xcbf2_9ce4_8422_2325,
            statistics: Statistics::default(),
            verbose,
            wiped: None,
            options,
            damaged: BTreeSet::new(),
            last_scrub: None,
            ordered_while_full: BTreeSet::new(),
            overwrites_in_place: 0,
            objects_listed_max: 2,
            store_pause: 0,
            slow_reads: Vec::new(),
            standing: Standing::Over,
            losses: BTreeMap::new(),
            snapshot: None,
            restored: Vec::new(),
            turns: BTreeSet::new(),
        };
        for at in 0..count {
            world.after(1, Event::Restart { at });
        }
        if world.options.client_pace != u64::MAX {
            for session in 0..world.clients.sessions.len() {
                world.after(100, Event::ClientWakes { session });
            }
        }
        if !world.options.faults.is_empty() {
            world.after(1_000_000, Event::Fault);
        }
        world.at(world.options.quiet_at, Event::Quiet);
        world
    }

    pub fn is_quiet(&self) -> bool {
        self.now >= self.options.quiet_at
    }

    /// Returns true if something unusual happens.
    pub fn mishap(&mut self, percent: u64) -> bool {
        self.options.has_mishaps && self.random.chance(percent)
    }

    pub fn local_ms(&self, at: usize) -> u64 {
        self.members[at].clock.local_ms(self.now)
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
            print_line!("{:>8} {what} {numbers:?}", self.now);
        }
        let bytes = what.bytes().chain(numbers.iter().chain([&self.now]).flat_map(|number| number.to_le_bytes()));
        for byte in bytes {
            self.trace = (self.trace ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }

    /// Runs until everything has settled after the faults.
    pub fn run(&mut self) {
        let mut has_read_all = false;
        while self.next_step() {
            self.judge_standing_fault();
            if self.is_quiet() && self.is_settled() && self.standing_fault_is_over() && self.scrub_is_over() {
                if has_read_all {
                    return;
                }
                has_read_all = true;
                self.read_everything();
            }
            let deadline = self.options.quiet_at.saturating_add(PATIENCE);
            assert!(self.now < deadline, "not settled: {}", self.what_is_not_settled());
        }
    }

    /// Handles the next event. False if there is none.
    pub fn next_step(&mut self) -> bool {
        let Some(((time, _), event)) = self.queue.pop_first() else { return false };
        self.now = time;
        match event.process() {
            Some(at) if time < self.members[at].paused_until => self.at(self.members[at].paused_until, event),
            process => {
                if let Some(at) = process {
                    self.notice_stopped_clock(at);
                }
                self.step(event);
            }
        }
        self.end_turns();
        true
    }

    /// An OSD notices at its next event that its clock has stood still.
    fn notice_stopped_clock(&mut self, at: usize) {
        let now_ms = self.local_ms(at);
        let member = &mut self.members[at];
        if member.clock.take_stopped(self.now) {
            member.leases.clock_stood_still(now_ms);
        }
    }

    /// When the next event happens.
    pub fn next_time(&self) -> u64 {
        self.queue.first_key_value().map_or(u64::MAX, |((time, _), _)| *time)
    }

    pub fn primary(&self) -> usize {
        self.primary_of(PG)
    }

    /// The primary of a PG.
    pub fn primary_of(&self, pg: PgId) -> usize {
        let state = self.cluster.of(pg).expect("the PG exists");
        state.record.primary.0 as usize - 1
    }

    pub fn is_current(&self, at: usize, incarnation: u64) -> bool {
        self.members[at].incarnation == incarnation && self.members[at].is_up
    }

    fn step(&mut self, event: Event) {
        match event {
            Event::PeerMessage { from, to, generation, message } => {
                if self.network.arrives(to, from, self.now, generation) && self.members[to].is_up {
                    self.peer_message(from, to, message);
                }
            }
            Event::PeerUp { at, other, generation } => {
                if self.members[at].is_up && self.network.comes_up(at, other, generation) {
                    self.note("up", &[at as u64, other as u64]);
                    self.with_each_pg(at, |pg, view| pg.peer_up(osd(other), view));
                }
            }
            Event::PeerDown { at, other, generation } => {
                if self.network.goes_down(at, other, generation) {
                    self.note("down", &[at as u64, other as u64]);
                    self.members[at].leases.disconnected(osd(other));
                    self.with_each_pg(at, |pg, view| pg.peer_down(osd(other), view));
                    self.connect(at, other);
                }
            }
            Event::Answer { conn, message } => self.answer_arrives(conn, message),
            Event::Record { at, incarnation, pg, record } => self.record_arrives(at, incarnation, pg, record),
            Event::Swap { at, pg, swap } => self.swap(at, pg, *swap),
            Event::Run { at } => self.run_pgs(at),
            Event::Restart { at } => self.restart(at),
            Event::Room { at, out_of_room } => self.set_room(at, out_of_room),
            Event::Emptied { at } => self.set_full(at, false),
            Event::Operator { pg } => self.operator_looks(pg),
            Event::Fault => self.fault(),
            Event::Quiet => self.heal(),
            Event::ClientWakes { session } => self.client_wakes(session),
            Event::ClientRetries { op, attempt } => self.client_retries(op, attempt),
            Event::Request { to: at, incarnation, .. }
            | Event::Commit { at, incarnation }
            | Event::Loaded { at, incarnation, .. }
            | Event::Listed { at, incarnation, .. }
            | Event::ReadDone { at, incarnation, .. }
            | Event::Scrubbed { at, incarnation, .. }
            | Event::MayCopy { at, incarnation, .. }
            | Event::BackfillRead { at, incarnation, .. }
            | Event::Target { at, incarnation }
            | Event::DiskDone { at, incarnation, .. }
            | Event::Tick { at, incarnation } => {
                if self.is_current(at, incarnation) {
                    self.process_step(event);
                }
            }
        }
    }

    /// Handles an event of a process that still runs.
    fn process_step(&mut self, event: Event) {
        match event {
            Event::Request { conn, to, message, .. } => self.request(conn, to, message),
            Event::Commit { at, .. } => {
                let (pg, token) = self.members[at].store.commit();
                self.note("commit", &[at as u64, token.0]);
                self.histories_of_electors_are_prefixes(pg, at);
                self.with_pg(at, pg, |pg, view| pg.committed(token, view));
            }
            Event::Loaded { at, pg, token, lookup, .. } => {
                self.note("loaded", &[at as u64, token.0]);
                self.loaded(at, pg, token, &lookup);
            }
            Event::Listed { at, pg, token, objects, more, .. } => {
                self.note("listed", &[at as u64, token.0]);
                self.with_pg(at, pg, |pg, _| pg.objects_listed(token, objects, more));
            }
            Event::ReadDone { at, pg, token, answer, looks_again, .. } => {
                self.note("read", &[at as u64, token.0]);
                let store = &self.members[at].store;
                let again = looks_again.filter(|(object, request)| store.is_read_loaded(pg, object, request));
                let answer = again.map_or(answer, |(object, request)| store.read(pg, &object, &request));
                self.with_pg(at, pg, |pg, view| pg.read_done(token, answer, view));
            }
            Event::Scrubbed { at, pg, token, finding, .. } => {
                self.note("examined", &[at as u64, token.0]);
                self.with_pg(at, pg, |pg, view| pg.scrubbed(token, finding, view));
            }
            Event::MayCopy { at, pg, .. } => {
                self.members[at].may_copy_soon.remove(&pg);
                self.with_pg(at, pg, |pg, view| _ = pg.backfill_next(view));
            }
            Event::BackfillRead { at, pg, token, result, .. } => {
                self.note("backfill read", &[at as u64, token.0, u64::from(result.is_ok())]);
                self.with_pg(at, pg, |pg, view| pg.object_read(token, result, view));
            }
            Event::Target { at, .. } => {
                for pg in self.cluster.pgs() {
                    self.add_stray_pg(at, pg);
                    let target = self.cluster.of(pg).expect("it is listed").target.clone();
                    let policy = self.policy;
                    self.with_pg(at, pg, |pg, view| pg.set_target(target, policy, view));
                }
            }
            Event::DiskDone { at, id, .. } => self.disk_done(at, id),
            Event::Tick { at, incarnation } => {
                self.tick_store(at);
                self.tick(at);
                self.at(self.now + TICK, Event::Tick { at, incarnation });
            }
            _ => unreachable!("all other events are handled before"),
        }
    }

    fn record_arrives(&mut self, at: usize, incarnation: u64, pg: PgId, record: PgRecord) {
        if !self.is_current(at, incarnation) {
            return;
        }
        let blocked_until = self.members[at].state_blocked_until;
        if self.now < blocked_until {
            return self.at(blocked_until, Event::Record { at, incarnation, pg, record });
        }
        self.note("record", &[at as u64, record.epoch.0, record.activated_epoch.0]);
        let age = |record: &PgRecord| (record.epoch, record.activated_epoch, record.pg_num);
        let known = self.members[at].records.entry(pg).or_insert_with(|| record.clone());
        if age(&record) > age(known) {
            *known = record.clone();
        }
        let me = osd(at);
        if record.members.contains(&me) || record.last_active_members.contains(&me) {
            self.add_pg(at, pg);
        }
        self.add_stray_pg(at, pg);
        self.with_pg(at, pg, |pg, view| pg.set_record(record, view));
    }

    fn swap(&mut self, at: usize, pg: PgId, swap: Swap) {
        let Swap { expected, record, split_off } = swap;
        let Some(state) = self.cluster.of_mut(pg) else {
            // Cluster state was put back from before its split.
            self.statistics.swaps_failed += 1;
            return;
        };
        let was_done = state.compare_and_swap(&expected, record, split_off.clone());
        let record = state.record.clone();
        self.note("swap", &[at as u64, u64::from(was_done), record.epoch.0]);
        if !was_done {
            self.statistics.swaps_failed += 1;
            return;
        }
        if self.verbose {
            print_line!("{:>8} {pg} {record:?}", self.now);
        }
        self.statistics.activations += u64::from(record.activated_epoch == record.epoch);
        self.statistics.takeovers += u64::from(record.primary != expected.primary);
        for osd in &record.last_active_members {
            self.histories_of_electors_are_prefixes(pg, osd.0 as usize - 1);
        }
        self.tell_record(pg, &record);
        if let Some(record) = split_off {
            self.statistics.splits += 1;
            self.tell_record(pg.split_off(self.policy.pg_num_first), &record);
        }
    }

    pub fn tell_record(&mut self, pg: PgId, record: &PgRecord) {
        for at in 0..self.members.len() {
            let incarnation = self.members[at].incarnation;
            let times = if self.mishap(20) { 2 } else { 1 };
            for _ in 0..times {
                self.after(1_000, Event::Record { at, incarnation, pg, record: record.clone() });
            }
        }
    }
}
