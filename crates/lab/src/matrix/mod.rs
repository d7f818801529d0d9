//! Matrices: the same loads on differently set up systems, alternately, with a record of every run.

mod cluster;
mod command;
mod definition;
mod haproxy;
mod prometheus;
mod record;
mod runner;
mod settling;
mod subject;

pub use cluster::Stops;
pub use definition::{CellName, Matrix, SHIPPED};
pub use record::{Begun, Failed, Load, RECORD_FORMAT, Record, RecordLine, RecordWriter, Run, Started, Subject};
pub use runner::{MatrixRun, MatrixStep};
pub use subject::DataFacts;
