//! The admin server of a host: the operators' view in a browser, and the requests of their tools over the network.
//! It serves the console and the admin API, the metrics of the host's processes, which it reads from their admin
//! sockets, those of the cluster as a whole, and the targets that Prometheus should scrape on all hosts. It also
//! reports the state of this host's processes to other hosts, and asks them for theirs.
//!
//! This crate knows HTTP, sessions, tokens and cluster state. It takes no part in the data path, and its answers
//! come from `admin`, `coordinator` and the processes themselves. A call is a command of `atoll`; the server gets
//! a runner for it.

mod announcement;
mod api;
mod assets;
mod bucket_listing;
mod cluster_metrics;
mod cluster_state;
mod commands;
mod copies;
mod figures;
mod guarded_stream;
mod hosts;
mod known_digests;
mod listener;
mod metrics_routes;
mod outgoing;
mod peer;
mod refused_records;
mod server;
mod shared;
mod token_check;

pub use api::{AUDIT_SOURCE, is_call_of_tokens};
pub use commands::{Command, CommandFailure, FailureKind, RunCommands};
pub use figures::{Point, Samples, Subject, rates};
pub use hosts::{Everywhere, OtherHosts, Tells, ThisHost, Unanswered};
pub use server::{AdminServer, AdminServerConfig, AdminServerError};
