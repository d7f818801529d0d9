//! Sessions in cluster state: beginning one, checking if it is live, and ending it.
//!
//! A host with OSDs only may write none there, and cannot sign: it keeps its sessions in memory, and they end with
//! their operators' records.

use std::sync::Arc;
use std::time::{Duration, Instant};

use atoll_admin::sessions::Holder;
use atoll_admin::{AdminError, sessions};
use atoll_cluster::{ClusterClient, ClusterError};
use atoll_coordinator::unix_ms;
use atoll_types::login_oidc::{OidcIdentity, OidcRecord};
use atoll_types::operators::{LoginSettingsRecord, OperatorRecord, SessionRecord};
use atoll_types::records::RECORD_FORMAT;

use super::refusal::Refusal;
use super::sessions::{Session, new_token};
use crate::cluster_state::{UNCONFIRMED_MAX, absent_if_refused};
use crate::shared::Shared;

const STATE_LIMIT: Duration = Duration::from_secs(4);
/// That a session is in use is written not more often than this, and at least four times within the time that it may
/// be idle.
const USE_NOTED_MS_MAX: u64 = 60_000;

/// A user at the begin of a session.
pub(super) struct Beginning {
    user: String,
    holder: Holder,
    oidc: Option<OidcIdentity>,
    address: String,
}

impl Beginning {
    /// An operator who has proved the password, and the second factor if there is one.
    pub fn by_password(user: &str, operator: OperatorRecord, address: String) -> Self {
        Beginning { user: user.to_owned(), holder: Holder::Operator(operator), oidc: None, address }
    }

    /// A person whom the provider has named.
    pub fn by_provider(user: &str, identity: OidcIdentity, provider: OidcRecord, address: String) -> Self {
        Beginning { user: user.to_owned(), holder: Holder::Provider(provider), oidc: Some(identity), address }
    }
}

/// Begins a session; returns its token as well.
pub(super) async fn begin(shared: &Arc<Shared>, beginning: Beginning) -> Result<(String, Session), Refusal> {
    let Beginning { user, holder, oidc, address } = beginning;
    let (token, id) = new_token();
    let unavailable = |error: String| Refusal::unavailable(format!("The session cannot be kept: {error}."));
    let settings = shared.state.read(STATE_LIMIT, |client| async move { sessions::settings(&client).await });
    let settings = settings.await.map_err(unavailable)?;
    let now_unix_ms = unix_ms();
    let lasts = shared.session_max.map_or(u64::MAX, |most| most.as_secs()).min(settings.session_seconds);
    let record = SessionRecord {
        format: RECORD_FORMAT,
        user,
        stamp: holder.stamp(),
        csrf_token: new_token().0,
        host: shared.cluster.host_name(),
        address,
        created_unix_ms: now_unix_ms,
        used_unix_ms: now_unix_ms,
        expires_unix_ms: now_unix_ms + lasts * 1_000,
        oidc,
    };
    let (kept, kept_id) = (record.clone(), id.clone());
    let write = |client: ClusterClient| async move {
        match sessions::begin(&client, &kept_id, &kept).await {
            Ok(()) => Ok(false),
            Err(ClusterError::Forbidden { .. } | ClusterError::NoAuthority { .. }) => Ok(true),
            Err(error) => Err(error),
        }
    };
    let is_kept_here = shared.state.read(STATE_LIMIT, write).await.map_err(unavailable)?;
    if is_kept_here && record.oidc.is_some() {
        return Err(Refusal::unavailable(
            "This host cannot write sessions: use the console of another one.".into(),
        ));
    }
    let begun = confirmed(id, record, &holder, &settings);
    let begun = begun.ok_or_else(|| Refusal::internal("the user of the new session has no role".into()))?;
    let session = Session { is_kept_here, ..begun };
    shared.sessions.remember(&session);
    Ok((token, session))
}

/// A session as cluster state has just confirmed it, if its user still has a role.
fn confirmed(
    id: String,
    record: SessionRecord,
    holder: &Holder,
    settings: &LoginSettingsRecord,
) -> Option<Session> {
    let roles = holder.roles(&record)?;
    // The provider asks for the second factors of those whom it names.
    let (has_second_factor, is_required) = match holder {
        Holder::Operator(operator) => {
            let is_required = roles.iter().any(|role| settings.totp_required_roles.contains(&role));
            (operator.has_second_factor(), is_required)
        }
        Holder::Provider(_) => (false, false),
    };
    let by_setting = record.created_unix_ms.saturating_add(settings.session_seconds * 1_000);
    Some(Session {
        id,
        roles,
        expires_unix_ms: record.expires_unix_ms.min(by_setting),
        idle_seconds: settings.session_idle_seconds,
        needs_second_factor: is_required && !has_second_factor,
        has_second_factor,
        record,
        confirmed: Instant::now(),
        is_kept_here: false,
    })
}

