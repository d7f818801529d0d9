//! Some hundred seeds of replicated and as many of erasure-coded pools, each run twice.
//! `ATOLL_SIM_RUNS` sets their number, `ATOLL_SIM_SEED` the first one, `ATOLL_SIM_ONCE` leaves the second
//! run out, and `ATOLL_SIM_FAILURES` says after how many failures to stop. With one seed the trace
//! is printed.

use atoll_sim::{Campaign, Setup, Stores, simulate};

fn setting(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().expect("a number"))
}

/// `ATOLL_SIM_STORES`: `real` or `stand-in` in all seeds.
fn stores() -> Stores {
    match std::env::var("ATOLL_SIM_STORES").as_deref() {
        Ok("real") => Stores::Real,
        Ok("stand-in") => Stores::StandIn,
        _ => Stores::BySeed,
    }
}

#[test]
fn histories_are_linearizable_and_replicas_converge() {
    run(false);
}

#[test]
fn erasure_coded_histories_are_linearizable_and_shards_fit() {
    run(true);
}

/// Seeds that have failed, each by a fault that has no scenario of its own yet or only a simpler one. They failed before
/// devices forgot.
#[test]
fn seeds_that_failed_pass() {
    let setup = Setup {
        stores: Stores::StandIn,
        forgets: false,
        puts_back: false,
        has_standing_fault: false,
        refuses_for_good: false,
        restores: false,
        has_pools_of_many_pgs: false,
        ..Setup::default()
    };
    for seed in [80_014_476, 140_060_094, 140_073_683, 170_027_478, 190_015_086, 210_078_767] {
        simulate(seed, Setup { is_coded: true, ..setup });
    }
    for seed in [60_017_868, 160_040_055] {
        simulate(seed, setup);
    }
    // A primary missed the record that said that an elector was whole again.
    let setup =
        Setup { refuses_for_good: false, restores: false, has_pools_of_many_pgs: false, ..Setup::default() };
    simulate(500_656, Setup { is_coded: true, ..setup });
}

/// Copies that all count as incomplete, although they are not: an operator may resume the PG from any, and nothing
/// is lost.
#[test]
fn whatever_an_operator_decides_loses_nothing_that_the_copy_has() {
    for is_coded in [false, true] {
        for (stores, seeds) in [(Stores::StandIn, 60), (Stores::Real, 20)] {
            for seed in 1..=seeds {
                let setup = Setup { forgets: false, puts_back: false, decides: true, ..Setup::default() };
                simulate(seed, Setup { is_coded, stores, ..setup });
            }
        }
    }
}

fn run(is_coded: bool) {
    let is_on = |variable: &str, default: u64| setting(variable, default) == 1;
    let setup = Setup {
        is_coded,
        stores: stores(),
        is_verbose: false,
        forgets: is_on("ATOLL_SIM_FORGET", 1),
        puts_back: is_on("ATOLL_SIM_PUT_BACK", 1),
        decides: is_on("ATOLL_SIM_DECIDE", 0),
        refuses_for_good: is_on("ATOLL_SIM_REFUSE", 1),
        restores: is_on("ATOLL_SIM_RESTORE", 1),
        has_pools_of_many_pgs: is_on("ATOLL_SIM_PGS", 1),
        has_standing_fault: is_on("ATOLL_SIM_STANDING", 1),
    };
    let campaign = Campaign {
        first: setting("ATOLL_SIM_SEED", 1),
        seeds: setting("ATOLL_SIM_RUNS", 400),
        jobs: 1,
        setup,
        twice: setting("ATOLL_SIM_ONCE", 0) == 0,
        failures_max: setting("ATOLL_SIM_FAILURES", 10) as usize,
    };
    if campaign.seeds == 1 {
        simulate(campaign.first, Setup { is_verbose: true, ..setup });
    }
    let report = campaign.run(&|_, _| {});
    for failure in &report.failures {
        eprintln!(
            "seed {}: {}\nreplay it with\n  ATOLL_SIM_SEED={} ATOLL_SIM_RUNS=1 and all that is set now, or\n  atoll sim{} --seed {} --trace",
            failure.seed,
            failure.cause,
            failure.seed,
            if is_coded { " --ec" } else { "" },
            failure.seed
        );
    }
    let counted = report.statistics.all().into_iter().map(|(_, text, count)| format!("{count} {text}"));
    println!("{} seeds: {}", report.seeds, counted.collect::<Vec<_>>().join(", "));
    assert!(report.failures.is_empty(), "{} seeds failed", report.failures.len());
    if campaign.seeds >= 100 {
        // Shards are read from several members, not by these reads.
        let of_copies = ["unreadable_backfill_reads", "further_parts"];
        let of_shards = ["overwrites", "unreadable_overwrites"];
        let mut cannot_be = if is_coded { of_copies.to_vec() } else { of_shards.to_vec() };
        if !setup.forgets && !setup.puts_back {
            cannot_be.push("forgotten");
        }
        if !setup.decides {
            cannot_be.push("decisions");
        }
        if !setup.refuses_for_good {
            cannot_be.push("refusing_for_good");
        }
        if !setup.restores || setup.decides {
            cannot_be.extend(["restores", "forgotten_splits"]);
        }
        if !setup.has_standing_fault {
            cannot_be.push("standing");
        }
        for (name, text, count) in report.statistics.all() {
            assert!(count > 0 || cannot_be.contains(&name), "no {text} in {} seeds", report.seeds);
        }
    }
}
