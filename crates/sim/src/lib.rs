//! Simulates a pool on three to five OSDs from one seed, in one thread: one PG, or four, which may each split into
//! two.
//!
//! Connections are slow, lost, or cut in one direction or both; processes crash, pause, and their
//! clocks drift; devices are lost, damaged, full or slow; metadata is evicted; cluster state lags
//! or is out of reach; plans move the PG, scrubs run, and clients are impatient. Then all faults
//! end, and everything must become clean. The answers that clients saw are checked against one
//! history.
//!
//! The OSDs run `atoll-pg` as the daemon does. In every third seed they have the real store on simulated disks, in
//! the others a stand-in with the same rules, which is also compared with the real one. This crate may not know
//! sockets, clocks or devices; threads only run several seeds at once.

// They panic when nobody reads; `print_line!` and `print_note!` do not.
#![warn(clippy::print_stdout, clippy::print_stderr)]
#![allow(clippy::unwrap_used, missing_docs)] // a test through and through

mod accept;
mod campaign;
mod check;
mod clients;
mod clock;
mod cluster;
mod device;
#[cfg(test)]
mod differential;
mod driven;
mod event;
mod faults;
mod forgetting;
mod full;
mod hostile;
mod invariants;
mod network;
mod options;
mod random;
mod refusing;
mod restoring;
mod script;
mod scrubs;
mod settled;
mod shell;
mod standing;
mod state;
mod statistics;
mod store;
mod turns;
mod view;
mod workload;
mod world;

use atoll_types::Refusal;

pub use campaign::{Campaign, Failure, Report, text_of};
pub use clients::{Answer, Kind};
pub use driven::Driven;
pub use options::{Fault, Options};
pub use restoring::Snapshot;
pub use script::{
    Script, block, clone_of, create, data_of, half_of, read_block, remove, write_block, write_blocks, write_key,
    write_key_if,
};
pub use state::{PG, Pgs, SPLIT_PG, name};
pub use statistics::Statistics;
pub use workload::object_name;
pub use world::{Member, World};

/// Result of one run.
pub struct Outcome {
    pub trace: u64,
    pub statistics: Statistics,
}

/// Runs one seed of an erasure-coded pool whose OSDs are full now and then. Returns how many parts of
/// writes full OSDs took in place, and how many writes were refused for lack of space.
pub fn simulate_full(seed: u64) -> (u64, usize) {
    let mut random = random::Random::new(seed);
    let mut options = Options::draw(true, &mut random).with_faults_of(Setup::default());
    options.faults.push((Fault::Fill, 60));
    let mut world = world::World::with_options(options, random, false);
    world.standing = standing::Standing::Ahead;
    world.run();
    check::check(&world);
    let is_refusal = |answer: &Answer| matches!(answer, Answer::Written(Err(Refusal::NoSpace { .. })));
    let answers = world.clients.ops.iter().filter_map(|op| op.answered.as_ref());
    (world.overwrites_in_place, answers.filter(|(_, answer)| is_refusal(answer)).count())
}

/// Which store the members of a run have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stores {
    /// The real one in one seed of three.
    #[default]
    BySeed,
    /// The stand-in.
    StandIn,
    /// The real one, on simulated disks.
    Real,
}

/// Setup of a run, apart from its seed.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// The pool is erasure-coded.
    pub is_coded: bool,
    pub stores: Stores,
    /// Devices forget their latest durable data.
    pub forgets: bool,
    /// Older copies of devices are put back.
    pub puts_back: bool,
    /// Copies are taken for incomplete, and an operator decides.
    pub decides: bool,
    /// Stores refuse one write, or additions to one object, for good.
    pub refuses_for_good: bool,
    /// Cluster state is put back from an older snapshot.
    pub restores: bool,
    /// One pool of ten begins with four PGs, which may each be split, and not with one.
    pub has_pools_of_many_pgs: bool,
    /// A fault stands at the end, while clients must be served.
    pub has_standing_fault: bool,
    /// Prints all events.
    pub is_verbose: bool,
}

impl Default for Setup {
    /// Replicated, with every fault.
    fn default() -> Self {
        Setup {
            is_coded: false,
            stores: Stores::BySeed,
            forgets: true,
            puts_back: true,
            decides: false,
            refuses_for_good: true,
            restores: true,
            has_pools_of_many_pgs: true,
            has_standing_fault: true,
            is_verbose: false,
        }
    }
}

impl Setup {
    fn has_many_pgs(&self, seed: u64) -> bool {
        self.has_pools_of_many_pgs && seed % 10 == 7
    }

    fn has_real_store(&self, seed: u64) -> bool {
        match self.stores {
            Stores::BySeed => seed.is_multiple_of(3),
            Stores::StandIn => false,
            Stores::Real => true,
        }
    }
}

/// Runs one seed to its end. Panics if a check fails.
pub fn simulate(seed: u64, setup: Setup) -> Outcome {
    let mut world = world::World::new(seed, setup);
    world.run();
    check::check(&world);
    world.statistics.requests = world.clients.ops.len() as u64;
    Outcome { trace: world.trace, statistics: world.statistics }
}
