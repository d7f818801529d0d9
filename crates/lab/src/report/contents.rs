//! Content of a report, in words and tables: the same in HTML and in Markdown.

use std::collections::BTreeSet;

use super::answers;
use super::cells::{Cell, groups};
use super::figures_table::{figures, roles};
use super::noise::{doubts, doubts_of_all};
use super::table::Table;
use super::text::{date, figure, printable};
use crate::matrix::{Load, Record};

/// Content of a report.
pub struct Contents<'a> {
    /// Title of the report.
    pub title: String,
    /// The question.
    pub about: String,
    /// Doubts about all figures.
    pub doubts: Vec<String>,
    /// Runs that could not be done.
    pub failed: Option<Table>,
    /// The answer, the shortest first.
    pub answers: Vec<Table>,
    /// Method and machine.
    pub setting: Vec<Table>,
    /// Cells that are doubtful.
    pub warnings: Option<Table>,
    /// The figures.
    pub groups: Vec<Group<'a>>,
}

/// Loads that belong together.
pub struct Group<'a> {
    /// Its name.
    pub name: String,
    /// The loads, with a table of figures each.
    pub loads: Vec<(&'a Load, Table)>,
    /// CPU time by role, if there are several.
    pub roles: Option<Table>,
}

impl<'a> Contents<'a> {
    /// Returns the contents for a record.
    pub fn of(record: &'a Record) -> Self {
        let begun = &record.begun;
        Contents {
            title: printable(if begun.title.is_empty() { &begun.name } else { &begun.title }),
            about: printable(&begun.about),
            doubts: doubts_of_all(record),
            failed: failed(record),
            answers: answers::all(record),
            setting: vec![subjects(record), method(record), machine(record)],
            warnings: warnings(record),
            groups: groups(record).into_iter().map(|(name, loads)| group(record, name, loads)).collect(),
        }
    }
}

fn group<'a>(record: &Record, name: &str, loads: Vec<&'a Load>) -> Group<'a> {
    Group {
        name: printable(name),
        roles: roles(record, &loads),
        loads: loads.into_iter().map(|load| (load, figures(record, load))).collect(),
    }
}

fn failed(record: &Record) -> Option<Table> {
    let rows = record.failed.iter().map(|failed| {
        vec![
            failed.load.clone(),
            failed.subject.clone(),
            (u64::from(failed.round) + 1).to_string(),
            failed.error.clone(),
        ]
    });
    let table = Table::of_words("Runs that failed", &["Load", "Subject", "Round", "Why"], rows);
    (!table.rows.is_empty()).then_some(table)
}

fn warnings(record: &Record) -> Option<Table> {
    let cells = record.begun.loads.iter().flat_map(|load| {
        record.begun.subjects.iter().map(move |subject| (subject, Cell::of(record, subject, load)))
    });
    let rows = cells.filter_map(|(subject, cell)| {
        let doubts = doubts(&cell, record.begun.rounds);
        let row = vec![cell.load.name.clone(), subject.name.clone(), doubts.join("; ")];
        (!doubts.is_empty()).then_some(row)
    });
    let table = Table::of_words("Warnings", &["Load", "Subject", "Notes"], rows);
    (!table.rows.is_empty()).then_some(table)
}

fn subjects(record: &Record) -> Table {
    let rows = record.begun.subjects.iter().map(|subject| {
        let runs = record.runs.iter().filter(|run| run.subject == subject.name);
        let protections: BTreeSet<&str> = runs.map(|run| run.measurement.protections.as_str()).collect();
        let protections: Vec<&str> = protections.into_iter().collect();
        let name = if subject.is_baseline { format!("{} (baseline)", subject.name) } else { subject.name.clone() };
        vec![name, subject.title.clone(), protections.join("; ")]
    });
    Table::of_words(
        "Compared subjects and their protections",
        &["Subject", "Description", "Durability and protections"],
        rows,
    )
}

fn starts(number: u32) -> String {
    if number == 1 { "one start of the clusters".into() } else { format!("{number} starts of the clusters") }
}

fn method(record: &Record) -> Table {
    let begun = &record.begun;
    let ended = record.runs.iter().map(|run| run.unix_s).max();
    let profile = if begun.profile.is_empty() { "" } else { ", profile " };
    let mut rows = vec![
        ("Matrix", format!("{}{profile}{}", begun.name, begun.profile)),
        (
            "Runs",
            format!(
                "{} rounds with the subjects in alternation, in {}; {} s each after {} s of warm-up",
                begun.rounds,
                starts(begun.starts),
                figure(begun.seconds),
                figure(begun.warm_up_seconds)
            ),
        ),
        ("Figures", "medians of the rounds, with the smallest and the largest".into()),
        (
            "Ratios",
            "geometric means of the ratios within each round; intervals of 95 % by Student's t on their logarithms"
                .into(),
        ),
        ("Begun", date(begun.host.unix_s)),
        ("Last run ended", ended.map_or("-".into(), date)),
        ("Measured by", format!("atoll bench {}", begun.atoll_version)),
    ];
    rows.extend(record.started.iter().map(|started| ("Cluster", cluster(started))));
    Table::of_words("How it was measured", &["", ""], rows.into_iter().map(|(what, text)| vec![what.into(), text]))
}

fn cluster(started: &crate::matrix::Started) -> String {
    let how = if started.how.is_empty() { String::new() } else { format!(": {}", started.how) };
    format!("{}, {}{how}", started.cluster, started.version)
}

fn machine(record: &Record) -> Table {
    let host = &record.begun.host;
    let rows = [
        ("Processors", format!("{} x {}", host.cores, host.cpu)),
        ("CPU features", host.cpu_flags.join(" ")),
        ("Governor", host.governor.clone().unwrap_or_else(|| "not visible here".into())),
        ("Memory", format!("{} GiB", figure(host.memory_bytes as f64 / f64::from(1 << 30)))),
        ("Kernel", format!("Linux {}", host.kernel)),
        ("Load average at the beginning", figure(host.load_average)),
    ];
    Table::of_words("The machine", &["", ""], rows.into_iter().map(|(what, text)| vec![what.into(), text]))
}
