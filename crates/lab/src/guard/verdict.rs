//! Compares measured costs with recorded ones.

use serde::Serialize;

use super::budget::CellCost;
use super::yardstick::ByKind;
use crate::matrix::CellName;

/// The verdict on a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The cost is as recorded, within the tolerance.
    Holds,
    /// It costs less, beyond the tolerance: worth recording.
    Cheaper,
    /// It costs more, beyond the tolerance.
    TooDear,
    /// It is in the budget, and was not measured.
    NotMeasured,
    /// It was measured, and is not in the budget.
    NotRecorded,
}

impl Verdict {
    /// Returns true for verdicts that pass.
    pub fn passes(self) -> bool {
        matches!(self, Verdict::Holds | Verdict::Cheaper)
    }
}

/// A cell and its verdict.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CellVerdict {
    /// Which.
    #[serde(flatten)]
    pub cell: CellName,
    /// CPU time per operation in the budget.
    pub recorded_us_per_op: Option<f64>,
    /// The same as it was measured now.
    pub now_us_per_op: Option<f64>,
    /// How much slower the machine is now than when the budget was recorded.
    pub machine: Option<ByKind>,
    /// Now by recorded, divided by how much slower the machine is.
    pub ratio: Option<f64>,
    /// The ratio of the first measurement, if it was measured twice; the second counts.
    pub first_ratio: Option<f64>,
    /// True if it was measured twice, since it did not pass at first.
    pub is_measured_twice: bool,
    /// The verdict on the ratio.
    pub verdict: Verdict,
    /// Why it was not measured.
    pub error: Option<String>,
}

impl CellVerdict {
    /// How much slower the machine is, all kinds of work together.
    pub fn slowness(&self) -> Option<f64> {
        self.machine?.geometric_mean()
    }

    fn lacking(cell: &CellName, verdict: Verdict) -> Self {
        CellVerdict {
            cell: cell.clone(),
            recorded_us_per_op: None,
            now_us_per_op: None,
            machine: None,
            ratio: None,
            first_ratio: None,
            is_measured_twice: false,
            verdict,
            error: None,
        }
    }

    fn of(recorded: &CellCost, now: &CellCost, tolerance_percent: f64) -> Self {
        let machine = ByKind {
            copy: now.yardstick_us.copy / recorded.yardstick_us.copy,
            compute: now.yardstick_us.compute / recorded.yardstick_us.compute,
            system_calls: now.yardstick_us.system_calls / recorded.yardstick_us.system_calls,
        };
        let slower = machine.geometric_mean();
        let ratio = slower.map(|slower| now.cpu_us_per_op / recorded.cpu_us_per_op / slower);
        let most = 1.0 + tolerance_percent / 100.0;
        let verdict = match ratio {
            // Neither is a figure, so it cannot have been measured.
            None => Verdict::NotMeasured,
            Some(ratio) if !ratio.is_finite() => Verdict::NotMeasured,
            Some(ratio) if ratio > most => Verdict::TooDear,
            Some(ratio) if ratio < 1.0 / most => Verdict::Cheaper,
            Some(_) => Verdict::Holds,
        };
        CellVerdict {
            recorded_us_per_op: Some(recorded.cpu_us_per_op),
            now_us_per_op: Some(now.cpu_us_per_op),
            machine: Some(machine),
            ratio,
            ..CellVerdict::lacking(&recorded.cell, verdict)
        }
    }
}

/// Compares every cell of either side, in the order of the budget.
pub fn judge(recorded: &[CellCost], measured: &[CellCost], tolerance_percent: f64) -> Vec<CellVerdict> {
    let mut verdicts: Vec<CellVerdict> = recorded
        .iter()
        .map(|before| match measured.iter().find(|now| now.cell == before.cell) {
            Some(now) => CellVerdict::of(before, now, tolerance_percent),
            None => CellVerdict {
                recorded_us_per_op: Some(before.cpu_us_per_op),
                ..CellVerdict::lacking(&before.cell, Verdict::NotMeasured)
            },
        })
        .collect();
    let new = measured.iter().filter(|now| !recorded.iter().any(|before| before.cell == now.cell));
    verdicts.extend(new.map(|now| CellVerdict {
        now_us_per_op: Some(now.cpu_us_per_op),
        ..CellVerdict::lacking(&now.cell, Verdict::NotRecorded)
    }));
    verdicts
}

