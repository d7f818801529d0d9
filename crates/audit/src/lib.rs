//! An audit log: who asked for what, and what became of it, as a line of JSON for each request, in a file or sent to a
//! collector over HTTP. Lines are written by a thread of their own, in the order in which they came.
//!
//! Who has not proved to be anybody is a stranger. Lines of strangers have a file of their own, so they never push out those
//! of others, and refusals of strangers are sampled: the rest is a number in a line. Lines are chained and signed, so that
//! [`Verdict`] finds what was changed or taken out.
//!
//! This crate knows lines, files and HTTP. It may not know what is in a line.

mod bounds;
mod chain;
mod collector;
mod file;
mod sampling;
mod verify;
mod writer;

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Instant;

use atoll_connection_limits::network_of;
use atoll_metrics::{Counter, register};
use serde::Serialize;

pub use bounds::{AGENT_BYTES_MAX, Bounded, METHOD_BYTES_MAX, PATH_BYTES_MAX, cut_fields};
use chain::ChainKey;
use collector::Collector;
use file::{IDENTIFIED_ROOM, LogFile, STRANGERS_ROOM, strangers_path, with_suffix};
use sampling::Sampling;
pub use verify::{RunVerdict, Verdict};
use writer::{Chained, Line, Writer};

/// Processes of one data directory that write audit logs of one kind.
const PROCESSES_MAX: u32 = 16;
/// Lines that wait until they are written.
const WAITING_MAX: usize = 16_384;
/// Those of them that are about strangers: these never make others wait.
const STRANGERS_WAITING_MAX: usize = WAITING_MAX / 4;

struct Registered {
    written: Counter,
    lost: Counter,
    unlisted: Counter,
}

static REGISTERED: LazyLock<Registered> = LazyLock::new(|| Registered {
    written: register("atoll_audit_lines", "Lines of the audit log that were written or sent", Counter::default()),
    lost: register(
        "atoll_audit_lost_lines",
        "Lines of the audit log that could be neither written nor sent",
        Counter::default(),
    ),
    unlisted: register(
        "atoll_audit_unlisted_refusals",
        "Refusals of strangers that have no line of their own in the audit log",
        Counter::default(),
    ),
});

/// Where an audit log goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// To a file, which is set aside when it is large.
    File(PathBuf),
    /// Nowhere.
    Off,
    /// To a collector, as bodies of POST requests with a line for each record.
    Http(String),
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "" => Err("give a file, or the URL of a collector".into()),
            "off" => Ok(Target::Off),
            _ if text.starts_with("http://") || text.starts_with("https://") => Ok(Target::Http(text.into())),
            _ => Ok(Target::File(text.into())),
        }
    }
}

/// An audit log; clones write to the same.
#[derive(Clone)]
pub struct AuditLog(Arc<Inner>);

struct Inner {
    sender: SyncSender<Line>,
    sampling: Arc<Mutex<Sampling>>,
    strangers_waiting: Arc<AtomicUsize>,
}

/// A request of somebody who has not proved to be anybody.
#[derive(Clone, Copy, Debug)]
pub struct Stranger {
    /// The address, as far as it is known.
    pub address: Option<IpAddr>,
    /// Whether the request was refused. Refusals are sampled.
    pub is_refused: bool,
}

/// What takes lines.
trait Sink: Send {
    /// Writes lines, each of which ends with a line feed. It may wait and try again; an error is the end of these.
    fn write(&mut self, lines: &str) -> Result<(), String>;
}

