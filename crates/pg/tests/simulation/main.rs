//! Simulates one placement group with three members from one seed, in one thread: delayed and
//! lost commits, back-pressure, broken connections, crashes, damaged blocks, objects that are not in
//! memory, lagging cluster state and impatient clients. Everything that clients saw is then checked against one history.
//!
//! `ATOLL_PG_RUNS` sets the number of seeds, `ATOLL_PG_SEED` the first one. With one run the trace
//! is printed.

#![allow(clippy::unwrap_used)] // a test through and through

mod check;
mod clients;
mod cluster;
mod faults;
mod network;
mod random;
mod shell;
mod state;
mod store;
mod workload;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};

use world::World;

const RUNS: u64 = 600;
/// More failures than this teach nothing new.
const FAILURES_MAX: usize = 10;

fn setting(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().expect("a number"))
}

fn simulate(seed: u64, verbose: bool) -> World {
    let mut world = World::new(seed, verbose);
    world.run();
    check::check(&world);
    world
}

#[test]
fn histories_are_linearizable_and_replicas_converge() {
    let (first, runs) = (setting("ATOLL_PG_SEED", 1), setting("ATOLL_PG_RUNS", RUNS));
    let (mut totals, mut failed) = (Vec::new(), Vec::new());
    for seed in first..first + runs {
        let result = catch_unwind(AssertUnwindSafe(|| {
            let world = simulate(seed, runs == 1);
            let again = simulate(seed, false);
            assert_eq!(world.trace, again.trace, "the same seed gives the same trace");
            (world.clients.ops.len(), world.statistics)
        }));
        match result {
            Ok(statistics) => totals.push(statistics),
            Err(_) => {
                failed.push(seed);
                eprintln!("seed {seed} failed; replay it with\n  ATOLL_PG_SEED={seed} ATOLL_PG_RUNS=1 \\");
                eprintln!("    cargo test -p atoll-pg --test simulation -- --nocapture");
            }
        }
        if failed.len() == FAILURES_MAX {
            break;
        }
    }
    let sum = |of: fn(&world::Statistics) -> u64| totals.iter().map(|(_, one)| of(one)).sum::<u64>();
    println!(
        "{runs} seeds, {} requests, {} retries, {} activations, {} crashes, {} broken links, {} replaced devices",
        totals.iter().map(|(ops, _)| ops).sum::<usize>(),
        sum(|one| one.retries),
        sum(|one| one.activations),
        sum(|one| one.crashes),
        sum(|one| one.breaks),
        sum(|one| one.wipes),
    );
    println!(
        "{} objects synced ({} whole, {} lists), {} copy reads, {} refused as damaged, {} swaps lost, {} backlogged, \
         {} loads",
        sum(|one| one.syncs),
        sum(|one| one.whole_syncs),
        sum(|one| one.lists),
        sum(|one| one.copy_reads),
        sum(|one| one.corrupt_refusals),
        sum(|one| one.swaps_failed),
        sum(|one| one.backlogged),
        sum(|one| one.loads),
    );
    assert!(failed.is_empty(), "seeds that failed: {failed:?}");
}
