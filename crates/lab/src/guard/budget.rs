//! The file with the recorded costs of operations.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;

use atoll_bench::HostFacts;
use atoll_files::Access;
use serde::{Deserialize, Serialize};

use super::verdict::{Verdict, judge};
use super::yardstick::ByKind;
use crate::error::LabError;
use crate::matrix::CellName;

const FORMAT: u32 = 1;
const FILE_BYTES_MAX: u64 = 4 << 20;
const CELLS_MAX: usize = 10_000;
/// Rises that a budget keeps.
const RISES_MAX: usize = 100;

/// The cost of one cell, and the speed of the machine during its runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CellCost {
    /// Which.
    #[serde(flatten)]
    pub cell: CellName,
    /// CPU time of all servers per operation: the median of the rounds.
    pub cpu_us_per_op: f64,
    /// The rounds.
    pub rounds: u32,
    /// Medians of the readings between the rounds.
    pub yardstick_us: ByKind,
}

/// A cell that costs more than in the budget before.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rise {
    /// `SUBJECT, LOAD`.
    pub cell: String,
    /// CPU time per operation in the budget before.
    pub before_us_per_op: f64,
    /// CPU time per operation in the budget that was recorded then.
    pub after_us_per_op: f64,
    /// After by before, divided by the ratio of the machine's speeds.
    pub ratio: f64,
    /// The reason that was given.
    pub because: String,
}

impl fmt::Display for Rise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (before, after) = (self.before_us_per_op, self.after_us_per_op);
        write!(f, "{}: {before:.1} to {after:.1} us, ratio {:.2}", self.cell, self.ratio)
    }
}

/// All cells of a matrix.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Budget {
    format: u32,
    /// The matrix's name.
    pub matrix: String,
    /// Version of Atoll.
    pub atoll_version: String,
    /// The machine.
    pub host: HostFacts,
    /// The cost of each cell.
    pub cells: Vec<CellCost>,
    /// Rises over the tolerance since the first budget, each with its reason. The newest are last.
    #[serde(default)]
    pub rises: Vec<Rise>,
}

impl Budget {
    /// Returns a budget of figures measured now.
    pub fn new(matrix: &str, host: HostFacts, cells: Vec<CellCost>) -> Self {
        let atoll_version = env!("CARGO_PKG_VERSION").to_owned();
        Budget { format: FORMAT, matrix: matrix.into(), atoll_version, host, cells, rises: Vec::new() }
    }

    /// Reads one.
    pub fn read(path: &Path) -> Result<Self, LabError> {
        let wrong = |detail: String| LabError::File { path: path.into(), detail };
        let file = std::fs::metadata(path).map_err(|error| {
            wrong(format!("the budget cannot be read: {error}; 'atoll bench guard --record' records one"))
        })?;
        if file.len() > FILE_BYTES_MAX {
            return Err(wrong(format!("it is larger than {FILE_BYTES_MAX} bytes, too large for a budget")));
        }
        let text = std::fs::read(path).map_err(|error| wrong(error.to_string()))?;
        let budget: Budget = serde_json::from_slice(&text).map_err(|error| {
            wrong(format!("it is not a budget: {error}; name another file, or record a new one with --record"))
        })?;
        budget
            .check()
            .map_err(|why| wrong(format!("it makes no sense: {why}; record a new one with --record")))?;
        Ok(budget)
    }

    /// Takes the place of the budget before. Rises over the tolerance need a reason, and are listed with it; without
    /// one they are the error.
    pub fn follow(
        &mut self,
        before: &Budget,
        tolerance_percent: f64,
        because: Option<&str>,
    ) -> Result<(), Vec<Rise>> {
        let verdicts = judge(&before.cells, &self.cells, tolerance_percent);
        let rises = verdicts.into_iter().filter(|one| one.verdict == Verdict::TooDear).filter_map(|one| {
            Some(Rise {
                cell: one.cell.to_string(),
                before_us_per_op: one.recorded_us_per_op?,
                after_us_per_op: one.now_us_per_op?,
                ratio: one.ratio?,
                because: because.unwrap_or_default().into(),
            })
        });
        let rises: Vec<Rise> = rises.collect();
        if because.is_none() && !rises.is_empty() {
            return Err(rises);
        }
        self.rises = before.rises.iter().cloned().chain(rises).collect();
        let excess = self.rises.len().saturating_sub(RISES_MAX);
        self.rises.drain(..excess);
        Ok(())
    }

