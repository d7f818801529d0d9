//! Error answers.

use atoll_types::operators::OperatorRoles;
use axum::Json;
use axum::extract::rejection::BytesRejection;
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

    /// Returns true if the caller is not authenticated.
    pub fn is_of_nobody(&self) -> bool {
        self.status == StatusCode::UNAUTHORIZED
    }

    pub fn invalid(message: String) -> Self {
        let action = "See openapi.json for the parameters of the call.";
        Refusal::new(StatusCode::BAD_REQUEST, "INVALID", message, action)
    }

    /// A body that is too long, or that did not come to its end.
    pub fn unread_body(error: &BytesRejection) -> Self {
        let message = format!("The body cannot be read: {}.", error.body_text());
        Refusal::new(error.status(), "INVALID", message, "See openapi.json for the parameters of the call.")
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

    /// Unknown, expired and revoked ones are answered alike.
    pub fn wrong_token() -> Self {
        let message = "There is no such token, or it does not count any more.".into();
        let action = "Make another one: 'atoll operator token create'.";
        Refusal::new(StatusCode::UNAUTHORIZED, "TOKEN_WRONG", message, action)
    }

    pub fn session_only(who: &str) -> Self {
        let message = format!("{who} is a token, and the call is for operators who have logged in.");
        Refusal::new(StatusCode::FORBIDDEN, "ROLE_TOO_LOW", message, "Log in, or use the command on a host.")
    }

    pub fn other_call(who: &str) -> Self {
        let message = format!("{who} was made for other calls.");
        let action = "Make a token for this call: 'atoll operator token create'.";
        Refusal::new(StatusCode::FORBIDDEN, "ROLE_TOO_LOW", message, action)
    }

    pub fn message(&self) -> &str {
        &self.message
    }

    /// Log-ins with a password are off.
    pub fn passwords_are_off() -> Self {
        let message = "Log-ins with passwords are off.".into();
        let action =
            "Log in by OpenID Connect. 'atoll settings set local_login true' on a host takes passwords again.";
        Refusal::new(StatusCode::FORBIDDEN, "PASSWORDS_OFF", message, action)
    }

    /// A call about the password of a user who has none here.
    pub fn no_password(user: &str) -> Self {
        let message = format!("{user} has logged in by OpenID Connect, and has no password here.");
        Refusal::conflict(message, "Change passwords and second factors at the provider.")
    }

    /// A new password that is none, or the old one again.
    pub fn unfit_password(message: String) -> Self {
        Refusal::new(StatusCode::BAD_REQUEST, "INVALID", message, "Choose another password.")
    }

    /// The password was right, and that is not enough.
    pub fn no_code() -> Self {
        let message = "A code of the second factor is needed.".into();
        let action = "Give the code that the authenticator shows, or a recovery code.";
        Refusal::new(StatusCode::UNAUTHORIZED, "CODE_MISSING", message, action)
    }

    pub fn wrong_code() -> Self {
        let message = "The code is wrong, or was used already.".into();
        let action = "Wait for the next code. 'atoll operator totp reset NAME' takes a lost second factor away.";
        Refusal::new(StatusCode::UNAUTHORIZED, "CODE_WRONG", message, action)
    }

    pub fn too_many_codes(seconds: u64) -> Self {
        Self::try_later("There were too many wrong codes.".into(), seconds)
    }

    /// The operator has to set up the factor that the settings require first.
    pub fn no_second_factor(user: &str) -> Self {
        let message = format!("{user} needs a second factor (the setting totp_required_roles).");
        let action = "Set it up: the page of one's own log-in, or the calls enrolTotp and confirmTotp.";
        Refusal::new(StatusCode::FORBIDDEN, "TOTP_MISSING", message, action)
    }

    pub fn too_many_attempts(seconds: u64) -> Self {
        Self::try_later("There were too many wrong passwords.".into(), seconds)
    }

    /// Too many log-ins are under way, from this address or from all.
    pub fn too_many_logins() -> Self {
        Self::try_later("Too many log-ins are under way.".into(), 1)
    }

    /// Too many sessions and tokens of this address do not exist.
    pub fn too_many_look_ups() -> Self {
        Self::try_later("There were too many wrong sessions and tokens from this address.".into(), 1)
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

    /// `what` is the call or a field of it, and `needed` the roles that may.
    pub fn low_role(user: &str, roles: &OperatorRoles, what: &str, needed: &str) -> Self {
        let message = format!("{user} has the role {roles}, and {what} needs {needed}.");
        let action = "Log in as an operator who has that role; 'atoll operator set NAME --role ROLE' gives it.";
        Refusal::new(StatusCode::FORBIDDEN, "ROLE_TOO_LOW", message, action)
    }

    pub fn wrong_confirmation(name: &str) -> Self {
        let message = format!("The field confirm is not '{name}'.");
        let action = "Give confirm the name of the object to change or remove.";
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
        let action =
            "Restore the collector, or free space on the log's file system: 'atoll health' names the cause.";
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
            FailureKind::Conflict => Refusal::conflict(message, "Resolve the conflict, then try again."),
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
