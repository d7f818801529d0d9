//! Rooms of an audit log: many reads and writes push out no line about a change.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use atoll_audit::{AuditLog, LogConfig, OnFailure, OwnRooms, RoomSizes, Target, Verdict, files_of_rooms};
use serde_json::{Value, json};

const REQUESTS_BYTES: u64 = 300_000;

fn open(path: &Path) -> AuditLog {
    let config = LogConfig {
        source: "test",
        target: Target::File(path.to_owned()),
        spool: PathBuf::new(),
        spool_bytes_max: 0,
        on_failure: OnFailure::Lose,
        own_rooms: OwnRooms { changes: true, strangers: true },
        sizes: RoomSizes { requests_bytes: REQUESTS_BYTES, ..RoomSizes::default() },
        is_short_lived: false,
    };
    AuditLog::open(&config).unwrap().unwrap()
}

/// Text of a room, the oldest file first.
fn text(path: &Path) -> String {
    let aside = (1..=8).rev().map(|number| path.with_added_extension(number.to_string()));
    let files = aside.chain([path.to_owned()]).filter(|path| path.exists());
    files.map(|file| std::fs::read_to_string(file).unwrap()).collect()
}

fn values(path: &Path, field: &str) -> Vec<Value> {
    let text = text(path);
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    let lines = whole.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.map(|line| line[field].clone()).filter(|value| !value.is_null()).collect()
}

#[test]
fn requests_push_out_no_change() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("audit.jsonl");
    let log = open(&path);
    log.add_change(&json!({ "change": 1 }));
    (0..20_000).for_each(|number| log.add(&json!({ "request": number, "user": "low" })));
    log.add_change(&json!({ "change": 2 }));
    assert_eq!(log.end(Duration::from_secs(20)).unwrap().len(), 3, "each room has a signature");
    let [changes, strangers] = files_of_rooms(&path);
    assert_eq!(values(&changes, "change"), [1, 2]);
    let requests = values(&path, "request");
    assert!(requests.last() == Some(&json!(19_999)) && !requests.contains(&json!(0)), "the oldest are gone");
    for room in [&path, &changes, &strangers] {
        let mut verdict = Verdict::default();
        verdict.read("room", text(room).as_bytes()).unwrap();
        assert!(verdict.is_whole() && verdict.unsigned_lines() == 0, "{} {verdict:?}", room.display());
    }
}

#[test]
fn a_log_of_an_earlier_release_goes_on_as_the_room_of_requests() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("audit.jsonl");
    let old = json!({ "change": "of an earlier release" });
    std::fs::write(&path, format!("{old}\n")).unwrap();
    let log = open(&path);
    log.add(&json!({ "request": 1 }));
    let deadline = Instant::now() + Duration::from_secs(20);
    while values(&path, "request").is_empty() {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(values(&path, "change"), ["of an earlier release"]);
}
