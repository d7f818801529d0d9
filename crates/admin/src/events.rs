//! Past events of the cluster.

use atoll_cluster::{ClusterClient, Listing, keys};
use atoll_types::events::{EventRecord, Severity};
use serde::Serialize;

use crate::error::AdminError;

/// Which events are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventFilter {
    /// Only those behind the one of this number, from there on; without it the newest.
    pub after: Option<i64>,
    /// Largest number of events.
    pub limit: usize,
    /// Only those that are so grave.
    pub severity_min: Severity,
}

/// An event that is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Event {
    /// Grows from one event to the next: the revision of cluster state that brought it.
    pub number: i64,
    /// The event.
    #[serde(flatten)]
    pub record: EventRecord,
}

/// Events, in the order in which they came.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EventList {
    /// Those that were asked for.
    pub events: Vec<Event>,
    /// The oldest event that is kept.
    pub first_number: Option<i64>,
    /// The newest event.
    pub last_number: Option<i64>,
    /// The revision of cluster state that this is of; a watch from the next one misses nothing.
    #[serde(skip)]
    pub revision: i64,
}

/// The events that a filter lets through.
pub async fn list(client: &ClusterClient, filter: &EventFilter) -> Result<EventList, AdminError> {
    Ok(chosen(client.list::<EventRecord>(keys::EVENTS).await?, filter))
}

fn chosen(listing: Listing<EventRecord>, filter: &EventFilter) -> EventList {
    let mut events: Vec<Event> =
        listing.entries.into_iter().map(|(_, record, number)| Event { number, record }).collect();
    // Those of one revision keep the order of their times.
    events.sort_by_key(|event| event.number);
    let (first_number, last_number) =
        (events.first().map(|event| event.number), events.last().map(|event| event.number));
    events.retain(|event| event.record.severity >= filter.severity_min);
    match filter.after {
        Some(after) => {
            events.retain(|event| event.number > after);
            events.truncate(filter.limit);
        }
        None => drop(events.drain(..events.len().saturating_sub(filter.limit))),
    }
    EventList { events, first_number, last_number, revision: listing.revision }
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_types::events::EventKind;
    use atoll_types::records::RECORD_FORMAT;

    fn event(number: i64, severity: Severity) -> (String, EventRecord, i64) {
        let record = EventRecord {
            format: RECORD_FORMAT,
            unix_ms: 1_000 + number as u64,
            kind: EventKind::Osd,
            code: "OSD_DOWN".into(),
            severity,
            summary: "osd.1 is down".into(),
            subjects: Vec::new(),
            cause: None,
            user: None,
            host: None,
        };
        (format!("{number}"), record, number)
    }

    fn numbers(after: Option<i64>, limit: usize, severity_min: Severity) -> Vec<i64> {
        let entries = vec![
            event(7, Severity::Note),
            event(3, Severity::Warning),
            event(9, Severity::Error),
            event(5, Severity::Note),
        ];
        let list = chosen(Listing { revision: 12, entries }, &EventFilter { after, limit, severity_min });
        assert_eq!((list.first_number, list.last_number, list.revision), (Some(3), Some(9), 12));
        list.events.iter().map(|event| event.number).collect()
    }

    #[test]
    fn the_newest_are_listed_or_those_behind_another() {
        assert_eq!(numbers(None, 10, Severity::Note), [3, 5, 7, 9]);
        assert_eq!(numbers(None, 2, Severity::Note), [7, 9], "the newest");
        assert_eq!(numbers(Some(3), 2, Severity::Note), [5, 7], "the next ones");
        assert_eq!(numbers(None, 10, Severity::Warning), [3, 9]);
        assert_eq!(numbers(Some(9), 10, Severity::Note), [0; 0]);
        let none = chosen(
            Listing { revision: 1, entries: Vec::new() },
            &EventFilter { after: None, limit: 1, severity_min: Severity::Note },
        );
        assert_eq!((none.events.len(), none.first_number), (0, None));
    }

    #[test]
    fn an_event_is_reported_as_its_record_with_its_number() {
        let (_, record, number) = event(4, Severity::Warning);
        let told = serde_json::to_value(Event { number, record }).unwrap();
        assert_eq!(
            (&told["number"], &told["unix_ms"], &told["code"]),
            (&4.into(), &1_004.into(), &"OSD_DOWN".into())
        );
    }
}
