//! The admin socket of a process: HTTP on a Unix socket that only the process' own user may open, for metrics and
//! other answers of the process, even where cluster state cannot be reached.
//!
//! This crate knows HTTP, sockets and the metrics of the process. It does not know other answers: routes are given
//! to it.

/// Route of a process' slow operations, as JSON; metrics are at `/metrics`.
pub const SLOW_ROUTE: &str = "/slow";
/// Route of the state of a process' audit logs, as JSON.
pub const AUDIT_ROUTE: &str = "/audit";
/// Route of the milliseconds by which a process' clock is ahead of the cluster's, as JSON.
pub const CLOCK_ROUTE: &str = "/clock";
/// Route of an OSD's copies of PGs, as JSON.
pub const PG_COPIES_ROUTE: &str = "/pg-copies";

mod client;
mod place;
mod server;

pub use client::{Answer, AskError, ask, exchange};
pub use server::{Reply, Routes, serve_in_thread};
