//! Load generators and what becomes of their figures: block I/O on images, NBD exports, files and
//! devices, objects through any S3 endpoint, a store alone on its device beside fio, clients while an
//! OSD's data moves; matrices of such runs over differently set up clusters, and their reports. Every
//! run measures operations, latency, and the CPU time of the processes that do the work.
//!
//! This room generates load and counts; it knows nothing of how the cluster does its work.

mod block;
mod disk;
mod error;
mod figures;
mod fio;
mod guard;
mod load;
mod matrix;
pub mod model;
mod object;
mod osds;
mod recovery;
mod report;
mod store;

pub use block::{
    AccessPattern, BlockOperations, BlockTarget, BlockWorkload, Durability, FileTarget, FioBench, FioTarget,
    NbdAddress, NbdTarget, Prefill, Verifier, prefill,
};
pub use disk::{DiskBench, DiskBenchReport, DiskTestReport};
pub use error::BenchError;
pub use figures::{
    ClientMeasurement, CpuByRole, HostFacts, KindMeasurement, Latency, LatencyHistogram, MachineWork, Measurement,
    Noise, NoiseWatch, ProcessTimes, Processes, Second, Setting,
};
pub use guard::{Budget, ByKind, CellCost, CellVerdict, Guard, GuardReport, GuardStep, Verdict, Yardstick, judge};
pub use load::{ClientVoice, Done, Operations, Outcome, Plan, Timer, run_client, run_processes};
pub use matrix::{
    Begun, CellName, DataFacts, EXIT_WITH_PARENT, Failed, Load, Matrix, MatrixRun, MatrixStep, RECORD_FORMAT,
    Record, RecordLine, RecordWriter, Run, SHIPPED, Started, Stops, Subject,
};
pub use object::{
    ObjectOperation, ObjectOperations, ObjectTarget, ObjectWorkload, OperationMix, SizeDistribution,
};
pub use osds::{OsdFigures, OsdReport, OsdSubject, OsdsBench};
pub use recovery::{
    ClientLoad, RecoveryBench, RecoveryCluster, RecoveryPhase, RecoveryReport, RecoveryStep, RecoveryView,
    run_recovery,
};
pub use report::{
    Change, ChangedCell, Comparison, Interval, Mark, Metric, Ratio, Spread, Table, TableCell, write_reports,
};
pub use store::{
    PreparedStoreBench, Ratios, RunFigures, StoreBench, StoreBenchReport, StoreFigures, StoreRun, Workload,
    WorkloadReport,
};
