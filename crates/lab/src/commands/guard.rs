//! `atoll bench guard`: compares the cost of operations with a recorded budget.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::Context;
use atoll_terminal::{print_json, print_line, print_note, print_table};
use clap::Args;
use indicatif::ProgressBar;
use serde_json::json;

use super::run::{make_directory, matrix_bar, say, show, stop_when_told_to_end};
use crate::facts::facts;
use crate::guard::{Budget, CellVerdict, Guard, GuardReport, GuardStep, Rise, Verdict};
use crate::matrix::{Matrix, Stops};

/// Examples, for the end of the help text.
pub const HELP: &str = "\
Examples:
  atoll bench guard --record                       measure all cells and keep them as the budget
  atoll bench guard --record --because 'each S3 request has an audit line now'
  atoll bench guard                                fails if one costs over 15 % more than the budget says
  atoll bench guard --only 'depth 32: randwrite' --only 'put 64 KiB' --tolerance 10
  atoll bench guard --dir /mnt/nvme/guard --json | jq '.cells[] | {subject, load, ratio, verdict}'

It starts a throw-away cluster, runs the matrix 'data-path' (profile 'guard', some minutes), and compares CPU time
of all servers per operation, the median of three rounds. A yardstick, fixed work whose CPU time is measured
before and after each run, separates a slower machine from slower code: MACHINE is its slowdown, RATIO is now
by recorded, divided by that. Cells that do not pass are measured once more before the verdict.

Exit code 0: all cells pass. 1: a cell costs too much or is missing on one side, or it could not be measured.";

