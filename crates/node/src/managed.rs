//! One process of the cluster on this host: how it is started and asked to end, and its log.

use std::fs::File;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use tokio::process::{Child, ChildStdin, Command};

use crate::data_dir::DataDir;
use crate::error::NodeError;
use crate::join::JOIN_TOKEN_VARIABLE;

/// A log that is larger is set aside, in bytes.
const LOG_BYTES_MAX: u64 = 64 << 20;

/// A process that the supervisor keeps running.
pub(crate) struct Managed {
    pub name: String,
    pub arguments: Vec<String>,
    pub child: Option<Child>,
    /// The pipe whose end tells the child that the supervisor is gone. Kept apart from the child,
    /// because waiting for a child closes its pipe.
    pub _pipe: Option<ChildStdin>,
    pub started: Instant,
    pub restart_at: Instant,
    pub restart_pause: Duration,
    pub restarts: u32,
}

impl Managed {
    pub fn is_osd(&self) -> bool {
        self.name.starts_with("osd.")
    }
}

/// Processes that are stopped together: first the front ends, then the OSDs, then cluster state.
pub(crate) fn group_of(name: &str) -> u8 {
    match name {
        "admin" => 3,
        "gateway" | "nbd" | "nvme" => 2,
        "cluster-state" => 0,
        _ => 1,
    }
}

/// Starts a process; its output goes to its log.
pub(crate) fn start(directory: &DataDir, executable: &Path, managed: &Managed) -> Result<Child, NodeError> {
    let path = directory.logs().join(format!("{}.log", managed.name));
    let log = File::options().create(true).append(true).open(&path).map_err(NodeError::file(&path))?;
    let errors = log.try_clone().map_err(NodeError::file(&path))?;
    Command::new(executable)
        .args(&managed.arguments)
        .arg("--data")
        .arg(directory.root())
        // The child ends when this pipe closes, so none outlives a supervisor that was killed.
        .arg("--exit-with-parent")
        // Those who can see its environment need not learn it.
        .env_remove(JOIN_TOKEN_VARIABLE)
        .stdin(Stdio::piped())
        .stdout(log)
        .stderr(errors)
        // Ctrl-C reaches the supervisor only, which stops the others in order.
        .process_group(0)
        .spawn()
        .map_err(NodeError::file(executable))
}

/// Begins logs anew that have become large, with what they had beside them. Processes append to their files, so they
/// go on in the emptied one; what they write in between is lost.
pub(crate) fn set_large_logs_aside(directory: &DataDir) -> std::io::Result<()> {
    for entry in std::fs::read_dir(directory.logs())? {
        let path = entry?.path();
        let is_log = path.extension().is_some_and(|extension| extension == "log");
        if is_log && std::fs::metadata(&path)?.len() > LOG_BYTES_MAX {
            std::fs::copy(&path, path.with_extension("log.old"))?;
            File::options().write(true).open(&path)?.set_len(0)?;
        }
    }
    Ok(())
}

/// Asks a process to end in order.
pub(crate) fn ask_to_end(pid: u32) {
    let process = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
    let Some(process) = process else { return };
    // A process that is gone already needs no signal.
    let _ = rustix::process::kill_process(process, rustix::process::Signal::TERM);
}
