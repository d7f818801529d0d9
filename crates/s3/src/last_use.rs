//! Notes when access keys are used: seldom, beside the requests, and without failing one.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use atoll_types::identities::LastUsedRecord;
use atoll_types::records::RECORD_FORMAT;

use crate::clock::unix_ms;
use crate::directory::BucketDirectory;
use crate::temporary_credentials::is_temporary;

/// How seldom the use of one key is noted.
const PAUSE: Duration = Duration::from_secs(600);
/// Keys that are remembered as noted.
const KEYS_MAX: usize = 65_536;

/// Notes when access keys are used. Clones share everything.
#[derive(Clone)]
pub(crate) struct LastUse {
    directory: Arc<dyn BucketDirectory>,
    noted: Arc<Mutex<HashMap<String, Instant>>>,
}

impl LastUse {
    pub(crate) fn new(directory: Arc<dyn BucketDirectory>) -> Self {
        LastUse { directory, noted: Arc::default() }
    }

    /// Whether the use of a key is to be noted now; it counts as noted from then on.
    fn is_due(&self, access_key: &str, now: Instant) -> bool {
        // A map is whole between any two changes, so a panic elsewhere does not spoil it.
        let mut noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        if noted.get(access_key).is_some_and(|since| now.duration_since(*since) < PAUSE) {
            return false;
        }
        if noted.len() >= KEYS_MAX {
            noted.retain(|_, since| now.duration_since(*since) < PAUSE);
            if noted.len() >= KEYS_MAX {
                return false;
            }
        }
        noted.insert(access_key.to_owned(), now);
        true
    }

    /// A request was signed with this key, for this service in this region. What is temporary is not noted.
    pub(crate) fn note(&self, access_key: &str, service: &str, region: &str) {
        if is_temporary(access_key) || !self.is_due(access_key, Instant::now()) {
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
