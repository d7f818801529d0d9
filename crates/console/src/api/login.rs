//! Logging in and out.

use std::sync::Arc;
use std::time::Duration;

use atoll_admin::operators::{self, NAME_BYTES_MAX};
use atoll_security_log::{SecurityEvent, note};
use atoll_types::operators::OperatorRecord;
use axum::Json;
use axum::http::header::SET_COOKIE;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value};
use tokio::time::Instant;

use super::refusal::Refusal;
use super::sessions::Session;
use crate::cluster_state::UNCONFIRMED_MAX;
use crate::listener::Peer;
use crate::server::Shared;

/// A wrong password is not answered sooner.
const WRONG_AFTER: Duration = Duration::from_secs(1);
const STATE_LIMIT: Duration = Duration::from_secs(4);
/// What a log-in sends in place of a session's token: a form of another site cannot.
const LOGIN_CSRF: &str = "login";

pub(super) async fn log_in(
    shared: &Arc<Shared>,
    peer: Option<&Peer>,
    csrf: Option<&str>,
    body: &Map<String, Value>,
) -> Result<Response, Refusal> {
    if csrf != Some(LOGIN_CSRF) {
        return Err(Refusal::no_csrf());
    }
    let field = |name: &str| body.get(name).and_then(Value::as_str).map(str::to_owned);
    let (Some(user), Some(password), 2) = (field("user"), field("password"), body.len()) else {
        return Err(Refusal::invalid("A log-in has the fields user and password, and no other.".into()));
    };
    if user.len() > NAME_BYTES_MAX {
        // Wrong names are remembered for a while, and a stranger chooses them.
        return Err(Refusal::invalid(format!("A user's name has at most {NAME_BYTES_MAX} bytes.")));
    }
    let address = peer.map_or(std::net::IpAddr::from([0; 4]), |peer| peer.address.ip());
    if let Some(seconds) = shared.sessions.pause_seconds(&user, address) {
        return Err(Refusal::too_many_attempts(seconds));
    }
    let begun = Instant::now();
    // Held until the answer, so that who tries many names is no faster.
    let _turn = shared.login_turns.begin(address).ok_or_else(Refusal::too_many_logins)?;
    // One at a time: each takes memory and a processor for some tens of milliseconds.
    let processor = shared.password_turn.lock().await;
    let read = find(shared, &user).await;
    let operator = read.map_err(|error| Refusal::unavailable(format!("Operators cannot be read: {error}.")))?;
    let compared = tokio::task::spawn_blocking(move || {
        let is_right = operators::is_password(operator.as_ref().map(|(record, _)| record), &password);
        operator.filter(|_| is_right)
    });
    let operator = compared.await.map_err(|error| Refusal::internal(error.to_string()))?;
    drop(processor);
    let Some((record, revision)) = operator else {
        shared.sessions.failed(&user, address);
        note(SecurityEvent::BadPassword, address, "a log-in to the console with a wrong user or password");
        tokio::time::sleep_until(begun + WRONG_AFTER).await;
        return Err(Refusal::wrong_credentials());
    };
    shared.sessions.succeeded(&user, address);
    peer.into_iter().for_each(Peer::log_in);
    let (token, session) = shared.sessions.begin(&user, record.role, revision);
    tracing::info!("{user} has logged in to the console from {address}");
    Ok((StatusCode::OK, [(SET_COOKIE, cookie(&token, None)?)], Json(session)).into_response())
}

/// The answer to a log-out.
pub(super) fn ended() -> Response {
    let gone = cookie("", Some(0)).unwrap_or_else(|_| HeaderValue::from_static(""));
    (StatusCode::NO_CONTENT, [(SET_COOKIE, gone)]).into_response()
}

fn cookie(token: &str, max_age_seconds: Option<u64>) -> Result<HeaderValue, Refusal> {
    let age = max_age_seconds.map_or_else(String::new, |seconds| format!("; Max-Age={seconds}"));
    let text = format!("{}={token}; Path=/; HttpOnly; Secure; SameSite=Strict{age}", super::COOKIE_NAME);
    HeaderValue::from_str(&text).map_err(|error| Refusal::internal(error.to_string()))
}

/// Whether the operator is still who has logged in: a session ends with a new password, another role, and the removal
/// of its operator. While cluster state does not answer, it goes on for [`UNCONFIRMED_MAX`]: then it may look, and change
/// nothing.
pub(super) async fn is_current(shared: &Arc<Shared>, token: &str, session: &Session) -> bool {
    match find(shared, &session.user).await {
        Ok(operator) => {
            let is_current = operator.is_some_and(|(_, revision)| revision == session.revision);
            if is_current {
                shared.sessions.confirm(token);
            }
            is_current
        }
        Err(_) => session.confirmed.elapsed() < UNCONFIRMED_MAX,
    }
}

async fn find(shared: &Shared, user: &str) -> Result<Option<(OperatorRecord, i64)>, String> {
    shared.state.read(STATE_LIMIT, |client| async move { operators::find(&client, user).await }).await
}
