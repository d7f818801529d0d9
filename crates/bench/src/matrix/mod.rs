//! Matrices: the same loads on differently set up systems, in turns, with a record of every run.

mod record;

pub use record::{Begun, Failed, Load, RECORD_FORMAT, Record, RecordLine, RecordWriter, Run, Started, Subject};
