//! Signers of requests, and their secrets.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use async_trait::async_trait;
use atoll_credentials::{KeyCache, OpenSessionError, is_temporary, user_key_context};
use atoll_iam::{Caller, Identities, KeyLookup, Session};
use atoll_keys::KeyService;
use http::StatusCode;
use s3s::auth::S3Auth;
use s3s::{S3Error, S3Result, s3_error};

use crate::directory::{BucketDirectory, DirectoryError};
use crate::error::{GatewayError, custom_error};
use crate::last_use::LastUse;
use crate::look_ups::{UnheardNames, Wanted};
use crate::temporary_credentials::{SessionError, TemporaryCredentials};

const ACCESS_KEY_BYTES_MAX: usize = 128;

/// Reasons why a request has no valid signer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallerError {
    /// There is no such access key, or it is disabled.
    #[error("The AWS Access Key Id you provided does not exist in our records.")]
    UnknownKey,
    /// The session token does not belong to the access key.
    #[error("The provided token is malformed or otherwise invalid.")]
    InvalidToken,
    /// The session is over.
    #[error("The provided token has expired.")]
    ExpiredToken,
    /// It cannot be known for now.
    #[error(transparent)]
    Gateway(#[from] GatewayError),
}

impl From<SessionError> for CallerError {
    fn from(error: SessionError) -> Self {
        match error {
            SessionError::Token(OpenSessionError::Invalid) => CallerError::InvalidToken,
            SessionError::Token(OpenSessionError::Expired) => CallerError::ExpiredToken,
            SessionError::Gateway(error) => CallerError::Gateway(error),
        }
    }
}

impl From<CallerError> for S3Error {
    fn from(error: CallerError) -> Self {
        match error {
            CallerError::UnknownKey => s3_error!(InvalidAccessKeyId, "{error}"),
            CallerError::InvalidToken => s3_error!(InvalidToken, "{error}"),
            CallerError::ExpiredToken => custom_error("ExpiredToken", StatusCode::BAD_REQUEST, error.to_string()),
            CallerError::Gateway(error) => error.into(),
        }
    }
}

/// Finds the secrets with which signatures are verified, and the signers. Clones share everything.
#[derive(Clone)]
pub(crate) struct Users {
    directory: Arc<dyn BucketDirectory>,
    keys: Arc<KeyCache>,
    temporary: TemporaryCredentials,
    last_use: LastUse,
    known: Arc<Mutex<KnownCallers>>,
    unheard: Arc<UnheardNames>,
}

/// Callers of access keys by the current copy of identities.
#[derive(Default)]
struct KnownCallers {
    by: Weak<Identities>,
    callers: HashMap<String, Arc<Caller>>,
}

impl Users {
    pub(crate) fn new(
        directory: Arc<dyn BucketDirectory>,
        service: Arc<dyn KeyService>,
        keys: Arc<KeyCache>,
        unheard: Arc<UnheardNames>,
    ) -> Self {
        let temporary = TemporaryCredentials::new(directory.clone(), service, keys.clone());
        let last_use = LastUse::new(directory.clone());
        Users { directory, keys, temporary, last_use, known: Arc::default(), unheard }
    }

    /// Gives out temporary credentials.
    pub(crate) fn temporary(&self) -> &TemporaryCredentials {
        &self.temporary
    }

    /// Identities in which this access key is, if it is anywhere.
    async fn identities_with(&self, access_key: &str) -> Result<Option<Arc<Identities>>, GatewayError> {
        if access_key.is_empty() || access_key.len() > ACCESS_KEY_BYTES_MAX || access_key.contains('/') {
            return Ok(None);
        }
        let identities = self.directory.identities();
        if identities.access_key(access_key).is_some() {
            return Ok(Some(identities));
        }
        let asked = self.directory.identities_with(access_key);
        let found = match self.directory.is_unheard_access_key(access_key) {
            true => self.unheard.look_up(Wanted::AccessKey, access_key, asked).await,
            false => asked.await,
        };
        match found {
            // It grants no access, as if it were not there.
            Err(DirectoryError::Refused { .. }) => Ok(None),
            found => Ok(found?),
        }
    }

