//! Load generators and figures: block I/O on images, NBD exports, files and devices, objects through any
//! S3 endpoint, a store alone on its device beside fio, a drive alone, each OSD by itself, clients while data moves.
//! Every run measures operations, latency, and the CPU time of the processes that do the work.
//!
//! This crate generates load and counts. It does not know how the cluster works; `atoll-lab` compares runs.

/// Set for benchmarks that a matrix runs: they end with it. Without this they would run on without a cluster.
pub const EXIT_WITH_PARENT: &str = "ATOLL_BENCH_EXIT_WITH_PARENT";

mod block;
mod disk;
mod error;
mod figures;
mod fio;
mod load;
mod object;
mod osds;
mod recovery;
mod servers;
mod store;

pub use block::{
    AccessPattern, BlockOperations, BlockTarget, BlockWorkload, Durability, FileTarget, FioBench, FioTarget,
    NbdAddress, NbdTarget, Prefill, Verifier, prefill,
};
pub use disk::{DiskBench, DiskBenchReport, DiskTestReport};
pub use error::BenchError;
pub use figures::{
    COLD_OBJECTS_MIN, ClientMeasurement, Counts, CpuByRole, HostFacts, KindCounts, KindMeasurement, Latency,
    LatencyHistogram, MachineWork, Measurement, Noise, NoiseWatch, ProcessTimes, Processes, Second, Setting,
    WorkingSet, round, unix_s,
};
pub use load::{ClientVoice, Done, Operations, Outcome, Pace, Plan, Random, Timer, run_client, run_processes};
pub use object::{
    ObjectOperation, ObjectOperations, ObjectTarget, ObjectWorkload, OperationMix, SizeDistribution,
};
pub use osds::{OsdFigures, OsdReport, OsdSubject, OsdsBench};
pub use recovery::{
    ClientLoad, RecoveryBench, RecoveryCluster, RecoveryPhase, RecoveryReport, RecoveryStep, RecoveryView,
    run_recovery,
};
pub use servers::servers;
pub use store::{
    PreparedStoreBench, Ratios, RunFigures, StoreBench, StoreBenchReport, StoreFigures, StoreRun, Workload,
    WorkloadReport,
};
