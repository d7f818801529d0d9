//! Temporary credentials as a gateway gives them out and recognises them: under the cluster's key, which is in cluster state.

use std::sync::Arc;

use atoll_credentials::{Credentials, KeyCache, OpenSessionError, STS_KEY_CONTEXT, StsKeys, make_sts_key};
use atoll_iam::{Identities, Session};
use atoll_keys::{KeyService, SecretKey};
use atoll_types::coordination::{lapse_unix_ms, later_unix_ms};

use crate::clock::unix_ms;
use crate::directory::{BucketDirectory, ChangeError};
use crate::error::GatewayError;

/// Why a session token is not taken.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SessionError {
    /// The token.
    #[error(transparent)]
    Token(#[from] OpenSessionError),
    /// The key to open it cannot be had.
    #[error(transparent)]
    Gateway(#[from] GatewayError),
}

/// Gives out temporary credentials and recognises them.
#[derive(Clone)]
pub(crate) struct TemporaryCredentials {
    directory: Arc<dyn BucketDirectory>,
    service: Arc<dyn KeyService>,
    keys: Arc<KeyCache>,
}

impl TemporaryCredentials {
    pub(crate) fn new(
        directory: Arc<dyn BucketDirectory>,
        service: Arc<dyn KeyService>,
        keys: Arc<KeyCache>,
    ) -> Self {
        TemporaryCredentials { directory, service, keys }
    }

    /// Returns the time at which a session begins: the cluster's, if the clock of this gateway is behind or too far
    /// ahead.
    pub(crate) fn begin_unix_ms(&self) -> u64 {
        let cluster_unix_ms = self.directory.cluster_unix_ms();
        later_unix_ms(lapse_unix_ms(unix_ms(), cluster_unix_ms), cluster_unix_ms)
    }

    /// Returns the time by which sessions end: a clock that is behind makes none last longer.
    fn end_unix_ms(&self) -> u64 {
        later_unix_ms(unix_ms(), self.directory.cluster_unix_ms())
    }

    /// The cluster's keys, if there are any.
    async fn sts_keys(&self) -> Result<Option<StsKeys>, GatewayError> {
        let identities = self.directory.identities();
        let Some(record) = identities.sts_key() else { return Ok(None) };
        let current = self.keys.unwrap(STS_KEY_CONTEXT, &record.wrapped_key, 0).await?;
        let now_ms = self.end_unix_ms();
        let previous = match record.previous.as_ref().filter(|previous| now_ms < previous.until_unix_ms) {
            Some(previous) => Some(self.keys.unwrap(STS_KEY_CONTEXT, &previous.wrapped_key, 0).await?),
            None => None,
        };
        Ok(Some(StsKeys { current, previous }))
    }

    /// The cluster's key, which is made if there is none. One that cannot be opened stays.
    async fn key_to_issue(&self) -> Result<SecretKey, GatewayError> {
        if let Some(keys) = self.sts_keys().await? {
            return Ok(keys.current);
        }
        let wrapped_key = self.service.wrap(STS_KEY_CONTEXT, &SecretKey::random()).await?;
        let create = |identities: &Identities| Ok(make_sts_key(identities, &wrapped_key, unix_ms()));
        self.directory.change_identities(&create).await.map_err(|error| match error {
            ChangeError::Directory(error) => GatewayError::Directory(error),
            ChangeError::Refused(error) => malformed(error.to_string()),
        })?;
        let made = self.sts_keys().await?.map(|keys| keys.current);
        made.ok_or_else(|| malformed("it was made, and is not there".into()))
    }

    /// Seals a session, and gives it an access key and a secret.
    pub(crate) async fn issue(&self, session: Session) -> Result<Credentials, GatewayError> {
        let key = self.key_to_issue().await?;
        Ok(Credentials::new(&key, session))
    }

    /// The secret of temporary credentials; `None` if there never were any.
    pub(crate) async fn secret_of(&self, access_key: &str) -> Result<Option<String>, GatewayError> {
        Ok(self.sts_keys().await?.map(|keys| keys.secret_of(access_key)))
    }

    /// The session that a token holds.
    pub(crate) async fn open_session_token(&self, access_key: &str, token: &str) -> Result<Session, SessionError> {
        let keys = self.sts_keys().await?.ok_or(OpenSessionError::Invalid)?;
        Ok(keys.open_session_token(access_key, token, self.end_unix_ms())?)
    }
}

fn malformed(detail: String) -> GatewayError {
    GatewayError::Malformed { what: "the key of temporary credentials".into(), detail }
}
