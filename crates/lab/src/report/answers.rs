//! The answer: the cost of each subject, relative to the baseline.

use super::cells::{Cell, baseline, compared};
use super::metric::Metric;
use super::noise::doubts;
use super::statistics::{Ratio, geometric_mean};
use super::table::{RATIO_NOTE, Table, TableCell};
use super::text::ratio as ratio_text;
use crate::matrix::{Load, Record, Subject};

/// One subject under one load against the baseline.
pub struct Relative<'a> {
    /// The load.
    pub load: &'a Load,
    /// How it compares, if both were measured.
    pub ratio: Option<Ratio>,
    /// True if there are warnings about either.
    pub is_doubtful: bool,
}

/// One subject under all loads against the baseline.
pub fn relative<'a>(record: &'a Record, subject: &Subject, metric: Metric) -> Vec<Relative<'a>> {
    let Some(baseline) = baseline(record) else { return Vec::new() };
    let of_load = |load| {
        let (below, cell) = (Cell::of(record, baseline, load), Cell::of(record, subject, load));
        let is_doubtful = [&below, &cell].into_iter().any(|cell| !doubts(cell, record.begun.rounds).is_empty());
        Relative { load, ratio: cell.ratio(&below, metric), is_doubtful }
    };
    record.begun.loads.iter().map(of_load).collect()
}

/// All of the answer, the shortest first; none of it if there is nothing to compare.
pub fn all(record: &Record) -> Vec<Table> {
    let (Some(baseline), subjects) = (baseline(record), compared(record)) else { return Vec::new() };
    if subjects.is_empty() {
        return Vec::new();
    }
    let mut tables = vec![in_short(record, baseline, &subjects)];
    tables.extend(Metric::COSTS.map(|metric| by_load(record, baseline, &subjects, metric)));
    tables
}

/// All loads together, and the load that suffers most.
fn in_short(record: &Record, baseline: &Subject, subjects: &[&Subject]) -> Table {
    let headings = [
        "Subject",
        "Throughput",
        "Least, and where",
        "CPU per operation",
        "Most, and where",
        "p99",
        "Most, and where",
    ];
    let mut table = Table::new(format!("In short: relative to {}", baseline.name), &headings, 1);
    table.note =
        "Geometric means over all loads, and the load that suffers most. CPU is that of servers and load \
                  generators."
            .into();
    for subject in subjects {
        let costs = [Metric::Throughput, Metric::AllCpu, Metric::P99];
        let cells = costs.iter().flat_map(|&metric| summary(record, subject, metric));
        table.rows.push(std::iter::once(TableCell::words(&subject.name)).chain(cells).collect());
    }
    table
}

fn summary(record: &Record, subject: &Subject, metric: Metric) -> [TableCell; 2] {
    let relative = relative(record, subject, metric);
    let known: Vec<(f64, &str)> =
        relative.iter().filter_map(|one| Some((one.ratio?.value, one.load.name.as_str()))).collect();
    let ratios: Vec<f64> = known.iter().map(|(ratio, _)| *ratio).collect();
    let by_ratio = |one: &&(f64, &str), other: &&(f64, &str)| one.0.total_cmp(&other.0);
    let worst =
        if metric.is_better_when_more() { known.iter().min_by(by_ratio) } else { known.iter().max_by(by_ratio) };
    let mean = geometric_mean(&ratios).map_or("-".into(), ratio_text);
    let worst = worst.map_or("-".into(), |(ratio, load)| format!("{}: {load}", ratio_text(*ratio)));
    [TableCell::words(mean), TableCell::words(worst)]
}

fn by_load(record: &Record, baseline: &Subject, subjects: &[&Subject], metric: Metric) -> Table {
    let names = subjects.iter().map(|subject| subject.name.as_str());
    let headings: Vec<&str> = std::iter::once("Load").chain(names).collect();
    let mut table = Table::new(format!("{}, relative to {}", metric.title(), baseline.name), &headings, 1);
    let better = if metric.is_better_when_more() { "More" } else { "Less" };
    table.note = format!("{better} than 1 is better. {RATIO_NOTE}");
    let columns: Vec<Vec<Relative<'_>>> =
        subjects.iter().map(|subject| relative(record, subject, metric)).collect();
    for (index, load) in record.begun.loads.iter().enumerate() {
        let cells = columns.iter().map(|column| {
            let one = &column[index];
            TableCell::ratio(one.ratio.as_ref(), one.is_doubtful)
        });
        table.rows.push(std::iter::once(TableCell::words(&load.name)).chain(cells).collect());
    }
    table
}
