//! The laboratory: what is made of measurements. Matrices run the same loads on differently set up clusters and
//! keep a record of every run; the guard compares CPU time per operation with a recorded budget; the
//! model predicts what a described cluster can do; reports turn records into pages with plots; the
//! recovery run shows what clients notice while data moves.
//!
//! Load and figures come from `atoll-bench`. Clusters are started and measured by running the program
//! `atoll`; of its data directories this crate knows what `atoll-node` says. The commands are in
//! [`commands`]: the program `atoll` has them as `atoll bench ...`, and the program `atoll-lab`, which
//! needs no OSD or gateway linked in, has them alone.

// They panic when nobody reads; `print_line!` and `print_note!` do not.
#![warn(clippy::print_stdout, clippy::print_stderr)]

pub mod commands;
mod error;
mod guard;
mod matrix;
pub mod model;
mod recovery;
mod report;
mod servers;

pub use error::LabError;
pub use guard::{Budget, ByKind, CellCost, CellVerdict, Guard, GuardReport, GuardStep, Verdict, Yardstick, judge};
pub use matrix::{
    Begun, CellName, DataFacts, EXIT_WITH_PARENT, Failed, Load, Matrix, MatrixRun, MatrixStep, RECORD_FORMAT,
    Record, RecordLine, RecordWriter, Run, SHIPPED, Started, Stops, Subject,
};
pub use recovery::{
    ClientLoad, RecoveryBench, RecoveryCluster, RecoveryPhase, RecoveryReport, RecoveryStep, RecoveryView,
    run_recovery,
};
pub use report::{
    Change, ChangedCell, Comparison, Interval, Mark, Metric, Ratio, Spread, Table, TableCell, write_reports,
};
pub use servers::servers;
