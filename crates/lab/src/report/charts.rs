//! Which plots a report has, made of the figures of a record.

use atoll_bench::Second;
use maud::Markup;

use super::answers::relative;
use super::cells::{Cell, baseline, compared};
use super::metric::{Metric, throughput_unit};
use super::plot::{Axis, Bar, Line, Panel, Scale, bars, lines};
use super::text;
use crate::matrix::{Load, Record, Subject};

/// Figures of one subject under the load of a chart.
struct Drawn<'a> {
    style: usize,
    subject: &'a Subject,
    cell: Cell<'a>,
}

/// Largest number of points of a series; longer ones are thinned out.
const POINTS_MAX: usize = 600;
/// 99.99 percent.
const NINES_MAX: f64 = 4.0;

/// A plot with its title.
pub struct Chart {
    /// Title above the plot.
    pub title: String,
    /// How to read it.
    pub note: String,
    /// The plot.
    pub svg: Markup,
}

/// The style of a subject: its place among all.
pub fn style_of(record: &Record, subject: &Subject) -> usize {
    record.begun.subjects.iter().position(|one| one.name == subject.name).unwrap_or(0)
}

/// Returns the charts of a group: each load relative to the baseline.
pub fn of_group(record: &Record, loads: &[&Load]) -> Vec<Chart> {
    let Some(baseline) = baseline(record) else { return Vec::new() };
    let charts = [Metric::Throughput, Metric::AllCpu].into_iter().filter_map(|metric| {
        let bars_of_all = relative_bars(record, loads, metric);
        let title = format!("{}, relative to {}", metric.title(), baseline.name);
        let svg = bars(&title, &bars_of_all, Some(1.0));
        let note = "Error bars: intervals of 95 %, where there are enough rounds".into();
        (!bars_of_all.is_empty()).then_some(Chart { title, note, svg })
    });
    charts.collect()
}

fn relative_bars(record: &Record, loads: &[&Load], metric: Metric) -> Vec<Bar> {
    let subjects: Vec<_> =
        compared(record).into_iter().map(|subject| (subject, relative(record, subject, metric))).collect();
    let mut all = Vec::new();
    for load in loads {
        let mut heading = Some(load.name.clone());
        for (subject, relative) in &subjects {
            let ratio = relative.iter().find(|one| one.load.name == load.name).and_then(|one| one.ratio);
            let Some(ratio) = ratio else { continue };
            let interval =
                text::interval(&ratio).map_or("no interval".into(), |interval| format!("95 %: {interval}"));
            all.push(Bar {
                heading: heading.take(),
                name: subject.name.clone(),
                style: style_of(record, subject),
                parts: vec![ratio.value],
                range: ratio.interval.map(|interval| (interval.low, interval.high)),
                figure: text::ratio(ratio.value),
                tooltip: format!("{}, {}: {} ({interval})", subject.name, load.name, text::ratio(ratio.value)),
            });
        }
    }
    all
}

/// The charts of a load: throughput, CPU time, latency percentiles, and how it went over time.
pub fn of_load(record: &Record, load: &Load) -> Vec<Chart> {
    let drawn: Vec<Drawn<'_>> = record
        .begun
        .subjects
        .iter()
        .enumerate()
        .map(|(style, subject)| Drawn { style, subject, cell: Cell::of(record, subject, load) })
        .filter(|one| !one.cell.runs.is_empty())
        .collect();
    if drawn.is_empty() {
        return Vec::new();
    }
    [Some(throughput(load, &drawn)), cpu(load, &drawn), percentiles(load, &drawn), over_time(load, &drawn)]
        .into_iter()
        .flatten()
        .collect()
}

