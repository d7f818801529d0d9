//! Sessions of operators. They are in cluster state, so that every host knows of their end; only the digests of their
//! tokens are kept.

use std::collections::{BTreeMap, BTreeSet};

use atoll_cluster::{ClusterClient, ClusterError, keys};
use atoll_coordinator::unix_ms;
use atoll_keys::sha256;
use atoll_types::login_oidc::{OIDC_USER_PREFIX, OidcRecord};
use atoll_types::operators::{LoginSettingsRecord, OperatorRecord, OperatorRoles, SessionRecord};

use crate::AdminError;
use crate::{login_oidc, operators};

/// Sessions of one operator; beyond that the least recently used one ends.
const SESSIONS_OF_OPERATOR_MAX: usize = 100;
/// Fewer digits of an id do not name a session.
const ID_DIGITS_MIN: usize = 8;

/// The id of the session with this token. It discloses nothing about the token.
pub fn id_of(token: &str) -> String {
    hex::encode(sha256(token.as_bytes()))
}

/// Settings of log-ins. A host with rights of an earlier release takes the defaults.
pub async fn settings(client: &ClusterClient) -> Result<LoginSettingsRecord, AdminError> {
    match settings_and_revision(client).await {
        Ok((settings, _)) => Ok(settings),
        Err(ClusterError::Forbidden { .. }) => Ok(LoginSettingsRecord::default()),
        Err(error) => Err(error.into()),
    }
}

pub(crate) async fn settings_and_revision(
    client: &ClusterClient,
) -> Result<(LoginSettingsRecord, i64), ClusterError> {
    Ok(client.get::<LoginSettingsRecord>(keys::LOGIN_SETTINGS).await?.unwrap_or_default())
}

/// Holder of a log-in, as cluster state has it now.
#[derive(Clone, Debug)]
pub enum Holder {
    /// An operator with a password.
    Operator(OperatorRecord),
    /// The OpenID Connect provider, which has named the person and the groups.
    Provider(OidcRecord),
}

impl Holder {
    /// State that a session depends on.
    pub fn stamp(&self) -> String {
        match self {
            Holder::Operator(operator) => operator.stamp(),
            Holder::Provider(provider) => provider.stamp(),
        }
    }

    /// Roles in a session; `None`: it is not one of this holder, or has none any more.
    pub fn roles(&self, session: &SessionRecord) -> Option<OperatorRoles> {
        match (self, &session.oidc) {
            (Holder::Operator(operator), None) => Some(operator.role.clone()),
            (Holder::Provider(provider), Some(identity)) => provider.roles_of(&identity.groups),
            _ => None,
        }
    }

    /// Returns whether such log-ins are on.
    fn is_on(&self, settings: &LoginSettingsRecord) -> bool {
        matches!(self, Holder::Provider(_)) || settings.local_login
    }
}

/// Returns the holder of a session's log-in.
pub async fn holder(client: &ClusterClient, session: &SessionRecord) -> Result<Option<Holder>, AdminError> {
    if session.oidc.is_some() {
        return Ok(login_oidc::find(client).await?.map(|(provider, _)| Holder::Provider(provider)));
    }
    Ok(operators::find(client, &session.user).await?.map(|(operator, _)| Holder::Operator(operator)))
}

/// Returns true if a session is live: its holder is as at the log-in, and it was not idle for too long.
pub fn is_live(
    session: &SessionRecord,
    holder: Option<&Holder>,
    settings: &LoginSettingsRecord,
    now_unix_ms: u64,
) -> bool {
    let until = |begun: u64, seconds: u64| begun.saturating_add(seconds.saturating_mul(1_000));
    let is_held = |holder: &Holder| {
        holder.stamp() == session.stamp && holder.roles(session).is_some() && holder.is_on(settings)
    };
    holder.is_some_and(is_held)
        && now_unix_ms < session.expires_unix_ms
        && now_unix_ms < until(session.created_unix_ms, settings.session_seconds)
        && now_unix_ms < until(session.used_unix_ms, settings.session_idle_seconds)
}

/// A session that was found, with the revision of its record, and its holder.
pub struct Found {
    /// The session.
    pub session: SessionRecord,
    /// Revision of its record.
    pub revision: i64,
    /// Holder of its log-in.
    pub holder: Holder,
    /// Settings of log-ins.
    pub settings: LoginSettingsRecord,
}

/// Returns the session of this id, if it is live.
pub async fn find(client: &ClusterClient, id: &str) -> Result<Option<Found>, AdminError> {
    let key = keys::operator_session(id);
    let (session, settings) =
        tokio::try_join!(async { Ok(client.get::<SessionRecord>(&key).await?) }, settings(client))?;
    let Some((session, revision)) = session else { return Ok(None) };
    let holder = holder(client, &session).await?;
    if !is_live(&session, holder.as_ref(), &settings, unix_ms()) {
        return Ok(None);
    }
    Ok(holder.map(|holder| Found { session, revision, holder, settings }))
}

