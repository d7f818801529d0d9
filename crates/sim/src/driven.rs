//! A world whose requests come from code that is tested over it, while faults happen by chance.

use atoll_types::limits::PG_LOG_ENTRIES;
use atoll_types::operation::PG_META_OBJECT;
use atoll_types::{ObjectName, PgId};

use crate::check::check;
use crate::clients::{Answer, Kind};
use crate::options::{Fault, Options};
use crate::random::Random;
use crate::statistics::Statistics;
use crate::world::World;

/// A world with one client, whose requests are never given up.
pub struct Driven(World);

impl Driven {
    /// The world of a seed, with a replicated or an erasure-coded pool.
    pub fn new(seed: u64, is_coded: bool) -> Self {
        let mut random = Random::new(seed);
        let mut options = Options::draw(is_coded, &mut random);
        // Damage is for scrubs, which the PG's own seeds try: without one, a read would wait for ever.
        options.faults.retain(|(fault, _)| *fault != Fault::DamageBlock);
        // A client with many requests must not outrun the log that knows which were done.
        options = Options { objects: 0, client_pace: u64::MAX, ring_entries: PG_LOG_ENTRIES, ..options };
        Driven(World::with_options(options, random, false))
    }

    /// Simulated microseconds since the beginning.
    pub fn now(&self) -> u64 {
        self.0.now
    }

    /// Goes on to the next event.
    pub fn step(&mut self) {
        assert!(self.0.next_step(), "OSDs tick as long as the world goes on");
    }

    /// Sends a request; one about a PG itself, to this PG. Returns its number.
    pub fn start(&mut self, pg: PgId, kind: Kind) -> usize {
        self.0.start_in(0, pg, kind)
    }

    /// The answer to a request, if it has come.
    pub fn answer_of(&self, request: usize) -> Option<&Answer> {
        self.0.answer_of(request)
    }

    /// The PGs, each with the pool's number of PGs as of its last split.
    pub fn pgs(&self) -> Vec<(PgId, u32)> {
        let pgs = self.0.cluster.pgs();
        let pg_num = pgs.len() as u32;
        pgs.into_iter().map(|pg| (pg, pg_num)).collect()
    }

    /// Ends all faults, waits until everything has settled, and checks what the PGs did. Returns the objects that
    /// there are, and what happened.
    pub fn finish(mut self) -> (Vec<ObjectName>, Statistics) {
        if !self.0.is_quiet() {
            self.0.heal();
        }
        self.0.options.quiet_at = self.0.now;
        self.0.run();
        check(&self.0);
        let primary_of = |pg: &PgId| &self.0.members[self.0.primary_of(*pg)].store;
        let pgs = self.0.cluster.pgs();
        let objects = pgs.iter().flat_map(|pg| primary_of(pg).visible.of(*pg).objects.keys());
        let objects = objects.filter(|object| object.as_str() != PG_META_OBJECT).cloned().collect();
        self.0.statistics.requests = self.0.clients.ops.len() as u64;
        (objects, self.0.statistics)
    }
}
