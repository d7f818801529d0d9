//! An audit log: who asked for what, and what became of it, as a line of JSON for each request, in a file or sent to a
//! collector over HTTP. Lines are written by a thread of their own, in the order in which they came.
//!
//! This crate knows lines, files and HTTP. It may not know what is in a line.

mod collector;
mod file;

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, LazyLock};

use atoll_metrics::{Counter, register};
use serde::Serialize;

use collector::Collector;
use file::LogFile;

/// Lines that wait until they are written.
const WAITING_MAX: usize = 16_384;
/// Lines that are written together.
const BATCH_MAX: usize = 1_024;

struct Registered {
    written: Counter,
    lost: Counter,
}

static REGISTERED: LazyLock<Registered> = LazyLock::new(|| Registered {
    written: register("atoll_audit_lines", "Lines of the audit log that were written or sent", Counter::default()),
    lost: register(
        "atoll_audit_lost_lines",
        "Lines of the audit log that could be neither written nor sent",
        Counter::default(),
    ),
});

/// Where an audit log goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// To a file, which is set aside when it is large.
    File(PathBuf),
    /// To a collector, as bodies of POST requests with a line for each record.
    Http(String),
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "" => Err("give a file, or the URL of a collector".into()),
            _ if text.starts_with("http://") || text.starts_with("https://") => Ok(Target::Http(text.into())),
            _ => Ok(Target::File(text.into())),
        }
    }
}

/// An audit log; clones write to the same.
#[derive(Clone)]
pub struct AuditLog(Arc<SyncSender<String>>);

/// What takes lines.
trait Sink: Send {
    /// Writes lines, each of which ends with a line feed. It may wait and try again; an error is the end of these.
    fn write(&mut self, lines: &str) -> Result<(), String>;
}

impl AuditLog {
    /// Opens a log. A file that cannot be written is an error now; a collector need not be there yet.
    pub fn open(target: &Target) -> std::io::Result<Self> {
        LazyLock::force(&REGISTERED);
        let sink: Box<dyn Sink> = match target {
            Target::File(path) => Box::new(LogFile::open(path)?),
            Target::Http(url) => Box::new(Collector::new(url)?),
        };
        let (sender, waiting) = sync_channel(WAITING_MAX);
        std::thread::Builder::new().name("audit-log".into()).spawn(move || write_all(sink, &waiting))?;
        Ok(AuditLog(Arc::new(sender)))
    }

    /// Adds a record. If many wait, the caller does, too: a request whose record is lost must not look as if it had
    /// never been.
    pub fn add(&self, record: &impl Serialize) {
        let mut line = serde_json::to_string(record).expect("records are texts and numbers, which become JSON");
        line.push('\n');
        match self.0.try_send(line) {
            Ok(()) => {}
            Err(TrySendError::Full(line)) => {
                // An error means that the thread is gone, which ends the process.
                let _ = self.0.send(line);
            }
            Err(TrySendError::Disconnected(_)) => drop(REGISTERED.lost.inc()),
        }
    }
}

fn write_all(mut sink: Box<dyn Sink>, waiting: &Receiver<String>) {
    while let Ok(mut lines) = waiting.recv() {
        let mut count = 1;
        while count < BATCH_MAX
            && let Ok(line) = waiting.try_recv()
        {
            lines.push_str(&line);
            count += 1;
        }
        match sink.write(&lines) {
            Ok(()) => drop(REGISTERED.written.inc_by(count as u64)),
            Err(error) => {
                REGISTERED.lost.inc_by(count as u64);
                tracing::error!("{count} lines of the audit log are lost: {error}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_files_and_urls() {
        assert_eq!("https://siem.example/in".parse(), Ok(Target::Http("https://siem.example/in".into())));
        assert_eq!("./audit.jsonl".parse(), Ok(Target::File("./audit.jsonl".into())));
        assert!("".parse::<Target>().is_err());
    }

    #[test]
    fn every_record_is_a_line_in_order() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log/audit.jsonl");
        let log = AuditLog::open(&Target::File(path.clone())).unwrap();
        let threads: Vec<_> = (0..4)
            .map(|thread| {
                let log = log.clone();
                std::thread::spawn(move || (0..500).for_each(|number| log.add(&(thread, number, "a\nb"))))
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
        let has_all = |text: &str| text.ends_with('\n') && text.lines().count() == 2_000;
        let text = loop {
            // A part of a batch may be written.
            let text = std::fs::read_to_string(&path).unwrap();
            if has_all(&text) {
                break text;
            }
            assert!(std::time::Instant::now() < deadline, "{} lines are written", text.lines().count());
            std::thread::sleep(std::time::Duration::from_millis(10));
        };
        let lines: Vec<(u32, u32, String)> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        for thread in 0..4 {
            let numbers: Vec<u32> =
                lines.iter().filter(|(other, ..)| *other == thread).map(|(_, number, _)| *number).collect();
            assert_eq!(numbers, (0..500).collect::<Vec<_>>());
        }
    }
}
