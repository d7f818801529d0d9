//! Runs of fio, and its JSON output in our terms: the store's workload on a range beside it, and the
//! tests of a drive.

use std::process::Command;
use std::time::Duration;

use super::report::{RunFigures, run_figures};
use super::target::Region;
use super::workload::Workload;
use crate::error::BenchError;
use crate::figures::{Latency, p999};
use crate::fio::Job;

/// How writes become durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteSync {
    /// By themselves, or not at all.
    None,
    /// Each when it is done.
    Flag,
    /// By a call after each.
    Call,
}

/// A run, and the latency of the calls that its figures leave out.
pub(crate) struct FioRun {
    pub figures: RunFigures,
    /// Mean of the calls after writes, which the figures' latency does not have in it.
    pub sync_mean_us: Option<f64>,
}

fn arguments(region: &Region, workload: Workload, sync: WriteSync, duration: Duration) -> Vec<String> {
    let mut arguments = vec![
        "--name=atoll".to_owned(),
        format!("--filename={}", region.path.display()),
        format!("--offset={}", region.offset),
        format!("--size={}", region.size_bytes),
        "--ioengine=io_uring".into(),
        "--direct=1".into(),
        format!("--rw={}", workload.pattern.name()),
        format!("--bs={}", workload.block_bytes),
        format!("--iodepth={}", workload.depth),
        format!("--runtime={}", duration.as_secs()),
        "--time_based".into(),
        "--lat_percentiles=1".into(),
        "--clat_percentiles=0".into(),
        "--percentile_list=50:99:99.9".into(),
        "--output-format=json".into(),
    ];
    let flag = match sync {
        _ if !workload.pattern.is_write() => None,
        WriteSync::None => None,
        WriteSync::Flag => Some("--sync=dsync"),
        WriteSync::Call => Some("--fsync=1"),
    };
    arguments.extend(flag.map(str::to_owned));
    arguments
}

/// The version, which also shows that fio is there.
pub(crate) fn version() -> Result<String, BenchError> {
    let output = Command::new("fio").arg("--version").output().map_err(not_started)?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn not_started(error: std::io::Error) -> BenchError {
    BenchError::Fio(format!(
        "cannot be started ({error}); 'apt install fio' (or leave out --fio, where that is a choice)"
    ))
}

/// Runs fio with the same operations, depth and durability as the store.
pub(super) fn run(region: &Region, workload: Workload, duration: Duration) -> Result<RunFigures, BenchError> {
    Ok(run_synced(region, workload, WriteSync::Flag, duration)?.figures)
}

/// Runs fio.
pub(crate) fn run_synced(
    region: &Region,
    workload: Workload,
    sync: WriteSync,
    duration: Duration,
) -> Result<FioRun, BenchError> {
    let arguments = arguments(region, workload, sync, duration);
    let output = Command::new("fio").args(arguments).output().map_err(not_started)?;
    if !output.status.success() {
        return Err(BenchError::Fio(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
    }
    understand(&output.stdout, workload)
}

fn understand(json: &[u8], workload: Workload) -> Result<FioRun, BenchError> {
    let job = Job::read(json)?;
    let direction = if workload.pattern.is_write() { &job.write } else { &job.read };
    let (Some(percentile), true) = (&direction.lat_ns.percentile, direction.total_ios > 0) else {
        return Err(BenchError::Fio("no operation was done; is --runtime long enough?".into()));
    };
    let latency = Latency {
        mean: crate::figures::round(direction.lat_ns.mean / 1e3),
        p50: percentile.p50 / 1_000,
        p99: percentile.p99 / 1_000,
        p999: p999(direction.total_ios, percentile.p999 / 1_000),
        max: direction.lat_ns.max / 1_000,
    };
    let figures = run_figures(workload.block_bytes, latency, job.elapsed(), job.cpu(), direction.total_ios);
    let syncs = job.sync.as_ref().map(|sync| sync.lat_ns.mean).filter(|mean| *mean > 0.0);
    Ok(FioRun { figures, sync_mean_us: syncs.map(|mean| crate::figures::round(mean / 1e3)) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_of_fio_is_understood() {
        let json = r#"{ "fio version": "fio-3.33", "jobs": [ { "jobname": "atoll", "error": 0,
            "read": { "total_ios": 0, "runtime": 0, "lat_ns": { "min": 0, "max": 0, "mean": 0.0, "N": 0 } },
            "write": { "total_ios": 40000, "runtime": 4000, "bw": 1, "lat_ns": { "min": 53417, "max": 30741658,
                "mean": 439821.9, "N": 40000,
                "percentile": { "50.000000": 264192, "99.000000": 4947968, "99.900000": 8585216 } } },
            "usr_cpu": 2.5, "sys_cpu": 7.5 } ] }"#;
        let workload = "4k-randwrite-qd32".parse().unwrap();
        let FioRun { figures, sync_mean_us } = understand(json.as_bytes(), workload).unwrap();
        assert_eq!(sync_mean_us, None);
        assert_eq!(figures.iops, 10_000.0);
        assert_eq!(figures.cpu_us_per_op, 10.0);
        assert_eq!((figures.latency_us.p50, figures.latency_us.p999), (264, Some(8585)));
    }

    #[test]
    fn sync_calls_after_writes_are_counted_apart() {
        let json = r#"{ "jobs": [ { "error": 0,
            "read": { "total_ios": 0, "runtime": 0, "lat_ns": { "mean": 0.0, "max": 0 } },
            "write": { "total_ios": 4591, "runtime": 1001, "lat_ns": { "mean": 77988.2, "max": 7289522,
                "percentile": { "50.000000": 71168, "99.000000": 142336, "99.900000": 888832 } } },
            "sync": { "total_ios": 4591, "lat_ns": { "min": 790, "max": 2454913, "mean": 119541.66 } },
            "usr_cpu": 0.4, "sys_cpu": 13.0 } ] }"#;
        let run = understand(json.as_bytes(), "4k-write-qd1".parse().unwrap()).unwrap();
        assert_eq!((run.figures.latency_us.mean, run.sync_mean_us), (78.0, Some(119.5)));
    }

    #[test]
    fn flags_make_writes_durable_and_reads_have_none() {
        let region = Region::new("/dev/null", 1 << 20);
        let flags = |workload: &str, sync| {
            let arguments = arguments(&region, workload.parse().unwrap(), sync, Duration::from_secs(1));
            arguments.into_iter().filter(|argument| argument.contains("sync=")).collect::<Vec<_>>()
        };
        assert_eq!(flags("4k-write-qd1", WriteSync::Flag), ["--sync=dsync"]);
        assert_eq!(flags("4k-write-qd1", WriteSync::Call), ["--fsync=1"]);
        assert!(flags("4k-write-qd1", WriteSync::None).is_empty());
        assert!(flags("4k-randread-qd1", WriteSync::Flag).is_empty());
    }

    #[test]
    fn failures_of_fio_are_errors() {
        let workload = "4k-randread-qd1".parse().unwrap();
        assert!(understand(b"fio: oops", workload).is_err());
        assert!(understand(br#"{ "jobs": [] }"#, workload).is_err());
    }
}
