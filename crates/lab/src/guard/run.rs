//! Measures the cells, with a reading of the yardstick before and after each run, and compares.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use atoll_bench::HostFacts;
use serde::Serialize;

use super::budget::{Budget, CellCost};
use super::verdict::{CellVerdict, Verdict, judge};
use super::yardstick::{ByKind, Yardstick};
use crate::error::LabError;
use crate::matrix::{CellName, DataFacts, Matrix, MatrixRun, MatrixStep, Record, Stops};
use crate::report::{Metric, Spread};

/// Kinds of work that have become slower by factors further apart than this are noted.
const KINDS_APART_MAX: f64 = 1.3;

/// The measured matrix and its place.
pub struct Guard {
    /// The matrix to measure.
    pub matrix: Matrix,
    /// Which of its profiles.
    pub profile: String,
    /// Only cells whose names (`subject, load`) have one of these in them; all if there are none.
    pub only: Vec<String>,
    /// Where clusters are made, which are removed at the end.
    pub directory: PathBuf,
    /// This program.
    pub atoll: PathBuf,
    /// Processes to stop when a signal ends the command.
    pub stops: Stops,
}

/// Progress of a guard's run.
#[derive(Clone, Debug)]
pub enum GuardStep<'a> {
    /// A step of the matrix.
    Matrix(MatrixStep<'a>),
    /// These cells did not pass and are measured once more.
    Again(&'a [CellName]),
}

/// The result of a guard's run.
#[derive(Clone, Debug, Serialize)]
pub struct GuardReport {
    /// How much more than recorded a cell may cost.
    pub tolerance_percent: f64,
    /// True if all cells pass.
    pub passes: bool,
    /// Each cell.
    pub cells: Vec<CellVerdict>,
    /// Circumstances that make the comparison less certain.
    pub notes: Vec<String>,
}

type Facts<'a> = &'a dyn Fn(&Path) -> Result<DataFacts, LabError>;
type Progress<'a> = &'a dyn Fn(GuardStep<'_>);

/// Measured costs, and the errors of cells without one.
#[derive(Default)]
struct Measured {
    costs: Vec<CellCost>,
    errors: BTreeMap<CellName, String>,
}

impl Guard {
    /// Measures all cells for a new budget.
    pub fn record(&self, facts: Facts<'_>, progress: Progress<'_>) -> Result<Budget, LabError> {
        let cells = self.cells()?;
        let mut measured = self.measure(&cells, facts, progress)?;
        let failed: Vec<CellName> = measured.errors.keys().cloned().collect();
        if !failed.is_empty() {
            progress(GuardStep::Again(&failed));
            measured.replace(self.measure(&failed, facts, progress)?);
        }
        if let Some((cell, error)) = measured.errors.first_key_value() {
            return Err(LabError::Invalid(format!(
                "nothing is recorded, since {} of {} cells could not be measured, such as '{cell}': {error}",
                measured.errors.len(),
                cells.len()
            )));
        }
        Ok(Budget::new(&self.matrix.name, HostFacts::here(), measured.costs))
    }

    /// Measures, and compares with a budget. Cells that do not pass are measured again; the second result counts.
    pub fn check(
        &self,
        budget: &Budget,
        tolerance_percent: f64,
        facts: Facts<'_>,
        progress: Progress<'_>,
    ) -> Result<GuardReport, LabError> {
        if budget.matrix != self.matrix.name {
            return Err(LabError::Invalid(format!(
                "the budget is of the matrix '{}', not of '{}'; name another budget, or record one with --record",
                budget.matrix, self.matrix.name
            )));
        }
        let cells = self.cells()?;
        let recorded: Vec<CellCost> =
            budget.cells.iter().filter(|one| self.is_chosen(&one.cell)).cloned().collect();
        let mut measured = self.measure(&cells, facts, progress)?;
        let mut verdicts = judge(&recorded, &measured.costs, tolerance_percent);
        let again: Vec<CellName> = verdicts
            .iter()
            .filter(|one| matches!(one.verdict, Verdict::TooDear | Verdict::NotMeasured))
            .map(|one| one.cell.clone())
            .filter(|cell| cells.contains(cell))
            .collect();
        if !again.is_empty() {
            progress(GuardStep::Again(&again));
            measured.replace(self.measure(&again, facts, progress)?);
            let first = std::mem::replace(&mut verdicts, judge(&recorded, &measured.costs, tolerance_percent));
            remember_first(&mut verdicts, &first, &again);
        }
        for one in &mut verdicts {
            one.error = measured.why(one, &cells);
        }
        let notes = notes(budget, &verdicts);
        let passes = verdicts.iter().all(|one| one.verdict.passes());
        Ok(GuardReport { tolerance_percent, passes, cells: verdicts, notes })
    }

    fn is_chosen(&self, cell: &CellName) -> bool {
        self.only.is_empty() || self.only.iter().any(|text| cell.to_string().contains(text))
    }

    /// Those of the matrix that were asked for.
    fn cells(&self) -> Result<Vec<CellName>, LabError> {
        let all = self.matrix.cells()?;
        let chosen: Vec<CellName> = all.iter().filter(|cell| self.is_chosen(cell)).cloned().collect();
        if chosen.is_empty() {
            let names: Vec<String> = all.iter().map(|cell| format!("  {cell}")).collect();
            let wanted = self.only.join("' or '");
            return Err(LabError::Invalid(format!(
                "no cell has '{wanted}' in its name; there are\n{}",
                names.join("\n")
            )));
        }
        Ok(chosen)
    }

    fn measure(&self, cells: &[CellName], facts: Facts<'_>, progress: Progress<'_>) -> Result<Measured, LabError> {
        let record = self.directory.join("guard.jsonl");
        let run = MatrixRun {
            matrix: self.matrix.clone(),
            profile: self.profile.clone(),
            without: Vec::new(),
            only: cells.to_vec(),
            directory: self.directory.clone(),
            record: record.clone(),
            atoll: self.atoll.clone(),
            transit: Vec::new(),
            stops: self.stops.clone(),
        };
        // Runs of one that was cut short were of another time, or of another program.
        remove(&record)?;
        let readings = RefCell::new(Readings::begin()?);
        let outcome = run.run(facts, &|step| {
            readings.borrow_mut().see(&step);
            progress(GuardStep::Matrix(step));
        });
        remove(&record)?;
        Measured::of(&outcome?, cells, readings.into_inner())
    }
}

fn remove(path: &Path) -> Result<(), LabError> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(LabError::File { path: path.into(), detail: error.to_string() })
        }
        _ => Ok(()),
    }
}