    /// The secret of an access key that can sign, be it for long or temporary.
    pub(crate) async fn secret_of(&self, access_key: &str) -> Result<Option<String>, GatewayError> {
        if is_temporary(access_key) {
            return self.temporary.secret_of(access_key).await;
        }
        let Some(identities) = self.identities_with(access_key).await? else { return Ok(None) };
        let Some(key) = identities.signing_key(access_key) else { return Ok(None) };
        let context = user_key_context(access_key);
        let secret = self.keys.unwrap(&context, &key.wrapped_secret_key, 0).await?;
        Ok(Some(hex::encode(secret.expose())))
    }

    /// Returns the signer for an access key, given the session token of the request.
    pub(crate) async fn signer(&self, access_key: &str, token: Option<&str>) -> Result<Signer, CallerError> {
        match (is_temporary(access_key), token) {
            (true, Some(token)) => {
                let session = self.temporary.open_session_token(access_key, token).await?;
                Ok(Signer::Session(Box::new(session)))
            }
            (true, None) | (false, Some(_)) => Err(CallerError::InvalidToken),
            (false, None) => Ok(Signer::AccessKey(access_key.to_owned())),
        }
    }

    /// Returns the caller for an access key, given the session token of the request.
    pub(crate) async fn caller(&self, access_key: &str, token: Option<&str>) -> Result<Arc<Caller>, CallerError> {
        let signer = self.signer(access_key, token).await?;
        let identities = match &signer {
            Signer::Session(_) => return Ok(Arc::new(signer.caller(&self.directory.identities())?)),
            Signer::AccessKey(key) => self.identities_with(key).await?.ok_or(CallerError::UnknownKey)?,
        };
        if let Some(caller) = self.known_callers(&identities).callers.get(access_key) {
            return Ok(caller.clone());
        }
        let caller = Arc::new(signer.caller(&identities)?);
        warn_of_unknown_names(&caller);
        self.known_callers(&identities).callers.insert(access_key.to_owned(), caller.clone());
        Ok(caller)
    }

    /// Returns the callers of these identities, and of no others: any change makes new ones.
    fn known_callers(&self, identities: &Arc<Identities>) -> MutexGuard<'_, KnownCallers> {
        // A map is whole between any two changes, so a panic elsewhere does not spoil it.
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if !std::ptr::eq(known.by.as_ptr(), Arc::as_ptr(identities)) {
            *known = KnownCallers { by: Arc::downgrade(identities), callers: HashMap::new() };
        }
        known
    }

    /// Notes that a request was signed with this key, for this service in this region.
    pub(crate) fn note_use(&self, access_key: &str, service: &str, region: &str) {
        self.last_use.note(access_key, service, region);
    }
}

/// Says that policies of a caller, stored before names were checked, have effects that their writer did not mean.
fn warn_of_unknown_names(caller: &Caller) {
    for (of, policy) in caller.all_policies() {
        if let Some(name) = policy.unknown_name() {
            tracing::warn!(caller = caller.arn(), of, %name, "a policy has a name that is not known");
        }
    }
}

/// Credentials that have signed a request. Whom that makes its bearer may change while the request is served.
#[derive(Clone, Debug)]
pub(crate) enum Signer {
    /// A key for long.
    AccessKey(String),
    /// Temporary credentials.
    Session(Box<Session>),
}

impl Signer {
    /// Returns the caller.
    pub(crate) fn caller(&self, identities: &Identities) -> Result<Caller, CallerError> {
        match self {
            Signer::Session(session) => identities.session_caller(session).ok_or(CallerError::InvalidToken),
            Signer::AccessKey(key) => match identities.caller(key) {
                KeyLookup::Found(caller) => Ok(*caller),
                KeyLookup::Unknown | KeyLookup::Disabled => Err(CallerError::UnknownKey),
            },
        }
    }
}

#[async_trait]
impl S3Auth for Users {
    async fn get_secret_key(&self, access_key: &str) -> S3Result<s3s::auth::SecretKey> {
        let secret = self.secret_of(access_key).await?.ok_or(CallerError::UnknownKey)?;
        Ok(s3s::auth::SecretKey::from(secret))
    }
}