impl AuditLog {
    /// Opens a log of one source, which lines about refusals without a line name. A file that cannot be written is an
    /// error now, and so is one that another process writes; a collector need not be there yet. `None` if it goes
    /// nowhere.
    pub fn open(source: &'static str, target: &Target) -> std::io::Result<Option<Self>> {
        LazyLock::force(&REGISTERED);
        let (identified, strangers): (Box<dyn Sink>, Option<Box<dyn Sink>>) = match target {
            Target::File(path) => (
                Box::new(LogFile::open(path, IDENTIFIED_ROOM)?),
                Some(Box::new(LogFile::open(&strangers_path(path), STRANGERS_ROOM)?)),
            ),
            Target::Http(url) => (Box::new(Collector::new(url)?), None),
            Target::Off => return Ok(None),
        };
        let key = ChainKey::random()?;
        tracing::info!("the audit log of {source} is chained under key {}", key.public());
        let (sender, waiting) = sync_channel(WAITING_MAX);
        let sampling = Arc::new(Mutex::new(Sampling::new(Instant::now())));
        let strangers_waiting = Arc::new(AtomicUsize::new(0));
        let begin = |sink| Chained::begin(sink, &key, source);
        let mut writer = Writer {
            source,
            identified: begin(identified)?,
            strangers: strangers.map(begin).transpose()?,
            signed_at: Instant::now(),
            waiting,
            sampling: Arc::clone(&sampling),
            strangers_waiting: Arc::clone(&strangers_waiting),
        };
        std::thread::Builder::new().name("audit-log".into()).spawn(move || writer.run())?;
        Ok(Some(AuditLog(Arc::new(Inner { sender, sampling, strangers_waiting }))))
    }

    /// Opens a log in a file of this process: in `NAME-2.jsonl`, `NAME-3.jsonl` and so on if other processes write to
    /// those before.
    pub fn open_own(source: &'static str, path: &Path) -> std::io::Result<Option<Self>> {
        for number in 1..=PROCESSES_MAX {
            let own = if number == 1 { path.to_owned() } else { with_suffix(path, &format!("-{number}")) };
            match Self::open(source, &Target::File(own)) {
                Err(error) if error.kind() == std::io::ErrorKind::ResourceBusy => {}
                opened => return opened,
            }
        }
        Err(std::io::Error::new(std::io::ErrorKind::ResourceBusy, "too many processes write audit logs there"))
    }

    /// Adds a record about somebody who is known. If many wait, the caller does, too: a request whose record is lost must
    /// not look as if it had never been.
    pub fn add(&self, record: &impl Serialize) {
        match self.0.sender.try_send(Line { text: line_of(record), is_of_stranger: false }) {
            Ok(()) => {}
            Err(TrySendError::Full(line)) => {
                // An error means that the thread is gone, which ends the process.
                let _ = self.0.sender.send(line);
            }
            Err(TrySendError::Disconnected(_)) => drop(REGISTERED.lost.inc()),
        }
    }

    /// Adds a record about a stranger, if it is one of those that get a line. The caller never waits: what finds no
    /// room is counted.
    pub fn add_of_stranger(&self, stranger: Stranger, record: &impl Serialize) {
        let network = stranger.address.map(network_of);
        let is_taken = !stranger.is_refused || self.sample(|sampling| sampling.takes(network));
        let is_written = is_taken && self.try_add_of_stranger(record);
        if is_taken && !is_written {
            self.sample(|sampling| sampling.missed(network));
        }
        if !is_written {
            REGISTERED.unlisted.inc();
        }
    }

