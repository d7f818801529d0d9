//! The processes of a cluster on this host, and where its gateway is.

use std::path::Path;

use atoll_bench::Processes;
use atoll_node::{DataDir, NodeError, ProcessesFile};

use crate::error::LabError;
use crate::matrix::DataFacts;

/// All server processes of the cluster on this machine, by role.
pub fn servers(directory: &DataDir) -> Result<Processes, LabError> {
    let file = ProcessesFile::running(directory).ok_or_else(|| {
        LabError::Invalid(format!("the cluster in {} is not running", directory.root().display()))
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

/// What a matrix must know of a cluster that it has started.
pub(crate) fn facts(data: &Path) -> Result<DataFacts, LabError> {
    let directory = DataDir::new(data);
    let credentials = directory.credentials().map_err(|error: NodeError| LabError::Invalid(error.to_string()))?;
    let gateway = credentials.endpoint.trim_start_matches("http://").trim_end_matches('/').to_owned();
    Ok(DataFacts { gateway, servers: servers(&directory)? })
}
