//! One process of the cluster on this host: how it is started, started again, and asked to end.

use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use tokio::process::{Child, ChildStdin, Command};

use crate::choices::JOIN_TOKEN_VARIABLE;
use crate::data_dir::DataDir;
use crate::error::NodeError;
use crate::log_files::open_log;
use crate::processes::ChildStatus;
use crate::progress::Progress;

const RESTART_PAUSE_MIN: Duration = Duration::from_millis(200);
const RESTART_PAUSE_MAX: Duration = Duration::from_secs(5);
/// A process that ran for this long is restarted at once when it dies.
const STEADY_AFTER: Duration = Duration::from_secs(10);

/// A process that the supervisor keeps running.
pub(crate) struct Managed {
    pub name: String,
    pub arguments: Vec<String>,
    pub child: Option<Child>,
    /// The pipe whose end shows the child that the supervisor is gone. Kept apart from the child, because waiting
    /// for a child closes its pipe.
    pub _pipe: Option<ChildStdin>,
    pub started: Instant,
    pub restart_at: Instant,
    pub restart_pause: Duration,
    pub restarts: u32,
    /// How its last process ended.
    pub ended: Option<ExitStatus>,
    /// Why it does not run, or not for long; gone when it has run for a while.
    pub failure: Option<String>,
}

impl Managed {
    pub fn new(name: &str, arguments: &[&str]) -> Self {
        let now = Instant::now();
        Managed {
            name: name.into(),
            arguments: arguments.iter().map(|&argument| argument.into()).collect(),
            child: None,
            _pipe: None,
            started: now,
            restart_at: now,
            restart_pause: RESTART_PAUSE_MIN,
            restarts: 0,
            ended: None,
            failure: None,
        }
    }

    pub fn is_osd(&self) -> bool {
        self.name.starts_with("osd.")
    }

    pub fn status(&self) -> ChildStatus {
        ChildStatus {
            name: self.name.clone(),
            pid: self.child.as_ref().and_then(Child::id),
            restarts: self.restarts,
            failure: self.failure.clone(),
        }
    }

    /// Starts it if it is due, and notices if it has died.
    pub fn watch(&mut self, directory: &DataDir, executable: &Path, show: &dyn Fn(Progress<'_>)) {
        let Some(child) = &mut self.child else {
            if self.restart_at <= Instant::now() {
                self.try_start(directory, executable, show);
            }
            return;
        };
        match child.try_wait() {
            Ok(None) if self.started.elapsed() > STEADY_AFTER => self.failure = None,
            Ok(None) => {}
            Ok(Some(status)) => {
                show(Progress::Died { name: &self.name, how: status.to_string() });
                self.child = None;
                self.ended = Some(status);
                self.restarts += 1;
                if self.started.elapsed() > STEADY_AFTER {
                    self.restart_pause = RESTART_PAUSE_MIN;
                    self.restart_at = Instant::now() + RESTART_PAUSE_MIN;
                    return;
                }
                // Once may be chance.
                if self.restart_pause > RESTART_PAUSE_MIN {
                    self.failure = Some(format!("ends soon after each start ({status})"));
                }
                self.start_later();
            }
            Err(error) => self.fails(format!("cannot be watched: {error}"), show),
        }
    }

    fn try_start(&mut self, directory: &DataDir, executable: &Path, show: &dyn Fn(Progress<'_>)) {
        match start(directory, executable, self) {
            Ok(mut child) => {
                self._pipe = child.stdin.take();
                self.child = Some(child);
                self.started = Instant::now();
            }
            Err(error) => {
                self.fails(format!("cannot be started: {error}"), show);
                self.start_later();
            }
        }
    }

    fn start_later(&mut self) {
        self.restart_pause = (self.restart_pause * 2).min(RESTART_PAUSE_MAX);
        self.restart_at = Instant::now() + self.restart_pause;
    }

    /// Says why, once.
    fn fails(&mut self, why: String, show: &dyn Fn(Progress<'_>)) {
        if self.failure.as_ref() != Some(&why) {
            show(Progress::Step(&format!("{} {why}; it is tried again", self.name)));
            self.failure = Some(why);
        }
    }
}

/// Returns true for processes with clients, other than OSDs.
pub(crate) fn serves_clients(name: &str) -> bool {
    matches!(name, "gateway" | "nbd" | "nvme")
}

/// Processes that are stopped together: first the front ends, then the OSDs, then cluster state.
pub(crate) fn group_of(name: &str) -> u8 {
    match name {
        "admin" => 3,
        name if serves_clients(name) => 2,
        "cluster-state" => 0,
        _ => 1,
    }
}

/// Starts a process; its output goes to its log.
fn start(directory: &DataDir, executable: &Path, managed: &Managed) -> Result<Child, NodeError> {
    let (log, errors) = open_log(directory, &managed.name)?;
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

/// Asks a process to end in order.
pub(crate) fn ask_to_end(pid: u32) {
    let process = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
    let Some(process) = process else { return };
    // A process that is gone already needs no signal.
    let _ = rustix::process::kill_process(process, rustix::process::Signal::TERM);
}
