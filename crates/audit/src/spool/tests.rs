use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::*;
use crate::{AuditLog, LogConfig, OnFailure, OwnRooms, RoomSizes, Target, Verdict, log_statuses};

/// A collector that keeps accepted lines. It refuses while it is away.
struct TestCollector {
    url: String,
    taken: Arc<Mutex<String>>,
    is_away: Arc<AtomicBool>,
}

fn request(stream: &mut TcpStream) -> Option<String> {
    let mut bytes = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length =
                head.lines().find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
            if length.is_none_or(|length: usize| body.len() >= length) {
                return Some(body.to_owned());
            }
        }
        let mut buffer = [0; 65_536];
        match stream.read(&mut buffer) {
            Ok(0) | Err(_) => return None,
            Ok(read) => bytes.extend_from_slice(&buffer[..read]),
        }
    }
}

impl TestCollector {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/in", listener.local_addr().unwrap());
        let (taken, is_away) = (Arc::new(Mutex::new(String::new())), Arc::new(AtomicBool::new(false)));
        let (kept, away) = (Arc::clone(&taken), Arc::clone(&is_away));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let Some(body) = request(&mut stream) else { continue };
                let is_taken = !away.load(Ordering::Relaxed);
                if is_taken {
                    kept.lock().unwrap().push_str(&body);
                }
                let status = if is_taken { "204 No Content" } else { "503 Service Unavailable" };
                let _ = write!(stream, "HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
            }
        });
        TestCollector { url, taken, is_away }
    }

    fn set_away(&self, is_away: bool) {
        self.is_away.store(is_away, Ordering::Relaxed);
    }

    /// Numbers of records, in the order in which they came, the second time left out.
    fn numbers(&self) -> Vec<u64> {
        let taken = self.taken.lock().unwrap();
        let records = taken.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let mut seen = std::collections::BTreeSet::new();
        let is_new = |record: &Value| seen.insert((record["run"].to_string(), record["number"].as_u64()));
        records.filter(is_new).filter_map(|record| record["value"].as_u64()).collect()
    }

    fn verdict(&self) -> Verdict {
        let mut verdict = Verdict::default();
        verdict.read("collector", self.taken.lock().unwrap().as_bytes()).unwrap();
        verdict
    }
}

fn config(collector: &TestCollector, directory: &Path, spool_bytes_max: u64, on_failure: OnFailure) -> LogConfig {
    LogConfig {
        source: "test",
        target: Target::Http(collector.url.clone()),
        spool: directory.join("spool"),
        spool_bytes_max,
        on_failure,
        own_rooms: OwnRooms::default(),
        sizes: RoomSizes::default(),
        is_short_lived: false,
    }
}

fn wait_for(what: &str, is_there: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !is_there() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn add(log: &AuditLog, numbers: std::ops::Range<u64>) {
    numbers.for_each(|number| log.add(&json!({ "value": number, "text": "x".repeat(100) })));
}

fn spooled_bytes(directory: &Path) -> u64 {
    files(directory).map(|files| files.values().sum()).unwrap_or(0)
}

#[test]
fn lines_wait_on_disk_until_the_collector_takes_them_and_nobody_waits() {
    let (collector, directory) = (TestCollector::start(), tempfile::tempdir().unwrap());
    collector.set_away(true);
    let log = AuditLog::open(&config(&collector, directory.path(), 64 << 20, OnFailure::Lose)).unwrap().unwrap();
    let begun = Instant::now();
    // More than wait in memory.
    add(&log, 0..20_000);
    assert!(begun.elapsed() < Duration::from_secs(20), "requests waited {:?}", begun.elapsed());
    wait_for("they are on disk", || spooled_bytes(&directory.path().join("spool")) > 20_000 * 200);
    assert!(collector.numbers().is_empty());
    collector.set_away(false);
    wait_for("all are there", || collector.numbers().len() == 20_000);
    assert_eq!(collector.numbers(), (0..20_000).collect::<Vec<_>>(), "in order");
    assert!(collector.verdict().is_whole(), "{:?}", collector.verdict().problems);
}

/// A killed process does nothing at its end: its spool is copied while it runs, and another one continues with the
/// copy.
#[test]
fn what_a_killed_process_leaves_is_sent_by_the_next() {
    let (away, collector, directory) =
        (TestCollector::start(), TestCollector::start(), tempfile::tempdir().unwrap());
    let (killed, next) = (directory.path().join("killed"), directory.path().join("next"));
    away.set_away(true);
    let log = AuditLog::open(&config(&away, &killed, 64 << 20, OnFailure::Lose)).unwrap().unwrap();
    add(&log, 0..1_000);
    wait_for("they are on disk", || spooled_bytes(&killed.join("spool")) > 1_000 * 200);
    std::fs::create_dir_all(next.join("spool")).unwrap();
    for entry in std::fs::read_dir(killed.join("spool")).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), next.join("spool").join(entry.file_name())).unwrap();
    }
    // It was cut off while it wrote another line.
    let torn = files(&next.join("spool")).unwrap().into_keys().last().unwrap();
    let path = next.join("spool").join(format!("{torn:016}.jsonl"));
    std::fs::OpenOptions::new().append(true).open(path).unwrap().write_all(b"{\"val").unwrap();
    let again = AuditLog::open(&config(&collector, &next, 64 << 20, OnFailure::Lose)).unwrap().unwrap();
    add(&again, 1_000..1_100);
    wait_for("all are there", || collector.numbers().len() >= 1_100);
    assert_eq!(collector.numbers(), (0..1_100).collect::<Vec<_>>(), "none is lost, and the older come first");
}

