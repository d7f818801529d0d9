//! An audit log: caller, request and outcome, as a line of JSON for each request, in a file or sent to a collector
//! over HTTP. Lines are written by a thread of their own, in the order in which they came.
//!
//! A caller without authentication is a stranger. Changes, other requests of authenticated callers, and lines of
//! strangers have [rooms](OwnRooms) of their own, so none pushes out another. Refusals of strangers are sampled: the
//! rest is a number in a line. Lines are chained and signed, so that [`Verdict`] finds changed and removed ones. Lines
//! for a collector wait on disk until it takes them.
//!
//! This crate knows lines, files and HTTP. It does not know the content of lines.

mod bounds;
mod chain;
mod collector;
mod documents;
mod file;
mod of_process;
mod queue;
mod repeats;
mod rooms;
mod sampling;
mod sending;
mod spool;
mod status;
mod verify;
mod writer;

use std::cell::RefCell;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use atoll_connection_limits::network_of;
use atoll_metrics::{Counter, register};
use serde::Serialize;

pub use bounds::{AGENT_BYTES_MAX, Bounded, METHOD_BYTES_MAX, PATH_BYTES_MAX, cut_fields};
use chain::ChainKey;
pub use chain::Head;
pub use documents::DocumentChange;
use file::{LogFile, with_suffix};
pub use of_process::{
    ProcessLog, is_refusing, note, note_change, note_like_others, note_refusal, of_process, set_of_process,
};
use queue::{Added, Queue};
pub use rooms::{OwnRooms, RoomSizes, files_of_rooms};
use rooms::{Room, Rooms};
use sampling::Sampling;
pub use sending::follow_left;
use sending::{open_spools, send_spooled};
use status::SharedStatus;
pub use status::{CollectorAway, LogStatus, log_statuses};
pub use verify::{KnownHead, RunVerdict, Verdict};
use writer::{Chained, Heads, Writer};

/// Processes of one data directory that write audit logs of one kind.
const PROCESSES_MAX: u32 = 16;
/// How often one looks whether a log has ended.
const END_POLL: Duration = Duration::from_millis(2);
/// Time that a log waits for its collector when it ends.
const SEND_LIMIT: Duration = Duration::from_secs(2);

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

/// Policy for lines that can be neither written nor spooled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFailure {
    /// They are lost and counted; requests continue.
    #[default]
    Lose,
    /// Requests are refused until they can.
    Refuse,
}

/// An audit log before it is opened.
#[derive(Clone, Debug)]
pub struct LogConfig {
    /// Names the log in lines that are about no request.
    pub source: &'static str,
    /// Where lines go.
    pub target: Target,
    /// Where lines wait for a collector.
    pub spool: PathBuf,
    /// Largest spool of lines, in bytes.
    pub spool_bytes_max: u64,
    /// Policy for lines without room.
    pub on_failure: OnFailure,
    /// Lines that have rooms of their own.
    pub own_rooms: OwnRooms,
    /// How much of the files of each is kept.
    pub sizes: RoomSizes,
    /// The process ends soon: lines that a collector does not take at once are left for [`follow_left`].
    pub is_short_lived: bool,
}

/// Default size of the spool for a collector, in bytes.
pub const SPOOL_BYTES_MAX: u64 = 1 << 30;

/// An audit log; clones write to the same.
#[derive(Clone)]
pub struct AuditLog(Arc<Inner>);

struct Inner {
    queue: Arc<Queue<Room>>,
    sampling: Arc<Mutex<Sampling>>,
    status: Arc<SharedStatus>,
    heads: Heads,
    is_over: Arc<AtomicBool>,
    thread: Mutex<Option<JoinHandle<()>>>,
    senders: Mutex<Vec<JoinHandle<()>>>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.queue.close();
    }
}

/// A request without authentication.
#[derive(Clone, Copy, Debug)]
pub struct Stranger {
    /// The address, as far as it is known.
    pub address: Option<IpAddr>,
    /// True if the request was refused. Refusals are sampled.
    pub is_refused: bool,
}

/// Destination of lines.
trait Sink: Send {
    /// Writes lines; each ends with a line feed. It may wait and try again; an error is the end of these.
    fn write(&mut self, lines: &str) -> Result<(), String>;

    /// Makes written lines durable.
    fn sync(&mut self) -> Result<(), String>;

