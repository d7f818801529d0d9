//! Handmade records, and their reports.

use atoll_bench::{
    ClientMeasurement, CpuByRole, HostFacts, KindCounts, LatencyHistogram, Measurement, Noise, Second, Setting,
};

use super::contents::Contents;
use super::*;
use crate::matrix::{Begun, Failed, Load, Run, Started, Subject};

const EVIL: &str = "<script src=\"http://evil.example/x.js\">|*&'";

fn measurement(operations: u64, latency_us: u64) -> Measurement {
    let mut histogram = LatencyHistogram::default();
    histogram.record_us(latency_us, operations);
    let second = Second { operations: operations / 2, bytes: 1, p50_us: 1, p99_us: latency_us, max_us: 9 };
    let client = ClientMeasurement {
        seconds: 2.0,
        bytes: operations * 4096,
        by_kind: std::collections::BTreeMap::from([(
            "read".into(),
            KindCounts { operations, latencies: histogram },
        )]),
        client_cpu_us: operations * 5,
        series: vec![second.clone(), second],
        ..ClientMeasurement::default()
    };
    let setting = Setting { protections: EVIL.into(), ..Setting::default() };
    let mut measured = Measurement::of_clients(setting, &[client], &CpuByRole::default());
    measured.cpu_us_per_op = latency_us as f64 / 10.0;
    measured.cpu_us_per_op_by_role = [("osd".to_owned(), 8.0), (EVIL.to_owned(), 2.0)].into();
    measured
}

fn subject(name: &str, is_baseline: bool) -> Subject {
    Subject { name: name.into(), title: EVIL.into(), is_baseline }
}

/// Two subjects, the second with half the rate, and a load that failed.
fn record(rounds: u32) -> Record {
    let run = |subject: &str, round: u32, operations: u64, others_percent: f64| Run {
        subject: subject.into(),
        load: "read".into(),
        round,
        unix_s: 1_735_689_599,
        measurement: measurement(operations, if subject == "plain" { 100 } else { 200 }),
        noise: Noise { others_percent, ..Noise::default() },
    };
    let runs = (0..rounds).flat_map(|round| [run("plain", round, 2000, 0.0), run("luks", round, 1000, 30.0)]);
    Record {
        begun: Begun {
            name: EVIL.into(),
            title: format!("Title {EVIL}"),
            about: format!("About {EVIL}"),
            rounds,
            starts: 1,
            subjects: vec![subject("plain", true), subject("luks", false)],
            loads: vec![
                Load { name: "read".into(), group: EVIL.into(), is_bandwidth: false, ..Load::default() },
                Load { name: EVIL.into(), group: EVIL.into(), is_bandwidth: true, working_set: EVIL.into() },
            ],
            host: HostFacts { cores: 2, cpu: EVIL.into(), ..HostFacts::default() },
            ..Begun::default()
        },
        started: vec![Started { cluster: "c".into(), version: EVIL.into(), how: EVIL.into() }],
        runs: runs.collect(),
        failed: vec![Failed { subject: "luks".into(), load: EVIL.into(), round: u32::MAX, error: EVIL.into() }],
    }
}

fn both(record: &Record) -> (String, String) {
    let directory = tempfile::tempdir().unwrap();
    let paths = ["report.html", "report.md"].map(|name| directory.path().join(name));
    write_reports(record, &paths[0], &paths[1]).unwrap();
    let [html, markdown] = paths.map(|path| std::fs::read_to_string(path).unwrap());
    (html, markdown)
}

#[test]
fn a_page_is_self_contained_and_escapes_all_texts() {
    let (html, _) = both(&record(3));
    for forbidden in ["<script", "src=", "href=\"http", "url(", "@import", "<link", "<iframe", "<img"] {
        let escaped_away = html.replace("src=&quot;", "");
        assert!(!escaped_away.contains(forbidden), "{forbidden}");
    }
    assert!(html.contains("&lt;script src=&quot;http://evil.example/x.js&quot;&gt;|*&amp;'"));
    for shape in ["svg", "g", "line", "polyline", "rect", "text"] {
        let begun = html.matches(&format!("<{shape} ")).count() + html.matches(&format!("<{shape}>")).count();
        assert!(begun > 0 && begun == html.matches(&format!("</{shape}>")).count(), "{shape}");
    }
    assert!(html.contains("Runs that failed: 1") && html.contains("other processes took up to 30.0 %"));
    assert!(!html.contains("NaN") && !html.contains("inf\""));
}

#[test]
fn markdown_has_the_same_tables() {
    let (_, markdown) = both(&record(3));
    for line in [
        "| luks | 0.50 | 0.50: read | 1.67 | 1.67: read | 2.00 | 2.00: read |",
        "| read | **0.50** (0.50 to 0.50) ! |",
        "| plain | 1,000 (1,000 to 1,000) | 4.10 (4.10 to 4.10) | 1 | 100 (100 to 100) | 100 (100 to 100) | - | 10.0 (10.0 to 10.0) | 5.00 (5.00 to 5.00) | - | - | 2,000 (2,000 to 2,000) | 2.00 (2.00 to 2.00) |",
        "| read | luks | other processes took up to 30.0 % |",
        "| Last run ended | 2024-12-31 23:59 UTC |",
    ] {
        assert!(markdown.lines().any(|one| one == line), "{line}\n{markdown}");
    }
    assert!(!markdown.contains("<script") && !markdown.contains("x.js\">|"), "{markdown}");
}

#[test]
fn two_rounds_say_that_they_say_little() {
    let few = record(2);
    let contents = Contents::of(&few);
    assert!(contents.doubts[0].contains("no confidence intervals"), "{:?}", contents.doubts);
    assert_eq!(contents.answers[1].rows[0][1].plain(), "0.50 !");
}

#[test]
fn an_empty_record_has_a_report_too() {
    let (html, markdown) = both(&Record::default());
    assert!(html.ends_with("</html>\n") && markdown.contains("## The machine"));
}

#[test]
fn a_comparison_marks_changes() {
    let before = record(3);
    let mut after = record(3);
    for (index, run) in after.runs.iter_mut().enumerate() {
        run.measurement.iops *= if run.subject == "luks" { 1.5 } else { 1.0 + index as f64 * 0.01 };
    }
    after.begun.host.kernel = "7.0".into();
    after.begun.subjects.push(subject("new", false));
    after.runs.push(Run { subject: "new".into(), ..after.runs[0].clone() });
    let comparison = Comparison::of(&before, &after);
    let cell = |subject: &str| comparison.cells.iter().find(|cell| cell.subject == subject).unwrap();
    let throughput = |subject: &str| &cell(subject).changes[0];
    assert!((throughput("luks").ratio.value - 1.5).abs() < 1e-9);
    assert_eq!(throughput("luks").is_different, Some(true));
    assert_eq!(throughput("plain").is_different, Some(false));
    assert_eq!(comparison.counts(), (1, 8));
    assert_eq!(comparison.circumstances, ["kernel: \"\" and \"7.0\""]);
    assert_eq!(comparison.only_one_has, [("read".to_owned(), "new".to_owned())]);
    assert_eq!(comparison.table().rows[1][2].plain(), "1.50 (1.50 to 1.50)");
}
