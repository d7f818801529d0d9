//! Figures of the last ten minutes for live charts, made of processes' metrics. One value stands for each second.
//! Each admin server keeps those of its host's processes; a viewer gets those of all hosts.

mod hosts;
mod samples;
mod series;
mod span;

pub use samples::Samples;
pub use series::{Point, Rates, Subject, rates};
pub(crate) use span::HostFigures;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use serde_json::{Value, json};

use crate::hosts::Unanswered;
use span::{Figure, Span, is_summed};

/// Kinds that may be many, without charts in the console.
const WITHOUT_CHARTS: [&str; 2] = ["bucket", "client"];
/// Seconds that are kept.
const KEPT: u64 = 600;
/// Seconds behind after which a host is not waited for.
const LATE_MAX: u64 = 10;

/// The figures of this host.
#[derive(Default)]
pub(crate) struct Figures {
    spans: Mutex<VecDeque<Arc<Span>>>,
    /// Hosts that have not answered lately.
    silent: Mutex<BTreeMap<String, (Instant, Unanswered)>>,
}

/// Requested figures.
#[derive(Debug, Default)]
pub(crate) struct Wanted {
    /// All, if there are none.
    kinds: Vec<String>,
    /// All, if there are none.
    names: Vec<String>,
    /// Milliseconds back from now.
    last_ms: u64,
}

impl Wanted {
    /// Reads the query of the API, with its begin by the clock of this host, or of the one with which other hosts
    /// ask.
    pub fn of(query: &[(String, String)], now_unix_ms: u64) -> Wanted {
        let all = |wanted: &str| -> Vec<String> {
            query.iter().filter(|(name, _)| name == wanted).map(|(_, value)| value.clone()).collect()
        };
        let number = |name: &str| all(name).last().and_then(|value| value.parse::<u64>().ok());
        let since = number("since_unix_ms").map(|since| now_unix_ms.saturating_sub(since));
        let last_ms = number("last_ms").or(since).unwrap_or(u64::MAX).min(KEPT * 1_000);
        Wanted { kinds: all("kind"), names: all("name"), last_ms }
    }

    /// As another host is asked for the same.
    fn query(&self) -> String {
        let mut query = form_urlencoded::Serializer::new(String::new());
        query.append_pair("last_ms", &self.last_ms.to_string());
        query.extend_pairs(self.kinds.iter().map(|kind| ("kind", kind)));
        query.extend_pairs(self.names.iter().map(|name| ("name", name)));
        query.finish()
    }

    fn has(&self, subject: &Subject) -> bool {
        !WITHOUT_CHARTS.contains(&subject.kind)
            && (self.kinds.is_empty() || self.kinds.iter().any(|kind| kind == subject.kind))
            && (self.names.is_empty() || self.names.contains(&subject.name))
    }
}

impl Figures {
    fn kept(&self) -> MutexGuard<'_, VecDeque<Arc<Span>>> {
        self.spans.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// These were the values from one second up to another.
    fn add(&self, from: u64, until: u64, rates: BTreeMap<Subject, Rates>) {
        let mut spans = self.kept();
        // A clock that was set is followed, with what there was before it.
        let from = spans.back().map_or(from, |last| last.until.max(from));
        let until = until.min(from + KEPT);
        if from >= until {
            return;
        }
        let figure = |(subject, rates)| {
            let figure = Figure::of(&subject, rates);
            (subject, figure)
        };
        spans.push_back(Arc::new(Span { from, until, figures: rates.into_iter().map(figure).collect() }));
        while spans.front().is_some_and(|first| first.until + KEPT <= until) {
            spans.pop_front();
        }
    }

    /// Returns the figures of this host for another one, or for itself.
    pub fn own(&self, wanted: &Wanted, now_unix_ms: u64) -> HostFigures {
        let oldest = now_unix_ms.saturating_sub(wanted.last_ms) / 1_000;
        let newer: Vec<Arc<Span>> = self.kept().iter().filter(|span| span.until > oldest).cloned().collect();
        let part = |span: Arc<Span>| {
            let figures = span.figures.iter().filter(|(subject, _)| wanted.has(subject));
            let figures = figures.map(|(subject, figure)| (subject.clone(), figure.clone())).collect();
            Span { from: span.from, until: span.until, figures }
        };
        HostFigures { now_unix_ms, spans: newer.into_iter().map(part).collect() }
    }
}

/// The figures of this host and of others, all after a second. Figures that only a part of the hosts have reported
/// yet are left out.
fn joined(own: HostFigures, others: Vec<HostFigures>, since: Option<u64>) -> Value {
    let now = own.now_unix_ms / 1_000;
    let last = |host: &HostFigures| host.spans.last().map(|span| span.until);
    let Some(own_until) = last(&own) else { return told(now, 0, BTreeMap::new()) };
    let on_time = |until: &u64| *until + LATE_MAX > own_until;
    let until = others.iter().filter_map(last).filter(on_time).fold(own_until, u64::min);
    let first = own.spans.first().map_or(until, |span| span.from).max(until.saturating_sub(KEPT));
    let first = since.map_or(first, |since| first.max(since + 1));
    let count = until.saturating_sub(first) as usize;
    let host_count = 1 + others.len();
    let mut tellers = vec![0; count];
    let mut columns: BTreeMap<Subject, Vec<Option<Figure>>> = BTreeMap::new();
    for host in std::iter::once(own).chain(others) {
        for span in host.spans {
            let seconds = (span.from.max(first)..span.until.min(until)).map(|second| (second - first) as usize);
            seconds.clone().for_each(|second| tellers[second] += 1);
            for (subject, figure) in span.figures {
                let column = columns.entry(subject).or_insert_with(|| vec![None; count]);
                for second in seconds.clone() {
                    match &mut column[second] {
                        Some(sum) => sum.add(&figure),
                        none => *none = Some(figure.clone()),
                    }
                }
            }
        }
    }
    for (_, column) in columns.iter_mut().filter(|(subject, _)| is_summed(subject)) {
        // A sum without one of the hosts would be too low.
        column
            .iter_mut()
            .zip(&tellers)
            .filter(|(_, tellers)| **tellers < host_count)
            .for_each(|(sum, _)| *sum = None);
    }
    told(first, count, columns)
}

fn told(first: u64, count: usize, columns: BTreeMap<Subject, Vec<Option<Figure>>>) -> Value {
    let series = columns.iter().map(|(subject, column)| {
        let points: Vec<Option<Point>> = column.iter().map(|figure| figure.as_ref().map(Figure::point)).collect();
        subject.told(&points.iter().map(Option::as_ref).collect::<Vec<_>>())
    });
    json!({ "from_unix_ms": first * 1_000, "step_ms": 1_000, "count": count, "series": series.collect::<Vec<_>>() })
}

#[cfg(test)]
mod tests;
