//! How a host that joins learns to log in to cluster state.

use atoll_types::join::{JOIN_USER_PREFIX, StateLogin};

use super::{ClusterClient, ClusterError, ConnectOptions, Repeat, decode, etcd_options, repeat};

impl ClusterClient {
    /// With options without a user, asks the embedded cluster state for the login of all hosts, with the id and the secret of a join token. Fails with
    /// [`ClusterError::Authentication`] if the token is worth nothing (any more).
    pub async fn login_by_token(
        options: &ConnectOptions,
        id: &str,
        secret: &str,
    ) -> Result<StateLogin, ClusterError> {
        let etcd_options = etcd_options(options)?;
        let user = format!("{JOIN_USER_PREFIX}{id}");
        let answer = repeat(options, "log in to join", Repeat::Freely, || async {
            let client =
                etcd_client::Client::connect(options.endpoints.clone(), Some(etcd_options.clone())).await?;
            client.auth_client().authenticate(user.clone(), secret.to_owned()).await
        })
        .await?;
        decode("the answer to a join token", answer.token().as_bytes())
    }
}
