//! A world whose requests come from code that is tested over it, while faults happen by chance.

use atoll_types::limits::PG_LOG_ENTRIES;
use atoll_types::operation::PG_META_OBJECT;
use atoll_types::{ObjectName, PgId};

use crate::Setup;
use crate::check::check;
use crate::clients::{Answer, Kind};
use crate::options::{Fault, Options};
use crate::random::Random;
use crate::statistics::Statistics;
use crate::world::World;

/// Number of processes before the first one comes again.
const PROCESSES: u64 = 6;

/// A world with one client process after the other. The requests of those that are gone are under way nevertheless.
pub struct Driven {
    world: World,
    process: usize,
}

impl Driven {
    /// The world of a seed, with a replicated or an erasure-coded pool.
    pub fn new(seed: u64, is_coded: bool) -> Self {
        let mut random = Random::new(seed);
        // What a store never takes is an error to who writes, and no history of images goes on after one.
        let setup = Setup { refuses_for_good: false, restores: false, ..Setup::default() };
        let mut options = Options::draw(is_coded, &mut random).with_faults_of(setup);
        // Damage is for scrubs, which the PG's own seeds try: without one, a read would wait for ever.
        options.faults.retain(|(fault, _)| *fault != Fault::DamageBlock);
        // A client with many requests must not outrun the log that knows which were done.
        options.ring_entries = PG_LOG_ENTRIES;
        options.retry_memory_bytes = None;
        options = Options { objects: 0, client_pace: u64::MAX, sessions: PROCESSES, late_percent: 2, ..options };
        Driven { world: World::with_options(options, random, false), process: 0 }
    }

    /// Simulated microseconds since the beginning.
    pub fn now(&self) -> u64 {
        self.world.now
    }

    /// Continues to the next event.
    pub fn step(&mut self) {
        assert!(self.world.next_step(), "OSDs tick as long as the world runs");
    }

    /// Requests come from another process, over connections of its own, from now on.
    pub fn next_process(&mut self) {
        self.process = (self.process + 1) % PROCESSES as usize;
    }

    /// Sends a request; one about a PG itself, to this PG. Returns its number.
    pub fn start(&mut self, pg: PgId, kind: Kind) -> usize {
        self.world.start_in(self.process, pg, kind)
    }

    /// The answer to a request, if it has come.
    pub fn answer_of(&self, request: usize) -> Option<&Answer> {
        self.world.answer_of(request)
    }

    /// The PGs, each with the pool's number of PGs as of its last split.
    pub fn pgs(&self) -> Vec<(PgId, u32)> {
        let cluster = &self.world.cluster;
        cluster.pgs().into_iter().map(|pg| (pg, cluster.pg_num_of(pg))).collect()
    }

    /// Ends all faults, waits until everything has settled, and checks the work of the PGs. Returns the existing
    /// objects, and statistics.
    pub fn finish(mut self) -> (Vec<ObjectName>, Statistics) {
        if !self.world.is_quiet() {
            self.world.heal();
        }
        self.world.options.quiet_at = self.world.now;
        self.world.run();
        check(&self.world);
        let primary_of = |pg: &PgId| &self.world.members[self.world.primary_of(*pg)].store;
        let pgs = self.world.cluster.pgs();
        let objects = pgs.iter().flat_map(|pg| primary_of(pg).visible.of(*pg).objects.keys());
        let objects = objects.filter(|object| object.as_str() != PG_META_OBJECT).cloned().collect();
        self.world.statistics.requests = self.world.clients.ops.len() as u64;
        (objects, self.world.statistics)
    }
}
