//! Doubts about a cell's figures.

use atoll_bench::Noise;

use super::cells::Cell;
use super::metric::Metric;
use super::statistics::{ROUNDS_FOR_INTERVAL, Spread};
use super::text::percent;
use crate::matrix::Record;

/// Throughput of rounds that lies further apart is called noisy, in percent of the median.
const SPREAD_PERCENT_MAX: f64 = 15.0;
/// Time that the hypervisor gave to others.
const STEAL_PERCENT_MAX: f64 = 2.0;
/// Time that other processes took.
const OTHERS_PERCENT_MAX: f64 = 10.0;

/// Returns the doubts about a cell's figures, in words.
pub fn doubts(cell: &Cell<'_>, rounds: u32) -> Vec<String> {
    let mut doubts = Vec::new();
    let ended = cell.runs.len();
    if ended < rounds as usize {
        doubts.push(format!("{ended} of {rounds} rounds"));
    }
    let errors: u64 = cell.runs.iter().map(|run| run.measurement.errors).sum();
    if errors > 0 {
        let first = cell.runs.iter().find_map(|run| run.measurement.first_error.as_deref());
        doubts.push(format!("{errors} operations failed: {}", first.unwrap_or("no reason was given")));
    }
    if cell.runs.iter().any(|run| !run.measurement.histogram.is_empty() && run.measurement.latencies().is_err()) {
        doubts.push("latencies of a run cannot be read, and are not plotted".into());
    }
    let missed = cell.runs.iter().filter(|run| run.measurement.is_rate_missed).count();
    if missed > 0 {
        doubts.push(format!("{missed} of {ended} rounds missed the rate"));
    }
    doubts.extend(noise(cell));
    doubts
}

fn noise(cell: &Cell<'_>) -> Vec<String> {
    let spread = cell.spread(Metric::Throughput).map_or(0.0, |spread| spread.percent());
    let worst = |share: fn(&Noise) -> f64| {
        let shares = cell.runs.iter().map(|run| share(&run.noise));
        Spread::of(shares).map_or(0.0, |spread| spread.max)
    };
    let found = [
        (spread, SPREAD_PERCENT_MAX, "throughput of the rounds is apart by"),
        (worst(|noise| noise.steal_percent), STEAL_PERCENT_MAX, "the hypervisor took up to"),
        (worst(|noise| noise.others_percent), OTHERS_PERCENT_MAX, "other processes took up to"),
    ];
    let noisy = found.into_iter().filter(|(figure, most, _)| figure > most);
    noisy.map(|(figure, _, what)| format!("{what} {}", percent(figure))).collect()
}

/// Returns the doubts about all of a record.
pub fn doubts_of_all(record: &Record) -> Vec<String> {
    let mut doubts = Vec::new();
    let (rounds, host) = (record.begun.rounds, &record.begun.host);
    if (rounds as usize) < ROUNDS_FOR_INTERVAL {
        let least = ROUNDS_FOR_INTERVAL;
        doubts.push(format!(
            "With {rounds} rounds (fewer than {least}) there are no confidence intervals: differences may be chance."
        ));
    }
    if host.load_average > f64::from(host.cores) / 2.0 {
        doubts.push(format!(
            "The machine was at work when this began: load average {:.1} on {} processors.",
            host.load_average, host.cores
        ));
    }
    doubts
}
