//! A Prometheus that asks all processes of a cluster for their metrics: as docs/guide/monitoring.md sets it up,
//! but each second. It is stopped, and costs nothing, except during runs of its subject.

use std::fs;
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::cluster::Stops;
use super::command::{Atoll, free_port, run};
use crate::error::LabError;

const START_MAX: Duration = Duration::from_secs(20);
/// Once all targets are found and answer, Prometheus has asked each.
const FIRST_SCRAPES: Duration = Duration::from_secs(3);

/// Its process, which is stopped.
pub(super) struct Prometheus(Pid);

/// It runs until this is dropped.
pub(super) struct Scraping(Pid);

impl Prometheus {
    /// Lets it run.
    pub fn scrape(&self) -> Result<Scraping, LabError> {
        signal(self.0, Signal::CONT)?;
        Ok(Scraping(self.0))
    }
}

impl Drop for Scraping {
    fn drop(&mut self) {
        // One that has ended is noticed by the next run.
        let _ = signal(self.0, Signal::STOP);
    }
}

/// Starts it for the cluster in `data`.
pub(super) fn start(atoll: &Atoll, data: &Path, stops: &Stops) -> Result<Prometheus, LabError> {
    let directory = data.join("prometheus");
    let (token_file, file) = (directory.join("token"), directory.join("prometheus.yml"));
    let token = run(atoll.command(&["metrics", "token", "create", "bench-prometheus"], data))?;
    fs::create_dir_all(&directory).and_then(|()| fs::write(&token_file, token)).map_err(failed)?;
    let mut configure = atoll.command(&["metrics", "config"], data);
    configure.arg("--token-file").arg(&token_file);
    let usual = run(configure)?;
    fs::write(&file, each_second(&usual)).map_err(failed)?;
    let port = free_port()?;
    let mut command = Command::new("prometheus");
    command.arg(format!("--config.file={}", file.display()));
    command.arg(format!("--storage.tsdb.path={}", directory.join("data").display()));
    command.arg(format!("--web.listen-address=127.0.0.1:{port}"));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let child = command
        .spawn()
        .map_err(|error| failed(format!("cannot be started ({error}); install it: apt-get install prometheus")))?;
    let mut kill = Command::new("kill");
    kill.args(["-9", &child.id().to_string()]);
    stops.add(vec![kill], None);
    let begun = Instant::now();
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        if begun.elapsed() > START_MAX {
            return Err(failed(format!(
                "does not listen; 'promtool check config {}' may say why",
                file.display()
            )));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    std::thread::sleep(FIRST_SCRAPES);
    let process = Pid::from_child(&child);
    signal(process, Signal::STOP)?;
    Ok(Prometheus(process))
}

/// The same configuration, but all targets are asked each second.
fn each_second(configuration: &str) -> String {
    let line = |line: &str| {
        let (indent, setting) = line.split_at(line.len() - line.trim_start().len());
        match setting.split_once(": ") {
            Some((name @ ("scrape_interval" | "scrape_timeout"), _)) => format!("{indent}{name}: 1s\n"),
            _ => format!("{line}\n"),
        }
    };
    configuration.lines().map(line).collect()
}

fn signal(process: Pid, signal: Signal) -> Result<(), LabError> {
    kill_process(process, signal).map_err(failed)
}

fn failed(detail: impl ToString) -> LabError {
    LabError::Process { what: "prometheus".into(), detail: detail.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_pace_is_changed() {
        let usual =
            "global:\n  scrape_interval: 15s\n  evaluation_interval: 15s\njobs:\n    scrape_timeout: 10s\n";
        let wanted = "global:\n  scrape_interval: 1s\n  evaluation_interval: 15s\njobs:\n    scrape_timeout: 1s\n";
        assert_eq!(each_second(usual), wanted);
    }
}
