//! Results of a run, and of several rounds of both sides.

use std::time::Duration;

use serde::Serialize;

use super::workload::Workload;
use crate::figures::{Latency, round, round_finely};

/// The figures of one run that both sides have, or the medians of several.
#[derive(Clone, Debug, Serialize)]
pub struct RunFigures {
    /// How long it was measured, in seconds.
    pub seconds: f64,
    /// Operations done.
    pub operations: u64,
    /// Operations a second.
    pub iops: f64,
    /// Megabytes (10^6 bytes) a second.
    pub mb_per_s: f64,
    /// Latency of the operations.
    pub latency_us: Latency,
    /// User and system time of the process per operation.
    pub cpu_us_per_op: f64,
}

/// The figures that only a store has.
#[derive(Clone, Debug, Serialize)]
pub struct StoreFigures {
    /// Checkpoints made during the run.
    pub checkpoints: u64,
    /// Share of the operations during which a checkpoint ran for some time.
    pub beside_checkpoints_percent: f64,
    /// 99.9th percentile of the latency of these.
    pub p999_beside_checkpoints_us: Option<u64>,
    /// 99.9th percentile of the latency of all others.
    pub p999_between_checkpoints_us: Option<u64>,
    /// Share of the time during which writes waited for room in the log.
    pub log_full_percent: f64,
    /// Bytes of durable writes (the log, and the data of large writes) per byte that was to be
    /// written.
    pub durable_bytes_per_byte: Option<f64>,
    /// Bytes of all other writes (checkpoints) per byte that was to be written.
    pub later_bytes_per_byte: Option<f64>,
    /// Resident memory of the process at the end: the store's metadata, blocks that wait for a
    /// checkpoint, and the load generator.
    pub resident_bytes: u64,
    /// Its maximum during the run.
    pub resident_bytes_max: u64,
    /// Bytes of metadata pages on the device.
    pub metadata_bytes: u64,
    /// Times that writes waited for metadata pages, per hundred writes.
    pub loading_percent: f64,
}

/// One run on the store, or the medians of several.
#[derive(Clone, Debug, Serialize)]
pub struct StoreRun {
    /// Figures that fio has, too.
    #[serde(flatten)]
    pub figures: RunFigures,
    /// Figures of a store alone.
    #[serde(flatten)]
    pub store: StoreFigures,
}

/// Figures of the store divided by those of fio in the same round; medians of all rounds.
#[derive(Clone, Debug, Serialize)]
pub struct Ratios {
    /// Ratio of operations a second.
    pub iops: f64,
    /// Ratio of the mean latency.
    pub latency_mean: f64,
    /// Ratio of the median latency.
    pub latency_p50: f64,
    /// Ratio of the 99th percentile.
    pub latency_p99: f64,
    /// Ratio of the 99.9th percentile, if all runs have one.
    pub latency_p999: Option<f64>,
    /// Ratio of CPU time per operation.
    pub cpu: f64,
}

/// The rounds of one workload.
#[derive(Clone, Debug, Serialize)]
pub struct WorkloadReport {
    /// Its name.
    pub workload: String,
    /// Medians of the store's runs.
    pub store: StoreRun,
    /// Medians of fio's runs.
    pub fio: Option<RunFigures>,
    /// One by the other, round by round.
    pub ratios: Option<Ratios>,
    /// The store's runs, in order.
    pub store_rounds: Vec<StoreRun>,
    /// fio's runs, in order, each after the store's of the same place.
    pub fio_rounds: Vec<RunFigures>,
}

/// All workloads; printed as one JSON object.
#[derive(Clone, Debug, Serialize)]
pub struct StoreBenchReport {
    /// The file or block device.
    pub device: String,
    /// Size of the store in bytes.
    pub size_bytes: u64,
    /// Bytes of objects that operations go to.
    pub working_set_bytes: u64,
    /// Durability and protections that were on.
    pub protections: String,
    /// Release of the kernel.
    pub kernel: String,
    /// Processors and their number.
    pub cpu: String,
    /// fio's version, if it ran.
    pub fio_version: Option<String>,
    /// One entry for each workload.
    pub workloads: Vec<WorkloadReport>,
}

pub(super) fn run_figures(
    block_bytes: u64,
    latency_us: Latency,
    elapsed: Duration,
    cpu: Duration,
    operations: u64,
) -> RunFigures {
    let iops = operations as f64 / elapsed.as_secs_f64();
    RunFigures {
        seconds: round(elapsed.as_secs_f64()),
        operations,
        iops: round(iops),
        mb_per_s: round_finely(iops * block_bytes as f64 / 1e6),
        latency_us,
        cpu_us_per_op: round(cpu.as_secs_f64() * 1e6 / operations.max(1) as f64),
    }
}

fn median<R>(runs: &[R], figure: impl Fn(&R) -> f64) -> f64 {
    let mut values: Vec<f64> = runs.iter().map(figure).collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 { values[middle] } else { (values[middle - 1] + values[middle]) / 2.0 }
}

fn median_count<R>(runs: &[R], figure: impl Fn(&R) -> u64) -> u64 {
    median(runs, |run| figure(run) as f64).round() as u64
}

/// The median of a figure that some runs may not have.
fn median_of_some(runs: &[StoreRun], figure: impl Fn(&StoreFigures) -> Option<f64>) -> Option<f64> {
    let values: Vec<f64> = runs.iter().filter_map(|run| figure(&run.store)).collect();
    (!values.is_empty()).then(|| median(&values, |value| *value))
}

