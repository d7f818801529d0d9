//! The admin server of a host: what an operator's tools ask over the network. It gives out the metrics of the host's
//! processes, which it reads from their admin sockets, those of the cluster as a whole, and the targets that Prometheus
//! should scrape on all hosts.
//!
//! This crate knows HTTP, tokens and cluster state. It takes no part in the data path, and what it tells it has from
//! `admin`, `coordinator` and the processes themselves.

mod announcement;
mod cluster_metrics;
mod cluster_state;
mod listener;
mod metrics_routes;
mod server;
mod token_check;

pub use server::{AdminServer, AdminServerError};
