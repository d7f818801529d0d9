//! A few hundred seeds, each run twice. `ATOLL_SIM_RUNS` sets their number, `ATOLL_SIM_SEED` the
//! first one. With one run the trace is printed.

use std::panic::{AssertUnwindSafe, catch_unwind};

use atoll_sim::{Outcome, Statistics, simulate};

const RUNS: u64 = 400;
/// More failures than this teach nothing new.
const FAILURES_MAX: usize = 10;

fn setting(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().expect("a number"))
}

#[test]
fn histories_are_linearizable_and_replicas_converge() {
    let (first, runs) = (setting("ATOLL_SIM_SEED", 1), setting("ATOLL_SIM_RUNS", RUNS));
    let (mut outcomes, mut failed): (Vec<Outcome>, Vec<u64>) = (Vec::new(), Vec::new());
    for seed in first..first + runs {
        let result = catch_unwind(AssertUnwindSafe(|| {
            let outcome = simulate(seed, runs == 1);
            let again = simulate(seed, false);
            assert_eq!(outcome.trace, again.trace, "the same seed gives the same trace");
            outcome
        }));
        match result {
            Ok(outcome) => outcomes.push(outcome),
            Err(_) => {
                failed.push(seed);
                eprintln!("seed {seed} failed; replay it with\n  ATOLL_SIM_SEED={seed} ATOLL_SIM_RUNS=1 \\");
                eprintln!("    cargo test -p atoll-sim --release --test seeds -- --nocapture");
            }
        }
        if failed.len() == FAILURES_MAX {
            break;
        }
    }
    let sum = |of: fn(&Statistics) -> u64| outcomes.iter().map(|one| of(&one.statistics)).sum::<u64>();
    println!(
        "{runs} seeds, {} requests, {} retries, {} activations, {} take-overs, {} crashes, {} broken links, \
         {} partitions, {} pauses, {} lost devices, {} moves",
        outcomes.iter().map(|one| one.requests).sum::<usize>(),
        sum(|one| one.retries),
        sum(|one| one.activations),
        sum(|one| one.takeovers),
        sum(|one| one.crashes),
        sum(|one| one.breaks),
        sum(|one| one.partitions),
        sum(|one| one.pauses),
        sum(|one| one.wipes),
        sum(|one| one.moves),
    );
    println!(
        "{} learners, {} objects synced ({} whole, {} lists), {} copy reads, {} refused as damaged, \
         {} swaps lost, {} backlogged, {} loads, {} scrubs, {} objects repaired by them",
        sum(|one| one.learners),
        sum(|one| one.syncs),
        sum(|one| one.whole_syncs),
        sum(|one| one.lists),
        sum(|one| one.copy_reads),
        sum(|one| one.corrupt_refusals),
        sum(|one| one.swaps_failed),
        sum(|one| one.backlogged),
        sum(|one| one.loads),
        sum(|one| one.scrubs),
        sum(|one| one.scrub_repairs),
    );
    assert!(failed.is_empty(), "seeds that failed: {failed:?}");
}