fn throughput(load: &Load, drawn: &[Drawn<'_>]) -> Chart {
    let unit = throughput_unit(load);
    let all: Vec<Bar> = drawn
        .iter()
        .filter_map(|one| {
            let spread = one.cell.spread(Metric::Throughput)?;
            let ends = text::ends(&spread).map_or("one round".into(), |ends| format!("rounds: {ends}"));
            Some(Bar {
                heading: None,
                name: one.subject.name.clone(),
                style: one.style,
                parts: vec![spread.median],
                range: (spread.count > 1).then_some((spread.min, spread.max)),
                figure: text::figure(spread.median),
                tooltip: format!("{}: {} {unit} ({ends})", one.subject.name, text::figure(spread.median)),
            })
        })
        .collect();
    let svg = bars(&format!("Throughput of {}", load.name), &all, None);
    Chart {
        title: format!("Throughput, {unit}"),
        note: "Median; error bars: slowest and fastest round".into(),
        svg,
    }
}

fn cpu(load: &Load, drawn: &[Drawn<'_>]) -> Option<Chart> {
    let all: Vec<Bar> = drawn
        .iter()
        .filter_map(|one| {
            let all = one.cell.spread(Metric::AllCpu)?;
            let servers = one.cell.spread(Metric::ServersCpu).map_or(0.0, |spread| spread.median);
            let clients = (all.median - servers).max(0.0);
            Some(Bar {
                heading: None,
                name: one.subject.name.clone(),
                style: one.style,
                parts: vec![servers, clients],
                range: (all.count > 1).then_some((all.min, all.max)),
                figure: text::figure(all.median),
                tooltip: format!(
                    "{}: {} us/op: servers {}, load generators {}",
                    one.subject.name,
                    text::figure(all.median),
                    text::figure(servers),
                    text::figure(clients)
                ),
            })
        })
        .collect();
    let svg = bars(&format!("CPU time per operation of {}", load.name), &all, None);
    let note = "Full colour: servers; pale: load generators, with the client's work".into();
    (!all.is_empty()).then_some(Chart { title: "CPU time, us/op".into(), note, svg })
}

fn percentiles(load: &Load, drawn: &[Drawn<'_>]) -> Option<Chart> {
    let all: Vec<Line> = drawn
        .iter()
        .filter_map(|one| {
            let points = percentile_points(&one.cell);
            let at = |metric: Metric| {
                let spread = one.cell.spread_of(|run| metric.of(load, &run.measurement).unwrap_or(f64::NAN));
                spread.map_or("-".into(), |spread| text::duration(spread.median))
            };
            let tooltip = format!(
                "{}: p50 {}, p99 {}, p99.9 {}",
                one.subject.name,
                at(Metric::P50),
                at(Metric::P99),
                at(Metric::P999)
            );
            (!points.is_empty()).then_some(Line { style: one.style, tooltip, points })
        })
        .collect();
    if all.is_empty() {
        return None;
    }
    let ticks = [(0.5, "50"), (0.9, "90"), (0.99, "99"), (0.999, "99.9"), (0.9999, "99.99")];
    let x = Axis {
        scale: Scale::between(0.0, NINES_MAX),
        ticks: ticks.map(|(share, name)| (nines(share), name.into())).into(),
        title: "percent of the operations were not slower".into(),
    };
    let y = latency_axis("", &all);
    let svg = lines(&format!("Latency percentiles of {}", load.name), &x, &[Panel { y, lines: all }]);
    Some(Chart { title: "Latency by percentile".into(), note: "All rounds together".into(), svg })
}

/// How many nines a share has: 0.9 has one, 0.99 two.
fn nines(share: f64) -> f64 {
    -(1.0 - share).log10()
}

/// As far as there are operations: a percentile that no operation stands for is not drawn.
fn percentile_points(cell: &Cell<'_>) -> Vec<(f64, f64)> {
    let latencies = cell.latencies();
    let most = (latencies.count().max(1) as f64).log10().min(NINES_MAX);
    let steps = if latencies.count() == 0 { 0 } else { (most * 25.0) as u32 + 1 };
    let points = (0..steps).map(|step| {
        let at = f64::from(step) / 25.0;
        (at, latencies.at_quantile_us(1.0 - 10_f64.powf(-at)) as f64)
    });
    points.collect()
}

fn latency_axis(title: &str, lines: &[Line]) -> Axis {
    let values = lines.iter().flat_map(|line| line.points.iter().map(|(_, value)| *value));
    let scale = Scale::logarithmic(values);
    let ticks = scale.ticks().into_iter().map(|tick| (tick, text::duration(tick))).collect();
    Axis { scale, ticks, title: title.into() }
}

fn over_time(load: &Load, drawn: &[Drawn<'_>]) -> Option<Chart> {
    let unit = throughput_unit(load);
    let per_second = |second: &Second| {
        if load.is_bandwidth { second.bytes as f64 / 1e6 } else { second.operations as f64 }
    };
    let work = series(drawn, per_second);
    let slow = series(drawn, |second| second.p99_us as f64);
    let seconds = work.iter().map(|line| line.points.len()).max().filter(|&count| count > 1)? as f64;
    let scale = Scale::linear(work.iter().flat_map(|line| line.points.iter().map(|(_, value)| *value)));
    let ticks = scale.ticks().into_iter().step_by(2).map(|tick| (tick, text::short(tick))).collect();
    let mut latency = latency_axis("p99 latency", &slow);
    if latency.ticks.len() > 4 {
        latency.ticks = latency.ticks.into_iter().step_by(2).collect();
    }
    let last = work.iter().filter_map(|line| Some(line.points.last()?.0)).fold(seconds, f64::max);
    let x_scale = Scale::between(0.0, last);
    let x_ticks = x_scale.ticks().into_iter().map(|tick| (tick, text::short(tick))).collect();
    let x = Axis { scale: x_scale, ticks: x_ticks, title: "seconds".into() };
    let panels =
        [Panel { y: Axis { scale, ticks, title: unit.into() }, lines: work }, Panel { y: latency, lines: slow }];
    let svg = lines(&format!("Over time: {}", load.name), &x, &panels);
    Some(Chart { title: "Over time".into(), note: "The round that is nearest the median".into(), svg })
}

/// Second by second of each subject's typical round. An incomplete second at the end is left out.
fn series(drawn: &[Drawn<'_>], value: impl Fn(&Second) -> f64) -> Vec<Line> {
    let lines = drawn.iter().filter_map(|one| {
        let run = one.cell.typical()?;
        let whole = run.measurement.series.len().min(run.measurement.seconds.max(0.0).round() as usize);
        let step = whole.div_ceil(POINTS_MAX).max(1);
        let seconds = run.measurement.series[..whole].iter().enumerate().step_by(step);
        let points = seconds.map(|(index, second)| (index as f64 + 1.0, value(second))).collect();
        let tooltip = format!("{}, round {}", one.subject.name, u64::from(run.round) + 1);
        Some(Line { style: one.style, tooltip, points })
    });
    lines.collect()
}
