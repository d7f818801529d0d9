//! Running other programs: this one's own commands, drivers, HAProxy.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use atoll_bench::EXIT_WITH_PARENT;
use serde::de::DeserializeOwned;

use crate::error::LabError;

/// Runs a command to its end; returns its output. Its errors are shown as they come if it is long, else they are
/// part of the error.
pub(super) fn run(mut command: Command) -> Result<String, LabError> {
    let what = describe(&command);
    let failed = |detail: String| LabError::Process { what: what.clone(), detail };
    let output = command.stdin(Stdio::null()).output().map_err(|error| failed(error.to_string()))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let tail: Vec<&str> = said.trim().lines().rev().take(12).collect();
        let tail: Vec<&str> = tail.into_iter().rev().collect();
        return Err(failed(format!("{}: {}", output.status, tail.join("\n"))));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs a command that prints JSON, in its last line or in several.
pub(super) fn run_json<T: DeserializeOwned>(command: Command) -> Result<T, LabError> {
    let what = describe(&command);
    let said = run(command)?;
    let last = said.trim_end().lines().next_back().unwrap_or_default();
    serde_json::from_str(&said).or_else(|_| serde_json::from_str(last)).map_err(|error| LabError::Process {
        what,
        detail: format!("the output is not understood ({error}): {}", &last[..last.floor_char_boundary(300)]),
    })
}

fn describe(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// Returns a port of this host that is free. It is outside of the kernel's range for outgoing connections, one of
/// which might take it in the meantime.
pub(super) fn free_port() -> Result<u16, LabError> {
    let start = 20_000 + (std::process::id() % 5_000) as u16;
    let is_free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    let taken = || LabError::Invalid("no port of this host is free".into());
    thread_local!(static NEXT: std::cell::Cell<u16> = const { std::cell::Cell::new(0) });
    let first = NEXT.get().max(start);
    let port = (first..30_000).find(is_free).ok_or_else(taken)?;
    NEXT.set(port + 1);
    Ok(port)
}

/// This program's own commands.
#[derive(Clone, Debug)]
pub(super) struct Atoll(pub PathBuf);

impl Atoll {
    /// A command on the cluster of a data directory.
    pub fn command(&self, words: &[&str], data: &Path) -> Command {
        let mut command = self.bare(words);
        command.arg("--data").arg(data);
        command
    }

    /// A command on no cluster's data directory. A benchmark ends when this process does.
    pub fn bare(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.0);
        command.args(words).env(EXIT_WITH_PARENT, "1");
        command
    }
}
