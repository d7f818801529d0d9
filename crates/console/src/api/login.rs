//! Logging in and out.

use std::sync::Arc;
use std::time::Duration;

use atoll_admin::operators::NAME_BYTES_MAX;
use atoll_admin::sessions;
use atoll_types::operators::OperatorRecord;
use axum::Json;
use axum::http::header::SET_COOKIE;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value};

use super::parts::COOKIE_NAME;
use super::password::{Attempt, prove};
use super::refusal::Refusal;
use super::session_keeping::Beginning;
use super::{own_totp, session_keeping};
use crate::peer::Peer;
use crate::shared::Shared;

const STATE_LIMIT: Duration = Duration::from_secs(4);
/// Value of a log-in in place of a session's token: a form of another site cannot send it.
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
    let is_known = |name: &String| ["user", "password", "code"].contains(&&name[..]);
    let (Some(user), Some(password)) = (field("user"), field("password")) else {
        return Err(Refusal::invalid("A log-in has the fields user and password.".into()));
    };
    if !body.keys().all(is_known) || body.get("code").is_some_and(|code| !code.is_string()) {
        return Err(Refusal::invalid(
            "A log-in has the fields user, password and perhaps code, and no other.".into(),
        ));
    }
    if user.len() > NAME_BYTES_MAX {
        // Wrong names are remembered for a while, and a stranger chooses them.
        return Err(Refusal::invalid(format!("A user's name has at most {NAME_BYTES_MAX} bytes.")));
    }
    let settings = shared.state.read(STATE_LIMIT, |client| async move { sessions::settings(&client).await });
    let settings =
        settings.await.map_err(|error| Refusal::unavailable(format!("Settings cannot be read: {error}.")))?;
    if !settings.local_login {
        return Err(Refusal::passwords_are_off());
    }
    let attempt = Attempt { user: &user, password: &password, peer };
    let record = prove_with_code(shared, attempt, field("code").as_deref()).await?;
    peer.into_iter().for_each(Peer::log_in);
    let address = peer.map_or_else(String::new, |peer| peer.address.ip().to_string());
    let beginning = Beginning::by_password(&user, record, address.clone());
    let (token, session) = session_keeping::begin(shared, beginning).await?;
    tracing::info!("{user} has logged in to the console from {address}");
    Ok((StatusCode::OK, [(SET_COOKIE, cookie(&token, None)?)], Json(session.told())).into_response())
}

/// The record of the operator whose password this is, and whose code if there is a second factor.
pub(super) async fn prove_with_code(
    shared: &Arc<Shared>,
    attempt: Attempt<'_>,
    code: Option<&str>,
) -> Result<OperatorRecord, Refusal> {
    let (user, peer) = (attempt.user, attempt.peer);
    let record = prove(shared, attempt).await?;
    if record.has_second_factor() {
        let code = code.filter(|code| !code.is_empty()).ok_or_else(Refusal::no_code)?;
        own_totp::check(shared, user, code, peer).await?;
    }
    Ok(record)
}

/// The answer to a log-out.
pub(super) fn ended() -> Response {
    let gone = cookie("", Some(0)).unwrap_or_else(|_| HeaderValue::from_static(""));
    (StatusCode::NO_CONTENT, [(SET_COOKIE, gone)]).into_response()
}

pub(super) fn cookie(token: &str, max_age_seconds: Option<u64>) -> Result<HeaderValue, Refusal> {
    let age = max_age_seconds.map_or_else(String::new, |seconds| format!("; Max-Age={seconds}"));
    let text = format!("{}={token}; Path=/; HttpOnly; Secure; SameSite=Strict{age}", COOKIE_NAME);
    HeaderValue::from_str(&text).map_err(|error| Refusal::internal(error.to_string()))
}