    /// Returns true if lines wait in it for a collector.
    fn is_spool(&self) -> bool {
        false
    }

    /// The name of the file that it writes.
    fn name(&self) -> Option<String> {
        None
    }

    /// Bytes of lines that wait for a collector, and how many may.
    fn waiting_bytes(&self) -> (u64, u64) {
        (0, 0)
    }
}

/// Names of one kind for several processes: `NAME`, `NAME-2`, `NAME-3` and so on.
fn own_paths(path: &Path) -> impl Iterator<Item = PathBuf> {
    let first = path.to_owned();
    let rest = path.to_owned();
    std::iter::once(first).chain((2..=PROCESSES_MAX).map(move |number| with_suffix(&rest, &format!("-{number}"))))
}

/// Opens the first of several that no other process has.
fn open_first<T>(
    paths: impl Iterator<Item = PathBuf>,
    open: impl Fn(&Path) -> std::io::Result<T>,
) -> std::io::Result<T> {
    for path in paths {
        match open(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::ResourceBusy => {}
            opened => return opened,
        }
    }
    Err(std::io::Error::new(std::io::ErrorKind::ResourceBusy, "too many processes write audit logs there"))
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> std::io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(name.into()).spawn(run)
}

impl AuditLog {
    /// Opens a log. A file that cannot be written is an error now, and so is one that another process writes; a collector
    /// need not be there yet. `None` if it goes nowhere.
    pub fn open(config: &LogConfig) -> std::io::Result<Option<Self>> {
        LazyLock::force(&REGISTERED);
        match &config.target {
            Target::File(path) => {
                let open = |room: Room| LogFile::open(&room.path(path), room.bytes_max(&config.sizes));
                let rooms = Rooms::open(config.own_rooms, open)?;
                let status = SharedStatus::new(path.display().to_string());
                Self::start(config, rooms.try_map(|file| Ok(Box::new(file) as Box<dyn Sink>))?, status).map(Some)
            }
            Target::Http(url) => {
                let rooms = open_spools(config)?;
                // A URL may hold a password.
                let status = SharedStatus::new(format!("the collector of {}", config.source));
                let mut senders = Vec::new();
                let rooms = rooms.try_map(|one| {
                    senders.push(send_spooled(url, config, &one, &status)?);
                    Ok(Box::new(one.spool) as Box<dyn Sink>)
                })?;
                let log = Self::start(config, rooms, status)?;
                *log.0.senders.lock().unwrap_or_else(PoisonError::into_inner) = senders;
                Ok(Some(log))
            }
            Target::Off => Ok(None),
        }
    }

    fn start(config: &LogConfig, rooms: Rooms<Box<dyn Sink>>, status: Arc<SharedStatus>) -> std::io::Result<Self> {
        let key = ChainKey::random()?;
        tracing::info!("the audit log of {} is chained under key {}", config.source, key.public());
        let queue = Arc::new(Queue::new());
        let sampling = Arc::new(Mutex::new(Sampling::new(Instant::now())));
        let (heads, is_over) = <(Heads, Arc<AtomicBool>)>::default();
        let begin = |sink| Chained::begin(sink, &key, config.source);
        let mut writer = Writer {
            source: config.source,
            rooms: rooms.try_map(begin)?,
            signed_at: Instant::now(),
            wanted_at: Instant::now(),
            synced_at: Instant::now(),
            queue: Arc::clone(&queue),
            sampling: Arc::clone(&sampling),
            on_failure: config.on_failure,
            status: Arc::clone(&status),
            heads: Arc::clone(&heads),
            is_over: Arc::clone(&is_over),
        };
        let thread = Mutex::new(Some(spawn("audit-log", move || writer.run())?));
        let inner = Inner { queue, sampling, status, heads, is_over, thread, senders: Mutex::default() };
        Ok(AuditLog(Arc::new(inner)))
    }

    /// Opens a log in a file of this process: in `NAME-2.jsonl`, `NAME-3.jsonl` and so on if other processes write to
    /// those before.
    pub fn open_own(config: &LogConfig) -> std::io::Result<Option<Self>> {
        let Target::File(path) = &config.target else { return Self::open(config) };
        let own = |path: &Path| Self::open(&LogConfig { target: Target::File(path.to_owned()), ..config.clone() });
        open_first(own_paths(path), own)
    }

