//! The cluster's key of temporary credentials.

use atoll_cluster::ClusterClient;
use atoll_coordinator::unix_ms;
use atoll_credentials::{STS_KEY_CONTEXT, make_sts_key, rotate_sts_key};
use atoll_iam::Identities;
use atoll_identities::IdentityStore;
use atoll_keys::{KeyService, SecretKey};

use crate::error::AdminError;
use crate::identities::refused;

/// The key, which is made if there is none.
pub(crate) async fn sts_key(
    store: &IdentityStore,
    identities: &Identities,
    service: &dyn KeyService,
) -> Result<SecretKey, AdminError> {
    if let Some(record) = identities.sts_key() {
        return Ok(service.unwrap(STS_KEY_CONTEXT, &record.wrapped_key).await?);
    }
    let wrapped_key = service.wrap(STS_KEY_CONTEXT, &SecretKey::random()).await?;
    let make = |identities: &Identities| Ok(make_sts_key(identities, &wrapped_key, unix_ms()));
    store.change(&make).await.map_err(refused)?;
    // Somebody else may have been faster.
    match store.current().await?.sts_key() {
        Some(record) => Ok(service.unwrap(STS_KEY_CONTEXT, &record.wrapped_key).await?),
        None => AdminError::refused("the key of temporary credentials was made, and is not there"),
    }
}

/// Gives the cluster another key. Sessions under the previous one stay valid until they end, or end at once.
/// Returns until when there may be such sessions, as Unix time in milliseconds.
pub async fn rotate(
    state: &ClusterClient,
    service: &dyn KeyService,
    ends_sessions: bool,
) -> Result<Option<u64>, AdminError> {
    let store = IdentityStore::new(state.clone());
    let now_ms = unix_ms();
    let identities = store.current().await?;
    let before = identities.sts_key().and_then(|record| record.previous.as_ref());
    if let Some(before) = before.filter(|before| !ends_sessions && now_ms < before.until_unix_ms) {
        let hours = (before.until_unix_ms - now_ms).div_ceil(3_600_000);
        return AdminError::refused(format!(
            "the key was rotated less than 36 h ago: sessions under the one before may last {hours} h more, and would end \
             now. Wait, or end all sessions (--end-sessions)"
        ));
    }
    let wrapped_key = service.wrap(STS_KEY_CONTEXT, &SecretKey::random()).await?;
    let rotate = |identities: &Identities| Ok(rotate_sts_key(identities, &wrapped_key, now_ms, ends_sessions));
    store.change(&rotate).await.map_err(refused)?;
    let now = store.current().await?;
    Ok(now.sts_key().and_then(|record| record.previous.as_ref()).map(|previous| previous.until_unix_ms))
}
