//! Proof of an operator by his password.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use atoll_admin::operators;
use atoll_cluster::ClusterClient;
use atoll_security_log::{SecurityEvent, note};
use atoll_types::operators::OperatorRecord;
use tokio::time::Instant;

use super::refusal::Refusal;
use crate::cluster_state::absent_if_refused;
use crate::peer::Peer;
use crate::shared::Shared;

const STATE_LIMIT: Duration = Duration::from_secs(4);
/// A wrong password is not answered sooner.
const WRONG_AFTER: Duration = Duration::from_secs(1);

/// An attempt to log in.
pub(super) struct Attempt<'a> {
    pub user: &'a str,
    pub password: &'a str,
    pub peer: Option<&'a Peer>,
}

impl Attempt<'_> {
    fn address(&self) -> IpAddr {
        self.peer.map_or(IpAddr::from([0; 4]), |peer| peer.address.ip())
    }
}

/// The record of the operator whose password this is. A wrong one is slowed, and noted.
pub(super) async fn prove(shared: &Arc<Shared>, attempt: Attempt<'_>) -> Result<OperatorRecord, Refusal> {
    let (user, address) = (attempt.user, attempt.address());
    if let Some(seconds) = shared.sessions.pause_seconds(user, address) {
        return Err(Refusal::too_many_attempts(seconds));
    }
    let begun = Instant::now();
    // Held until the answer, so that who tries many names is no faster.
    let _turn = shared.login_turns.begin(address).ok_or_else(Refusal::too_many_logins)?;
    // One at a time: each takes memory and a processor for some tens of milliseconds.
    let processor = shared.password_turn.lock().await;
    let find = |client: ClusterClient| async move { absent_if_refused(operators::find(&client, user).await) };
    let read = shared.state.read(STATE_LIMIT, find);
    let operator =
        read.await.map_err(|error| Refusal::unavailable(format!("Operators cannot be read: {error}.")))?;
    let password = attempt.password.to_owned();
    let compared = tokio::task::spawn_blocking(move || {
        let is_right = operators::is_password(operator.as_ref().map(|(record, _)| record), &password);
        operator.filter(|_| is_right)
    });
    let operator = compared.await.map_err(|error| Refusal::internal(error.to_string()))?;
    drop(processor);
    let Some((record, _)) = operator else {
        shared.sessions.failed(user, address);
        note(SecurityEvent::BadPassword, address, "a log-in to the console with a wrong user or password");
        tokio::time::sleep_until(begun + WRONG_AFTER).await;
        return Err(Refusal::wrong_credentials());
    };
    shared.sessions.succeeded(user, address);
    Ok(record)
}
