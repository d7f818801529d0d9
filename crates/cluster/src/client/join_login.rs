//! Requests of a host to the embedded cluster state for itself: to join, and to change its own records.

use atoll_types::hosts::{HOST_USER_PREFIX, HostChange, HostRequest};
use atoll_types::join::{JOIN_USER_PREFIX, JoinAnswer, JoinRequest};
use serde::Serialize;

use super::{ClusterClient, ClusterError, ConnectOptions, Repeat, decode, etcd_options, repeat};

/// The server's code for a lost race.
const CHANGED_MEANWHILE: tonic::Code = tonic::Code::Aborted;

impl ClusterClient {
    /// With options without a user, joins the cluster of an embedded cluster state, with the id of a join token. May be
    /// repeated with the same request. Fails with [`ClusterError::Authentication`] if the token is worth nothing (any
    /// more), and with [`ClusterError::Refused`] if the host cannot be called so.
    pub async fn join_by_token(
        options: &ConnectOptions,
        id: &str,
        request: &JoinRequest,
    ) -> Result<JoinAnswer, ClusterError> {
        let answer = ask(options, &format!("{JOIN_USER_PREFIX}{id}"), request, "join").await?;
        decode("the answer to a join token", answer.as_bytes())
    }

    /// Asks the embedded cluster state to change this host's own records. Fails with [`ClusterError::Conflict`] if
    /// another process was faster.
    pub async fn change_own(options: &ConnectOptions, change: HostChange) -> Result<(), ClusterError> {
        let (user, password) =
            (options.user.clone().unwrap_or_default(), options.password.clone().unwrap_or_default());
        let without = ConnectOptions { user: None, password: None, ..options.clone() };
        let request = HostRequest { password, change };
        let asked =
            ask(&without, &format!("{HOST_USER_PREFIX}{user}"), &request, "change this host's own records").await;
        asked.map(drop)
    }
}

async fn ask(
    options: &ConnectOptions,
    name: &str,
    request: &impl Serialize,
    operation: &str,
) -> Result<String, ClusterError> {
    let etcd_options = etcd_options(options)?;
    let text = serde_json::to_string(request).expect("requests of hosts are plain JSON");
    let answer = repeat(options, operation, Repeat::Freely, || async {
        let client = etcd_client::Client::connect(options.endpoints.clone(), Some(etcd_options.clone())).await?;
        match client.auth_client().authenticate(name.to_owned(), text.clone()).await {
            Err(etcd_client::Error::GRpcStatus(status)) if status.code() == CHANGED_MEANWHILE => {
                Ok(Err(status.message().to_owned()))
            }
            answered => answered.map(|answer| Ok(answer.token().to_owned())),
        }
    });
    answer.await?.map_err(conflict)
}

fn conflict(said: String) -> ClusterError {
    let mut words = said.split(' ');
    let key = words.next().unwrap_or_default().to_owned();
    let mut number = || words.next().and_then(|word| word.parse().ok()).unwrap_or_default();
    ClusterError::Conflict { key, expected: number(), found: number() }
}
