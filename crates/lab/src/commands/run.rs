//! `atoll bench run`: a matrix and its reports.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;
use atoll_bench::Measurement;
use atoll_terminal::{print_json, print_line, print_note, print_table};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};

use crate::facts::facts;
use crate::matrix::{Matrix, MatrixRun, MatrixStep, SHIPPED, Stops};

/// Examples, for the end of the help text.
pub const HELP: &str = "\
Examples:
  atoll bench run --list                             the matrices that come with Atoll
  atoll bench run encryption-block --profile short   some 15 minutes: an idea of the answer
  atoll bench run redundancy --out ./results         hours: the answer
  atoll bench run encryption-object --transit '--kms-address http://127.0.0.1:8200 --kms-token-file ./token'
  atoll bench run ./my-matrix.toml --without luks,both

Each load runs on each subject, alternately, as often as the profile says. Each run adds a line to
OUT/NAME-PROFILE.jsonl, from which the same command resumes after an interruption. Clusters are made below --dir, use
its disk, and are removed at the end.";

/// Arguments of `atoll bench run`.
#[derive(Args)]
pub struct RunBenchArguments {
    /// Name of a matrix that comes with Atoll, or a TOML file
    #[arg(required_unless_present = "list")]
    pub matrix: Option<String>,
    /// Show the matrices that come with Atoll
    #[arg(long)]
    pub list: bool,
    /// How much of everything: full, short, or another that the matrix has
    #[arg(long, default_value = "full")]
    pub profile: String,
    /// Where the record and the reports go
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub out: PathBuf,
    /// Where clusters are made: on the disk that is to be measured
    #[arg(long, value_name = "DIR", default_value = "./atoll-bench-clusters")]
    pub dir: PathBuf,
    /// Subjects to leave out
    #[arg(long, value_name = "SUBJECT,...", value_delimiter = ',')]
    pub without: Vec<String>,
    /// Options of 'atoll up' that name a Transit engine, for subjects whose keys are in one
    #[arg(long, value_name = "OPTIONS", default_value = "", allow_hyphen_values = true)]
    pub transit: String,
    /// Print the record's path and the reports' as JSON
    #[arg(long)]
    pub json: bool,
}

/// Exit code of a command that a signal ended, as shells define it.
const EXIT_INTERRUPTED: i32 = 130;

/// Runs `atoll bench run`.
pub fn run(arguments: RunBenchArguments, atoll: PathBuf) -> anyhow::Result<()> {
    let Some(name) = arguments.matrix.filter(|_| !arguments.list) else { return list(arguments.json) };
    let matrix = Matrix::load(&name)?;
    make_directory(&arguments.out)?;
    make_directory(&arguments.dir)?;
    let record = arguments.out.join(format!("{}-{}.jsonl", matrix.name, arguments.profile));
    let stops = Stops::default();
    stop_when_told_to_end(stops.clone(), "; repeat the command to resume here")?;
    let bar = matrix_bar();
    let begun = Instant::now();
    let run = MatrixRun {
        matrix,
        profile: arguments.profile,
        without: arguments.without,
        only: Vec::new(),
        directory: arguments.dir.canonicalize().context("the directory for clusters is gone")?,
        record: record.clone(),
        atoll,
        transit: arguments.transit.split_whitespace().map(str::to_owned).collect(),
        stops,
    };
    let result = run.run(&facts, &|step| show(&bar, &step))?;
    bar.finish_and_clear();
    // It is removed if nothing is left in it.
    let _ = std::fs::remove_dir(&run.directory);
    let (html, markdown) = (record.with_extension("html"), record.with_extension("md"));
    crate::report::write_reports(&result, &html, &markdown)?;
    let failed = result.failed.len();
    if arguments.json {
        print_json(&json!({ "record": record, "html": html, "markdown": markdown, "runs": result.runs.len(),
            "failed": failed, "seconds": begun.elapsed().as_secs() }))?;
    } else {
        print_line!("{} runs in {} s", result.runs.len(), begun.elapsed().as_secs());
        [&record, &html, &markdown].into_iter().for_each(|path| print_line!("  {}", path.display()));
    }
    anyhow::ensure!(failed == 0, "{failed} runs could not be done; the report says which and why");
    Ok(())
}

fn list(is_json: bool) -> anyhow::Result<()> {
    let mut rows = Vec::new();
    for (name, _) in SHIPPED {
        let matrix = Matrix::load(name)?;
        let profiles: Vec<&str> = matrix.profile.keys().map(String::as_str).collect();
        rows.push((name, matrix.title.clone(), profiles.join(", ")));
    }
    if is_json {
        let entry = |(name, title, profiles)| json!({ "name": name, "title": title, "profiles": profiles });
        return print_json(&rows.into_iter().map(entry).collect::<Vec<_>>());
    }
    let rows: Vec<Vec<String>> =
        rows.into_iter().map(|(name, title, profiles)| vec![name.into(), title, profiles]).collect();
    print_table(&["NAME", "TITLE", "PROFILES"], &rows);
    Ok(())
}

pub(super) fn matrix_bar() -> ProgressBar {
    let bar = ProgressBar::no_length();
    let style = ProgressStyle::with_template("{wide_bar} {pos}/{len} {eta_precise} left\n{wide_msg}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.enable_steady_tick(Duration::from_secs(1));
    bar
}

pub(super) fn make_directory(path: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(path).with_context(|| format!("cannot make the directory {}", path.display()))
}

/// Clusters that run in the background would be left behind.
pub(super) fn stop_when_told_to_end(stops: Stops, what_then: &'static str) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (mut interrupt, mut terminate) = {
        let _inside = runtime.enter();
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?)
    };
    std::thread::spawn(move || {
        runtime.block_on(async {
            tokio::select! { _ = interrupt.recv() => {}, _ = terminate.recv() => {} }
        });
        print_note!("stopping the started processes{what_then}");
        for error in stops.stop_all() {
            print_note!("{error}");
        }
        std::process::exit(EXIT_INTERRUPTED);
    });
    Ok(())
}

pub(super) fn show(bar: &ProgressBar, step: &MatrixStep<'_>) {
    match step {
        MatrixStep::Starting(name) => bar.set_message(format!("starting cluster {name}")),
        MatrixStep::Preparing(name) => bar.set_message(format!("preparing subject {name}")),
        MatrixStep::Running { done, all, what } => {
            bar.set_length(*all);
            bar.set_position(*done);
            bar.set_message((*what).to_owned());
        }
        MatrixStep::Measured { subject, load, measurement } => say(bar, &line(subject, load, measurement)),
        MatrixStep::Failed(failed) => {
            say(bar, &format!("FAILED {}, {}: {}", failed.subject, failed.load, failed.error));
        }
    }
}

/// A progress bar that is not on a terminal prints nothing.
pub(super) fn say(bar: &ProgressBar, text: &str) {
    if bar.is_hidden() { print_note!("{text}") } else { bar.println(text) }
}

fn line(subject: &str, load: &str, measured: &Measurement) -> String {
    format!(
        "{subject:16} {load:48} {:>10.1} op/s {:>8.1} MB/s  p50 {:>7} us  p99 {:>8} us  CPU {:>8.1} us/op",
        measured.iops, measured.mb_per_s, measured.latency_us.p50, measured.latency_us.p99, measured.cpu_us_per_op
    )
}