/// Readings of the yardstick beside each cell's runs.
struct Readings {
    yardstick: Yardstick,
    /// Reading before the current run.
    before: Option<ByKind>,
    by_cell: BTreeMap<CellName, Vec<ByKind>>,
    error: Option<LabError>,
}

impl Readings {
    fn begin() -> Result<Self, LabError> {
        let yardstick = Yardstick::new()?;
        Ok(Readings { yardstick, before: None, by_cell: BTreeMap::new(), error: None })
    }

    /// Reads the yardstick before and after each run: the machine is idle then.
    fn see(&mut self, step: &MatrixStep<'_>) {
        match step {
            MatrixStep::Running { .. } => self.before = self.read(),
            MatrixStep::Measured { subject, load, .. } => {
                let both = [self.before.take(), self.read()];
                let cell = CellName { subject: (*subject).into(), load: (*load).into() };
                self.by_cell.entry(cell).or_default().extend(both.into_iter().flatten());
            }
            _ => {}
        }
    }

    fn read(&mut self) -> Option<ByKind> {
        self.yardstick.read().map_err(|error| self.error = Some(error)).ok()
    }
}

impl Measured {
    fn of(record: &Record, cells: &[CellName], readings: Readings) -> Result<Self, LabError> {
        if let Some(error) = readings.error {
            return Err(error);
        }
        let mut measured = Measured::default();
        for cell in cells {
            let cost = cost(record, cell, readings.by_cell.get(cell).map_or(&[], Vec::as_slice));
            match cost {
                Ok(cost) => measured.costs.push(cost),
                Err(error) => drop(measured.errors.insert(cell.clone(), error)),
            }
        }
        Ok(measured)
    }

