//! `atoll bench run`: a matrix and its reports.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;
use atoll_bench::{BenchError, DataFacts, Matrix, MatrixRun, MatrixStep, Measurement, SHIPPED, Stops};
use atoll_supervisor::DataDir;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};

use super::bench::servers;
use super::{print_json, print_table, tokio_runtime};
use crate::cli::RunBenchArguments;

/// Told to end by a signal, as a shell says it.
const EXIT_INTERRUPTED: i32 = 130;

/// Runs `atoll bench run`.
pub fn run(arguments: RunBenchArguments) -> anyhow::Result<()> {
    let Some(name) = arguments.matrix.filter(|_| !arguments.list) else { return list(arguments.json) };
    let matrix = Matrix::load(&name)?;
    make_directory(&arguments.out)?;
    make_directory(&arguments.dir)?;
    let record = arguments.out.join(format!("{}-{}.jsonl", matrix.name, arguments.profile));
    let stops = Stops::default();
    stop_when_told_to_end(stops.clone(), "; the same command goes on from here")?;
    let bar = matrix_bar();
    let begun = Instant::now();
    let run = MatrixRun {
        matrix,
        profile: arguments.profile,
        without: arguments.without,
        only: Vec::new(),
        directory: arguments.dir.canonicalize().context("the directory for clusters is gone")?,
        record: record.clone(),
        atoll: std::env::current_exe().context("cannot find this program's own file")?,
        transit: arguments.transit.split_whitespace().map(str::to_owned).collect(),
        stops,
    };
    let result = run.run(&facts, &|step| show(&bar, &step))?;
    bar.finish_and_clear();
    // It is removed if nothing is left in it.
    let _ = std::fs::remove_dir(&run.directory);
    let (html, markdown) = (record.with_extension("html"), record.with_extension("md"));
    atoll_bench::write_reports(&result, &html, &markdown)?;
    let failed = result.failed.len();
    if arguments.json {
        print_json(&json!({ "record": record, "html": html, "markdown": markdown, "runs": result.runs.len(),
            "failed": failed, "seconds": begun.elapsed().as_secs() }))?;
    } else {
        println!("{} runs in {} s", result.runs.len(), begun.elapsed().as_secs());
        [&record, &html, &markdown].into_iter().for_each(|path| println!("  {}", path.display()));
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

pub(super) fn facts(data: &Path) -> Result<DataFacts, BenchError> {
    let wrong = |error: &dyn std::fmt::Display| BenchError::Invalid(error.to_string());
    let directory = DataDir::new(data);
    let found = directory.credentials().map_err(|error| wrong(&error))?;
    let gateway = found.endpoint.trim_start_matches("http://").trim_end_matches('/').to_owned();
    Ok(DataFacts { gateway, servers: servers(&directory).map_err(|error| wrong(&error))? })
}

/// Clusters that run in the background would be left behind.
pub(super) fn stop_when_told_to_end(stops: Stops, what_then: &'static str) -> anyhow::Result<()> {
    let runtime = tokio_runtime()?;
    let (mut interrupt, mut terminate) = {
        let _inside = runtime.enter();
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?)
    };
    std::thread::spawn(move || {
        runtime.block_on(async {
            tokio::select! { _ = interrupt.recv() => {}, _ = terminate.recv() => {} }
        });
        eprintln!("stopping what was started{what_then}");
        for error in stops.stop_all() {
            eprintln!("{error}");
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
    if bar.is_hidden() { eprintln!("{text}") } else { bar.println(text) }
}

fn line(subject: &str, load: &str, measured: &Measurement) -> String {
    format!(
        "{subject:16} {load:48} {:>10.1} op/s {:>8.1} MB/s  p50 {:>7} us  p99 {:>8} us  CPU {:>8.1} us/op",
        measured.iops, measured.mb_per_s, measured.latency_us.p50, measured.latency_us.p99, measured.cpu_us_per_op
    )
}
