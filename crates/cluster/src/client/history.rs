//! The changes under a prefix, from as far back as cluster state remembers them.

use std::collections::BTreeMap;
use std::time::Duration;

use etcd_client::{EventType, GetOptions};

use super::{ClusterClient, Repeat, Stored};
use crate::keys::range_end;

/// Longest time for reading the history.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The revision of the first write.
const FIRST_REVISION: i64 = 2;

/// The content of a prefix at some revision, and all changes since.
#[derive(Debug, Default)]
pub(crate) struct History {
    /// Key, value and modification revision as of the oldest revision.
    pub base: Vec<(String, Vec<u8>, i64)>,
    /// The changes after that, in order; without a value where the key was deleted.
    pub events: Vec<(String, Option<Vec<u8>>, i64)>,
}

impl ClusterClient {
    /// Returns the history of the keys that are there at the revision `newest`, with their modification revisions in `now`.
    /// It may have later changes, too. `None` if cluster state does not remember it.
    pub(crate) async fn history(&self, prefix: &str, now: &BTreeMap<String, i64>, newest: i64) -> Option<History> {
        let told = tokio::time::timeout(TIMEOUT, self.read_history(prefix, now, newest)).await.ok().flatten();
        if told.is_none() {
            tracing::debug!("cluster state has no history of {prefix}");
        }
        told
    }

    async fn read_history(&self, prefix: &str, now: &BTreeMap<String, i64>, newest: i64) -> Option<History> {
        let mut history = History::default();
        let mut from = FIRST_REVISION;
        loop {
            let mut behind = now.clone();
            for (key, _, at) in &history.base {
                if behind.get(key).is_some_and(|newest| newest <= at) {
                    behind.remove(key);
                }
            }
            match self.follow_from(prefix, from, behind).await? {
                Told::All(events) => {
                    history.events = events;
                    return Some(history);
                }
                Told::Compacted(revision) if (from..=newest).contains(&revision) => {
                    history.base = self.list_at(prefix, revision).await?;
                    from = revision + 1;
                }
                Told::Compacted(_) => return None,
            }
        }
    }

    /// Reads events until nothing is behind.
    async fn follow_from(&self, prefix: &str, from: i64, mut behind: BTreeMap<String, i64>) -> Option<Told> {
        let mut events = Vec::new();
        if behind.is_empty() {
            return Some(Told::All(events));
        }
        let mut stream = self.open_watch(prefix, from).await.ok()?;
        while !behind.is_empty() {
            let response = stream.message().await.ok()??;
            if response.canceled() {
                let revision = response.compact_revision();
                return (revision > 0).then_some(Told::Compacted(revision));
            }
            for event in response.events() {
                let Some(entry) = event.kv() else { continue };
                let key = String::from_utf8_lossy(entry.key()).into_owned();
                let mod_revision = entry.mod_revision();
                if behind.get(&key).is_some_and(|at| *at <= mod_revision) {
                    behind.remove(&key);
                }
                let value = (event.event_type() == EventType::Put).then(|| entry.value().to_vec());
                events.push((key, value, mod_revision));
            }
        }
        Some(Told::All(events))
    }

    /// Lists a prefix as of an earlier revision.
    async fn list_at(&self, prefix: &str, revision: i64) -> Option<Vec<(String, Vec<u8>, i64)>> {
        let operation = format!("list {prefix} as it was");
        let listed = self.call(&operation, Repeat::Freely, |mut kv| async move {
            let options = GetOptions::new().with_range(range_end(prefix)).with_revision(revision);
            kv.get(prefix, Some(options)).await
        });
        let entries = listed.await.ok()?.take_kvs().into_iter();
        let stored =
            entries.map(|entry| Stored::from_entry(entry).map(|one| (one.key, one.value, one.mod_revision)));
        stored.collect::<Result<_, _>>().ok()
    }
}

enum Told {
    All(Vec<(String, Option<Vec<u8>>, i64)>),
    /// Revisions up to this one are forgotten; it can be listed.
    Compacted(i64),
}
