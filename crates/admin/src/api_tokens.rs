//! Tokens with which programs call the admin API. Only their digests are kept.

use std::time::Duration;

use atoll_cluster::{ClusterClient, ClusterError, Transaction, keys};
use atoll_coordinator::unix_ms;
use atoll_keys::{random_bytes, sha256};
use atoll_types::api_tokens::{ApiTokenRecord, TokenMaker, TokenScope};
use atoll_types::login_oidc::OIDC_USER_PREFIX;
use atoll_types::operators::OperatorRole;
use atoll_types::records::RECORD_FORMAT;

use crate::error::{AdminError, retried};
use crate::operators::{self, Reach};
use crate::sessions;

/// Begins every token, so that scanners of published files know it.
pub const PREFIX: &str = "atoll_api_";
const NAME_BYTES_MAX: usize = 64;
/// A list is read to make one.
const TOKENS_MAX: usize = 1_000;
/// That a token is in use is written not more often.
const USE_NOTED_MS: u64 = 60_000;
const DAY_SECONDS: u64 = 24 * 3_600;

/// A token that is to be made.
pub struct NewToken<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its rights.
    pub scope: TokenScope,
    /// Its lifetime; without one the longest that is allowed.
    pub lasts: Option<Duration>,
    /// The operator of the console who makes it, if it is one.
    pub maker: Option<&'a str>,
    /// Rights that the maker may give.
    pub reach: Reach,
}

/// Digest of a token, which names its record.
pub fn digest(token: &str) -> String {
    hex::encode(sha256(token.as_bytes()))
}

/// Makes a token, which is returned once and not stored.
pub async fn create(client: &ClusterClient, new: &NewToken<'_>) -> Result<(String, ApiTokenRecord), AdminError> {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let name = new.name;
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.chars().all(is_allowed) {
        return AdminError::refused(format!(
            "'{name}' is no name for a token: it has 1 to {NAME_BYTES_MAX} letters, digits, '-', '_' and '.'"
        ));
    }
    let token = format!("{PREFIX}{}", hex::encode(random_bytes::<32>()));
    let record = retried(async || write(client, new, &token).await).await?;
    Ok((token, record))
}

async fn write(client: &ClusterClient, new: &NewToken<'_>, token: &str) -> Result<ApiTokenRecord, AdminError> {
    let listing = client.list::<ApiTokenRecord>(keys::API_TOKENS).await?;
    let now = unix_ms();
    if listing.entries.iter().any(|(_, other, _)| other.name == new.name) {
        return AdminError::refused(format!(
            "there is a token '{name}' already; choose another name, or revoke it with 'atoll operator token revoke {name}'",
            name = new.name
        ));
    }
    if listing.entries.len() >= TOKENS_MAX {
        return AdminError::refused(format!("there are {TOKENS_MAX} tokens already; revoke some"));
    }
    let days_max = sessions::settings(client).await?.api_token_days_max;
    let most = Duration::from_secs(days_max * DAY_SECONDS);
    let lasts = new.lasts.unwrap_or(most);
    if lasts > most {
        return AdminError::refused(format!(
            "a token lasts at most {days_max} days ('atoll settings set api_token_days_max N' changes that)"
        ));
    }
    let record = ApiTokenRecord {
        format: RECORD_FORMAT,
        name: new.name.to_owned(),
        scope: new.scope.clone(),
        maker: maker_of(client, new).await?,
        created_unix_ms: now,
        expires_unix_ms: now.saturating_add(lasts.as_millis() as u64),
        used_unix_ms: 0,
        used_address: String::new(),
    };
    if new.reach == Reach::NotAdmins && record.is_of_admins() {
        return AdminError::refused("only an operator with the role admin makes a token that may do all");
    }
    let transaction = Transaction::new().check_prefix(keys::API_TOKENS, listing.revision);
    client.transact(&transaction.put(&keys::api_token(&digest(token)), &record)?).await?;
    Ok(record)
}

async fn maker_of(client: &ClusterClient, new: &NewToken<'_>) -> Result<Option<TokenMaker>, AdminError> {
    let Some(name) = new.maker else { return Ok(None) };
    match operators::find(client, name).await? {
        Some((operator, _)) => {
            Ok(Some(TokenMaker { name: name.to_owned(), created_unix_ms: operator.created_unix_ms }))
        }
        None if name.starts_with(OIDC_USER_PREFIX) => AdminError::refused(
            "a token ends with its maker, and OpenID Connect does not report that a user has left the provider: make it as an \
             operator with a password, or on a host",
        ),
        None => AdminError::refused(format!("there is no operator '{name}' any more")),
    }
}

/// All tokens, and whether each still counts, by name.
pub async fn list(client: &ClusterClient) -> Result<Vec<(ApiTokenRecord, bool)>, AdminError> {
    let listing = client.list::<ApiTokenRecord>(keys::API_TOKENS).await?;
    let operators = operators::list(client).await?;
    let now = unix_ms();
    let live = |record: &ApiTokenRecord| {
        let maker = record.maker.as_ref().and_then(|made| operators.iter().find(|(name, _)| *name == made.name));
        record.is_live(maker.map(|(_, operator)| operator), now)
    };
    let mut all: Vec<_> = listing.entries.into_iter().map(|(_, record, _)| (live(&record), record)).collect();
    all.sort_by(|(_, one), (_, other)| one.name.cmp(&other.name));
    Ok(all.into_iter().map(|(is_live, record)| (record, is_live)).collect())
}

/// Makes a token worthless from its next call on.
pub async fn revoke(client: &ClusterClient, name: &str) -> Result<(), AdminError> {
    let listing = client.list::<ApiTokenRecord>(keys::API_TOKENS).await?;
    match listing.entries.into_iter().find(|(_, record, _)| record.name == name) {
        Some((key, _, _)) => Ok(client.delete(&key).await.map(drop)?),
        None => {
            AdminError::refused(format!("there is no token '{name}'; 'atoll operator token ls' names all tokens"))
        }
    }
}

/// The record of a token that counts. That it is used is noted, with the address.
pub async fn find(
    client: &ClusterClient,
    token: &str,
    address: &str,
) -> Result<Option<ApiTokenRecord>, AdminError> {
    if !token.starts_with(PREFIX) {
        return Ok(None);
    }
    let key = keys::api_token(&digest(token));
    let Some((record, revision)) = client.get::<ApiTokenRecord>(&key).await? else { return Ok(None) };
    let maker = match &record.maker {
        Some(made) => operators::find(client, &made.name).await?.map(|(operator, _)| operator),
        None => None,
    };
    let now = unix_ms();
    if !record.is_live(maker.as_ref(), now) {
        return Ok(None);
    }
    if now < record.used_unix_ms.saturating_add(USE_NOTED_MS) {
        return Ok(Some(record));
    }
    let used = ApiTokenRecord { used_unix_ms: now, used_address: address.to_owned(), ..record };
    match client.compare_and_swap(&key, revision, &used).await {
        // Another call with it may do the same, or it was revoked a moment ago, which the next call sees.
        Ok(_) | Err(ClusterError::Conflict { .. }) => Ok(Some(used)),
        Err(error) => Err(error.into()),
    }
}

/// The roles of a scope; none if it is of calls.
pub fn roles_of(scope: &TokenScope) -> Vec<OperatorRole> {
    match scope {
        TokenScope::Roles(roles) => roles.iter().collect(),
        TokenScope::Calls(_) => Vec::new(),
    }
}
