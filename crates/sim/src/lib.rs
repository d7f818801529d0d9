//! Simulates a placement group on three to five OSDs from one seed, in one thread: delayed, lost and
//! cut connections in both directions or one, crashes, paused processes, drifting clocks, lost
//! devices, damaged blocks, rotten copies, scrubs, back-pressure, objects that are not in memory, cluster state that lags
//! or cannot be reached, plans to move the group, and impatient clients. Then all faults end and
//! everything must become clean. What clients saw is checked against one history.
//!
//! The OSDs run `atoll-pg` as the daemon does; the store is a stand-in with the same rules. This
//! room knows nothing of sockets, threads, clocks and devices.

#![allow(clippy::unwrap_used, missing_docs)] // a test through and through

mod campaign;
mod check;
mod clients;
mod cluster;
mod faults;
mod network;
mod options;
mod random;
mod script;
mod scrubs;
mod shell;
mod state;
mod statistics;
mod store;
mod view;
mod workload;
mod world;

pub use campaign::{Campaign, Failure, Report, text_of};
pub use clients::{Answer, Kind};
pub use options::{Fault, Options};
pub use script::{Script, block, create, data_of, half_of, read_block, remove, write_block, write_key};
pub use state::{PG, SPLIT_PG};
pub use statistics::Statistics;
pub use world::{Member, World};

/// What one run did.
pub struct Outcome {
    pub trace: u64,
    pub statistics: Statistics,
}

/// Runs one seed to its end, of a replicated or of an erasure-coded pool. Panics if anything that must hold does not.
pub fn simulate(seed: u64, is_coded: bool, verbose: bool) -> Outcome {
    let mut world = world::World::new(seed, is_coded, verbose);
    world.run();
    check::check(&world);
    world.statistics.requests = world.clients.ops.len() as u64;
    Outcome { trace: world.trace, statistics: world.statistics }
}
