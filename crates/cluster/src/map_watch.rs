//! The cluster map, kept current by watches.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::task::Poll;
use std::time::Instant;

use atoll_security_log::SecurityEvent;
use atoll_types::records::PgRecord;
use tokio_stream::Stream;

use crate::client::{ClusterClient, ClusterError, PrefixWatch, WatchEvent};
use crate::keys;
use crate::map::{ClusterMap, MapChange, RefusedChange, change};
use crate::pg_changes::{Counting, PgChanges, Subject};

/// A map and the watches that keep it current, one for each range of keys: a process may not read all of them.
pub struct MapWatch {
    map: ClusterMap,
    watches: Vec<PrefixWatch>,
    pg_changes: PgChanges,
}

impl MapWatch {
    /// Reads the map and watches it from there on.
    pub async fn start(client: &ClusterClient) -> Result<MapWatch, ClusterError> {
        let mut entries = Vec::new();
        let mut watches = Vec::new();
        let mut newest = 0;
        for range in keys::MAP_RANGES {
            let listing = client.list_raw(range).await?;
            if range == keys::OSDS_TO_POOLS {
                newest = listing.revision;
            }
            watches.push(client.watch_prefix(range, listing.revision + 1));
            entries.extend(listing.entries);
        }
        let mut watch =
            MapWatch { map: ClusterMap::from_entries(&entries), watches, pg_changes: PgChanges::default() };
        if watch.map.settings.pg_signatures_required {
            watch.judge_history(client, &entries, newest).await;
        }
        Ok(watch)
    }

    /// Follows the latest changes of PGs as if this process had run then, so that a false record is refused which was
    /// written a moment ago. The oldest state counts as it is, and so does all that is older than the settings.
    async fn judge_history(&mut self, client: &ClusterClient, entries: &[(String, Vec<u8>, i64)], newest: i64) {
        let revision_of = |key: &str| entries.iter().find(|(name, ..)| name == key).map_or(0, |(_, _, at)| *at);
        let settings = revision_of(keys::SETTINGS);
        let of_pgs = entries.iter().filter(|(key, ..)| Subject::of(key).is_some());
        let now: BTreeMap<String, i64> = of_pgs.map(|(key, _, at)| (key.clone(), *at)).collect();
        let Some(history) = client.history(keys::OF_PGS, &now, newest).await else { return };
        (self.map.pgs, self.map.pg_targets) = (BTreeMap::new(), BTreeMap::new());
        for (key, value, revision) in history.base.into_iter().filter(|(key, ..)| Subject::of(key).is_some()) {
            self.replay(key, Some(value), revision, false);
        }
        for (key, value, revision) in history.events {
            // What is later comes by the watch, and nobody can judge changes of pools that are gone.
            let is_served = |subject: Subject| self.map.pools.contains_key(&subject.pg().pool);
            if revision <= newest && (now.contains_key(&key) || Subject::of(&key).is_some_and(is_served)) {
                self.replay(key, value, revision, revision > settings);
            }
        }
        // Of what is gone the last event need not have come.
        let gone = self.map.pgs.keys().copied().map(keys::pg).filter(|key| !now.contains_key(key));
        let gone: Vec<String> = gone.filter(|key| !self.map.refused.contains_key(key)).collect();
        gone.into_iter().for_each(|key| self.replay(key, None, 0, true));
        self.map.pg_targets.retain(|pg, _| now.contains_key(&keys::pg_target(*pg)));
    }

    fn replay(&mut self, key: String, value: Option<Vec<u8>>, revision: i64, is_judged: bool) {
        let value = value.as_ref().map(|value| (&value[..], revision));
        let changes = match is_judged {
            true => self.change(key, value),
            false => change(&key, value).into_iter().collect(),
        };
        changes.into_iter().for_each(|change| self.map.apply(change));
    }

    /// The map as of the last change that was returned.
    pub fn map(&self) -> &ClusterMap {
        &self.map
    }

    /// Waits for an event of any range; returns the range, too. Authorised keys and modes are read before the
    /// records that lead to connections.
    async fn next_event(&mut self) -> Option<(&'static str, WatchEvent)> {
        std::future::poll_fn(|context| {
            for (range, watch) in keys::MAP_RANGES.iter().zip(&mut self.watches).rev() {
                if let Poll::Ready(event) = Pin::new(watch).poll_next(context) {
                    return Poll::Ready(event.map(|event| (*range, event)));
                }
            }
            Poll::Pending
        })
        .await
    }

    /// Waits for the next changes and applies them to the map. `None` when the runtime shuts down.
    pub async fn next(&mut self) -> Option<Vec<MapChange>> {
        loop {
            let adoption = self.pg_changes.next_adoption();
            let mut changes = tokio::select! {
                event = self.next_event() => {
                    let (range, event) = event?;
                    self.event(range, event)
                }
                () = until(adoption) => self.adopt(),
            };
            changes.iter().cloned().for_each(|change| self.map.apply(change));
            let may_count = |change: &MapChange| {
                matches!(
                    change,
                    MapChange::AuthorizedKey(_, Some(_)) | MapChange::Pool(_, None) | MapChange::Settings(_)
                )
            };
            if changes.iter().any(may_count) {
                let counting = self.pg_changes.counting_now(&self.map);
                let more = counted(&counting);
                more.iter().cloned().for_each(|change| self.map.apply(change));
                changes.extend(more);
            }
            if !changes.is_empty() {
                return Some(changes);
            }
        }
    }

    fn event(&mut self, range: &str, event: WatchEvent) -> Vec<MapChange> {
        match event {
            WatchEvent::Put { key, value, mod_revision } => self.change(key, Some((&value, mod_revision))),
            WatchEvent::Delete { key, .. } => self.change(key, None),
            WatchEvent::Resync { entries, .. } => {
                if range == keys::OSDS_TO_POOLS {
                    self.pg_changes.clear();
                }
                self.map.changes_to(self.map.with_range_again(range, &entries))
            }
        }
    }

    fn change(&mut self, key: String, value: Option<(&[u8], i64)>) -> Vec<MapChange> {
        let revision = value.map_or(0, |(_, revision)| revision);
        let is_known = |(_, known): &(PgRecord, i64)| value.is_some() && *known == revision;
        if keys::parse_pg(&key).and_then(|pg| self.map.pgs.get(&pg)).is_some_and(is_known) {
            return Vec::new();
        }
        let judged = Subject::of(&key)
            .map(|subject| self.pg_changes.judge(&self.map, subject, value.map(|(value, _)| value), revision));
        match judged {
            Some(Err(cause)) => {
                atoll_security_log::note(SecurityEvent::RefusedRecord, &key, &cause);
                vec![MapChange::Refused(RefusedChange { key, revision, cause })]
            }
            Some(Ok(())) | None => change(&key, value).into_iter().collect(),
        }
    }

    /// Accepts refused changes that have stood for too long.
    fn adopt(&mut self) -> Vec<MapChange> {
        let counting = self.pg_changes.adopted(Instant::now());
        for (key, _) in &counting {
            tracing::warn!("{key} was refused, and no member has put it right: it counts from now on");
        }
        counted(&counting)
    }
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
        None => std::future::pending().await,
    }
}

fn counted(counting: &[Counting]) -> Vec<MapChange> {
    let changes = counting
        .iter()
        .filter_map(|(key, value)| change(key, value.as_ref().map(|(value, revision)| (&value[..], *revision))));
    changes.collect()
}
