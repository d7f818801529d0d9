//! The laboratory: comparisons of measurements, and simulations. Matrices run the same loads on differently set up
//! clusters and keep a record of every run. The guard compares CPU time per operation with a recorded budget. The
//! model predicts the rates of a described cluster. Reports turn records into pages with plots. Campaigns simulate
//! PGs.
//!
//! Load and figures come from `atoll-bench`. Clusters are started and measured by running the program `atoll`;
//! this crate reads their data directories through `atoll-node`. The commands are in [`commands`] and belong to
//! the program `atoll-lab`. `atoll bench run`, its like and `atoll sim` run that program.

// They panic when nobody reads; `print_line!` and `print_note!` do not.
#![warn(clippy::print_stdout, clippy::print_stderr)]

pub mod commands;
mod error;
mod facts;
mod guard;
mod matrix;
pub mod model;
mod report;

pub use error::LabError;
pub use guard::{
    Budget, ByKind, CellCost, CellVerdict, Guard, GuardReport, GuardStep, Rise, Verdict, Yardstick, judge,
};
pub use matrix::{
    Begun, CellName, DataFacts, Failed, Load, Matrix, MatrixRun, MatrixStep, RECORD_FORMAT, Record, RecordLine,
    RecordWriter, Run, SHIPPED, Started, Stops, Subject,
};
pub use report::{
    Change, ChangedCell, Comparison, Interval, Mark, Metric, Ratio, Spread, Table, TableCell, write_reports,
};