    /// Replaces the results of cells that were measured again.
    fn replace(&mut self, later: Measured) {
        let is_later =
            |cell: &CellName| later.errors.contains_key(cell) || later.costs.iter().any(|one| one.cell == *cell);
        self.costs.retain(|one| !is_later(&one.cell));
        self.errors.retain(|cell, _| !is_later(cell));
        self.costs.extend(later.costs);
        self.errors.extend(later.errors);
    }

    fn why(&self, one: &CellVerdict, cells: &[CellName]) -> Option<String> {
        let anew = "record a new budget with --record to accept this";
        match one.verdict {
            Verdict::NotRecorded => Some(format!("it is not in the budget; {anew}")),
            Verdict::NotMeasured if !cells.contains(&one.cell) => {
                Some(format!("the matrix has it no more; {anew}"))
            }
            Verdict::NotMeasured => {
                let why = self.errors.get(&one.cell).map_or("the measured value is not a number", String::as_str);
                Some(why.to_owned())
            }
            _ => None,
        }
    }
}

/// Returns the cost of a cell, or the reason why it is unknown.
fn cost(record: &Record, cell: &CellName, readings: &[ByKind]) -> Result<CellCost, String> {
    if let Some(failed) = record.failed.iter().find(|one| one.subject == cell.subject && one.load == cell.load) {
        return Err(failed.error.clone());
    }
    let load =
        record.begun.loads.iter().find(|load| load.name == cell.load).ok_or("the record has no such load")?;
    let runs = record.cell(&cell.subject, &cell.load);
    let figures: Vec<f64> = runs.iter().filter_map(|run| Metric::ServersCpu.of(load, &run.measurement)).collect();
    let rounds = figures.len() as u32;
    if rounds != record.begun.rounds {
        return Err(format!("{rounds} of {} rounds had CPU time of servers", record.begun.rounds));
    }
    let cpu = Spread::of(figures).ok_or("there was no round")?;
    let yardstick_us = ByKind::median(readings).ok_or("the yardstick was not read beside it")?;
    Ok(CellCost { cell: cell.clone(), cpu_us_per_op: cpu.median, rounds, yardstick_us })
}

fn remember_first(verdicts: &mut [CellVerdict], first: &[CellVerdict], again: &[CellName]) {
    for one in verdicts.iter_mut().filter(|one| again.contains(&one.cell)) {
        one.is_measured_twice = true;
        one.first_ratio = first.iter().find(|before| before.cell == one.cell).and_then(|before| before.ratio);
    }
}

