//! Tokens that may read metrics, on all hosts of the cluster. Only their digests are kept.

use atoll_cluster::{ClusterClient, ClusterError, keys};
use atoll_coordinator::unix_ms;
use atoll_keys::{random_bytes, sha256};
use atoll_types::monitoring::MetricsTokenRecord;
use atoll_types::records::RECORD_FORMAT;

use crate::AdminError;

/// Prefix of a token, which identifies its purpose where it is found.
const PREFIX: &str = "atoll-metrics-";
const NAME_BYTES_MAX: usize = 64;

/// Makes a token, which is returned once and not stored.
pub async fn create(client: &ClusterClient, name: &str) -> Result<String, AdminError> {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.chars().all(is_allowed) {
        return AdminError::refused(format!(
            "'{name}' is no name for a token: it has 1 to {NAME_BYTES_MAX} letters, digits, '-', '_' and '.'"
        ));
    }
    let token = format!("{PREFIX}{}", hex::encode(random_bytes::<32>()));
    let record = MetricsTokenRecord { format: RECORD_FORMAT, sha256: digest(&token), created_unix_ms: unix_ms() };
    match client.create(&keys::metrics_token(name), &record).await {
        Err(ClusterError::AlreadyExists { .. }) => AdminError::refused(format!(
            "there is a token '{name}' already; choose another name, or remove it with 'atoll metrics token rm {name}'"
        )),
        created => created.map(|_| token).map_err(AdminError::from),
    }
}

/// All tokens, by name.
pub async fn list(client: &ClusterClient) -> Result<Vec<(String, MetricsTokenRecord)>, AdminError> {
    let listing = client.list_usable::<MetricsTokenRecord>(keys::METRICS_TOKENS).await?;
    let name = |key: &str| key.strip_prefix(keys::METRICS_TOKENS).unwrap_or(key).to_owned();
    Ok(listing.entries.into_iter().map(|(key, record, _)| (name(&key), record)).collect())
}

/// Makes a token worthless.
pub async fn remove(client: &ClusterClient, name: &str) -> Result<(), AdminError> {
    if client.delete(&keys::metrics_token(name)).await? {
        return Ok(());
    }
    AdminError::refused(format!("there is no token '{name}'; 'atoll metrics token ls' names all tokens"))
}

/// Returns the stored digest of a token: a guess that is almost right finds it no faster than any other.
pub fn digest(token: &str) -> String {
    hex::encode(sha256(token.as_bytes()))
}