    fn sample<T>(&self, call: impl FnOnce(&mut Sampling) -> T) -> T {
        // Counts are right whatever has panicked elsewhere.
        call(&mut self.0.sampling.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn try_add_of_stranger(&self, record: &impl Serialize) -> bool {
        let waiting = &self.0.strangers_waiting;
        if waiting.fetch_add(1, Ordering::Relaxed) < STRANGERS_WAITING_MAX
            && self.0.sender.try_send(Line { text: line_of(record), is_of_stranger: true }).is_ok()
        {
            return true;
        }
        waiting.fetch_sub(1, Ordering::Relaxed);
        false
    }
}

/// A record, which is an object with fields, as a line.
fn line_of(record: &impl Serialize) -> String {
    let mut line = serde_json::to_string(record).expect("records are texts and numbers, which become JSON");
    line.push('\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use std::time::Duration;

    fn read(path: &Path) -> String {
        std::fs::read_to_string(path).unwrap_or_default()
    }

    /// Lines that are no links of a chain alone.
    fn records(path: &Path) -> Vec<Value> {
        let lines = read(path);
        let whole = lines.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let records = whole.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        records.filter(|record| !record["operation"].as_str().unwrap_or_default().starts_with("Chain")).collect()
    }

    fn wait_for(what: &str, limit: Duration, is_there: impl Fn() -> bool) {
        let deadline = Instant::now() + limit;
        while !is_there() {
            assert!(Instant::now() < deadline, "{what}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    #[test]
    fn targets_are_files_and_urls() {
        assert_eq!("https://siem.example/in".parse(), Ok(Target::Http("https://siem.example/in".into())));
        assert_eq!("./audit.jsonl".parse(), Ok(Target::File("./audit.jsonl".into())));
        assert_eq!("off".parse(), Ok(Target::Off));
        assert!("".parse::<Target>().is_err());
    }

    #[test]
    fn every_record_is_a_line_in_order() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log/audit.jsonl");
        let log = AuditLog::open("test", &Target::File(path.clone())).unwrap().unwrap();
        let threads: Vec<_> = (0..4)
            .map(|thread| {
                let log = log.clone();
                let add = move |number| log.add(&json!({ "thread": thread, "value": number, "text": "a\nb" }));
                std::thread::spawn(move || (0..500).for_each(add))
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        wait_for("2,000 lines", Duration::from_secs(20), || records(&path).len() == 2_000);
        for thread in 0..4 {
            let lines = records(&path);
            let numbers = lines.iter().filter(|line| line["thread"] == thread).map(|line| line["value"].as_u64());
            assert_eq!(numbers.collect::<Vec<_>>(), (0..500).map(Some).collect::<Vec<_>>());
        }
        drop(log);
        wait_for("a signature of all", Duration::from_secs(20), || {
            let mut verdict = Verdict::default();
            verdict.read("log", read(&path).as_bytes()).unwrap();
            verdict.is_whole() && verdict.lines == 2_002 && verdict.unsigned_lines() == 0
        });
    }

    #[test]
    fn processes_have_logs_of_their_own() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit.jsonl");
        let first = AuditLog::open_own("test", &path).unwrap().unwrap();
        let second = AuditLog::open_own("test", &path).unwrap().unwrap();
        assert!(AuditLog::open("test", &Target::File(path.clone())).is_err(), "another writes to it");
        first.add(&json!({ "user": "ann" }));
        second.add(&json!({ "user": "rob" }));
        let has = |name: &str, user: &str| {
            let path = directory.path().join(name);
            wait_for(name, Duration::from_secs(20), || records(&path).iter().any(|line| line["user"] == user));
        };
        has("audit.jsonl", "ann");
        has("audit-2.jsonl", "rob");
    }

    #[test]
    fn strangers_push_out_nobody_and_make_nobody_wait() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit.jsonl");
        let log = AuditLog::open("test", &Target::File(path.clone())).unwrap().unwrap();
        log.add(&json!({ "user": "ann" }));
        let address = Some(IpAddr::from([192, 0, 2, 1]));
        let refused = json!({ "path": "/".repeat(PATH_BYTES_MAX) });
        for _ in 0..200_000 {
            log.add_of_stranger(Stranger { address, is_refused: true }, &refused);
        }
        log.add_of_stranger(Stranger { address, is_refused: false }, &json!({ "path": "served" }));
        log.add(&json!({ "user": "rob" }));
        let strangers = strangers_path(&path);
        let refusals = || {
            let counted = |line: &Value| line["refusals"].as_u64().unwrap_or(u64::from(line["path"] != "served"));
            records(&strangers).iter().map(counted).sum::<u64>()
        };
        wait_for("all refusals are counted", sampling::INTERVAL * 3, || refusals() == 200_000);
        let users: Vec<Value> = records(&path).into_iter().map(|line| line["user"].clone()).collect();
        assert_eq!(users, ["ann", "rob"]);
        // An interval may end in between.
        assert!(records(&strangers).len() <= 16, "{}", read(&strangers));
        assert!(records(&strangers).iter().any(|line| line["path"] == "served"));
    }
}