    /// Returns true if requests that would leave a line are to be refused, because lines can be neither written
    /// nor spooled.
    pub fn is_refusing(&self) -> bool {
        self.0.status.is_refusing()
    }

    /// Ends the log, which must be its last clone, and waits until all lines are written and signed, and a moment
    /// for the collector. Gives the latest signed lines; `None` if it took longer than the limit.
    pub fn end(self, limit: Duration) -> Option<Vec<Head>> {
        let (heads, deadline) = (Arc::clone(&self.0.heads), Instant::now() + limit);
        let thread = self.0.thread.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        let senders = std::mem::take(&mut *self.0.senders.lock().unwrap_or_else(PoisonError::into_inner));
        drop(self);
        if !are_finished(&[thread], deadline) {
            return None;
        }
        // Lines that the collector refuses stay in the spool.
        are_finished(&senders, deadline.min(Instant::now() + SEND_LIMIT));
        let heads = heads.lock().unwrap_or_else(PoisonError::into_inner);
        Some(heads.values().cloned().collect())
    }

    /// The latest signed line of each chain that is durable.
    pub fn heads(&self) -> Vec<Head> {
        self.0.heads.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// Cluster state has taken all of [`AuditLog::heads`].
    pub fn is_heard(&self) {
        self.0.status.change(|status| status.heard_unix_ms = Some(writer::unix_ms()));
    }

    /// Adds a record about an authenticated caller. If many wait, the caller does, too: a request whose record is
    /// lost must not look as if it had never been.
    pub fn add(&self, record: &impl Serialize) {
        self.add_to(Room::Requests, record);
    }

    /// Adds a record about an allowed change of access or protection. Refused ones belong to the other requests: any
    /// authenticated caller could fill the room otherwise.
    pub fn add_change(&self, record: &impl Serialize) {
        self.add_to(Room::Changes, record);
    }

    fn add_to(&self, room: Room, record: &impl Serialize) {
        let added = with_line(record, |line| self.0.queue.add(line, room));
        // The thread is gone, which ends the process.
        if added != Added::Waits {
            REGISTERED.lost.inc();
        }
    }

    /// Adds a record about a stranger, if it is one of those that get a line. The caller never waits: lines
    /// without room are counted.
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
        with_line(record, |line| self.0.queue.add_of_stranger(line, Room::Strangers)) == Added::Waits
    }
}

/// Waits for threads; `false` if they take longer.
fn are_finished(threads: &[JoinHandle<()>], deadline: Instant) -> bool {
    while !threads.iter().all(JoinHandle::is_finished) {
        if Instant::now() > deadline {
            return false;
        }
        std::thread::sleep(END_POLL);
    }
    true
}

/// Room for a line that a thread keeps for the next one.
const KEPT_LINE_BYTES: usize = 16 << 10;

