//! Checks of requests for metrics: a bearer token that cluster state has.

use atoll_admin::{AdminError, metrics_tokens};
use atoll_cluster::ClusterClient;
use atoll_security_log::{SecurityEvent, note};
use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, StatusCode};

use crate::cluster_state::ClusterState;
use crate::known_digests::KnownDigests;
use crate::peer::Peer;

#[derive(Default)]
pub(crate) struct TokenCheck(KnownDigests);

impl TokenCheck {
    /// The error is the answer.
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
        let read = |client: ClusterClient| async move {
            let tokens = metrics_tokens::list(&client).await?;
            Ok::<_, AdminError>(tokens.into_iter().map(|(_, record)| record.sha256).collect())
        };
        let known = self.0.get(state, read).await.map_err(|error| {
            let text = format!("cluster state, which knows the tokens for metrics, cannot be read: {error}\n");
            (StatusCode::SERVICE_UNAVAILABLE, text)
        })?;
        // The digest is compared, so the time that it takes says nothing of the token.
        if known.contains(&metrics_tokens::digest(token.trim())) {
            peer.iter().for_each(Peer::log_in);
            return Ok(());
        }
        let address = peer.map_or_else(|| "an unknown peer".into(), |peer| peer.address.ip().to_string());
        note(SecurityEvent::BadToken, address, "there is no such token for metrics");
        Err((StatusCode::UNAUTHORIZED, "there is no such token for metrics\n".into()))
    }
}
