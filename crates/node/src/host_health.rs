//! Health problems that only the cluster's hosts can see.

use atoll_coordinator::health::{Problem, Severity};

use crate::data_dir::{ClusterFile, DataDir};
use crate::device_space::{Overcommitted, overcommitted};
use crate::managed::serves_clients;
use crate::processes::{ChildStatus, ProcessesFile};
use crate::state_space::StateSpace;

const OVERCOMMITTED_ACTION: &str = "give the file system room, or move devices to others: OSDs are full when it almost \
                                    is, whatever their sizes are";

/// Returns the health problems of this host.
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
    let processes = ProcessesFile::running(directory).into_iter().flat_map(|file| failing_processes(&file));
    devices.chain(state_space_problem(directory, cluster)).chain(processes).collect()
}

/// Processes of this host that do not run, or not for long.
fn failing_processes(file: &ProcessesFile) -> Vec<Problem> {
    let failing = file.children.iter().filter_map(|child| Some((child, child.failure.as_ref()?)));
    let problem = |(child, failure): (&ChildStatus, &String)| Problem {
        code: "PROCESS_FAILS",
        // What an OSD holds the others serve.
        severity: if serves_clients(&child.name) { Severity::Error } else { Severity::Warning },
        summary: format!("{} {failure}", child.name),
        subjects: vec![child.name.clone()],
        action: format!(
            "it is tried again every few seconds; log/{}.log in the data directory says more",
            child.name
        ),
        since_unix_ms: None,
    };
    failing.map(problem).collect()
}

/// Returns a problem if the embedded cluster state of this host lacks space.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_that_fail_are_problems() {
        let child = |name: &str, failure: Option<&str>| ChildStatus {
            name: name.into(),
            pid: None,
            restarts: 0,
            failure: failure.map(str::to_owned),
        };
        let children = vec![
            child("nbd", Some("cannot be started: no such file")),
            child("osd.0", Some("ends soon")),
            child("gateway", None),
        ];
        let problems = failing_processes(&ProcessesFile { children, ..ProcessesFile::default() });
        assert_eq!(problems.len(), 2);
        assert_eq!((problems[0].severity, problems[1].severity), (Severity::Error, Severity::Warning));
        assert!(problems[0].summary.starts_with("nbd cannot be started"), "{}", problems[0].summary);
    }
}
