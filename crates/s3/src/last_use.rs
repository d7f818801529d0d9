//! Notes when access keys are used: seldom, beside the requests, and without failing one.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use atoll_credentials::is_temporary;
use atoll_types::identities::LastUsedRecord;
use atoll_types::records::RECORD_FORMAT;

use crate::clock::unix_ms;
use crate::directory::BucketDirectory;

/// How seldom the use of one key is noted.
const PAUSE: Duration = Duration::from_secs(600);
/// Keys that are remembered as noted.
const KEYS_MAX: usize = 65_536;

/// Notes when access keys are used. Clones share everything.
#[derive(Clone)]
pub(crate) struct LastUse {
    directory: Arc<dyn BucketDirectory>,
    noted: Arc<Mutex<Noted>>,
}

/// Times at which the uses of keys were noted.
#[derive(Default)]
struct Noted(HashMap<String, Instant>);

impl Noted {
    /// Returns true if the use of a key is to be noted now; it counts as noted from then on.
    fn is_due(&mut self, access_key: &str, now: Instant) -> bool {
        if self.0.get(access_key).is_some_and(|since| now.duration_since(*since) < PAUSE) {
            return false;
        }
        if self.0.len() >= KEYS_MAX {
            self.0.retain(|_, since| now.duration_since(*since) < PAUSE);
            if self.0.len() >= KEYS_MAX {
                return false;
            }
        }
        self.0.insert(access_key.to_owned(), now);
        true
    }
}

impl LastUse {
    pub(crate) fn new(directory: Arc<dyn BucketDirectory>) -> Self {
        LastUse { directory, noted: Arc::default() }
    }

    fn is_due(&self, access_key: &str) -> bool {
        // A map is whole between any two changes, so a panic elsewhere does not spoil it.
        let mut noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        noted.is_due(access_key, Instant::now())
    }

    /// A request was signed with this key, for this service in this region. Uses of temporary keys are not noted.
    pub(crate) fn note(&self, access_key: &str, service: &str, region: &str) {
        if is_temporary(access_key) || !self.is_due(access_key) {
            return;
        }
        let record = LastUsedRecord {
            format: RECORD_FORMAT,
            used_unix_ms: unix_ms(),
            service: service.to_owned(),
            region: region.to_owned(),
        };
        let (directory, access_key) = (self.directory.clone(), access_key.to_owned());
        tokio::spawn(async move {
            if let Err(error) = directory.note_last_use(&access_key, &record).await {
                tracing::debug!(access_key, %error, "the last use of an access key cannot be noted");
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uses_are_noted_seldom() {
        let mut noted = Noted::default();
        let start = Instant::now();
        assert!(noted.is_due("a", start));
        assert!(!noted.is_due("a", start + PAUSE / 2));
        assert!(noted.is_due("b", start + PAUSE / 2));
        assert!(noted.is_due("a", start + PAUSE));
        let full = (0..KEYS_MAX).map(|number| (number.to_string(), start)).collect();
        let mut full = Noted(full);
        assert!(!full.is_due("a", start + PAUSE / 2), "as many as are remembered");
        assert!(full.is_due("a", start + PAUSE));
        assert_eq!(full.0.len(), 1);
    }
}
