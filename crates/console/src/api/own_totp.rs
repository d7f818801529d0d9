//! The second factor of operators: codes of log-ins, and setting it up for oneself.

use std::sync::Arc;
use std::time::Duration;

use atoll_admin::second_factor::{self, Verdict};
use atoll_admin::totp::qr_rows;
use atoll_admin::{AdminError, operators};
use atoll_cluster::ClusterClient;
use atoll_keys::KeyRing;
use atoll_security_log::{SecurityEvent, note};
use serde_json::{Value, json};

use super::document::Given;
use super::password::{Attempt, prove};
use super::refusal::Refusal;
use super::session_keeping;
use super::sessions::Session;
use crate::peer::Peer;
use crate::shared::Shared;

const STATE_LIMIT: Duration = Duration::from_secs(10);
/// A wrong code is not answered sooner.
const WRONG_AFTER: Duration = Duration::from_secs(1);

fn keys(shared: &Shared) -> Result<KeyRing, Refusal> {
    let keys = KeyRing::open(&shared.directory.key_service_file());
    keys.map_err(|error| {
        Refusal::unavailable(format!(
            "Second factors need the key service, which cannot be used here: {error}. Use the console of another host."
        ))
    })
}

fn failed(error: &str) -> Refusal {
    Refusal::unavailable(format!("The second factor cannot be used: {error}."))
}

/// Why a code is not taken.
async fn refused(verdict: Verdict, peer: Option<&Peer>) -> Refusal {
    let address = peer.map_or_else(String::new, |peer| peer.address.ip().to_string());
    note(SecurityEvent::BadPassword, address, "a wrong code of a second factor in the console");
    tokio::time::sleep(WRONG_AFTER).await;
    match verdict {
        Verdict::Pause(seconds) => Refusal::too_many_codes(seconds),
        _ => Refusal::wrong_code(),
    }
}

/// Looks at the code of a log-in.
pub(super) async fn check(
    shared: &Arc<Shared>,
    user: &str,
    code: &str,
    peer: Option<&Peer>,
) -> Result<(), Refusal> {
    let keys = keys(shared)?;
    let check = |client: ClusterClient| async move { second_factor::check(&client, &keys, user, code).await };
    match shared.state.read(STATE_LIMIT, check).await.map_err(|error| failed(&error))? {
        Verdict::Right => Ok(()),
        verdict => Err(refused(verdict, peer).await),
    }
}

/// Begins to set up one's own, with the password.
pub(super) async fn enrol(
    shared: &Arc<Shared>,
    peer: Option<&Peer>,
    session: &Session,
    given: &Given,
) -> Result<Value, Refusal> {
    let user = session.record.user.clone();
    let password = given.text("password").unwrap_or_default();
    let record = prove(shared, Attempt { user: &user, password, peer }).await?;
    if record.has_second_factor() {
        let action = "An operator with the role security takes it away: 'atoll operator totp reset NAME'.";
        return Err(Refusal::conflict(format!("{user} has a second factor already."), action));
    }
    let keys = keys(shared)?;
    let begin = |client: ClusterClient| async move { second_factor::enrol(&client, &keys, &user).await };
    let begun = shared.state.read(STATE_LIMIT, begin).await.map_err(|error| failed(&error))?;
    Ok(json!({ "secret": begun.secret, "url": begun.url, "qr_rows": qr_rows(&begun.url) }))
}

/// Confirms the caller's second factor by a code. Ends the operator's sessions, except for this one.
pub(super) async fn confirm(
    shared: &Arc<Shared>,
    peer: Option<&Peer>,
    session: &Session,
    given: &Given,
) -> Result<Value, Refusal> {
    let (user, id) = (session.record.user.clone(), session.id.clone());
    let code = given.text("code").unwrap_or_default();
    let keys = keys(shared)?;
    let confirm = |client: ClusterClient| async move {
        let confirmed = second_factor::confirm(&client, &keys, &user, code).await?;
        if confirmed.is_ok()
            && let Some((operator, _)) = operators::find(&client, &user).await?
        {
            session_keeping::go_on(&client, &id, &operator).await?;
        }
        Ok::<_, AdminError>(confirmed)
    };
    match shared.state.read(STATE_LIMIT, confirm).await.map_err(|error| failed(&error))? {
        Ok(codes) => Ok(json!({ "recovery_codes": codes })),
        Err(verdict) => Err(refused(verdict, peer).await),
    }
}
