//! Which process holds something in cluster state, and whether it is gone for sure. Uncertain cases are left to
//! the holder's lease.

use std::sync::LazyLock;

use atoll_types::records::ProcessRecord;
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

/// Returns the identity of this process, which distinguishes it in its namespace from all others that had its
/// number or will. `None` where the system does not say enough.
pub fn this_process() -> Option<ProcessRecord> {
    static THIS: LazyLock<Option<ProcessRecord>> = LazyLock::new(|| describe(std::process::id()));
    THIS.clone()
}

/// Returns true if a process of this identity has ended. False if that cannot be known from here: it is, or may
/// be, of another boot or in another namespace of processes, or has said nothing.
pub fn is_gone(process_id: u32, process: Option<&ProcessRecord>) -> bool {
    let (Some(process), Some(own)) = (process, this_process()) else { return false };
    if (&process.boot_id, &process.namespaces) != (&own.boot_id, &own.namespaces) {
        return false;
    }
    match start_ticks(process_id) {
        Some(ticks) => ticks != process.start_ticks,
        // Processes of other users may be hidden.
        None => !exists(process_id),
    }
}

fn describe(process_id: u32) -> Option<ProcessRecord> {
    if !sees_own_processes() {
        return None;
    }
    let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?.trim().to_owned();
    // Times of the start are told by the clock of the reader's namespace of time.
    let namespaces: Option<Vec<String>> = ["pid", "time"].into_iter().map(namespace).collect();
    Some(ProcessRecord { boot_id, namespaces: namespaces?.join(" "), start_ticks: start_ticks(process_id)? })
}

/// Returns true if `/proc` shows the namespace of processes that this process is in, and not one around it.
fn sees_own_processes() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    numbers.is_some_and(|numbers| numbers.trim() == std::process::id().to_string())
}

/// The name of a namespace of this process: `pid:[4026531836]`. It is given to another only when no process is left.
fn namespace(kind: &str) -> Option<String> {
    match std::fs::read_link(format!("/proc/self/ns/{kind}")) {
        Ok(name) => Some(name.to_string_lossy().into_owned()),
        // The kernel has no such namespaces.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Some(format!("{kind}:none")),
        Err(_) => None,
    }
}

/// When a process started: proc_pid_stat(5). The name before may contain anything.
fn start_ticks(process_id: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{process_id}/stat")).ok()?;
    let (_, fields) = text.rsplit_once(')')?;
    fields.split_whitespace().nth(19)?.parse().ok()
}

fn exists(process_id: u32) -> bool {
    let Some(pid) = i32::try_from(process_id).ok().and_then(Pid::from_raw) else { return true };
    test_kill_process(pid) != Err(Errno::SRCH)
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use super::*;

    fn child() -> Child {
        Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().unwrap()
    }

    #[test]
    fn a_process_is_gone_when_it_has_ended() {
        let mut child = child();
        let described = describe(child.id()).unwrap();
        assert!(!is_gone(child.id(), Some(&described)));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(is_gone(child.id(), Some(&described)));
    }

    #[test]
    fn a_process_that_has_got_the_number_of_another_is_not_that_one() {
        let own = this_process().unwrap();
        let before = ProcessRecord { start_ticks: own.start_ticks - 1, ..own.clone() };
        assert!(is_gone(std::process::id(), Some(&before)) && !is_gone(std::process::id(), Some(&own)));
    }

    /// Another machine may have the same name, and another container the same name and numbers.
    #[test]
    fn of_processes_that_cannot_be_seen_from_here_nothing_is_known() {
        let mut child = child();
        let described = describe(child.id()).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        let elsewhere = [
            Some(ProcessRecord { boot_id: "another".into(), ..described.clone() }),
            Some(ProcessRecord { namespaces: "pid:[1] time:[1]".into(), ..described }),
            None,
        ];
        for process in elsewhere {
            assert!(!is_gone(child.id(), process.as_ref()), "{process:?}");
        }
    }
}
