//! Answers that are not what was asked for.

use axum::Json;
use axum::http::header::RETRY_AFTER;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::json;

use crate::commands::{CommandFailure, FailureKind};

/// The schema `Error` of the API's document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    status: StatusCode,
    code: &'static str,
    message: String,
    action: String,
    retry_after_seconds: Option<u64>,
}

impl Refusal {
    fn new(status: StatusCode, code: &'static str, message: String, action: &str) -> Self {
        Refusal { status, code, message, action: action.into(), retry_after_seconds: None }
    }

    pub fn invalid(message: String) -> Self {
        let action = "See openapi.json for what the call takes.";
        Refusal::new(StatusCode::BAD_REQUEST, "INVALID", message, action)
    }

    pub fn no_session() -> Self {
        let message = "There is no session, or it has ended.".into();
        Refusal::new(StatusCode::UNAUTHORIZED, "SESSION_MISSING", message, "Log in.")
    }

    pub fn wrong_credentials() -> Self {
        let message = "The user or the password is wrong.".into();
        let action = "Try again; 'atoll operator set NAME --new-password' gives an operator a new password.";
        Refusal::new(StatusCode::UNAUTHORIZED, "CREDENTIALS_WRONG", message, action)
    }

    pub fn too_many_attempts(seconds: u64) -> Self {
        Self::try_later("There were too many wrong passwords.".into(), seconds)
    }

    /// Too many log-ins are under way, from this address or from all.
    pub fn too_many_logins() -> Self {
        Self::try_later("Too many log-ins are under way.".into(), 1)
    }

    fn try_later(message: String, seconds: u64) -> Self {
        let action = format!("Try again in {seconds} s.");
        let refusal = Refusal::new(StatusCode::TOO_MANY_REQUESTS, "TOO_MANY_ATTEMPTS", message, &action);
        Refusal { retry_after_seconds: Some(seconds), ..refusal }
    }

    pub fn no_csrf() -> Self {
        let message = "The header X-Atoll-CSRF is missing, or not that of the session.".into();
        Refusal::new(StatusCode::FORBIDDEN, "CSRF_MISSING", message, "Send the csrf_token of the session.")
    }

    pub fn low_role(user: &str) -> Self {
        let message = format!("{user} may look at things, and change nothing.");
        Refusal::new(StatusCode::FORBIDDEN, "ROLE_TOO_LOW", message, "Log in as an operator with the role admin.")
    }

    pub fn wrong_confirmation(name: &str) -> Self {
        let message = format!("The field confirm is not '{name}'.");
        let action = "Give confirm the name of what is to be changed or removed.";
        Refusal::new(StatusCode::FORBIDDEN, "CONFIRM_WRONG", message, action)
    }

    pub fn not_found(message: String, action: &str) -> Self {
        Refusal::new(StatusCode::NOT_FOUND, "NOT_FOUND", message, action)
    }

    pub fn conflict(message: String, action: &str) -> Self {
        Refusal::new(StatusCode::CONFLICT, "CONFLICT", message, action)
    }

    pub fn unavailable(message: String) -> Self {
        let action = "See that cluster state, the OSDs and the key service run: 'atoll health'.";
        Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "UNAVAILABLE", message, action)
    }

    pub fn unaudited() -> Self {
        let message = "The audit log takes no lines, and calls that change something are refused until it does.";
        let action = "Give the collector, or the file system of the log, what it lacks: 'atoll health' says what.";
        Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "UNAUDITED", message.into(), action)
    }

    pub fn internal(message: String) -> Self {
        let action = "Look into log/admin.log of this host.";
        Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "INTERNAL", message, action)
    }
}

impl From<CommandFailure> for Refusal {
    fn from(failure: CommandFailure) -> Self {
        let CommandFailure { kind, message } = failure;
        match kind {
            FailureKind::Invalid => Refusal::invalid(message),
            FailureKind::NotFound => Refusal::not_found(message, "Look at the list; it may have been removed."),
            FailureKind::Conflict => Refusal::conflict(message, "Change what is in the way, then try again."),
            FailureKind::Unavailable => Refusal::unavailable(message),
        }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let document = json!({ "code": self.code, "message": self.message, "action": self.action });
        let mut response = (self.status, Json(document)).into_response();
        if let Some(seconds) = self.retry_after_seconds {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}
