//! Digests of tokens or keys in cluster state, which grant access.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use atoll_cluster::ClusterClient;

use crate::cluster_state::{ClusterState, UNCONFIRMED_MAX};

/// Time for which cluster state's answer counts, so that removed digests are refused soon.
const KNOWN_FOR: Duration = Duration::from_secs(2);
const READ_LIMIT: Duration = Duration::from_secs(4);

/// The digests that there are, and when that was read.
#[derive(Default)]
pub(crate) struct KnownDigests(Mutex<Option<(Instant, BTreeSet<String>)>>);

impl KnownDigests {
    fn known(&self, for_time: Duration) -> Option<BTreeSet<String>> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.as_ref().filter(|(since, _)| since.elapsed() < for_time).map(|(_, digests)| digests.clone())
    }

    /// Returns the digests in cluster state. If it cannot be asked, the last ones count, for [`UNCONFIRMED_MAX`].
    pub async fn get<E: ToString, F: Future<Output = Result<BTreeSet<String>, E>>>(
        &self,
        state: &ClusterState,
        read: impl FnOnce(ClusterClient) -> F,
    ) -> Result<BTreeSet<String>, String> {
        if let Some(digests) = self.known(KNOWN_FOR) {
            return Ok(digests);
        }
        match state.read(READ_LIMIT, read).await {
            Ok(digests) => {
                *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), digests.clone()));
                Ok(digests)
            }
            Err(error) => self.known(UNCONFIRMED_MAX).ok_or(error),
        }
    }
}
