//! Callers: an operator with a session, or a program with a token.

use std::sync::Arc;
use std::time::Duration;

use atoll_admin::api_tokens;
use atoll_cluster::ClusterClient;
use atoll_security_log::{SecurityEvent, note};
use atoll_types::api_tokens::{ApiTokenRecord, TokenScope};
use atoll_types::operators::OperatorRole;

use super::document::{Given, Operation};
use super::parts::own_call;
use super::refusal::Refusal;
use super::sessions::Session;
use crate::cluster_state::absent_if_refused;
use crate::peer::Peer;
use crate::shared::Shared;

const STATE_LIMIT: Duration = Duration::from_secs(4);

/// An authenticated caller.
pub(super) enum Caller {
    Session(Box<Session>),
    Token(Box<ApiTokenRecord>),
}

impl Caller {
    /// The owner of a token.
    pub async fn of_token(shared: &Arc<Shared>, peer: Option<&Peer>, token: &str) -> Result<Caller, Refusal> {
        let address = peer.map_or_else(String::new, |peer| peer.address.ip().to_string());
        let from = address.clone();
        let find = |client: ClusterClient| async move {
            absent_if_refused(api_tokens::find(&client, token, &from).await)
        };
        let found = shared.state.read(STATE_LIMIT, find).await;
        // Nothing of a token is remembered: it may have been revoked.
        match found.map_err(|error| Refusal::unavailable(format!("Tokens cannot be read: {error}.")))? {
            Some(record) => Ok(Caller::Token(Box::new(record))),
            None => {
                note(SecurityEvent::BadToken, address, "there is no such token for the admin API");
                Err(Refusal::wrong_token())
            }
        }
    }

    /// The name for logs. No operator has one with a colon.
    pub fn name(&self) -> String {
        match self {
            Caller::Session(session) => session.record.user.clone(),
            Caller::Token(token) => format!("token:{}", token.name),
        }
    }

    pub fn session(&self) -> Option<&Session> {
        match self {
            Caller::Session(session) => Some(session),
            Caller::Token(_) => None,
        }
    }

    /// Returns whether it may do all there is.
    pub fn is_admin(&self) -> bool {
        match self {
            Caller::Session(session) => session.roles.has(OperatorRole::Admin),
            Caller::Token(token) => token.is_of_admins(),
        }
    }

    /// Refuses a call that it may not make.
    pub fn check(&self, operation: &Operation) -> Result<(), Refusal> {
        match self {
            Caller::Session(session) if session.needs_second_factor && own_call(&operation.id).is_none() => {
                Err(Refusal::no_second_factor(&session.record.user))
            }
            Caller::Session(session) => operation.check_roles(&session.record.user, &session.roles),
            Caller::Token(_) if operation.is_of_sessions => Err(Refusal::session_only(&self.name())),
            Caller::Token(token) => match &token.scope {
                TokenScope::Roles(roles) => operation.check_roles(&self.name(), roles),
                TokenScope::Calls(calls) if calls.contains(&operation.id) => Ok(()),
                TokenScope::Calls(_) => Err(Refusal::other_call(&self.name())),
            },
        }
    }

    /// Refuses fields that it may not give. A caller that may make a call by its name may give all of its fields.
    pub fn check_fields(&self, operation: &Operation, given: &Given) -> Result<(), Refusal> {
        let roles = match self {
            Caller::Session(session) => &session.roles,
            Caller::Token(token) => match &token.scope {
                TokenScope::Roles(roles) => roles,
                TokenScope::Calls(_) => return Ok(()),
            },
        };
        operation.check_fields_of_roles(&self.name(), roles, given)
    }
}
