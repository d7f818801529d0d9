//! Checks of a host before Atoll is deployed on it: processor, memory, clock, io_uring, drives, and the network to
//! other hosts. Each finding names the check, its result, its meaning for Atoll, and the remedy.
//!
//! This crate looks at the host and judges; it knows nothing of clusters, stores or data directories. Its input
//! comes from a root directory of facts (`/proc` and `/sys`, or a test's stand-in), and missing facts are reported
//! as not visible, never guessed.

mod clock;
mod cpu;
mod drive;
mod facts;
mod finding;
mod io_uring;
mod memory;
mod network;
mod rdma;
mod request;
mod run;
mod wake_up;

pub use drive::{SyncedWriteClass, remote_drive};
pub use facts::Facts;
pub use finding::{Finding, Report, Verdict};
pub use network::{PORT_DEFAULT, PeerAddress, Responder, ResponderLimits};
pub use request::{Request, Stop};
pub use run::{PreflightError, run};