/// Keeps a session that begins. Of the operator's others, those go that have ended, and the oldest if there are too many.
pub async fn begin(client: &ClusterClient, id: &str, session: &SessionRecord) -> Result<(), ClusterError> {
    client.create(&keys::operator_session(id), session).await?;
    let listing = client.list::<SessionRecord>(keys::OPERATOR_SESSIONS).await?;
    let now = unix_ms();
    let mut own = Vec::new();
    for (key, other, revision) in listing.entries {
        if other.expires_unix_ms <= now || (other.user == session.user && other.stamp != session.stamp) {
            forget(client, &key, revision).await?;
        } else if other.user == session.user {
            own.push((other.used_unix_ms, key, revision));
        }
    }
    own.sort();
    for (_, key, revision) in own.iter().take(own.len().saturating_sub(SESSIONS_OF_OPERATOR_MAX)) {
        forget(client, key, *revision).await?;
    }
    Ok(())
}

/// Another host may do the same at this moment, or the session may be in use.
async fn forget(client: &ClusterClient, key: &str, revision: i64) -> Result<(), ClusterError> {
    match client.delete_if(key, revision).await {
        Err(ClusterError::Conflict { .. }) => Ok(()),
        other => other.map(drop),
    }
}

/// Notes that a session is in use, or continues with another stamp, unless it has changed or ended meanwhile.
pub async fn renew(
    client: &ClusterClient,
    id: &str,
    revision: i64,
    session: &SessionRecord,
) -> Result<(), ClusterError> {
    client.compare_and_swap(&keys::operator_session(id), revision, session).await.map(drop)
}

/// Returns all live sessions, with their ids, the latest first.
pub async fn list(client: &ClusterClient) -> Result<Vec<(String, SessionRecord)>, AdminError> {
    let listing = client.list::<SessionRecord>(keys::OPERATOR_SESSIONS).await?;
    let operators = operators::list(client).await?.into_iter();
    let operators: BTreeMap<String, Holder> =
        operators.map(|(name, operator)| (name, Holder::Operator(operator))).collect();
    let provider = login_oidc::find(client).await?.map(|(provider, _)| Holder::Provider(provider));
    let (settings, now) = (settings(client).await?, unix_ms());
    let live = listing.entries.into_iter().filter_map(|(key, session, _)| {
        let id = key.strip_prefix(keys::OPERATOR_SESSIONS)?.to_owned();
        let holder = if session.oidc.is_some() { provider.as_ref() } else { operators.get(&session.user) };
        is_live(&session, holder, &settings, now).then_some((id, session))
    });
    let mut live: Vec<_> = live.collect();
    live.sort_by_key(|(_, session)| std::cmp::Reverse(session.created_unix_ms));
    Ok(live)
}

/// Ends a session, by the first digits of its id. Returns whose it was.
pub async fn end(client: &ClusterClient, id: &str) -> Result<(String, SessionRecord), AdminError> {
    let is_meant = |(found, _): &(String, SessionRecord)| id.len() >= ID_DIGITS_MIN && found.starts_with(id);
    let mut meant: Vec<_> = list(client).await?.into_iter().filter(is_meant).collect();
    match (meant.pop(), meant.len()) {
        (Some(found), 0) => {
            client.delete(&keys::operator_session(&found.0)).await?;
            Ok(found)
        }
        (Some(_), others) => {
            AdminError::refused(format!("{} sessions begin with '{id}'; give more digits", others + 1))
        }
        (None, _) => AdminError::refused(format!(
            "there is no session whose id begins with '{id}' (at least {ID_DIGITS_MIN} digits); 'atoll operator sessions ls' \
             lists all"
        )),
    }
}

/// Ends the session of a token.
pub async fn log_out(client: &ClusterClient, id: &str) -> Result<(), ClusterError> {
    client.delete(&keys::operator_session(id)).await.map(drop)
}

