//! The admin server of a host: what operators see in a browser, and what their tools ask over the network. It serves the
//! console and the admin API, the metrics of the host's processes, which it reads from their admin sockets, those of the
//! cluster as a whole, and the targets that Prometheus should scrape on all hosts. Besides, it tells other hosts what the
//! processes of this one do, and asks them for the same.
//!
//! This crate knows HTTP, sessions, tokens and cluster state. It takes no part in the data path, and what it tells it has
//! from `admin`, `coordinator` and the processes themselves. What a call does is a command of `atoll`, which it is given
//! somebody to run with.

mod announcement;
mod api;
mod assets;
mod bucket_listing;
mod cluster_metrics;
mod cluster_state;
mod commands;
mod copies;
mod figures;
mod hosts;
mod known_digests;
mod listener;
mod metrics_routes;
mod outgoing;
mod refused_records;
mod server;
mod token_check;

pub use api::{AUDIT_SOURCE, is_call_of_tokens};
pub use commands::{Command, CommandFailure, FailureKind, RunCommands};
pub use figures::{Point, Samples, Subject, rates};
pub use hosts::{Everywhere, OtherHosts, Tells, ThisHost, Unanswered};
pub use server::{AdminServer, AdminServerConfig, AdminServerError};
