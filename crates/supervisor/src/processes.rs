//! The processes of the cluster on this machine, as a file that tools and tests can read.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::data_dir::{DataDir, read_json, write_json};
use crate::error::SupervisorError;

/// `processes.json`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessesFile {
    /// The supervisor's process id.
    pub supervisor: u32,
    /// Whether everything has been up and serving since the supervisor started.
    pub healthy: bool,
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
}

impl ProcessesFile {
    /// Reads the file, if there is one.
    pub fn read(directory: &DataDir) -> Option<Self> {
        read_json(&directory.processes_file()).ok()
    }

    /// Writes the file.
    pub fn write(&self, directory: &DataDir) -> Result<(), SupervisorError> {
        write_json(&directory.processes_file(), self)
    }

    /// Whether the supervisor that wrote the file still lives.
    pub fn is_running(&self) -> bool {
        self.supervisor != 0 && Path::new(&format!("/proc/{}", self.supervisor)).exists()
    }
}
