//! Arguments of `atoll bench guard`.

use std::path::PathBuf;

use clap::Args;

pub const HELP: &str = "\
Examples:
  atoll bench guard --record                       measure all cells and keep them as the budget
  atoll bench guard                                fails if one costs over 15 % more than the budget says
  atoll bench guard --only 'depth 32: randwrite' --only 'put 64 KiB' --tolerance 10
  atoll bench guard --dir /mnt/nvme/guard --json | jq '.cells[] | {subject, load, ratio, verdict}'

It starts a throw-away cluster, runs the matrix 'data-path' (profile 'guard', some minutes), and compares CPU time
of all servers per operation, the median of three rounds. A yardstick, fixed work whose CPU time is measured
before and after each run, tells a slower machine from slower code: MACHINE is how much slower it is, RATIO is now
by recorded, divided by that. Cells that do not pass are measured once more before the verdict.

Exit code 0: all cells pass. 1: a cell costs too much or is missing on one side, or it could not be measured.";

#[derive(Args)]
pub struct GuardArguments {
    /// The recorded budget
    #[arg(long, value_name = "FILE", default_value = "docs/benchmarks/budget.json")]
    pub budget: PathBuf,
    /// Measure all cells and write the budget anew
    #[arg(long, conflicts_with_all = ["only", "tolerance"])]
    pub record: bool,
    /// How much more than recorded a cell may cost, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 15.0, value_parser = parse_tolerance)]
    pub tolerance: f64,
    /// Only cells that have this in their names (SUBJECT, LOAD); may be given several times
    #[arg(long, value_name = "TEXT")]
    pub only: Vec<String>,
    /// Where the cluster is made, which is removed at the end
    #[arg(long, value_name = "DIR", default_value = "./atoll-bench-clusters")]
    pub dir: PathBuf,
    /// Print JSON instead of text
    #[arg(long)]
    pub json: bool,
}

fn parse_tolerance(text: &str) -> Result<f64, String> {
    let percent = text.parse().ok().filter(|percent| (1.0..=1000.0).contains(percent));
    percent.ok_or_else(|| format!("'{text}' is not a number of percent from 1 to 1000"))
}
