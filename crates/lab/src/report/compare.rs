//! Comparison of two records: differences beyond chance.

use serde::Serialize;

use super::cells::Cell;
use super::metric::Metric;
use super::noise::doubts;
use super::statistics::{Ratio, Spread};
use super::table::{RATIO_NOTE, Table, TableCell};
use super::text::printable;
use crate::matrix::{Begun, Record};

/// Compared metrics.
const COMPARED: [Metric; 4] = [Metric::Throughput, Metric::ServersCpu, Metric::P50, Metric::P99];

/// How one figure of one cell differs.
#[derive(Clone, Debug, Serialize)]
pub struct Change {
    /// Which figure.
    pub metric: Metric,
    /// In the first record.
    pub before: Spread,
    /// In the second.
    pub after: Spread,
    /// The second relative to the first.
    pub ratio: Ratio,
    /// True if it differs beyond chance; null with too few rounds.
    pub is_different: Option<bool>,
}

/// A cell that both records have.
#[derive(Clone, Debug, Serialize)]
pub struct ChangedCell {
    /// Name of the load.
    pub load: String,
    /// Name of the subject.
    pub subject: String,
    /// Its figures, as far as both have them.
    pub changes: Vec<Change>,
    /// Doubts about the first record's figures.
    pub doubts_before: Vec<String>,
    /// Doubts about the second record's figures.
    pub doubts_after: Vec<String>,
}

/// Two records beside each other.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// Differences in the setting of the records, such as the kernel, which may explain differences of figures.
    pub circumstances: Vec<String>,
    /// Cells that both have.
    pub cells: Vec<ChangedCell>,
    /// Cells that only one of them has: load and subject.
    pub only_one_has: Vec<(String, String)>,
}

impl Comparison {
    /// Compares two records by the names of their loads and subjects. Their rounds did not alternate, so a change
    /// of the machine between them looks like one of the system.
    pub fn of(before: &Record, after: &Record) -> Self {
        let (mut cells, mut only_one_has) = (Vec::new(), Vec::new());
        for (load, subject) in names(before, after) {
            match (cell(before, load, subject), cell(after, load, subject)) {
                (Some(one), Some(other)) => {
                    cells.push(changed(load, subject, [&one, &other], [&before.begun, &after.begun]));
                }
                (None, None) => {}
                _ => only_one_has.push((load.to_owned(), subject.to_owned())),
            }
        }
        Comparison { circumstances: circumstances(&before.begun, &after.begun), cells, only_one_has }
    }

    /// How many figures differ beyond chance, and of how many.
    pub fn counts(&self) -> (usize, usize) {
        let changes = self.cells.iter().flat_map(|cell| &cell.changes);
        (changes.clone().filter(|change| change.is_different == Some(true)).count(), changes.count())
    }

    /// Returns remarks about the figures, a line each.
    pub fn remarks(&self) -> Vec<String> {
        let mut remarks: Vec<String> =
            self.circumstances.iter().map(|one| format!("Differs as well: {one}")).collect();
        for cell in &self.cells {
            for (which, doubts) in [("first", &cell.doubts_before), ("second", &cell.doubts_after)] {
                if !doubts.is_empty() {
                    remarks.push(format!("! {}, {}, {which}: {}", cell.load, cell.subject, doubts.join("; ")));
                }
            }
        }
        let alone = self.only_one_has.iter();
        remarks.extend(alone.map(|(load, subject)| format!("Only one of them has: {load}, {subject}")));
        remarks.iter().map(|remark| printable(remark)).collect()
    }

    /// As a table.
    pub fn table(&self) -> Table {
        let titles = ["Load", "Subject", "throughput", "CPU, servers", "p50", "p99"];
        let mut table = Table::new("The second record relative to the first", &titles, 2);
        table.note = RATIO_NOTE.into();
        for cell in &self.cells {
            let is_doubtful = !(cell.doubts_before.is_empty() && cell.doubts_after.is_empty());
            let mut row =
                vec![TableCell::words(&cell.load), TableCell::words(&cell.subject).doubtful(is_doubtful)];
            row.extend(COMPARED.map(|metric| {
                let change = cell.changes.iter().find(|change| change.metric == metric);
                TableCell::ratio(change.map(|change| &change.ratio), false)
            }));
            table.rows.push(row);
        }
        table
    }
}

/// Loads and subjects of either, in the order of the first that has them.
fn names<'a>(before: &'a Record, after: &'a Record) -> Vec<(&'a str, &'a str)> {
    let mut names = Vec::new();
    for record in [before, after] {
        for load in &record.begun.loads {
            for subject in &record.begun.subjects {
                let name = (load.name.as_str(), subject.name.as_str());
                if !names.contains(&name) {
                    names.push(name);
                }
            }
        }
    }
    names
}

fn cell<'a>(record: &'a Record, load: &str, subject: &str) -> Option<Cell<'a>> {
    let load = record.begun.loads.iter().find(|one| one.name == load)?;
    let subject = record.begun.subjects.iter().find(|one| one.name == subject)?;
    Some(Cell::of(record, subject, load)).filter(|cell| !cell.runs.is_empty())
}

fn changed(load: &str, subject: &str, cells: [&Cell<'_>; 2], begun: [&Begun; 2]) -> ChangedCell {
    let [one, other] = cells;
    let change = |metric: Metric| {
        let ratio = Ratio::of_apart(&one.by_round(metric), &other.by_round(metric))?;
        let (before, after) = (one.spread(metric)?, other.spread(metric)?);
        Some(Change { metric, before, after, ratio, is_different: ratio.is_different() })
    };
    ChangedCell {
        load: load.into(),
        subject: subject.into(),
        changes: COMPARED.into_iter().filter_map(change).collect(),
        doubts_before: doubts(one, begun[0].rounds),
        doubts_after: doubts(other, begun[1].rounds),
    }
}

fn circumstances(before: &Begun, after: &Begun) -> Vec<String> {
    let of = |begun: &Begun| {
        let host = &begun.host;
        [
            ("matrix", begun.name.clone()),
            ("profile", begun.profile.clone()),
            ("rounds", begun.rounds.to_string()),
            ("seconds of each run", begun.seconds.to_string()),
            ("seconds of warm-up", begun.warm_up_seconds.to_string()),
            ("version of Atoll", begun.atoll_version.clone()),
            ("kernel", host.kernel.clone()),
            ("processors", format!("{} x {}", host.cores, host.cpu)),
            ("CPU features", host.cpu_flags.join(" ")),
            ("governor", host.governor.clone().unwrap_or_default()),
        ]
    };
    let both = of(before).into_iter().zip(of(after));
    let differing = both.filter(|((_, one), (_, other))| one != other);
    differing.map(|((what, one), (_, other))| format!("{what}: \"{one}\" and \"{other}\"")).collect()
}
