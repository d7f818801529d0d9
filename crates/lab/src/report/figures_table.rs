//! Tables of measured figures: one for each load, and CPU time by role for each group of them.

use std::collections::BTreeSet;

use super::cells::{Cell, baseline};
use super::metric::Metric;
use super::noise::doubts;
use super::table::{Table, TableCell};
use crate::matrix::{Load, Record};

const HEADINGS: [&str; 13] = [
    "Subject",
    "op/s",
    "MB/s",
    "relative",
    "p50 us",
    "p99 us",
    "p99.9 us",
    "CPU us/op, servers",
    "CPU us/op, load generators",
    "CPU us/op, machine",
    "CPU us/op, afterwards",
    "operations",
    "seconds",
];

/// Returns the table of figures under one load.
pub fn figures(record: &Record, load: &Load) -> Table {
    let mut table = Table::new(title(load), &HEADINGS, 1);
    let Some(baseline) = baseline(record) else { return table };
    let below = Cell::of(record, baseline, load);
    for subject in &record.begun.subjects {
        let cell = Cell::of(record, subject, load);
        let name = TableCell::words(&subject.name).doubtful(!doubts(&cell, record.begun.rounds).is_empty());
        let ratio = if subject.name == baseline.name {
            TableCell::words("1")
        } else {
            TableCell::ratio(cell.ratio(&below, Metric::Throughput).as_ref(), false)
        };
        table.rows.push(vec![
            name,
            TableCell::spread(cell.spread_of(|run| run.measurement.iops)),
            TableCell::spread(cell.spread_of(|run| run.measurement.mb_per_s)),
            ratio,
            TableCell::spread(cell.spread(Metric::P50)),
            TableCell::spread(cell.spread(Metric::P99)),
            TableCell::spread(cell.spread(Metric::P999)),
            TableCell::spread(cell.spread(Metric::ServersCpu)),
            TableCell::spread(cell.spread_of(|run| run.measurement.client_cpu_us_per_op)),
            TableCell::spread(cell.spread_of(|run| run.measurement.machine_cpu_us_per_op.unwrap_or(f64::NAN))),
            TableCell::spread(cell.spread_of(|run| run.measurement.later_cpu_us_per_op.unwrap_or(f64::NAN))),
            TableCell::spread(cell.spread_of(|run| run.measurement.operations as f64)),
            TableCell::spread(cell.spread_of(|run| run.measurement.seconds)),
        ]);
    }
    table
}

fn title(load: &Load) -> String {
    if load.working_set.is_empty() { load.name.clone() } else { format!("{}, of {}", load.name, load.working_set) }
}

/// CPU time by role; none if there is one role or none.
pub fn roles(record: &Record, loads: &[&Load]) -> Option<Table> {
    let is_here = |name: &str| loads.iter().any(|load| load.name == name);
    let runs = record.runs.iter().filter(|run| is_here(&run.load));
    let roles: BTreeSet<&str> =
        runs.flat_map(|run| run.measurement.cpu_us_per_op_by_role.keys()).map(String::as_str).collect();
    if roles.len() < 2 {
        return None;
    }
    let headings: Vec<&str> = ["Load", "Subject"].into_iter().chain(roles.iter().copied()).collect();
    let mut table = Table::new("CPU time of the servers by role, us/op", &headings, 2);
    for load in loads {
        for subject in &record.begun.subjects {
            let cell = Cell::of(record, subject, load);
            let of_role = |role: &&str| {
                let figure = cell.spread_of(|run| {
                    run.measurement.cpu_us_per_op_by_role.get(*role).copied().unwrap_or(f64::NAN)
                });
                TableCell::figure(figure.map(|spread| spread.median))
            };
            let names = [TableCell::words(&load.name), TableCell::words(&subject.name)];
            table.rows.push(names.into_iter().chain(roles.iter().map(of_role)).collect());
        }
    }
    Some(table)
}
