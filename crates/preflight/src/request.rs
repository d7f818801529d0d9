//! Checks that are requested, and their end before their time.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::network::PeerAddress;

/// Checks beside those of the host itself.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// Block devices, files and directories.
    pub devices: Vec<PathBuf>,
    /// Hosts on which a responder listens.
    pub peers: Vec<PeerAddress>,
    /// The provider of libfabric for RDMA of this host's OSDs, if they use it.
    pub rdma_provider: Option<String>,
    /// How long each measurement takes.
    pub duration: Duration,
    /// Measure durable writes: on block devices, or in a new file in a directory (or beside a file).
    pub write_test: bool,
    /// Block devices may be overwritten.
    pub wipe: bool,
    /// Measure with the volatile write cache in its other state, too.
    pub toggle_write_cache: bool,
}

/// Asks a run to come to its end; clones ask the same run.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Asks.
    pub fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Returns true if a stop was requested.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