    fn check(&self) -> Result<(), String> {
        if self.format != FORMAT {
            return Err(format!("its format is {}, this version knows {FORMAT}", self.format));
        }
        if self.cells.is_empty() || self.cells.len() > CELLS_MAX {
            return Err(format!("it has {} cells, 1 to {CELLS_MAX} are allowed", self.cells.len()));
        }
        let mut names = BTreeSet::new();
        for one in &self.cells {
            if !names.insert(&one.cell) {
                return Err(format!("'{}' is in it twice", one.cell));
            }
            let figures = one.yardstick_us.kinds().into_iter().chain([one.cpu_us_per_op]);
            if let Some(figure) = figures.into_iter().find(|figure| !figure.is_finite() || *figure <= 0.0) {
                return Err(format!("'{}' has the figure {figure}, which no measurement gives", one.cell));
            }
        }
        Ok(())
    }

    /// Replaces the file at once: a crash leaves the old one or the new one.
    pub fn write(&self, path: &Path) -> Result<(), LabError> {
        let mut text = serde_json::to_vec_pretty(self).expect("a budget can be written as JSON");
        text.push(b'\n');
        let replaced = atoll_files::replace(path, &text, Access::Everybody);
        replaced.map_err(|error| LabError::File {
            path: path.into(),
            detail: format!("the budget cannot be written: {error}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget() -> Budget {
        let cell = |load: &str| CellCost {
            cell: CellName { subject: "copies3".into(), load: load.into() },
            cpu_us_per_op: 120.5,
            rounds: 3,
            yardstick_us: ByKind { copy: 900.0, compute: 8.0, system_calls: 12.0 },
        };
        Budget::new("data-path", HostFacts::here(), vec![cell("depth 1: randread 4 KiB"), cell("other")])
    }

    #[test]
    fn a_budget_is_read_as_it_was_written() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("budget.json");
        std::fs::write(&path, "the old one").unwrap();
        budget().write(&path).unwrap();
        assert_eq!(Budget::read(&path).unwrap().cells, budget().cells);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1, "nothing is left beside it");
        assert!(budget().write(&directory.path().join("none/budget.json")).is_err());
    }

    #[test]
    fn a_rise_needs_a_reason_and_keeps_it() {
        let dearer = |factor: f64| {
            let mut dearer = budget();
            dearer.cells[0].cpu_us_per_op *= factor;
            dearer
        };
        let mut little = dearer(1.1);
        assert_eq!(little.follow(&budget(), 15.0, None), Ok(()));
        assert!(little.rises.is_empty(), "it is within the tolerance");
        let mut much = dearer(1.3);
        let refused = much.follow(&budget(), 15.0, None).unwrap_err();
        assert_eq!(refused.len(), 1);
        assert!(refused[0].to_string().contains("120.5 to 156.7 us, ratio 1.30"), "{}", refused[0]);
        much.follow(&budget(), 15.0, Some("each request has an audit line")).unwrap();
        let mut next = dearer(1.0);
        next.follow(&much, 15.0, None).unwrap();
        assert_eq!(next.rises, much.rises, "reasons are kept");
        assert_eq!(next.rises[0].because, "each request has an audit line");
    }

    #[test]
    fn nonsense_is_refused_with_a_reason() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("budget.json");
        let error = Budget::read(&path).unwrap_err().to_string();
        assert!(error.contains("--record"), "{error}");
        let good = serde_json::to_string(&budget()).unwrap();
        let cases = [
            ("{", "[", "not a budget"),
            ("\"format\":1", "\"format\":2", "format is 2"),
            ("120.5", "-1.0", "figure -1"),
            ("120.5", "0", "figure 0"),
            ("120.5", "null", "not a budget"),
            ("900.0", "0.0", "figure 0"),
            ("\"other\"", "\"depth 1: randread 4 KiB\"", "twice"),
            ("\"matrix\"", "\"matrices\"", "not a budget"),
        ];
        for (from, to, words) in cases {
            assert!(good.contains(from), "{from} is not in {good}");
            std::fs::write(&path, good.replacen(from, to, 1)).unwrap();
            let error = Budget::read(&path).unwrap_err().to_string();
            assert!(error.contains(words), "{to}: {error}");
        }
        let none = Budget { cells: Vec::new(), ..budget() };
        none.write(&path).unwrap();
        assert!(Budget::read(&path).unwrap_err().to_string().contains("0 cells"));
    }
}