#[cfg(test)]
mod tests {
    use super::*;

    const YARDSTICK: ByKind = ByKind { copy: 1000.0, compute: 10.0, system_calls: 20.0 };

    fn cost(load: &str, cpu_us_per_op: f64, yardstick_us: ByKind) -> CellCost {
        let cell = CellName { subject: "copies3".into(), load: load.into() };
        CellCost { cell, cpu_us_per_op, rounds: 3, yardstick_us }
    }

    fn slower(factor: f64) -> ByKind {
        ByKind {
            copy: YARDSTICK.copy * factor,
            compute: YARDSTICK.compute * factor,
            system_calls: YARDSTICK.system_calls * factor,
        }
    }

    fn verdict(now_us: f64, yardstick_us: ByKind) -> Verdict {
        let recorded = [cost("write", 100.0, YARDSTICK)];
        judge(&recorded, &[cost("write", now_us, yardstick_us)], 15.0)[0].verdict
    }

    #[test]
    fn the_tolerance_is_the_border() {
        assert_eq!(verdict(114.9, YARDSTICK), Verdict::Holds);
        assert_eq!(verdict(115.1, YARDSTICK), Verdict::TooDear);
        assert_eq!(verdict(100.0, YARDSTICK), Verdict::Holds);
        assert_eq!(verdict(88.0, YARDSTICK), Verdict::Holds);
        assert_eq!(verdict(86.0, YARDSTICK), Verdict::Cheaper);
    }

    #[test]
    fn a_slower_machine_is_no_regression_and_a_faster_one_hides_none() {
        assert_eq!(verdict(200.0, slower(2.0)), Verdict::Holds);
        assert_eq!(verdict(240.0, slower(2.0)), Verdict::TooDear);
        assert_eq!(verdict(60.0, slower(0.5)), Verdict::TooDear);
        assert_eq!(verdict(100.0, slower(2.0)), Verdict::Cheaper);
    }

    /// Memory is 8 times slower, the rest as it was: 2 in the geometric mean.
    #[test]
    fn kinds_of_work_count_alike() {
        let now = ByKind { copy: YARDSTICK.copy * 8.0, ..YARDSTICK };
        let verdicts = judge(&[cost("write", 100.0, YARDSTICK)], &[cost("write", 200.0, now)], 15.0);
        assert!((verdicts[0].ratio.unwrap() - 1.0).abs() < 1e-9, "{verdicts:?}");
        assert!((verdicts[0].machine.unwrap().copy - 8.0).abs() < 1e-9);
    }

    #[test]
    fn cells_missing_on_one_side_fail() {
        let verdicts = judge(&[cost("old", 100.0, YARDSTICK)], &[cost("new", 90.0, YARDSTICK)], 15.0);
        let said: Vec<_> = verdicts.iter().map(|one| (one.cell.load.as_str(), one.verdict)).collect();
        assert_eq!(said, [("old", Verdict::NotMeasured), ("new", Verdict::NotRecorded)]);
        assert!(verdicts.iter().all(|one| !one.verdict.passes() && one.ratio.is_none()));
        assert_eq!((verdicts[0].recorded_us_per_op, verdicts[0].now_us_per_op), (Some(100.0), None));
        assert_eq!((verdicts[1].recorded_us_per_op, verdicts[1].now_us_per_op), (None, Some(90.0)));
    }

    #[test]
    fn cells_without_a_figure_fail() {
        assert!(!verdict(f64::NAN, YARDSTICK).passes());
        assert!(!verdict(f64::INFINITY, YARDSTICK).passes());
        assert!(!verdict(100.0, slower(0.0)).passes());
    }
}
