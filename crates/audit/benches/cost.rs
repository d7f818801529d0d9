//! CPU time of a line, from the record to the file: run it alone on a machine (`cargo bench -p atoll-audit`).

#![allow(clippy::unwrap_used)]

use std::path::PathBuf;
use std::time::{Duration, Instant};

use atoll_audit::{AuditLog, LogConfig, OnFailure, OwnRooms, RoomSizes, Target, Verdict};
use serde::Serialize;

const LINES_PER_SECOND: u64 = 12_000;
const SECONDS: u64 = 8;

/// Fields as of a request to the S3 gateway.
#[derive(Serialize)]
struct Record<'a> {
    source: &'a str,
    time_unix_ms: u64,
    request_id: Option<&'a str>,
    operation: &'a str,
    action: Option<&'a str>,
    subject: Option<&'a str>,
    method: &'a str,
    path: &'a str,
    bucket: Option<&'a str>,
    version_id: Option<&'a str>,
    copy_source: Option<&'a str>,
    account: Option<&'a str>,
    principal: Option<&'a str>,
    access_key: Option<&'a str>,
    client: Option<std::net::IpAddr>,
    is_encrypted: Option<bool>,
    user_agent: Option<&'a str>,
    status: Option<u16>,
    received_bytes: u64,
    sent_bytes: u64,
    duration_us: u64,
}

fn record(number: u64) -> Record<'static> {
    Record {
        source: "s3",
        time_unix_ms: 1_790_000_000_000 + number,
        request_id: Some("5f0c3b5e7c1d4a88"),
        operation: "GetObject",
        action: None,
        subject: None,
        method: "GET",
        path: "/benchmark/objects/000000000000123456",
        bucket: Some("benchmark"),
        version_id: None,
        copy_source: None,
        account: Some("100000000000"),
        principal: Some("arn:aws:iam::100000000000:user/benchmark"),
        access_key: Some("AKIAIOSFODNN7EXAMPLE"),
        client: Some([127, 0, 0, 1].into()),
        is_encrypted: Some(false),
        user_agent: None,
        status: Some(200),
        received_bytes: 0,
        sent_bytes: 4_096,
        duration_us: 312,
    }
}

/// CPU time of this process, in microseconds.
fn cpu_us() -> u64 {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = text.rsplit_once(')').unwrap().1.split_whitespace().collect();
    // In ticks of 10 ms.
    (fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()) * 10_000
}

fn main() {
    let directory = tempfile::tempdir_in(std::env::var("ATOLL_TEST_DIR").unwrap_or("/var/tmp".into())).unwrap();
    let path = directory.path().join("audit.jsonl");
    let config = LogConfig {
        source: "s3",
        target: Target::File(path.clone()),
        spool: PathBuf::new(),
        spool_bytes_max: 0,
        on_failure: OnFailure::Lose,
        own_rooms: OwnRooms { changes: true, strangers: true },
        sizes: RoomSizes::default(),
        is_short_lived: false,
    };
    let log = AuditLog::open(&config).unwrap().unwrap();
    let (begun, before_us) = (Instant::now(), cpu_us());
    let mut client = Duration::ZERO;
    let turns = SECONDS * 1_000;
    for turn in 0..turns {
        let adding = Instant::now();
        (0..LINES_PER_SECOND / 1_000).for_each(|number| log.add(&record(turn * 1_000 + number)));
        client += adding.elapsed();
        std::thread::sleep((begun + Duration::from_millis(turn + 1)).saturating_duration_since(Instant::now()));
    }
    let lines = turns * (LINES_PER_SECOND / 1_000);
    log.end(Duration::from_secs(20)).unwrap();
    let all_us = cpu_us() - before_us;
    let idle = Instant::now();
    let idle_before_us = cpu_us();
    for turn in 0..turns {
        std::thread::sleep((idle + Duration::from_millis(turn + 1)).saturating_duration_since(Instant::now()));
    }
    let idle_us = cpu_us() - idle_before_us;
    let mut verdict = Verdict::default();
    verdict.read("log", &std::fs::read(&path).unwrap()[..]).unwrap();
    assert!(verdict.is_whole() && verdict.lines > lines);
    println!(
        "{lines} lines: {:.2} us of CPU each, {:.2} us of them by the clock of their thread; the loop itself took {:.2}",
        (all_us.saturating_sub(idle_us)) as f64 / lines as f64,
        client.as_micros() as f64 / lines as f64,
        idle_us as f64 / lines as f64
    );
}