fn medians<R>(runs: &[R], figures: impl Fn(&R) -> &RunFigures) -> RunFigures {
    let latency = |quantile: fn(&Latency) -> u64| median_count(runs, |run| quantile(&figures(run).latency_us));
    RunFigures {
        seconds: median(runs, |run| figures(run).seconds),
        operations: median_count(runs, |run| figures(run).operations),
        iops: median(runs, |run| figures(run).iops),
        mb_per_s: median(runs, |run| figures(run).mb_per_s),
        latency_us: Latency {
            mean: median(runs, |run| figures(run).latency_us.mean),
            p50: latency(|latency| latency.p50),
            p99: latency(|latency| latency.p99),
            p999: p999_of_all(runs.iter().map(|run| figures(run).latency_us.p999)),
            max: latency(|latency| latency.max),
        },
        cpu_us_per_op: median(runs, |run| figures(run).cpu_us_per_op),
    }
}

/// The median of the 99.9th percentiles if each run has one.
fn p999_of_all(each: impl Iterator<Item = Option<u64>>) -> Option<u64> {
    let each: Vec<u64> = each.collect::<Option<_>>()?;
    Some(median_count(&each, |p999| *p999))
}

fn store_medians(runs: &[StoreRun]) -> StoreRun {
    let count = |figure: fn(&StoreFigures) -> Option<u64>| {
        median_of_some(runs, |store| figure(store).map(|value| value as f64)).map(|value| value.round() as u64)
    };
    StoreRun {
        figures: medians(runs, |run| &run.figures),
        store: StoreFigures {
            checkpoints: median_count(runs, |run| run.store.checkpoints),
            beside_checkpoints_percent: median(runs, |run| run.store.beside_checkpoints_percent),
            p999_beside_checkpoints_us: count(|store| store.p999_beside_checkpoints_us),
            p999_between_checkpoints_us: count(|store| store.p999_between_checkpoints_us),
            log_full_percent: median(runs, |run| run.store.log_full_percent),
            durable_bytes_per_byte: median_of_some(runs, |store| store.durable_bytes_per_byte),
            later_bytes_per_byte: median_of_some(runs, |store| store.later_bytes_per_byte),
            resident_bytes: median_count(runs, |run| run.store.resident_bytes),
            resident_bytes_max: median_count(runs, |run| run.store.resident_bytes_max),
            metadata_bytes: median_count(runs, |run| run.store.metadata_bytes),
            loading_percent: median(runs, |run| run.store.loading_percent),
        },
    }
}

/// Medians of the ratios of each round. The two runs of a round are close in time: changes of the machine from
/// round to round would be in a ratio of medians, but are not in these.
fn ratios(store: &[StoreRun], fio: &[RunFigures]) -> Ratios {
    let rounds: Vec<(&RunFigures, &RunFigures)> = store.iter().map(|run| &run.figures).zip(fio).collect();
    let ratio = |figure: fn(&RunFigures) -> f64| {
        (median(&rounds, |(ours, theirs)| figure(ours) / figure(theirs)) * 100.0).round() / 100.0
    };
    Ratios {
        iops: ratio(|figures| figures.iops),
        latency_mean: ratio(|figures| figures.latency_us.mean),
        latency_p50: ratio(|figures| figures.latency_us.p50 as f64),
        latency_p99: ratio(|figures| figures.latency_us.p99 as f64),
        latency_p999: rounds
            .iter()
            .all(|(ours, theirs)| ours.latency_us.p999.is_some() && theirs.latency_us.p999.is_some())
            .then(|| ratio(|figures| figures.latency_us.p999.map_or(f64::NAN, |p999| p999 as f64))),
        cpu: ratio(|figures| figures.cpu_us_per_op),
    }
}

pub(super) fn workload_report(
    workload: Workload,
    store_rounds: Vec<StoreRun>,
    fio_rounds: Vec<RunFigures>,
) -> WorkloadReport {
    let store = store_medians(&store_rounds);
    let fio = (!fio_rounds.is_empty()).then(|| medians(&fio_rounds, |run| run));
    let ratios = fio.is_some().then(|| ratios(&store_rounds, &fio_rounds));
    WorkloadReport { workload: workload.to_string(), store, fio, ratios, store_rounds, fio_rounds }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_are_in_the_middle() {
        assert_eq!(median(&[3.0, 1.0, 2.0], |value| *value), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0], |value| *value), 2.5);
    }

    #[test]
    fn a_slow_drive_has_a_bandwidth() {
        let latency = Latency { mean: 169_492.0, p50: 169_492, p99: 169_492, p999: Some(169_492), max: 169_492 };
        let figures = run_figures(4096, latency, Duration::from_secs(1), Duration::ZERO, 6);
        assert_eq!((figures.iops, figures.mb_per_s), (6.0, 0.025));
    }

    #[test]
    fn ratios_are_taken_within_rounds() {
        let figures = |iops| {
            let latency = Latency { mean: 1.0, p50: 1, p99: 1, p999: Some(1), max: 1 };
            RunFigures { iops, ..run_figures(4096, latency, Duration::from_secs(1), Duration::from_secs(1), 1) }
        };
        let store = StoreFigures {
            checkpoints: 0,
            beside_checkpoints_percent: 0.0,
            p999_beside_checkpoints_us: None,
            p999_between_checkpoints_us: None,
            log_full_percent: 0.0,
            durable_bytes_per_byte: None,
            later_bytes_per_byte: None,
            resident_bytes: 0,
            resident_bytes_max: 0,
            metadata_bytes: 0,
            loading_percent: 0.0,
        };
        let run = |iops| StoreRun { figures: figures(iops), store: store.clone() };
        // The machine is ten times slower in the second round and hardly works in the third.
        let report = workload_report(
            "4k-read-qd1".parse().unwrap(),
            vec![run(5000.0), run(500.0), run(5.0)],
            vec![figures(10_000.0), figures(1000.0), figures(10.0)],
        );
        assert_eq!(report.ratios.unwrap().iops, 0.5);
    }
}
