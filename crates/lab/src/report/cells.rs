//! The runs of one subject under one load, and their figures.

use atoll_bench::LatencyHistogram;

use super::metric::Metric;
use super::statistics::{ByRound, Ratio, Spread};
use crate::matrix::{Load, Record, Run, Subject};

/// The runs of one subject under one load.
pub struct Cell<'a> {
    /// The load.
    pub load: &'a Load,
    /// In order of their rounds.
    pub runs: Vec<&'a Run>,
}

impl<'a> Cell<'a> {
    /// Finds them.
    pub fn of(record: &'a Record, subject: &Subject, load: &'a Load) -> Self {
        Cell { load, runs: record.cell(&subject.name, &load.name) }
    }

    /// A figure by round.
    pub fn by_round(&self, metric: Metric) -> ByRound {
        self.runs.iter().filter_map(|run| Some((run.round, metric.of(self.load, &run.measurement)?))).collect()
    }

    /// The median of a figure.
    pub fn spread(&self, metric: Metric) -> Option<Spread> {
        Spread::of(self.by_round(metric).into_values())
    }

    /// The median of something else of a run.
    pub fn spread_of(&self, figure: impl Fn(&Run) -> f64) -> Option<Spread> {
        Spread::of(self.runs.iter().map(|run| figure(run)))
    }

    /// This one against the baseline.
    pub fn ratio(&self, baseline: &Cell<'_>, metric: Metric) -> Option<Ratio> {
        Ratio::within_rounds(&baseline.by_round(metric), &self.by_round(metric))
    }

    /// The latencies of all rounds together, as far as they can be read.
    pub fn latencies(&self) -> LatencyHistogram {
        let mut all = LatencyHistogram::default();
        let runs = self.runs.iter().filter_map(|run| run.measurement.latencies().ok());
        runs.for_each(|one| all.add(&one));
        all
    }

    /// The run whose throughput is nearest the median.
    pub fn typical(&self) -> Option<&'a Run> {
        let median = self.spread(Metric::Throughput)?.median;
        let distance = |run: &Run| {
            let figure = Metric::Throughput.of(self.load, &run.measurement);
            figure.map_or(f64::INFINITY, |figure| (figure - median).abs())
        };
        self.runs.iter().copied().min_by(|one, other| distance(one).total_cmp(&distance(other)))
    }
}

/// Returns the subject that all others are compared with: the baseline, or the first.
pub fn baseline(record: &Record) -> Option<&Subject> {
    let subjects = &record.begun.subjects;
    subjects.iter().find(|subject| subject.is_baseline).or(subjects.first())
}

/// All others.
pub fn compared(record: &Record) -> Vec<&Subject> {
    let baseline = baseline(record).map(|subject| &subject.name);
    record.begun.subjects.iter().filter(|subject| Some(&subject.name) != baseline).collect()
}

/// Loads that belong together, in the order in which their groups first appear.
pub fn groups(record: &Record) -> Vec<(&str, Vec<&Load>)> {
    let mut groups: Vec<(&str, Vec<&Load>)> = Vec::new();
    for load in &record.begun.loads {
        match groups.iter_mut().find(|(name, _)| *name == load.group) {
            Some((_, loads)) => loads.push(load),
            None => groups.push((&load.group, vec![load])),
        }
    }
    groups
}
