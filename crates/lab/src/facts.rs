//! The facts of a cluster that a matrix has started.

use std::path::Path;

use atoll_bench::servers;
use atoll_node::{DataDir, NodeError};

use crate::error::LabError;
use crate::matrix::DataFacts;

/// Reads where a cluster's gateway and its processes are.
pub(crate) fn facts(data: &Path) -> Result<DataFacts, LabError> {
    let directory = DataDir::new(data);
    let credentials = directory.credentials().map_err(|error: NodeError| LabError::Invalid(error.to_string()))?;
    let gateway = credentials.endpoint.trim_start_matches("http://").trim_end_matches('/').to_owned();
    Ok(DataFacts { gateway, servers: servers(&directory)? })
}
