//! `atoll bench guard`: whether operations still cost what a recorded budget says.

use std::time::Instant;

use anyhow::Context;
use atoll_bench::{Budget, CellVerdict, Guard, GuardReport, GuardStep, Matrix, Stops, Verdict};
use indicatif::ProgressBar;
use serde_json::json;

use super::bench_run::{facts, make_directory, matrix_bar, say, show, stop_when_told_to_end};
use super::{print_json, print_table};
use crate::cli::GuardArguments;

const MATRIX: &str = "data-path";
const PROFILE: &str = "guard";

/// Runs `atoll bench guard`.
pub fn run(arguments: &GuardArguments) -> anyhow::Result<()> {
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
        atoll: std::env::current_exe().context("cannot find this program's own file")?,
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
        eprintln!("{} s", begun.elapsed().as_secs());
    }
    outcome
}

fn record(arguments: &GuardArguments, guard: &Guard, bar: &ProgressBar) -> anyhow::Result<()> {
    let budget = guard.record(&facts, &|step| show_guard(bar, &step))?;
    budget.write(&arguments.budget)?;
    bar.finish_and_clear();
    if arguments.json {
        return print_json(&json!({ "budget": arguments.budget, "cells": budget.cells }));
    }
    let rows: Vec<Vec<String>> =
        budget.cells.iter().map(|one| vec![one.cell.to_string(), format!("{:.1}", one.cpu_us_per_op)]).collect();
    print_table(&["CELL", "CPU US/OP"], &rows);
    println!("recorded in {}", arguments.budget.display());
    Ok(())
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
        "{} of {} cells do not pass ({}). Where code became dearer, find out why: docs/benchmarks.md, \"The guard\"; what \
         is meant to cost more is recorded by 'atoll bench guard --record'",
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
            println!("{}: {error}", one.cell);
        }
    }
    report.notes.iter().for_each(|note| println!("note: {note}"));
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
