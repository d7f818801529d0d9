//! Events about records of cluster state that are refused: admin servers on hosts with the key service follow all signed
//! kinds, and say once of each state of a record that no holder of the keys has written or removed it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use atoll_cluster::roles::may_read;
use atoll_cluster::{ClusterClient, ClusterError, Listing, PrefixWatch, WatchEvent, keys, kinds};
use atoll_coordinator::unix_ms;
use atoll_types::events::{EventKind, EventRecord, Severity};
use futures::StreamExt;
use futures::stream::{SelectAll, select_all};
use serde_json::json;
use tokio::time::{MissedTickBehavior, interval};

use crate::api::AUDIT_SOURCE;
use crate::shared::Shared;

/// The event of records that are refused.
const CODE: &str = "RECORDS_REFUSED";
/// Events of it come no faster, however many records are altered.
const PAUSE: Duration = Duration::from_secs(5);
/// Subjects of one event; the summary has their number.
const SUBJECTS_MAX: usize = 16;
/// Records that wait for an event; further ones are only counted.
const WAITING_MAX: usize = 10_000;

/// Refused records without an event yet: by key, the revision that is refused.
#[derive(Default)]
struct Refused {
    waiting: BTreeMap<String, i64>,
    more: u64,
}

impl Refused {
    fn note(&mut self, key: String, revision: i64) {
        if self.waiting.len() < WAITING_MAX || self.waiting.contains_key(&key) {
            self.waiting.insert(key, revision);
        } else {
            self.more += 1;
        }
    }

    fn take(&mut self, event: WatchEvent) {
        match event {
            WatchEvent::Put { key, value, mod_revision } if value.is_empty() => self.note(key, mod_revision),
            WatchEvent::Put { .. } | WatchEvent::Delete { .. } => {}
            WatchEvent::Resync { entries, .. } => {
                let refused = entries.into_iter().filter(|(_, value, _)| value.is_empty());
                refused.for_each(|(key, _, revision)| self.note(key, revision));
            }
        }
    }

    /// Returns the event about the records without one; `None` if there are none.
    fn event(&self, known: &BTreeSet<String>, unix_ms: u64) -> Option<EventRecord> {
        let subject = |(key, revision): (&String, &i64)| match revision {
            0 => format!("{key}, removed"),
            revision => format!("{key}, revision {revision}"),
        };
        let new: Vec<String> = self.waiting.iter().map(subject).filter(|one| !known.contains(one)).collect();
        let count = new.len() as u64 + self.more;
        if count == 0 {
            return None;
        }
        let what = if count == 1 { "1 record".to_owned() } else { format!("{count} records") };
        let summary = format!("{what} of cluster state is not as a holder of the key service has left it");
        Some(EventRecord {
            subjects: new.into_iter().take(SUBJECTS_MAX).collect(),
            cause: Some("it was written or removed by hand; 'atoll cluster sign' shows it".into()),
            ..EventRecord::new(unix_ms, EventKind::Health, CODE, Severity::Error, summary)
        })
    }
}

/// Follows signed records for as long as the process lives.
pub(crate) async fn keep(shared: Arc<Shared>) {
    loop {
        match shared.state.client().await {
            Ok(client) if !client.verifies_records() => return,
            Ok(client) => match may_follow(&client).await {
                // Only hosts that may read everything can, and others would be noted for trying.
                Ok(false) => return,
                Ok(true) => {
                    if let Err(error) = follow(&shared, &client).await {
                        tracing::debug!("signed records are not followed: {error}");
                    }
                }
                Err(error) => tracing::debug!("signed records are not followed: {error}"),
            },
            Err(error) => tracing::debug!("signed records are not followed: {error}"),
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn may_follow(client: &ClusterClient) -> Result<bool, ClusterError> {
    let roles = client.own_roles().await?.unwrap_or_default();
    Ok(kinds::signed_prefixes().chain([keys::EVENTS]).all(|prefix| may_read(&roles, prefix)))
}

async fn follow(shared: &Shared, client: &ClusterClient) -> Result<(), ClusterError> {
    let mut refused = Refused::default();
    let mut watches: SelectAll<PrefixWatch> = select_all([]);
    for prefix in kinds::signed_prefixes() {
        let Listing { revision, entries } = client.list_verified(prefix).await?;
        watches.push(client.watch_prefix(prefix, revision + 1));
        let usable = |(key, value, at): (String, Result<Vec<u8>, _>, _)| (key, value.unwrap_or_default(), at);
        refused.take(WatchEvent::Resync { entries: entries.into_iter().map(usable).collect(), revision });
    }
    let mut ticks = interval(PAUSE);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            event = watches.next() => match event {
                Some(event) => refused.take(event),
                None => return Ok(()),
            },
            _ = ticks.tick() => {
                if !refused.waiting.is_empty() {
                    say(shared, client, &refused).await?;
                    refused = Refused::default();
                }
            }
        }
    }
}

/// Writes the event, unless another admin server has, and a line of the audit log.
async fn say(shared: &Shared, client: &ClusterClient, refused: &Refused) -> Result<(), ClusterError> {
    let events = client.list_usable::<EventRecord>(keys::EVENTS).await?.entries;
    let of_refused = events.into_iter().map(|(_, event, _)| event).filter(|event| event.code == CODE);
    let known = of_refused.flat_map(|event| event.subjects).collect();
    let Some(event) = refused.event(&known, unix_ms()) else { return Ok(()) };
    client.put(&keys::new_event(event.unix_ms), &event).await?;
    if let Some(log) = &shared.audit {
        log.add(&json!({
            "source": AUDIT_SOURCE,
            "time_unix_ms": event.unix_ms,
            "event": "refused_record",
            "records": event.subjects,
        }));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(key: &str, value: &[u8], mod_revision: i64) -> WatchEvent {
        WatchEvent::Put { key: key.into(), value: value.into(), mod_revision }
    }

    #[test]
    fn each_state_that_is_refused_is_told_once_and_events_are_bounded() {
        let mut refused = Refused::default();
        refused.take(put("/atoll/users/a", b"{}", 7));
        refused.take(WatchEvent::Delete { key: "/atoll/users/a".into(), mod_revision: 8 });
        assert!(refused.event(&BTreeSet::new(), 1).is_none());
        refused.take(put("/atoll/users/a", b"", 9));
        let entries = vec![("/atoll/settings".to_owned(), Vec::new(), 0)];
        refused.take(WatchEvent::Resync { entries, revision: 9 });
        let event = refused.event(&BTreeSet::new(), 1).unwrap();
        assert_eq!(event.subjects, ["/atoll/settings, removed", "/atoll/users/a, revision 9"]);
        let known: BTreeSet<String> = event.subjects.into_iter().collect();
        assert!(refused.event(&known, 1).is_none(), "another admin server has said so");
        refused.take(put("/atoll/users/a", b"", 12));
        assert_eq!(refused.event(&known, 1).unwrap().subjects, ["/atoll/users/a, revision 12"]);

        for number in 0..2 * WAITING_MAX {
            refused.take(put(&format!("/atoll/users/{number}"), b"", 20));
        }
        let event = refused.event(&known, 1).unwrap();
        assert_eq!((event.subjects.len(), refused.waiting.len()), (SUBJECTS_MAX, WAITING_MAX));
        assert!(event.summary.starts_with("20001 records"), "{}", event.summary);
    }
}
