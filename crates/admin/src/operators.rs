//! Operators of the console. Of their passwords only the result of Argon2id is kept.

use argon2::{Algorithm, Argon2, Params, Version};
use atoll_cluster::{ClusterClient, ClusterError, keys};
use atoll_coordinator::unix_ms;
use atoll_keys::random_bytes;
use atoll_types::operators::{OperatorRecord, OperatorRole, OperatorRoles};
use atoll_types::records::RECORD_FORMAT;

use crate::error::{AdminError, retried};

/// Longest name of an operator.
pub const NAME_BYTES_MAX: usize = 64;
/// Shortest chosen password.
const PASSWORD_CHARACTERS_MIN: usize = 12;
const PASSWORD_BYTES_MAX: usize = 1_024;
/// Length of a generated password, in bytes; each becomes two characters.
const PASSWORD_RANDOM_BYTES: usize = 12;

/// Recommendation for Argon2id in OWASP's sheet on password storage.
const MEMORY_KIB: u32 = 19 << 10;
const PASSES: u32 = 2;
const LANES: u32 = 1;

/// Returns a random password.
pub fn random_password() -> String {
    hex::encode(random_bytes::<PASSWORD_RANDOM_BYTES>())
}

/// Operators that a change may reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Any operator may be changed, and get any role.
    All,
    /// The caller is no admin: admins stay as they are, and no further one is made.
    NotAdmins,
}

impl Reach {
    pub(crate) fn check(self, name: &str, roles: &OperatorRoles) -> Result<(), AdminError> {
        if self == Reach::NotAdmins && roles.has(OperatorRole::Admin) {
            return AdminError::refused(format!(
                "only an operator with the role admin makes, changes or removes one ('{name}'): ask one, or use the command \
                 line of a host"
            ));
        }
        Ok(())
    }
}

/// Makes an operator.
pub async fn create(
    client: &ClusterClient,
    name: &str,
    roles: &OperatorRoles,
    password: &str,
    reach: Reach,
) -> Result<(), AdminError> {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "-_.@".contains(c);
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.chars().all(is_allowed) {
        return AdminError::refused(format!(
            "'{name}' is no name for an operator: it has 1 to {NAME_BYTES_MAX} letters, digits, '-', '_', '.' and '@'"
        ));
    }
    reach.check(name, roles)?;
    match client.create(&keys::operator(name), &record(roles.clone(), password)?).await {
        Err(ClusterError::AlreadyExists { .. }) => {
            AdminError::refused(format!("there is an operator '{name}' already; 'atoll operator set' changes it"))
        }
        created => created.map(drop).map_err(AdminError::from),
    }
}

/// Changes the record of an operator.
pub(crate) async fn change(
    client: &ClusterClient,
    name: &str,
    edit: impl Fn(OperatorRecord) -> Result<OperatorRecord, AdminError>,
) -> Result<OperatorRecord, AdminError> {
    let key = keys::operator(name);
    let attempt = async || {
        let Some((before, revision)) = client.get::<OperatorRecord>(&key).await? else { return no_such(name) };
        let after = edit(before)?;
        client.compare_and_swap(&key, revision, &after).await?;
        Ok(after)
    };
    retried(attempt).await
}

/// Gives an operator other roles, another password, or both. Sessions end with the next request.
pub async fn set(
    client: &ClusterClient,
    name: &str,
    roles: Option<&OperatorRoles>,
    password: Option<&str>,
    reach: Reach,
) -> Result<(), AdminError> {
    // Once: it takes some tens of milliseconds.
    let any_role = OperatorRoles::from(OperatorRole::ReadOnly);
    let made = password.map(|password| record(any_role, password)).transpose()?;
    let edit = |before: OperatorRecord| {
        reach.check(name, &before.role)?;
        let role = roles.unwrap_or(&before.role).clone();
        reach.check(name, &role)?;
        let OperatorRecord { salt, password_argon2id, password_unix_ms, .. } =
            made.clone().unwrap_or_else(|| before.clone());
        Ok(OperatorRecord { role, salt, password_argon2id, password_unix_ms, ..before })
    };
    change(client, name, edit).await.map(drop)
}

