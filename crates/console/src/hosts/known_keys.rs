//! Which keys are those of hosts that may ask.

use atoll_cluster::{ClusterClient, keys};
use atoll_coordinator::unix_ms;
use atoll_security_log::{SecurityEvent, note};
use atoll_types::monitoring::AdminServerRecord;
use axum::http::StatusCode;

use super::identity::HostKey;
use crate::cluster_state::ClusterState;
use crate::known_digests::KnownDigests;
use crate::peer::Peer;

/// Milliseconds after which a host that was not seen is refused: it is gone, or was removed. Hosts say every ten
/// minutes that they are there.
const SEEN_MS: u64 = 60 * 60 * 1_000;

#[derive(Default)]
pub(crate) struct KnownKeys(KnownDigests);

impl KnownKeys {
    /// The error is the answer.
    pub async fn check(
        &self,
        key: &HostKey,
        peer: &Peer,
        state: &ClusterState,
    ) -> Result<(), (StatusCode, String)> {
        let read = |client: ClusterClient| async move {
            let listing = client.list::<AdminServerRecord>(keys::ADMIN_SERVERS).await?;
            let oldest_unix_ms = unix_ms().saturating_sub(SEEN_MS);
            let records = listing.entries.into_iter().map(|(_, record, _)| record);
            let seen = records.filter(|record| record.seen_unix_ms >= oldest_unix_ms);
            Ok::<_, atoll_cluster::ClusterError>(seen.map(|record| record.public_key_sha256).collect())
        };
        let known = self.0.get(state, read).await.map_err(|error| {
            let text = format!("cluster state, which knows the keys of hosts, cannot be read: {error}");
            (StatusCode::SERVICE_UNAVAILABLE, text)
        })?;
        if known.contains(&key.0) {
            return Ok(());
        }
        note(SecurityEvent::RefusedKey, peer.address.ip(), "the key of its certificate is that of no host");
        Err((StatusCode::FORBIDDEN, "the key of your certificate is that of no host of the cluster".into()))
    }
}
