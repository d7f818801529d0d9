//! The processes of the cluster on this machine, as a file that tools and tests can read.

use serde::{Deserialize, Serialize};

use crate::data_dir::DataDir;
use crate::error::NodeError;
use crate::json_files::{read_json, write_json};

/// `processes.json`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessesFile {
    /// The supervisor's process id.
    pub supervisor: u32,
    /// True if everything has been up and serving since the supervisor started.
    pub healthy: bool,
    /// Requirement that is missing before the cluster serves, such as further hosts, if its own processes are all
    /// that can be started now.
    #[serde(default)]
    pub waits_for: Option<String>,
    /// OSDs of this host that were down when it became healthy.
    #[serde(default)]
    pub osds_down: Vec<String>,
    /// The processes that it watches.
    pub children: Vec<ChildStatus>,
}

/// One process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChildStatus {
    /// `osd.0`, `gateway`, ...
    pub name: String,
    /// Its process id; absent while it is being restarted.
    pub pid: Option<u32>,
    /// How often it was restarted because it had died.
    pub restarts: u32,
    /// Why it does not run, or not for long.
    #[serde(default)]
    pub failure: Option<String>,
}

impl ProcessesFile {
    /// Reads the file, if there is one.
    pub fn read(directory: &DataDir) -> Option<Self> {
        read_json(&directory.processes_file()).ok()
    }

    /// Writes the file.
    pub fn write(&self, directory: &DataDir) -> Result<(), NodeError> {
        write_json(&directory.processes_file(), self)
    }

    /// The file, if the supervisor that wrote it still runs: then it holds its lock.
    pub fn running(directory: &DataDir) -> Option<Self> {
        let file = Self::read(directory)?;
        let lock = std::fs::File::open(directory.lock_file()).ok()?;
        let is_held = matches!(lock.try_lock_shared(), Err(std::fs::TryLockError::WouldBlock));
        is_held.then_some(file)
    }
}
