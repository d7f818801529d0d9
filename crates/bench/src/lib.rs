//! Load generators: block I/O on an image through the native client, objects through any S3
//! endpoint, a store alone on its device beside fio, and clients while an OSD's data moves. Every run
//! measures operations, latency, and the CPU time of the processes that do the work.
//!
//! This room generates load and counts; it knows nothing of how the cluster does its work.

mod block;
mod cpu;
mod disk;
mod object;
mod random;
mod recovery;
mod report;
mod store;

pub use block::{AccessPattern, BlockBench, run_block};
pub use cpu::ProcessTimes;
pub use disk::{DiskBench, DiskBenchReport, DiskTestReport};
pub use object::{ObjectBench, ObjectOperation, run_object};
pub use recovery::{
    ClientLoad, RecoveryBench, RecoveryCluster, RecoveryPhase, RecoveryReport, RecoveryStep, RecoveryView,
    run_recovery,
};
pub use report::{BenchError, BenchReport, Latency};
pub use store::{
    PreparedStoreBench, Ratios, RunFigures, StoreBench, StoreBenchReport, StoreFigures, StoreRun, Workload,
    WorkloadReport,
};
