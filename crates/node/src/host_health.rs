//! What of a cluster's health only its hosts can know.

use atoll_coordinator::health::{Problem, Severity};

use crate::data_dir::{ClusterFile, DataDir};
use crate::device_space::{Overcommitted, overcommitted};
use crate::state_space::StateSpace;

const OVERCOMMITTED_ACTION: &str = "give the file system room, or move devices to others: OSDs are full when it almost \
                                    is, whatever their sizes are";

/// What is wrong with this host.
pub fn host_problems(directory: &DataDir, cluster: &ClusterFile) -> Vec<Problem> {
    let problem = |found: Overcommitted| Problem {
        code: "OSD_OVERCOMMITTED",
        severity: Severity::Warning,
        summary: found.to_string(),
        subjects: found.osds.iter().map(ToString::to_string).collect(),
        action: OVERCOMMITTED_ACTION.into(),
        since_unix_ms: None,
    };
    let devices = overcommitted(directory, cluster).into_iter().map(problem);
    devices.chain(state_space_problem(directory, cluster)).collect()
}

/// Whether the embedded cluster state of this host lacks space.
pub fn state_space_problem(directory: &DataDir, cluster: &ClusterFile) -> Option<Problem> {
    let (severity, what) = match directory.state_space() {
        _ if cluster.state_listen.is_none() => return None,
        StateSpace::Enough => return None,
        StateSpace::Reserve => (Severity::Warning, "lives on its reserve of space"),
        StateSpace::None => (Severity::Error, "has no space left, and cannot be written"),
    };
    Some(Problem {
        code: "STATE_NO_SPACE",
        severity,
        summary: format!("cluster state in {} {what}", directory.state().display()),
        subjects: Vec::new(),
        action:
            "give its file system room: remove other files, or objects and images whose device files are there"
                .into(),
        since_unix_ms: None,
    })
}