/// Returns the session of a token, if it is live: it ends with a new password, other roles and the removal of its
/// operator, and when an operator ends it on any host. While cluster state does not answer, it stays valid for
/// [`UNCONFIRMED_MAX`]: then it may read, and change nothing. A call that is no use of it (`is_idle`) does not
/// keep it from ending.
pub(super) async fn current(shared: &Arc<Shared>, token: &str, is_idle: bool) -> Option<Session> {
    let id = sessions::id_of(token);
    let known = shared.sessions.known(&id);
    let found = match known.clone().filter(|known| known.is_kept_here) {
        Some(known) => find_here(shared, known, is_idle).await,
        None => find(shared, &id, is_idle).await,
    };
    match found {
        Ok(Some(session)) => {
            shared.sessions.remember(&session);
            Some(session)
        }
        Ok(None) => {
            shared.sessions.forget(&id);
            None
        }
        Err(_) => known.filter(|known| known.confirmed.elapsed() < UNCONFIRMED_MAX),
    }
}

async fn find_here(shared: &Arc<Shared>, known: Session, is_idle: bool) -> Result<Option<Session>, String> {
    let session = known.record.clone();
    let read = |client: ClusterClient| async move {
        let holder = absent_if_refused(sessions::holder(&client, &session).await)?;
        Ok::<_, AdminError>((holder, sessions::settings(&client).await?))
    };
    let (holder, settings) = shared.state.read(STATE_LIMIT, read).await?;
    let now_unix_ms = unix_ms();
    let is_live = sessions::is_live(&known.record, holder.as_ref(), &settings, now_unix_ms);
    let Some(holder) = holder.filter(|_| is_live) else { return Ok(None) };
    let mut record = known.record;
    if !is_idle {
        record.used_unix_ms = now_unix_ms;
    }
    let found = confirmed(known.id, record, &holder, &settings);
    Ok(found.map(|session| Session { is_kept_here: true, ..session }))
}

async fn find(shared: &Arc<Shared>, id: &str, is_idle: bool) -> Result<Option<Session>, String> {
    let read = |client: ClusterClient| async move {
        let found = absent_if_refused(sessions::find(&client, id).await)?;
        let Some(mut found) = found else { return Ok(None) };
        let now_unix_ms = unix_ms();
        let noted_after_ms = (found.settings.session_idle_seconds * 1_000 / 4).min(USE_NOTED_MS_MAX);
        if !is_idle && now_unix_ms >= found.session.used_unix_ms.saturating_add(noted_after_ms) {
            found.session.used_unix_ms = now_unix_ms;
            // Another call of the same session may do it at this moment, or somebody ends it, which the next one sees.
            match sessions::renew(&client, id, found.revision, &found.session).await {
                Ok(()) | Err(ClusterError::Conflict { .. }) => {}
                Err(error) => tracing::debug!("that a session is in use cannot be noted: {error}"),
            }
        }
        Ok::<_, AdminError>(confirmed(id.to_owned(), found.session, &found.holder, &found.settings))
    };
    shared.state.read(STATE_LIMIT, read).await
}

/// Ends a session, because its operator logs out.
pub(super) async fn end(shared: &Arc<Shared>, session: &Session) -> Result<(), Refusal> {
    shared.sessions.forget(&session.id);
    if session.is_kept_here {
        return Ok(());
    }
    let id = session.id.clone();
    let end = |client: ClusterClient| async move { sessions::log_out(&client, &id).await };
    let ended = shared.state.read(STATE_LIMIT, end).await;
    ended.map_err(|error| Refusal::unavailable(format!("The session cannot be ended on all hosts: {error}.")))
}

/// Keeps a session live although its own operator has changed the operator's record.
pub(super) async fn go_on(client: &ClusterClient, id: &str, operator: &OperatorRecord) -> Result<(), AdminError> {
    let key = atoll_cluster::keys::operator_session(id);
    let Some((session, revision)) = client.get::<SessionRecord>(&key).await? else { return Ok(()) };
    let session = SessionRecord { stamp: operator.stamp(), ..session };
    Ok(sessions::renew(client, id, revision, &session).await?)
}