/// Ends all sessions of an operator or of a person whom the provider has named, or of all. Those that a host without
/// the key service keeps for itself end, too. Returns the names.
pub async fn end_all(client: &ClusterClient, user: Option<&str>) -> Result<Vec<String>, AdminError> {
    let mut names: BTreeSet<String> = match user {
        Some(user) => BTreeSet::from([user.to_owned()]),
        None => operators::list(client).await?.into_iter().map(|(name, _)| name).collect(),
    };
    for name in names.iter().filter(|name| !name.starts_with(OIDC_USER_PREFIX)) {
        operators::end_sessions(client, name).await?;
    }
    let listing = client.list::<SessionRecord>(keys::OPERATOR_SESSIONS).await?;
    for (key, session, revision) in listing.entries {
        let is_meant = names.contains(&session.user) || (user.is_none() && session.oidc.is_some());
        match session.oidc {
            // Nothing else ends it, so it goes even while it is in use.
            Some(_) if is_meant => {
                client.delete(&key).await?;
                names.insert(session.user);
            }
            None if is_meant => forget(client, &key, revision).await?,
            _ => {}
        }
    }
    Ok(names.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_types::login_oidc::OidcIdentity;
    use atoll_types::operators::OperatorRole;

    fn operator() -> OperatorRecord {
        OperatorRecord {
            format: 1,
            role: OperatorRole::Admin.into(),
            salt: "ab".into(),
            password_argon2id: "cd".into(),
            created_unix_ms: 5,
            password_unix_ms: None,
            generation: 0,
            totp: None,
        }
    }

    #[test]
    fn a_session_ends_by_its_age_by_idleness_and_with_its_operator() {
        let operator = operator();
        let session = SessionRecord {
            format: 1,
            user: "ann".into(),
            stamp: operator.stamp(),
            csrf_token: String::new(),
            host: "h".into(),
            address: "::1".into(),
            created_unix_ms: 1_000_000,
            used_unix_ms: 1_000_000,
            expires_unix_ms: 1_000_000 + 100_000,
            oidc: None,
        };
        let settings = LoginSettingsRecord {
            session_idle_seconds: 10,
            session_seconds: 90,
            ..LoginSettingsRecord::default()
        };
        let live = |session: &SessionRecord, operator: Option<&OperatorRecord>, after_s: u64| {
            let holder = operator.cloned().map(Holder::Operator);
            is_live(session, holder.as_ref(), &settings, 1_000_000 + after_s * 1_000)
        };
        assert!(live(&session, Some(&operator), 9));
        assert!(!live(&session, Some(&operator), 10), "idle");
        let used = SessionRecord { used_unix_ms: 1_085_000, ..session.clone() };
        assert!(live(&used, Some(&operator), 89));
        assert!(!live(&used, Some(&operator), 90), "too old by the setting");
        let short = SessionRecord { expires_unix_ms: 1_004_000, ..session.clone() };
        assert!(!live(&short, Some(&operator), 4), "too old by what its server says");
        assert!(!live(&session, None, 1), "its operator is gone");
        let changed = OperatorRecord { role: OperatorRole::ReadOnly.into(), ..operator.clone() };
        assert!(!live(&session, Some(&changed), 1), "another role");
        let ended = OperatorRecord { generation: 1, ..operator.clone() };
        assert!(!live(&session, Some(&ended), 1), "they were ended");
        let off = LoginSettingsRecord { local_login: false, ..settings };
        assert!(!is_live(&session, Some(&Holder::Operator(operator)), &off, 1_001_000), "passwords are off");
    }

    #[test]
    fn a_session_by_the_provider_ends_with_any_change_of_its_record() {
        let provider = OidcRecord {
            id: "first".into(),
            name_claim: "name".into(),
            groups_claim: "groups".into(),
            roles: BTreeMap::from([("disks".to_owned(), OperatorRole::Storage.into())]),
            ..OidcRecord::default()
        };
        let groups = BTreeSet::from(["disks".to_owned()]);
        let session = SessionRecord {
            format: 1,
            user: "oidc:ann".into(),
            stamp: provider.stamp(),
            csrf_token: String::new(),
            host: "h".into(),
            address: "::1".into(),
            created_unix_ms: 1_000_000,
            used_unix_ms: 1_000_000,
            expires_unix_ms: 2_000_000,
            oidc: Some(OidcIdentity { subject: "7".into(), groups }),
        };
        let settings = LoginSettingsRecord { local_login: false, ..LoginSettingsRecord::default() };
        let live = |holder: Option<Holder>| is_live(&session, holder.as_ref(), &settings, 1_001_000);
        let held = Holder::Provider(provider.clone());
        assert_eq!(held.roles(&session).unwrap().names(), ["storage"]);
        assert!(live(Some(held)));
        assert!(!live(None), "there is no provider");
        assert!(!live(Some(Holder::Provider(OidcRecord { id: "other".into(), ..provider.clone() }))), "a change");
        let unmapped = OidcRecord { roles: BTreeMap::new(), ..provider };
        assert!(!live(Some(Holder::Provider(unmapped))), "no group has a role");
        let namesake = OperatorRecord { salt: "x".into(), ..operator() };
        assert!(!live(Some(Holder::Operator(namesake))), "an operator is no provider");
    }
}
