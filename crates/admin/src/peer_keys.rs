//! The static keys that may connect to OSDs: their holders, and revoking them.

use atoll_cluster::{ClusterClient, ClusterError, keys};
use atoll_types::OsdId;
use atoll_types::records::{AuthorizedKeyRecord, OsdRecord, PeerRole, RECORD_FORMAT};

use crate::error::AdminError;

/// A key in hexadecimal and its holder's rights.
pub type AuthorizedKey = (String, AuthorizedKeyRecord);

/// Fewer digits of a key do not name it.
const DIGITS_MIN: usize = 8;

/// The record of a client's or a gateway's key.
pub fn host_key(role: PeerRole, host: &str) -> AuthorizedKeyRecord {
    AuthorizedKeyRecord { format: RECORD_FORMAT, role, osd: None, name: format!("{role}@{host}") }
}

/// All keys that may connect.
pub async fn list(client: &ClusterClient) -> Result<Vec<AuthorizedKey>, AdminError> {
    let listing = client.list_usable::<AuthorizedKeyRecord>(keys::AUTHORIZED_KEYS).await?;
    let key = |key: &str| key.strip_prefix(keys::AUTHORIZED_KEYS).unwrap_or(key).to_owned();
    let mut all: Vec<_> = listing.entries.into_iter().map(|(path, record, _)| (key(&path), record)).collect();
    all.sort_by_key(|(_, record)| (record.role.to_string(), record.osd, record.name.clone()));
    Ok(all)
}

/// Revokes a key, by its holder's name or its first digits. OSDs end the connections of its holder
/// as soon as they learn of it.
pub async fn revoke(client: &ClusterClient, name: &str) -> Result<AuthorizedKey, AdminError> {
    let is_meant = |(key, record): &AuthorizedKey| {
        record.name == name || name.len() >= DIGITS_MIN && key.starts_with(&name.to_lowercase())
    };
    let mut meant: Vec<_> = list(client).await?.into_iter().filter(is_meant).collect();
    if meant.len() > 1 {
        let digits = meant.iter().map(|(key, _)| &key[..key.len().min(16)]).collect::<Vec<_>>();
        return AdminError::refused(format!(
            "{} keys are called '{name}'; name one by the first digits of the key: {}",
            meant.len(),
            digits.join(", ")
        ));
    }
    let Some(found) = meant.pop() else {
        return AdminError::refused(format!(
            "no key is called '{name}' or begins so (with at least {DIGITS_MIN} digits); 'atoll cluster key ls' names all"
        ));
    };
    client.delete(&keys::authorized_key(&found.0)).await?;
    Ok(found)
}

/// Lets a key connect, again or for the first time: `client@HOST`, `gateway@HOST`, or `osd.N`, whose
/// key is in its record.
pub async fn add(client: &ClusterClient, name: &str, key: Option<&str>) -> Result<AuthorizedKey, AdminError> {
    let (key, record) = match name.split_once('@') {
        Some(("client", host)) if !host.is_empty() => (given(name, key)?, host_key(PeerRole::Client, host)),
        Some(("gateway", host)) if !host.is_empty() => (given(name, key)?, host_key(PeerRole::Gateway, host)),
        _ => osd_key(client, name, key).await?,
    };
    match client.create(&keys::authorized_key(&key), &record).await {
        Ok(_) => Ok((key, record)),
        Err(ClusterError::AlreadyExists { .. }) => {
            AdminError::refused(format!("the key {key} may connect already ('atoll cluster key ls')"))
        }
        Err(error) => Err(error.into()),
    }
}

fn given(name: &str, key: Option<&str>) -> Result<String, AdminError> {
    let is_digit = |digit: char| matches!(digit, '0'..='9' | 'a'..='f');
    match key {
        Some(key) if key.len() == 64 && key.chars().all(is_digit) => Ok(key.to_owned()),
        Some(key) => AdminError::refused(format!("'{key}' is no public key: it has 64 hexadecimal digits")),
        None => AdminError::refused(format!("which key is that of {name}? Give --public-key")),
    }
}

async fn osd_key(client: &ClusterClient, name: &str, key: Option<&str>) -> Result<AuthorizedKey, AdminError> {
    let Some(id) = name.strip_prefix("osd.").and_then(|number| number.parse().ok()).map(OsdId) else {
        return AdminError::refused(format!(
            "'{name}' is no holder of a key: use client@HOST, gateway@HOST or osd.N"
        ));
    };
    let (osd, _) = client.get::<OsdRecord>(&keys::osd(id)).await?.ok_or(AdminError::NoSuchOsd(id))?;
    if key.is_some_and(|key| key != osd.public_key) {
        return AdminError::refused(format!(
            "the key of {id} is {}, says its record; leave --public-key out",
            osd.public_key
        ));
    }
    let record =
        AuthorizedKeyRecord { format: RECORD_FORMAT, role: PeerRole::Osd, osd: Some(id), name: id.to_string() };
    Ok((osd.public_key, record))
}
