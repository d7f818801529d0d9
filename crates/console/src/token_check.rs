//! Whether who asks for metrics may read them: a bearer token that cluster state knows.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use atoll_admin::metrics_tokens;
use atoll_security_log::{SecurityEvent, note};
use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, StatusCode};

use crate::cluster_state::ClusterState;
use crate::listener::Peer;

/// What cluster state has said holds for so long, so that a token that is removed is refused soon.
const KNOWN_FOR: Duration = Duration::from_secs(2);
const READ_LIMIT: Duration = Duration::from_secs(4);

/// Digests of the tokens that there are, and when that was read.
#[derive(Default)]
pub(crate) struct TokenCheck(Mutex<Option<(Instant, BTreeSet<String>)>>);

impl TokenCheck {
    /// An error is what to answer.
    pub async fn check(
        &self,
        headers: &HeaderMap,
        peer: Option<Peer>,
        state: &ClusterState,
    ) -> Result<(), (StatusCode, String)> {
        let value = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        let Some(token) = value.and_then(|value| value.strip_prefix("Bearer ")) else {
            let how = "metrics need the header 'Authorization: Bearer TOKEN'; 'atoll metrics token create NAME' makes one\n";
            return Err((StatusCode::UNAUTHORIZED, how.into()));
        };
        // The digest is compared, so the time that it takes says nothing of the token.
        if self.digests(state).await?.contains(&metrics_tokens::digest(token.trim())) {
            return Ok(());
        }
        let address = peer.map_or_else(|| "an unknown peer".into(), |Peer(address)| address.ip().to_string());
        note(SecurityEvent::BadToken, address, "there is no such token for metrics");
        Err((StatusCode::UNAUTHORIZED, "there is no such token for metrics\n".into()))
    }

    fn known(&self, for_time: Duration) -> Option<BTreeSet<String>> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.as_ref().filter(|(since, _)| since.elapsed() < for_time).map(|(_, digests)| digests.clone())
    }

    async fn digests(&self, state: &ClusterState) -> Result<BTreeSet<String>, (StatusCode, String)> {
        if let Some(digests) = self.known(KNOWN_FOR) {
            return Ok(digests);
        }
        match state.read(READ_LIMIT, |client| async move { metrics_tokens::list(&client).await }).await {
            Ok(tokens) => {
                let digests: BTreeSet<String> = tokens.into_iter().map(|(_, record)| record.sha256).collect();
                *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), digests.clone()));
                Ok(digests)
            }
            // Metrics are wanted most while something is wrong: what was known last goes on.
            Err(error) => self.known(Duration::MAX).ok_or_else(|| {
                let text = format!("cluster state, which knows the tokens for metrics, cannot be read: {error}\n");
                (StatusCode::SERVICE_UNAVAILABLE, text)
            }),
        }
    }
}