#[test]
fn a_full_spool_loses_lines_and_says_so() {
    let (collector, directory) = (TestCollector::start(), tempfile::tempdir().unwrap());
    collector.set_away(true);
    let log = AuditLog::open(&config(&collector, directory.path(), 100_000, OnFailure::Lose)).unwrap().unwrap();
    for round in 0..20 {
        add(&log, round * 100..(round + 1) * 100);
        std::thread::sleep(Duration::from_millis(10));
    }
    let status = || log_statuses().into_iter().find(|status| status.waiting_bytes_max == 100_000);
    wait_for("it says so", || status().is_some_and(|status| status.lost_lines > 0 && status.failure.is_some()));
    assert!(!log.is_refusing());
    assert!(spooled_bytes(&directory.path().join("spool")) <= 100_000);
    collector.set_away(false);
    let more = std::cell::Cell::new(0);
    let is_told = || collector.taken.lock().unwrap().contains("\"operation\":\"LostLines\"");
    wait_for("the log says so", || {
        add(&log, 5_000 + more.get()..5_001 + more.get());
        more.set(more.get() + 1);
        std::thread::sleep(Duration::from_millis(200));
        is_told()
    });
    wait_for("it is well", || status().is_some_and(|status| status.failure.is_none()));
    // Each line is at the collector or is counted.
    let lost = || status().unwrap().lost_lines;
    wait_for("each is counted", || collector.numbers().len() as u64 + lost() == 2_000 + more.get());
    assert!(collector.verdict().is_whole(), "{:?}", collector.verdict().problems);
}

#[test]
fn a_full_spool_refuses_requests_if_that_is_chosen_and_loses_nothing() {
    let (collector, directory) = (TestCollector::start(), tempfile::tempdir().unwrap());
    collector.set_away(true);
    let log = AuditLog::open(&config(&collector, directory.path(), 90_000, OnFailure::Refuse)).unwrap().unwrap();
    assert!(!log.is_refusing());
    add(&log, 0..2_000);
    wait_for("requests are refused", || log.is_refusing());
    let status = log_statuses().into_iter().find(|status| status.is_refusing).unwrap();
    assert!(status.failure.is_some_and(|failure| failure.contains("full")) && status.lost_lines == 0);
    collector.set_away(false);
    wait_for("all are there", || collector.numbers().len() == 2_000);
    assert_eq!(collector.numbers(), (0..2_000).collect::<Vec<_>>());
    wait_for("requests are served", || !log.is_refusing());
}

/// Whoever is known fills the spool while the collector is away: changes and strangers have spools of their own.
#[test]
fn requests_take_no_room_of_changes_in_the_spool() {
    let (collector, directory) = (TestCollector::start(), tempfile::tempdir().unwrap());
    collector.set_away(true);
    let own_rooms = OwnRooms { changes: true, strangers: true };
    let config = LogConfig { own_rooms, ..config(&collector, directory.path(), 200_000, OnFailure::Lose) };
    let log = AuditLog::open(&config).unwrap().unwrap();
    for round in 0..20 {
        add(&log, round * 100..(round + 1) * 100);
        std::thread::sleep(Duration::from_millis(10));
    }
    let status = || log_statuses().into_iter().find(|status| status.waiting_bytes_max == 200_000).unwrap();
    wait_for("requests are lost", || status().lost_lines > 0);
    (0..20).for_each(|number| log.add_change(&json!({ "change": number })));
    let changes = directory.path().join("spool-changes");
    let on_disk = || {
        let texts = files(&changes).unwrap().into_keys().map(|number| changes.join(format!("{number:016}.jsonl")));
        texts.map(|path| std::fs::read_to_string(path).unwrap().matches("\"change\":").count()).sum::<usize>()
    };
    wait_for("changes are on disk", || on_disk() == 20);
    collector.set_away(false);
    let changes = || {
        let taken = collector.taken.lock().unwrap();
        let lines = taken.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        lines.filter_map(|line| line["change"].as_u64()).collect::<Vec<_>>()
    };
    wait_for("all changes are there", || changes() == (0..20).collect::<Vec<_>>());
    assert!(collector.verdict().is_whole(), "{:?}", collector.verdict().problems);
}

/// A command ends before its collector has answered; the supervisor of its host sends the rest.
#[test]
fn what_a_short_process_leaves_is_sent_by_who_follows() {
    let (collector, directory) = (TestCollector::start(), tempfile::tempdir().unwrap());
    let short =
        LogConfig { is_short_lived: true, ..config(&collector, directory.path(), 1 << 20, OnFailure::Lose) };
    let log = AuditLog::open(&short).unwrap().unwrap();
    add(&log, 0..3);
    assert_eq!(log.end(Duration::from_secs(20)).unwrap().len(), 1);
    assert_eq!(collector.numbers(), [0, 1, 2], "it waits a moment for a collector that answers");
    collector.set_away(true);
    let begun = Instant::now();
    for number in 3..6 {
        let log = AuditLog::open(&short).unwrap().unwrap();
        add(&log, number..number + 1);
        log.end(Duration::from_secs(20)).unwrap();
    }
    assert!(begun.elapsed() < Duration::from_secs(10), "nobody waits for one that is away: {:?}", begun.elapsed());
    collector.set_away(false);
    crate::follow_left(move || short.clone()).unwrap();
    wait_for("the rest", || collector.numbers().len() == 6);
    assert_eq!(collector.numbers(), [0, 1, 2, 3, 4, 5], "in order");
}