/// Ends all sessions of an operator, on all hosts.
pub async fn end_sessions(client: &ClusterClient, name: &str) -> Result<(), AdminError> {
    let edit = |before: OperatorRecord| Ok(OperatorRecord { generation: before.generation + 1, ..before });
    change(client, name, edit).await.map(drop)
}

/// All operators, by name.
pub async fn list(client: &ClusterClient) -> Result<Vec<(String, OperatorRecord)>, AdminError> {
    let listing = client.list_usable::<OperatorRecord>(keys::OPERATORS).await?;
    let name = |key: &str| key.strip_prefix(keys::OPERATORS).unwrap_or(key).to_owned();
    Ok(listing.entries.into_iter().map(|(key, record, _)| (name(&key), record)).collect())
}

/// Removes an operator, whose sessions end with the next request.
pub async fn remove(client: &ClusterClient, name: &str, reach: Reach) -> Result<(), AdminError> {
    if reach == Reach::NotAdmins {
        let key = keys::operator(name);
        let Some((record, revision)) = client.get::<OperatorRecord>(&key).await? else { return no_such(name) };
        reach.check(name, &record.role)?;
        client.delete_if(&key, revision).await?;
        return Ok(());
    }
    // One whose record cannot be read is removed as well.
    if client.delete(&keys::operator(name)).await? { Ok(()) } else { no_such(name) }
}

/// The operator of this name, and the revision of the record.
pub async fn find(client: &ClusterClient, name: &str) -> Result<Option<(OperatorRecord, i64)>, AdminError> {
    Ok(client.get(&keys::operator(name)).await?)
}

fn no_such<T>(name: &str) -> Result<T, AdminError> {
    AdminError::refused(format!("there is no operator '{name}'; 'atoll operator ls' names all operators"))
}

/// Refuses a password that is too short.
pub fn check_password(password: &str) -> Result<(), AdminError> {
    if password.chars().count() < PASSWORD_CHARACTERS_MIN || password.len() > PASSWORD_BYTES_MAX {
        return AdminError::refused(format!(
            "a password has at least {PASSWORD_CHARACTERS_MIN} characters, and at most {PASSWORD_BYTES_MAX} bytes"
        ));
    }
    Ok(())
}

fn record(role: OperatorRoles, password: &str) -> Result<OperatorRecord, AdminError> {
    check_password(password)?;
    let salt = hex::encode(random_bytes::<16>());
    let password_argon2id = derive(&salt, password);
    let created_unix_ms = unix_ms();
    Ok(OperatorRecord {
        format: RECORD_FORMAT,
        role,
        salt,
        password_argon2id,
        created_unix_ms,
        password_unix_ms: Some(created_unix_ms),
        generation: 0,
        totp: None,
    })
}

/// Returns true if this is an operator's password. Takes some tens of milliseconds, and as long if there is no
/// operator.
pub fn is_password(operator: Option<&OperatorRecord>, password: &str) -> bool {
    let salt = operator.map_or("there is no operator", |operator| &operator.salt);
    let derived = derive(salt, password);
    // How long it takes says how much of the digest is right, which tells nothing of the password.
    operator.is_some_and(|operator| operator.password_argon2id == derived)
}

fn derive(salt: &str, password: &str) -> String {
    let params = Params::new(MEMORY_KIB, PASSES, LANES, Some(32)).expect("the parameters are constants");
    let mut derived = [0; 32];
    Argon2::new(Algorithm::Argon2id, Version::V0x13, params)
        .hash_password_into(password.as_bytes(), salt.as_bytes(), &mut derived)
        .expect("salts and passwords have lengths that Argon2 takes");
    hex::encode(derived)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_password_is_the_password() {
        let operator = record(OperatorRole::Admin.into(), "correct horse battery").unwrap();
        assert!(is_password(Some(&operator), "correct horse battery"));
        assert!(!is_password(Some(&operator), "correct horse batterx"));
        assert!(!is_password(None, "correct horse battery"));
        assert!(record(OperatorRole::Admin.into(), "short").is_err());
        assert_ne!(record(OperatorRole::Admin.into(), "correct horse battery").unwrap().salt, operator.salt);
        assert!(random_password().len() >= PASSWORD_CHARACTERS_MIN);
    }
}
