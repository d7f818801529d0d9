//! Unwrapped keys, kept for a limited time: no request waits for the key service as long as it was reached once,
//! and when it is away the keys in use stay valid until their time is over.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use atoll_keys::{KeyError, KeyService, SecretKey};
use atoll_metrics::{Counter, Family, register};
use tokio::time::Instant;

/// Keys kept at once; each is one bucket's, one user's, or a bucket's for one named key.
const ENTRIES_MAX: usize = 65_536;
/// After the service failed, others that ask for the same key within this time fail at once.
const FAILURE_PAUSE: Duration = Duration::from_secs(1);
/// Keys that are asked for at once, in different of these.
const LANES: usize = 64;

/// Look-ups of the process (docs/reference/metrics.md).
struct LookUps {
    hits: Counter,
    misses: Counter,
}

static LOOK_UPS: LazyLock<LookUps> = LazyLock::new(|| {
    let look_ups: Family<1, Counter> = register(
        "atoll_s3_key_cache_lookups",
        "Keys that were there, and those that the key service was asked for",
        Family::default(),
    );
    let looked_up = |result: &str| look_ups.get_or_create_owned(&[("result", result.to_owned())]);
    LookUps { hits: looked_up("hit"), misses: looked_up("miss") }
});

/// A cache in front of a key service.
pub struct KeyCache {
    service: Arc<dyn KeyService>,
    lifetime: Duration,
    entries: Mutex<HashMap<String, Entry>>,
    /// Held while the service is asked, so that of many requests for one key only the first asks.
    lanes: [tokio::sync::Mutex<()>; LANES],
}

#[derive(Clone)]
struct Entry {
    wrapped: String,
    generation: u64,
    since: Instant,
    /// When the service is asked again while the key still serves.
    refresh_at: Instant,
    outcome: Result<SecretKey, KeyError>,
}

impl KeyCache {
    /// Returns an empty cache. Keys are kept for `lifetime`.
    pub fn new(service: Arc<dyn KeyService>, lifetime: Duration) -> Arc<Self> {
        LazyLock::force(&LOOK_UPS);
        let lanes = std::array::from_fn(|_| tokio::sync::Mutex::new(()));
        Arc::new(KeyCache { service, lifetime, entries: Mutex::default(), lanes })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Entry>> {
        // A map is whole between any two changes, so a panic elsewhere does not spoil it.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the cached entry of a key, unless the key was rewrapped or revoked since (`generation` is raised).
    fn known(&self, context: &str, wrapped: &str, generation: u64) -> Option<Entry> {
        let entries = self.lock();
        let entry = entries.get(context)?;
        let lifetime = if entry.outcome.is_ok() { self.lifetime } else { FAILURE_PAUSE };
        let is_good =
            entry.wrapped == wrapped && entry.generation == generation && entry.since.elapsed() < lifetime;
        is_good.then(|| entry.clone())
    }

    /// Opens a wrapped key, or gives it out of the cache.
    pub async fn unwrap(
        self: &Arc<Self>,
        context: &str,
        wrapped: &str,
        generation: u64,
    ) -> Result<SecretKey, KeyError> {
        if let Some(entry) = self.known(context, wrapped, generation) {
            LOOK_UPS.hits.inc();
            if entry.outcome.is_ok() && entry.refresh_at <= Instant::now() {
                self.refresh(context, wrapped, generation);
            }
            return entry.outcome;
        }
        LOOK_UPS.misses.inc();
        let lane = atoll_codec::crc32c(context.as_bytes()) as usize % LANES;
        let _asking = self.lanes[lane].lock().await;
        if let Some(entry) = self.known(context, wrapped, generation) {
            return entry.outcome;
        }
        let outcome = self.service.unwrap(context, wrapped).await;
        if let Err(error) = &outcome {
            tracing::warn!("cannot open the key of {context}: {error}");
        }
        self.keep(context, wrapped, generation, outcome.clone());
        outcome
    }

    fn keep(&self, context: &str, wrapped: &str, generation: u64, outcome: Result<SecretKey, KeyError>) {
        let now = Instant::now();
        let mut entries = self.lock();
        if entries.len() >= ENTRIES_MAX {
            let lifetime = self.lifetime;
            entries.retain(|_, entry| entry.since.elapsed() < lifetime);
            if entries.len() >= ENTRIES_MAX {
                entries.clear();
            }
        }
        let refresh_at = now + self.lifetime / 2;
        let entry = Entry { wrapped: wrapped.into(), generation, since: now, refresh_at, outcome };
        entries.insert(context.into(), entry);
    }

    /// Asks again beside the requests, so that the lifetime restarts before it is over.
    fn refresh(self: &Arc<Self>, context: &str, wrapped: &str, generation: u64) {
        if let Some(entry) = self.lock().get_mut(context) {
            entry.refresh_at = Instant::now() + self.lifetime / 8;
        }
        let (cache, context, wrapped) = (self.clone(), context.to_owned(), wrapped.to_owned());
        tokio::spawn(async move {
            match cache.service.unwrap(&context, &wrapped).await {
                // The key in the cache goes on until its time is over.
                Err(error @ KeyError::ServiceUnavailable { .. }) => {
                    tracing::warn!("the key of {context} stays in use for now: {error}");
                }
                outcome => cache.keep(&context, &wrapped, generation, outcome),
            }
        });
    }
}

#[cfg(test)]
mod tests;