/// Arguments of `atoll bench guard`.
#[derive(Args)]
pub struct GuardArguments {
    /// The recorded budget
    #[arg(long, value_name = "FILE", default_value = "records/budget.json")]
    pub budget: PathBuf,
    /// Measure all cells and replace the budget; a cell that costs more than the tolerance allows needs --because
    #[arg(long, conflicts_with = "only")]
    pub record: bool,
    /// Reason for the rise of cells, kept in the budget
    #[arg(long, value_name = "REASON", requires = "record", value_parser = parse_reason)]
    pub because: Option<String>,
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

fn parse_reason(text: &str) -> Result<String, String> {
    let text = text.trim();
    match text.len() {
        10..=1_000 => Ok(text.into()),
        _ => Err("a reason has 10 to 1,000 characters".into()),
    }
}

const MATRIX: &str = "data-path";

const PROFILE: &str = "guard";

/// Runs `atoll bench guard`.
pub fn run(arguments: &GuardArguments, atoll: PathBuf) -> anyhow::Result<()> {
    // What cannot be compared, or kept, in the end is not measured for minutes before.
    let budget = if arguments.record { None } else { Some(Budget::read(&arguments.budget)?) };
    if let Some(parent) =
        arguments.budget.parent().filter(|parent| arguments.record && !parent.as_os_str().is_empty())
    {
        make_directory(parent)?;
    }
    make_directory(&arguments.dir)?;
    let stops = Stops::default();
    stop_when_told_to_end(stops.clone(), "")?;
    let guard = Guard {
        matrix: Matrix::load(MATRIX)?,
        profile: PROFILE.into(),
        only: arguments.only.clone(),
        directory: arguments.dir.canonicalize().context("the directory for clusters is gone")?,
        atoll,
        stops,
    };
    let (bar, begun) = (matrix_bar(), Instant::now());
    let outcome = match &budget {
        None => record(arguments, &guard, &bar),
        Some(budget) => check(arguments, &guard, budget, &bar),
    };
    bar.finish_and_clear();
    // It is removed if nothing is left in it.
    let _ = std::fs::remove_dir(&guard.directory);
    if !arguments.json {
        print_note!("{} s", begun.elapsed().as_secs());
    }
    outcome
}

fn record(arguments: &GuardArguments, guard: &Guard, bar: &ProgressBar) -> anyhow::Result<()> {
    // A budget that cannot be read is replaced by hand, so that its reasons are not lost unseen.
    let before = if arguments.budget.exists() { Some(Budget::read(&arguments.budget)?) } else { None };
    let mut budget = guard.record(&facts, &|step| show_guard(bar, &step))?;
    bar.finish_and_clear();
    if let Some(before) = &before {
        let followed = budget.follow(before, arguments.tolerance, arguments.because.as_deref());
        followed.map_err(|rises| refusal(arguments, &rises))?;
    }
    budget.write(&arguments.budget)?;
    if arguments.json {
        return print_json(&json!({ "budget": arguments.budget, "cells": budget.cells, "rises": budget.rises }));
    }
    let rows: Vec<Vec<String>> =
        budget.cells.iter().map(|one| vec![one.cell.to_string(), format!("{:.1}", one.cpu_us_per_op)]).collect();
    print_table(&["CELL", "CPU US/OP"], &rows);
    print_line!("recorded in {}", arguments.budget.display());
    Ok(())
}

fn refusal(arguments: &GuardArguments, rises: &[Rise]) -> anyhow::Error {
    let rises: Vec<String> = rises.iter().map(|rise| format!("\n  {rise}")).collect();
    anyhow::anyhow!(
        "{} is kept, because cells cost over {} % more than in it:{}\nFind out why (docs/internals/performance.md, \"The guard\"), \
         or record it with --because REASON",
        arguments.budget.display(),
        arguments.tolerance,
        rises.concat()
    )
}

fn check(arguments: &GuardArguments, guard: &Guard, budget: &Budget, bar: &ProgressBar) -> anyhow::Result<()> {
    let report = guard.check(budget, arguments.tolerance, &facts, &|step| show_guard(bar, &step))?;
    bar.finish_and_clear();
    if arguments.json {
        print_json(&report)?;
    } else {
        print_report(&report);
    }
    let failed: Vec<String> =
        report.cells.iter().filter(|one| !one.verdict.passes()).map(|one| one.cell.to_string()).collect();
    anyhow::ensure!(
        report.passes,
        "{} of {} cells do not pass ({}). Where code became dearer, find out why: docs/internals/performance.md, \"The guard\"; record an intended rise with 'atoll bench guard --record --because REASON'",
        failed.len(),
        report.cells.len(),
        failed.join("; ")
    );
    Ok(())
}

fn show_guard(bar: &ProgressBar, step: &GuardStep<'_>) {
    match step {
        GuardStep::Matrix(step) => show(bar, step),
        GuardStep::Again(cells) => {
            say(bar, &format!("{} cells do not pass and are measured once more", cells.len()));
        }
    }
}

fn print_report(report: &GuardReport) {
    let rows: Vec<Vec<String>> = report.cells.iter().map(row).collect();
    print_table(&["CELL", "RECORDED US/OP", "NOW US/OP", "MACHINE", "RATIO", "VERDICT"], &rows);
    for one in &report.cells {
        if let Some(error) = &one.error {
            print_line!("{}: {error}", one.cell);
        }
    }
    report.notes.iter().for_each(|note| print_line!("note: {note}"));
}

fn row(one: &CellVerdict) -> Vec<String> {
    let figure =
        |figure: Option<f64>, digits: usize| figure.map_or("-".into(), |figure| format!("{figure:.digits$}"));
    let verdict = match one.verdict {
        Verdict::Holds => "holds",
        Verdict::Cheaper => "cheaper: record it",
        Verdict::TooDear => "TOO DEAR",
        Verdict::NotMeasured => "NOT MEASURED",
        Verdict::NotRecorded => "NOT IN THE BUDGET",
    };
    let twice = match one.first_ratio {
        Some(first) => format!(" (measured twice; first {first:.2})"),
        None if one.is_measured_twice => " (measured twice; the first failed)".into(),
        None => String::new(),
    };
    vec![
        one.cell.to_string(),
        figure(one.recorded_us_per_op, 1),
        figure(one.now_us_per_op, 1),
        figure(one.slowness(), 2),
        figure(one.ratio, 2),
        format!("{verdict}{twice}"),
    ]
}