thread_local! {
    static LINE: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Calls with a record, which is an object with fields, as a line.
fn with_line<T>(record: &impl Serialize, call: impl FnOnce(&str) -> T) -> T {
    // Taken away, so that a record may note another one while it becomes a line.
    let mut line = LINE.take();
    line.clear();
    serde_json::to_writer(&mut line, record).expect("records are texts and numbers, which become JSON");
    line.push(b'\n');
    let result = call(std::str::from_utf8(&line).expect("JSON is UTF-8"));
    line.shrink_to(KEPT_LINE_BYTES);
    LINE.set(line);
    result
}

/// A record, which is an object with fields, as a line.
fn line_of(record: &impl Serialize) -> String {
    with_line(record, str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn config(target: Target) -> LogConfig {
        LogConfig {
            source: "test",
            target,
            spool: PathBuf::new(),
            spool_bytes_max: 0,
            on_failure: OnFailure::Lose,
            own_rooms: OwnRooms { changes: true, strangers: true },
            sizes: RoomSizes::default(),
            is_short_lived: false,
        }
    }

    fn to_file(path: &Path) -> LogConfig {
        config(Target::File(path.to_owned()))
    }

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
        let log = AuditLog::open(&to_file(&path)).unwrap().unwrap();
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
        let first = AuditLog::open_own(&to_file(&path)).unwrap().unwrap();
        let second = AuditLog::open_own(&to_file(&path)).unwrap().unwrap();
        assert!(AuditLog::open(&to_file(&path)).is_err(), "another writes to it");
        first.add(&json!({ "user": "ann" }));
        second.add(&json!({ "user": "rob" }));
        let has = |name: &str, user: &str| {
            let path = directory.path().join(name);
            wait_for(name, Duration::from_secs(20), || records(&path).iter().any(|line| line["user"] == user));
        };
        has("audit.jsonl", "ann");
        has("audit-2.jsonl", "rob");
    }

    /// A file system that has no room at times.
    struct Flaky {
        is_full: Arc<AtomicBool>,
        written: Arc<Mutex<String>>,
    }

    impl Sink for Flaky {
        fn write(&mut self, lines: &str) -> Result<(), String> {
            if self.is_full.load(Ordering::Relaxed) {
                return Err("No space left on device".into());
            }
            self.written.lock().unwrap().push_str(lines);
            Ok(())
        }

        fn sync(&mut self) -> Result<(), String> {
            Ok(())
        }
    }

    fn flaky(on_failure: OnFailure) -> (AuditLog, Arc<AtomicBool>, Arc<Mutex<String>>) {
        let (is_full, written) = <(Arc<AtomicBool>, Arc<Mutex<String>>)>::default();
        let open = |_| {
            let sink = Flaky { is_full: Arc::clone(&is_full), written: Arc::clone(&written) };
            Ok(Box::new(sink) as Box<dyn Sink>)
        };
        let rooms = Rooms::open(OwnRooms::default(), open).unwrap();
        let config = LogConfig { on_failure, ..config(Target::Off) };
        let log = AuditLog::start(&config, rooms, SharedStatus::new("flaky".into())).unwrap();
        (log, is_full, written)
    }

    fn values(written: &Mutex<String>) -> (Vec<u64>, u64) {
        let written = written.lock().unwrap();
        let mut verdict = Verdict::default();
        verdict.read("log", written.as_bytes()).unwrap();
        assert!(verdict.is_whole(), "{:?}", verdict.problems);
        let records: Vec<Value> = written.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let lost = records.iter().filter(|record| record["operation"] == "LostLines");
        let lost = lost.filter_map(|record| record["lines"].as_u64()).sum();
        (records.iter().filter_map(|record| record["value"].as_u64()).collect(), lost)
    }

    #[test]
    fn a_full_disk_loses_lines_and_the_log_says_how_many() {
        let (log, is_full, written) = flaky(OnFailure::Lose);
        log.add(&json!({ "value": 1 }));
        wait_for("a line", Duration::from_secs(20), || values(&written).0 == [1]);
        is_full.store(true, Ordering::Relaxed);
        (2..5).for_each(|value| log.add(&json!({ "value": value })));
        wait_for("they are lost", Duration::from_secs(20), || log.0.status.lost_lines() == 3);
        assert!(!log.is_refusing());
        is_full.store(false, Ordering::Relaxed);
        log.add(&json!({ "value": 5 }));
        wait_for("the log says so", Duration::from_secs(20), || values(&written) == (vec![1, 5], 3));
        assert!(log.0.status.is_well());
    }

    #[test]
    fn a_full_disk_refuses_requests_if_that_is_chosen() {
        let (log, is_full, written) = flaky(OnFailure::Refuse);
        is_full.store(true, Ordering::Relaxed);
        (0..100).for_each(|value| log.add(&json!({ "value": value })));
        wait_for("requests are refused", Duration::from_secs(20), || log.is_refusing());
        is_full.store(false, Ordering::Relaxed);
        wait_for("all are there", Duration::from_secs(20), || values(&written) == ((0..100).collect(), 0));
        wait_for("requests are served", Duration::from_secs(20), || !log.is_refusing());
    }

    #[test]
    fn strangers_push_out_nobody_and_make_nobody_wait() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit.jsonl");
        let log = AuditLog::open(&to_file(&path)).unwrap().unwrap();
        log.add(&json!({ "user": "ann" }));
        let address = Some(IpAddr::from([192, 0, 2, 1]));
        let refused = json!({ "path": "/".repeat(PATH_BYTES_MAX) });
        for _ in 0..200_000 {
            log.add_of_stranger(Stranger { address, is_refused: true }, &refused);
        }
        log.add_of_stranger(Stranger { address, is_refused: false }, &json!({ "path": "served" }));
        log.add(&json!({ "user": "rob" }));
        let strangers = Room::Strangers.path(&path);
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
