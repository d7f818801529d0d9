//! Tokens: where they come from, and how they are kept alive.

use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use atoll_outgoing::Method;
use serde_json::{Value, json};
use tokio::time::Instant;
use zeroize::Zeroizing;

use super::connection::{Connection, Failure};
use crate::TransitLogin;
use crate::stamp::Stamp;

/// A way to log in, and the token that came of it.
pub(super) struct Login {
    how: TransitLogin,
    token: Mutex<Option<Token>>,
}

#[derive(Clone)]
struct Token {
    text: Zeroizing<String>,
    /// Stamp of the file that it is from.
    read_from: Option<Stamp>,
    lease: Option<Lease>,
}

/// How long a token that this process owns is good for.
#[derive(Clone)]
struct Lease {
    renew_at: Instant,
    ends_at: Instant,
}

impl Lease {
    fn read(auth: &Value) -> Option<Lease> {
        let seconds = auth["lease_duration"].as_u64().filter(|seconds| *seconds > 0)?;
        let (now, duration) = (Instant::now(), Duration::from_secs(seconds));
        Some(Lease { renew_at: now + duration / 2, ends_at: now + duration })
    }
}

impl Login {
    pub(super) fn new(how: TransitLogin) -> Self {
        Login { how, token: Mutex::new(None) }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Token>> {
        // The token is replaced whole, so a panic elsewhere does not spoil it.
        self.token.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A token that is good as far as is known.
    pub(super) async fn token(&self, connection: &Connection) -> Result<Zeroizing<String>, Failure> {
        let known = self.lock().clone();
        if let Some(token) = known
            && self.is_good(&token)
        {
            return Ok(token.text);
        }
        let token = match &self.how {
            TransitLogin::TokenFile(path) => read_token(path)?,
            TransitLogin::AppRole { mount, role_id, secret_id_file } => {
                let secret_id = read_secret(secret_id_file)?;
                let body = json!({ "role_id": role_id, "secret_id": *secret_id });
                let path = format!("auth/{mount}/login");
                let answer = connection.send(Method::POST, &path, Some(&body), None).await;
                app_role_token(&answer.map_err(|error| explain_login(mount, error))?)?
            }
        };
        let text = token.text.clone();
        *self.lock() = Some(token);
        Ok(text)
    }

    fn is_good(&self, token: &Token) -> bool {
        match &self.how {
            TransitLogin::TokenFile(path) => Some(Stamp::of(path)) == token.read_from,
            TransitLogin::AppRole { .. } => {
                token.lease.as_ref().is_none_or(|lease| Instant::now() < lease.ends_at)
            }
        }
    }

    /// Gives up a token that was refused: there may be another.
    pub(super) fn forget(&self, refused: &str) {
        let mut token = self.lock();
        if token.as_ref().is_some_and(|token| *token.text == refused) {
            *token = None;
        }
    }

    /// Renews the token when half of its time is over. One out of a file is its writer's to renew.
    pub(super) async fn renew(&self, connection: &Connection) -> Result<(), Failure> {
        let known = self.lock().clone();
        let due = |token: &Token| token.lease.as_ref().is_some_and(|lease| lease.renew_at <= Instant::now());
        let Some(token) = known.filter(due) else { return Ok(()) };
        let path = "auth/token/renew-self";
        let answer = connection.send(Method::POST, path, Some(&json!({})), Some(&token.text)).await;
        match answer {
            Ok(answer) => {
                let lease = Lease::read(&answer["auth"]);
                *self.lock() = Some(Token { lease, ..token });
                Ok(())
            }
            Err(Failure::Unavailable(detail)) => Err(Failure::Unavailable(detail)),
            // It cannot be renewed any further: log in anew.
            Err(Failure::Denied(_) | Failure::Refused(_) | Failure::Missing) => {
                self.forget(&token.text);
                self.token(connection).await.map(drop)
            }
        }
    }
}

fn read_secret(path: &Path) -> Result<Zeroizing<String>, Failure> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| Failure::Unavailable(format!("{}: {error}", path.display())))?;
    let trimmed = Zeroizing::new(text.trim().to_owned());
    if trimmed.is_empty() {
        return Err(Failure::Unavailable(format!("{} is empty", path.display())));
    }
    Ok(trimmed)
}

fn read_token(path: &Path) -> Result<Token, Failure> {
    let read_from = Some(Stamp::of(path));
    Ok(Token { text: read_secret(path)?, read_from, lease: None })
}

fn app_role_token(answer: &Value) -> Result<Token, Failure> {
    let auth = &answer["auth"];
    let text = auth["client_token"].as_str();
    let text = text.ok_or_else(|| Failure::Unavailable("its answer to the login has no token".into()))?;
    Ok(Token { text: Zeroizing::new(text.to_owned()), read_from: None, lease: Lease::read(auth) })
}

fn explain_login(mount: &str, error: Failure) -> Failure {
    match error {
        Failure::Missing => Failure::Refused(format!("there is no AppRole login at '{mount}'")),
        Failure::Denied(detail) | Failure::Refused(detail) => Failure::Refused(format!("AppRole login: {detail}")),
        unavailable @ Failure::Unavailable(_) => unavailable,
    }
}
