//! Figures of a few seconds, as a host keeps them, and as others get them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::series::{KINDS, Point, Rates, Subject};

/// Kinds whose figures are the sum over several hosts. All others are of one host, or, if two hosts serve an
/// image, of few.
const SUMMED_KINDS: [&str; 3] = ["cluster", "pool", "account"];

/// The fields of a [`Point`] in their order.
pub type Values = [Option<f64>; 9];
/// Indexes of [`Values`] that do not add up.
const QUANTILES: std::ops::Range<usize> = 4..8;

/// One host's figure of a subject.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Figure {
    /// All that there is of most subjects.
    #[serde(rename = "v")]
    Values(Values),
    /// Rates to be added to those of other hosts, so that quantiles are right.
    #[serde(rename = "r")]
    Rates(Box<Rates>),
}

impl Figure {
    pub fn of(subject: &Subject, rates: Rates) -> Figure {
        match is_summed(subject) {
            true => Figure::Rates(Box::new(rates)),
            false => Figure::Values(rates.point().values()),
        }
    }

    pub fn add(&mut self, other: &Figure) {
        match (self, other) {
            (Figure::Rates(rates), Figure::Rates(other)) => rates.add(other),
            (Figure::Values(values), Figure::Values(other)) => {
                for (index, (value, other)) in values.iter_mut().zip(other).enumerate() {
                    *value = match (*value, *other) {
                        // Of two hosts, the slower one.
                        (Some(value), Some(other)) if QUANTILES.contains(&index) => Some(value.max(other)),
                        (Some(value), Some(other)) => Some(value + other),
                        (value, other) => value.or(other),
                    };
                }
            }
            // A host of another release: it has been told of in another way.
            _ => {}
        }
    }

    pub fn point(&self) -> Point {
        match self {
            Figure::Values(values) => Point::of(values),
            Figure::Rates(rates) => rates.point(),
        }
    }
}

/// Returns true if a figure is right only with all hosts.
pub fn is_summed(subject: &Subject) -> bool {
    SUMMED_KINDS.contains(&subject.kind)
}

/// Seconds that have the same figures.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(from = "Sent", into = "Sent")]
pub struct Span {
    /// Unix time of the first.
    pub from: u64,
    /// Second after the last one.
    pub until: u64,
    pub figures: BTreeMap<Subject, Figure>,
}

#[derive(Serialize, Deserialize)]
struct Sent {
    from: u64,
    until: u64,
    figures: Vec<(String, String, Figure)>,
}

impl From<Span> for Sent {
    fn from(span: Span) -> Sent {
        let figures = span.figures.into_iter();
        let figures = figures.map(|(subject, figure)| (subject.kind.to_owned(), subject.name, figure));
        Sent { from: span.from, until: span.until, figures: figures.collect() }
    }
}

impl From<Sent> for Span {
    fn from(sent: Sent) -> Span {
        // Kinds that are not known here are of another release.
        let figures = sent.figures.into_iter().filter_map(|(kind, name, figure)| {
            let kind = KINDS.into_iter().find(|known| *known == kind)?;
            Some((Subject { kind, name }, figure))
        });
        Span { from: sent.from, until: sent.until, figures: figures.collect() }
    }
}

/// A host's figures of its last minutes.
#[derive(Debug, Serialize, Deserialize)]
pub struct HostFigures {
    /// Its clock, which spans refer to.
    pub now_unix_ms: u64,
    pub spans: Vec<Span>,
}

impl HostFigures {
    /// The same by another clock, which shows this time now.
    pub fn by_clock(mut self, now_unix_ms: u64) -> HostFigures {
        let ahead = (now_unix_ms as f64 - self.now_unix_ms as f64) / 1e3;
        let moved = |second: u64| second.saturating_add_signed(ahead.round() as i64);
        for span in &mut self.spans {
            (span.from, span.until) = (moved(span.from), moved(span.until));
        }
        self.now_unix_ms = now_unix_ms;
        self
    }
}
