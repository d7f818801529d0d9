//! The command that simulates PGs.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::thread::available_parallelism;

use anyhow::bail;
use atoll_sim::{Campaign, Failure, Report, Setup, simulate, text_of};
use atoll_terminal::{print_json, print_line, print_table, progress_bar};
use clap::Args;
use serde_json::{Map, Value, json};

/// Arguments of `atoll sim`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  atoll sim --seeds 10000 --jobs 4           ten thousand clusters, four at once
  atoll sim --seeds 10000 --first 10001      the next ten thousand
  atoll sim --seed 4711 --trace              one of them, with everything that happens
  atoll sim --seeds 1000 --json

Each seed is a cluster of three to five OSDs with one PG, a few clients and random faults; the same
seed always runs the same way. The answers to clients must fit one history, and all copies must end up
equal. Exit code 1 if a seed fails.")]
pub struct SimArguments {
    /// How many seeds to run
    #[arg(long, value_name = "N", default_value_t = 1_000)]
    pub seeds: u64,
    /// The first of them
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    pub first: u64,
    /// How many to run at once [default: the number of processors]
    #[arg(long, value_name = "J", value_parser = clap::value_parser!(u16).range(1..))]
    pub jobs: Option<u16>,
    /// Simulate an erasure-coded pool in place of a replicated one
    #[arg(long)]
    pub ec: bool,
    /// Run this seed only
    #[arg(long, conflicts_with_all = ["seeds", "first", "jobs"])]
    pub seed: Option<u64>,
    /// Print all events
    #[arg(long, requires = "seed", conflicts_with = "json")]
    pub trace: bool,
    /// Print JSON instead of text
    #[arg(long)]
    pub json: bool,
}

/// More failures than this teach nothing new.
const FAILURES_MAX: usize = 20;

/// Longer causes end with whole objects.
const CAUSE_CHARACTERS_MAX: usize = 300;

/// Runs `atoll sim`.
pub fn run(arguments: &SimArguments) -> anyhow::Result<()> {
    // A seed that fails panics; what it says is reported in its place.
    std::panic::set_hook(Box::new(|_| {}));
    let report = match arguments.seed {
        Some(seed) => run_one(seed, arguments),
        None => run_many(arguments),
    };
    if arguments.json {
        print_json(&to_json(&report, arguments.ec))?;
    } else {
        print_report(&report, arguments.ec);
    }
    match report.failures.len() {
        0 => Ok(()),
        1 => bail!("1 seed failed"),
        count => bail!("{count} seeds failed"),
    }
}

fn run_one(seed: u64, arguments: &SimArguments) -> Report {
    let mut report = Report { seeds: 1, ..Report::default() };
    match catch_unwind(AssertUnwindSafe(|| simulate(seed, setup(arguments)))) {
        Ok(outcome) => report.statistics = outcome.statistics,
        Err(panic) => report.failures.push(Failure { seed, cause: text_of(&*panic) }),
    }
    report
}

fn run_many(arguments: &SimArguments) -> Report {
    let processors = available_parallelism().map_or(1, usize::from);
    let campaign = Campaign {
        first: arguments.first,
        seeds: arguments.seeds,
        jobs: arguments.jobs.map_or(processors, usize::from),
        setup: setup(arguments),
        twice: false,
        failures_max: FAILURES_MAX,
    };
    let bar = Mutex::new(progress_bar("simulating"));
    campaign.run(&|done, all| {
        if let Ok(bar) = bar.lock() {
            bar(done, all);
        }
    })
}

fn setup(arguments: &SimArguments) -> Setup {
    Setup { is_coded: arguments.ec, is_verbose: arguments.trace, ..Setup::default() }
}

fn to_json(report: &Report, is_coded: bool) -> Value {
    let counted: Map<String, Value> =
        report.statistics.all().into_iter().map(|(name, _, count)| (name.to_owned(), count.into())).collect();
    let failures: Vec<Value> = report
        .failures
        .iter()
        .map(
            |failure| json!({ "seed": failure.seed, "cause": failure.cause, "replay": replay(failure, is_coded) }),
        )
        .collect();
    json!({ "seeds": report.seeds, "statistics": counted, "failures": failures })
}

fn replay(failure: &Failure, is_coded: bool) -> String {
    format!("atoll sim{} --seed {} --trace", if is_coded { " --ec" } else { "" }, failure.seed)
}

fn print_report(report: &Report, is_coded: bool) {
    for failure in &report.failures {
        let cause: String = failure.cause.chars().take(CAUSE_CHARACTERS_MAX).collect();
        print_line!("seed {} failed: {cause}\n  {}", failure.seed, replay(failure, is_coded));
    }
    let count = |seeds: u64| if seeds == 1 { "1 seed".to_owned() } else { format!("{seeds} seeds") };
    print_line!("{}, {} failed", count(report.seeds), report.failures.len());
    let rows: Vec<Vec<String>> = report
        .statistics
        .all()
        .into_iter()
        .map(|(_, text, count)| vec![format!("  {text}"), count.to_string()])
        .collect();
    print_table(&["", ""], &rows);
}
