//! Figures of the last ten minutes for live charts, made of what this host's processes tell as metrics. One value
//! stands for each second.

mod samples;
mod series;

pub use samples::Samples;
pub use series::{Point, Subject, points};

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use atoll_coordinator::unix_ms;
use serde_json::{Value, json};

use crate::api::Given;
use crate::server::Shared;

/// Kinds of which there may be many, and the console has no charts.
const WITHOUT_CHARTS: [&str; 2] = ["bucket", "client"];
/// Seconds that are kept.
const KEPT: usize = 600;
/// How often processes are asked, in seconds: all seconds between have the same values.
const STEP_SECONDS: u64 = 2;

/// What is known of one second.
struct Second {
    unix_seconds: u64,
    points: Arc<BTreeMap<Subject, Point>>,
}

/// The figures.
#[derive(Default)]
pub(crate) struct Figures(Mutex<VecDeque<Second>>);

impl Figures {
    /// Asks all processes again and again, for as long as the process lives.
    pub async fn keep(shared: Arc<Shared>) {
        let mut before: Option<Samples> = None;
        let mut ticks = tokio::time::interval(Duration::from_secs(STEP_SECONDS));
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let now = read(&shared).await;
            if let Some(before) = &before {
                let host = shared.cluster.host_name();
                shared.figures.add(before.unix_ms / 1_000, now.unix_ms / 1_000, points(before, &now, &host));
            }
            before = Some(now);
        }
    }

    /// These were the values from one second up to another.
    fn add(&self, from: u64, until: u64, points: BTreeMap<Subject, Point>) {
        let points = Arc::new(points);
        let mut seconds = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // A clock that was set is followed, with what there was before it.
        let first = seconds.back().map_or(from, |last| last.unix_seconds.max(from.saturating_sub(1)) + 1);
        for unix_seconds in first..until.min(first + KEPT as u64) {
            seconds.push_back(Second { unix_seconds, points: Arc::clone(&points) });
        }
        while seconds.len() > KEPT {
            seconds.pop_front();
        }
    }

    /// The schema `Figures` of the API.
    pub fn tell(&self, given: &Given) -> Value {
        let asked = |name: &str| -> Vec<&str> {
            given.query.iter().filter(|(other, _)| other == name).map(|(_, value)| &value[..]).collect()
        };
        let (kinds, names) = (asked("kind"), asked("name"));
        let since = given.asked("since_unix_ms").and_then(|since| since.parse::<u64>().ok()).unwrap_or(0);
        let seconds = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (first, last) = match (seconds.front(), seconds.back()) {
            (Some(first), Some(last)) => {
                (first.unix_seconds.max(since / 1_000 + u64::from(since > 0)), last.unix_seconds)
            }
            _ => (unix_ms() / 1_000, unix_ms() / 1_000 - 1),
        };
        let by_second: BTreeMap<u64, &Second> =
            seconds.iter().map(|second| (second.unix_seconds, second)).collect();
        let mut subjects: Vec<&Subject> = seconds.iter().flat_map(|second| second.points.keys()).collect();
        subjects.sort();
        subjects.dedup();
        let is_wanted = |subject: &&&Subject| {
            !WITHOUT_CHARTS.contains(&subject.kind)
                && (kinds.is_empty() || kinds.contains(&subject.kind))
                && (names.is_empty() || names.contains(&&subject.name[..]))
        };
        let series = subjects.iter().filter(is_wanted).map(|subject| {
            let values =
                (first..=last).map(|second| by_second.get(&second).and_then(|second| second.points.get(subject)));
            subject.told(&values.collect::<Vec<_>>())
        });
        json!({
            "from_unix_ms": first * 1_000, "step_ms": 1_000, "count": (last + 1).saturating_sub(first),
            "series": series.collect::<Vec<_>>(),
        })
    }
}

/// What all processes tell now.
async fn read(shared: &Arc<Shared>) -> Samples {
    Samples::read(&shared.directory, &shared.processes()).await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subject() -> Subject {
        Subject { kind: "osd", name: "osd.0".into() }
    }

    fn point(reads: f64) -> BTreeMap<Subject, Point> {
        BTreeMap::from([(subject(), Point { reads_per_second: Some(reads), ..Point::default() })])
    }

    fn asked(query: &[(&str, &str)]) -> Given {
        let query = query.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Given { query, ..Given::default() }
    }

    #[test]
    fn every_second_has_a_value_or_null() {
        let figures = Figures::default();
        figures.add(100, 102, point(5.0));
        figures.add(102, 104, BTreeMap::new());
        figures.add(104, 106, point(7.0));
        let told = figures.tell(&asked(&[]));
        assert_eq!(told["from_unix_ms"], 100_000);
        assert_eq!(told["count"], 6);
        assert_eq!(told["series"][0]["reads_per_second"], json!([5.0, 5.0, null, null, 7.0, 7.0]));
        let later = figures.tell(&asked(&[("since_unix_ms", "103000"), ("kind", "osd")]));
        assert_eq!(later["series"][0]["reads_per_second"], json!([7.0, 7.0]));
        assert_eq!(figures.tell(&asked(&[("kind", "pool")]))["series"], json!([]));
    }

    #[test]
    fn ten_minutes_are_kept() {
        let figures = Figures::default();
        for second in 0..700 {
            figures.add(second, second + 1, point(1.0));
        }
        assert_eq!(figures.tell(&asked(&[]))["count"], 600);
    }
}
