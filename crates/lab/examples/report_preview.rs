//! Writes a report of INVENTED figures, to look at its layout: `cargo run --release -p atoll-lab
//! --example report_preview -- /tmp/preview`. Nothing in it was measured.

use std::collections::BTreeMap;
use std::path::PathBuf;

use atoll_bench::{
    ClientMeasurement, CpuByRole, HostFacts, KindCounts, LatencyHistogram, Measurement, Noise, Second, Setting,
};
use atoll_lab::{
    Begun, Failed, Load, RECORD_FORMAT, Record, RecordLine, RecordWriter, Run, Started, Subject, write_reports,
};

const SUBJECTS: [(&str, &str, f64); 6] = [
    ("plain", "No encryption: CRC frames, LUKS off, images not sealed", 1.0),
    ("luks", "LUKS2 below the store", 0.93),
    ("secure", "secure frames between all processes", 0.96),
    ("secure+luks", "secure frames and LUKS2", 0.88),
    ("sealed", "sealed in the client, secure frames: the default", 0.9),
    ("ceph-reef", "Ceph Reef 18.2.7, three OSDs", 0.3),
];
const SHAPES: [(&str, f64); 3] =
    [("4 clients, depth 32", 1.0), ("1 client, depth 128", 0.8), ("1 client, sync", 0.1)];
const ROUNDS: u32 = 5;
const SECONDS: usize = 30;

/// The same "chance" on every run: from -1 to 1.
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as f64 / f64::from(1 << 23) - 1.0
    }
}

fn measurement(rate: f64, size_bytes: u64, chance: &mut Chance) -> Measurement {
    let mut histogram = LatencyHistogram::default();
    let mut series = Vec::new();
    let latency_us = 32e6 / rate;
    for _ in 0..SECONDS {
        let operations = (rate * (1.0 + chance.next() * 0.1)) as u64;
        for _ in 0..operations.min(2_000) {
            let tail = (1.0 / (chance.next().abs() + 1e-4)).powf(0.6);
            histogram.record_us((latency_us * tail) as u64, 1);
        }
        let p99_us = (latency_us * 9.0 * (1.0 + chance.next() * 0.3)) as u64;
        let bytes = operations * size_bytes;
        series.push(Second { operations, bytes, p50_us: latency_us as u64, p99_us, max_us: p99_us * 3 });
    }
    let operations = histogram.count();
    let client = ClientMeasurement {
        seconds: operations as f64 / rate,
        bytes: operations * size_bytes,
        client_cpu_us: operations * (5 + size_bytes / 4096),
        by_kind: BTreeMap::from([("read".to_owned(), KindCounts { operations, latencies: histogram })]),
        series,
        ..ClientMeasurement::default()
    };
    let protections = "3 copies, every ack durable (RWF_DSYNC) on all, CRC-32C per 4 KiB, INVENTED".into();
    let setting = Setting { size_bytes, protections, ..Setting::default() };
    let mut measured = Measurement::of_clients(setting, &[client], &CpuByRole::default());
    measured.seconds = SECONDS as f64;
    measured
}

fn begun() -> Begun {
    let subject = |(name, title, _): &(&str, &str, f64)| Subject {
        name: (*name).into(),
        title: (*title).into(),
        is_baseline: *name == "plain",
    };
    let mut loads = Vec::new();
    for size in ["4 KiB", "4 MiB"] {
        for (shape, _) in SHAPES {
            for operation in ["randread", "randwrite"] {
                let name = format!("{operation} {size}, {shape}");
                loads.push(Load { name, group: size.into(), is_bandwidth: size == "4 MiB", ..Load::default() });
            }
        }
    }
    Begun {
        format: RECORD_FORMAT,
        name: "preview".into(),
        title: "PREVIEW: all figures are invented".into(),
        about: "This page shows how a report looks. How much throughput, latency and CPU time does each layer of \
             encryption cost block clients here?"
            .into(),
        profile: "full".into(),
        rounds: ROUNDS,
        starts: 1,
        seconds: SECONDS as f64,
        warm_up_seconds: 5.0,
        subjects: SUBJECTS.iter().map(subject).collect(),
        loads,
        host: HostFacts::here(),
        atoll_version: "0.0.0 (invented)".into(),
    }
}

fn run(load: &Load, subject: &str, share: f64, round: u32, chance: &mut Chance) -> Run {
    let shape = SHAPES.iter().find(|(shape, _)| load.name.ends_with(shape)).map_or(1.0, |(_, rate)| *rate);
    let size_bytes = if load.is_bandwidth { 4 << 20 } else { 4096 };
    let write = if load.name.contains("write") { 0.35 } else { 1.0 };
    let rate =
        (if load.is_bandwidth { 300.0 } else { 60_000.0 }) * shape * write * share * (1.0 + chance.next() * 0.06);
    let mut measurement = measurement(rate, size_bytes, chance);
    let osd = 900_000.0 / rate * (1.0 + chance.next() * 0.03);
    measurement.cpu_us_per_op_by_role = [("osd", osd), ("state", osd * 0.01), ("supervisor", osd * 0.002)]
        .map(|(role, us)| (role.to_owned(), us))
        .into();
    measurement.cpu_us_per_op = osd * 1.012;
    let noise = Noise {
        busy_percent: 90.0,
        steal_percent: (chance.next() * 2.3).max(0.0),
        others_percent: 4.0 + chance.next() * 4.0,
    };
    Run { subject: subject.into(), load: load.name.clone(), round, unix_s: 0, measurement, noise }
}

fn main() -> Result<(), atoll_lab::LabError> {
    let directory = PathBuf::from(std::env::args().nth(1).unwrap_or_else(|| "/tmp/atoll-report-preview".into()));
    std::fs::create_dir_all(&directory)?;
    let (begun, path) = (begun(), directory.join("preview.jsonl"));
    let mut writer = RecordWriter::open(&path)?;
    writer.write(&RecordLine::Begun(Box::new(begun.clone())))?;
    let how = "atoll up --osds 3 --osd-size 20G".to_owned();
    writer.write(&RecordLine::Started(Started { cluster: "atoll".into(), version: "Atoll 0.0.0".into(), how }))?;
    let mut chance = Chance(std::env::args().nth(2).and_then(|seed| seed.parse().ok()).unwrap_or(7));
    for round in 0..ROUNDS {
        for load in &begun.loads {
            for (name, _, share) in SUBJECTS {
                let line = if name == "ceph-reef" && load.name.starts_with("randwrite 4 MiB, 4") && round == 2 {
                    let error = "fio ended with exit code 1: rbd engine: could not connect".to_owned();
                    RecordLine::Failed(Failed { subject: name.into(), load: load.name.clone(), round, error })
                } else {
                    RecordLine::Run(Box::new(run(load, name, share, round, &mut chance)))
                };
                writer.write(&line)?;
            }
        }
    }
    write_reports(&Record::read(&path)?, &directory.join("preview.html"), &directory.join("preview.md"))
}
