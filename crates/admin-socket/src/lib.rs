//! The admin socket of a process: HTTP on a Unix socket that only the process' own user may open, by which metrics
//! and whatever else the process can tell are read, even where cluster state cannot be reached.
//!
//! This crate knows HTTP, sockets and the metrics of the process. It may not know what else is told: routes are given
//! to it.

/// Where processes of Atoll tell their slow operations, as JSON; metrics are at `/metrics`.
pub const SLOW_ROUTE: &str = "/slow";
/// Where processes tell how their audit logs are, as JSON.
pub const AUDIT_ROUTE: &str = "/audit";
/// Where processes tell by how many milliseconds their clocks are ahead of the cluster's, as JSON.
pub const CLOCK_ROUTE: &str = "/clock";
/// Where OSDs tell what they have of PGs, as JSON.
pub const PG_COPIES_ROUTE: &str = "/pg-copies";

mod client;
mod place;
mod server;

pub use client::{Answer, AskError, ask, exchange};
pub use server::{Reply, Routes, serve_in_thread};