fn notes(budget: &Budget, verdicts: &[CellVerdict]) -> Vec<String> {
    let mut notes = Vec::new();
    let (then, now) = (&budget.host, HostFacts::here());
    if (&then.cpu, then.cores) != (&now.cpu, now.cores) {
        notes.push(format!(
            "the budget is of another machine ({}, {} cores; this one: {}, {} cores): the yardstick cannot make up for \
             that; record a budget here",
            then.cpu, then.cores, now.cpu, now.cores
        ));
    }
    let machines: Vec<ByKind> = verdicts.iter().filter_map(|one| one.machine).collect();
    if let Some(machine) = ByKind::median(&machines) {
        let kinds = machine.kinds();
        let (least, most) =
            (kinds.iter().copied().fold(f64::INFINITY, f64::min), kinds.iter().copied().fold(0.0, f64::max));
        if most > least * KINDS_APART_MAX {
            notes.push(format!(
                "the machine's speed changed unevenly (copies {:.2}, computing {:.2}, system calls {:.2} of the \
                 recorded times): ratios of cells may be off by as much",
                machine.copy, machine.compute, machine.system_calls
            ));
        }
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matrix::{Begun, Failed, Load, Run};
    use atoll_bench::{CpuByRole, Measurement, Setting};

    fn cell() -> CellName {
        CellName { subject: "s".into(), load: "l".into() }
    }

    fn record(cpu_us_per_op: &[f64]) -> Record {
        let load = Load { name: "l".into(), ..Load::default() };
        let mut record =
            Record { begun: Begun { rounds: 3, loads: vec![load], ..Begun::default() }, ..Record::default() };
        for (round, &cpu_us_per_op) in (0..).zip(cpu_us_per_op) {
            let measured = Measurement::of_clients(Setting::default(), &[], &CpuByRole::default());
            let measurement = Measurement { cpu_us_per_op, ..measured };
            let (subject, load, noise) = ("s".into(), "l".into(), atoll_bench::Noise::default());
            record.runs.push(Run { subject, load, round, unix_s: 0, measurement, noise });
        }
        record
    }

    const READINGS: [ByKind; 1] = [ByKind { copy: 1.0, compute: 2.0, system_calls: 3.0 }];

    #[test]
    fn a_cell_costs_the_median_of_all_its_rounds() {
        let cost = cost(&record(&[30.0, 10.0, 20.0]), &cell(), &READINGS).unwrap();
        assert_eq!((cost.cpu_us_per_op, cost.rounds, cost.yardstick_us), (20.0, 3, READINGS[0]));
    }

    #[test]
    fn a_cell_that_lacks_something_has_no_cost() {
        let why = |record: &Record, readings: &[ByKind]| cost(record, &cell(), readings).unwrap_err();
        assert!(why(&record(&[30.0, 10.0]), &READINGS).contains("2 of 3"));
        assert!(why(&record(&[30.0, 10.0, 0.0]), &READINGS).contains("2 of 3"), "no servers were known");
        assert!(why(&record(&[30.0, 10.0, 20.0]), &[]).contains("yardstick"));
        let failed = Failed { subject: "s".into(), load: "l".into(), round: 1, error: "no space".into() };
        let record = Record { failed: vec![failed], ..record(&[30.0, 10.0, 20.0]) };
        assert_eq!(why(&record, &READINGS), "no space");
    }

    #[test]
    fn later_measurements_replace_earlier_ones() {
        let cost = |us| cost(&record(&[us; 3]), &cell(), &READINGS).unwrap();
        let one = |us| Measured { costs: vec![cost(us)], ..Measured::default() };
        let failed = || Measured { errors: [(cell(), "gone".to_owned())].into(), ..Measured::default() };
        let mut measured = one(10.0);
        measured.replace(one(20.0));
        assert_eq!(measured.costs, [cost(20.0)]);
        measured.replace(failed());
        assert_eq!((measured.costs.len(), measured.errors.len()), (0, 1));
        measured.replace(one(30.0));
        assert_eq!((measured.costs.len(), measured.errors.len()), (1, 0));
    }

    #[test]
    fn cells_are_chosen_by_their_names() {
        let matrix = Matrix::load("data-path").unwrap();
        assert!(matrix.profile.contains_key("guard"));
        let guard = |only: &[&str]| Guard {
            matrix: matrix.clone(),
            profile: "guard".into(),
            only: only.iter().map(|&text| text.to_owned()).collect(),
            directory: PathBuf::new(),
            atoll: PathBuf::new(),
            stops: Stops::default(),
        };
        assert_eq!(guard(&[]).cells().unwrap(), matrix.cells().unwrap());
        let names = |only: &[&str]| -> Vec<String> {
            guard(only).cells().unwrap().iter().map(CellName::to_string).collect()
        };
        assert_eq!(names(&["depth 1: randread"]), ["copies3, depth 1: randread 4 KiB"]);
        assert_eq!(names(&["ec21", "depth 1: randread"]).len(), 2);
        let error = guard(&["nothing"]).cells().unwrap_err().to_string();
        assert!(error.contains("ec21, EC, depth 32: randwrite 4 KiB"), "{error}");
    }

    /// A program in place of Atoll's: it keeps no cluster, and each run costs 100 us per operation, as long as
    /// there is no file `broken` beside it.
    const PROGRAM: &str = r#"#!/bin/sh
        here=$(dirname "$0")
        echo "$1 $2" >> "$here/calls"
        test "$1 $2" = "bench block" || exit 0
        case "$*" in *"--prefill all"*) ;; *) test ! -e "$here/broken" || exit 1 ;; esac
        cat "$here/measurement.json"
    "#;

    fn guard_of(directory: &Path) -> Guard {
        use std::os::unix::fs::PermissionsExt;
        let measured = Measurement::of_clients(Setting::default(), &[], &CpuByRole::default());
        let measured = Measurement { cpu_us_per_op: 100.0, ..measured };
        std::fs::write(directory.join("measurement.json"), serde_json::to_vec(&measured).unwrap()).unwrap();
        let atoll = directory.join("program");
        std::fs::write(&atoll, PROGRAM).unwrap();
        std::fs::set_permissions(&atoll, PermissionsExt::from_mode(0o755)).unwrap();
        Guard {
            matrix: Matrix::load("data-path").unwrap(),
            profile: "guard".into(),
            only: vec!["depth 1: randread".into()],
            directory: directory.into(),
            atoll,
            stops: Stops::default(),
        }
    }

    fn calls(directory: &Path, what: &str) -> usize {
        let text = std::fs::read_to_string(directory.join("calls")).unwrap();
        text.lines().filter(|line| *line == what).count()
    }

    fn no_facts(_: &Path) -> Result<DataFacts, LabError> {
        Ok(DataFacts { gateway: String::new(), servers: atoll_bench::Processes::default() })
    }

    /// The tolerance is wide, since other tests at work move the yardstick; the values that must fail are far off.
    #[test]
    fn failing_cells_are_measured_once_more_on_a_new_cluster() {
        let directory = tempfile::tempdir().unwrap();
        let guard = guard_of(directory.path());
        let mut budget = guard.record(&no_facts, &|_| {}).unwrap();
        assert_eq!((budget.cells.len(), budget.cells[0].cpu_us_per_op, budget.cells[0].rounds), (1, 100.0, 3));
        let again = RefCell::new(0);
        let check = |budget: &Budget| {
            let progress = |step: GuardStep<'_>| {
                *again.borrow_mut() += usize::from(matches!(step, GuardStep::Again(_)));
            };
            guard.check(budget, 400.0, &no_facts, &progress).unwrap()
        };
        let good = check(&budget);
        assert!(good.passes && !good.cells[0].is_measured_twice, "{good:?}");
        assert_eq!((*again.borrow(), calls(directory.path(), "up --detach")), (0, 2));

        budget.cells[0].cpu_us_per_op = 1.0;
        let bad = check(&budget);
        assert!(!bad.passes && bad.cells[0].verdict == Verdict::TooDear, "{bad:?}");
        assert!(bad.cells[0].is_measured_twice && bad.cells[0].first_ratio.is_some(), "{bad:?}");
        assert_eq!((*again.borrow(), calls(directory.path(), "up --detach")), (1, 4));

        std::fs::write(directory.path().join("broken"), "").unwrap();
        let broken = check(&budget);
        assert!(!broken.passes && broken.cells[0].verdict == Verdict::NotMeasured, "{broken:?}");
        assert!(broken.cells[0].error.as_ref().is_some_and(|error| error.contains("bench block")), "{broken:?}");
        let refused = guard.record(&no_facts, &|_| {}).unwrap_err().to_string();
        assert!(refused.contains("nothing is recorded"), "{refused}");
        assert!(!directory.path().join("guard.jsonl").exists());
        assert_eq!(calls(directory.path(), "up --detach"), calls(directory.path(), "down --data"));
    }

    #[test]
    fn the_budget_of_another_matrix_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let budget = Budget::new("redundancy", HostFacts::here(), Vec::new());
        let error = guard_of(directory.path()).check(&budget, 15.0, &no_facts, &|_| {}).unwrap_err().to_string();
        assert!(error.contains("'redundancy'"), "{error}");
    }

    #[test]
    fn another_machine_is_worth_a_word() {
        let here = Budget::new("data-path", HostFacts::here(), Vec::new());
        assert!(notes(&here, &[]).is_empty());
        let elsewhere = HostFacts { cores: 96, ..HostFacts::here() };
        let said = notes(&Budget::new("data-path", elsewhere, Vec::new()), &[]);
        assert!(said[0].contains("96 cores"), "{said:?}");
    }
}
