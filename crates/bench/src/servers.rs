//! The processes of a cluster on this host.

use atoll_node::{DataDir, ProcessesFile};

use crate::error::BenchError;
use crate::figures::Processes;

/// All server processes of the cluster on this machine, by role.
pub fn servers(directory: &DataDir) -> Result<Processes, BenchError> {
    let file = ProcessesFile::running(directory).ok_or_else(|| {
        BenchError::Invalid(format!("the cluster in {} is not running", directory.root().display()))
    })?;
    let mut servers = Processes::default();
    servers.add("supervisor", file.supervisor);
    for child in &file.children {
        if let Some(pid) = child.pid {
            // osd.0, osd.1, ... have one role.
            servers.add(child.name.split('.').next().unwrap_or(&child.name), pid);
        }
    }
    Ok(servers)
}
