//! The regression guard: CPU time per operation of every cell of a matrix against a recorded budget. Machines
//! differ from day to day by more than a regression would, so both are measured beside a yardstick.

mod budget;
mod run;
mod verdict;
mod yardstick;

pub use budget::{Budget, CellCost, Rise};
pub use run::{Guard, GuardReport, GuardStep};
pub use verdict::{CellVerdict, Verdict, judge};
pub use yardstick::{ByKind, Yardstick};
