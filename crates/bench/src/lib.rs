//! Load generators: block I/O on an image through the native client, and objects through any S3
//! endpoint. Every run measures operations, latency, and the CPU time of the servers' processes.
//!
//! This room generates load and counts; it knows nothing of how the cluster does its work.

mod block;
mod cpu;
mod object;
mod random;
mod report;

pub use block::{AccessPattern, BlockBench, run_block};
pub use cpu::ProcessTimes;
pub use object::{ObjectBench, ObjectOperation, run_object};
pub use report::{BenchError, BenchReport, Latency};
