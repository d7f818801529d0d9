//! Temporary credentials: nothing of them is kept. A session token is the session itself, sealed under a key
//! of the cluster, and the secret follows from that key and the access key.

use std::sync::Arc;

use atoll_iam::operations::{Change, Outcome, random_text};
use atoll_iam::{Identities, Record, Session};
use atoll_keys::{GcmKey, KeyService, SecretKey, random_bytes};
use atoll_types::identities::StsKeyRecord;
use atoll_types::records::RECORD_FORMAT;
use aws_lc_rs::hmac;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::directory::{BucketDirectory, ChangeError};
use crate::error::GatewayError;
use crate::key_cache::KeyCache;

/// What the key-management service binds the key of temporary credentials to.
pub const STS_KEY_CONTEXT: &str = "sts key";

/// Begins the access keys of temporary credentials.
const PREFIX: &str = "ASIA";
const RANDOM_CHARS: usize = 16;
const TOKEN_VERSION: u8 = 1;
const NONCE_BYTES: usize = 12;
const TAG_BYTES: usize = 16;
/// Longest token: one with all the policies that it may have is shorter.
const TOKEN_CHARS_MAX: usize = 16 << 10;

/// Why a session token is not taken.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SessionError {
    /// It is none, is of another access key, or its account, user or role is gone.
    #[error("The security token included in the request is invalid")]
    Invalid,
    /// Its time is over.
    #[error("The security token included in the request is expired")]
    Expired,
    /// The key to open it cannot be had.
    #[error(transparent)]
    Gateway(#[from] GatewayError),
}

/// What who has asked for a session is given.
pub struct Credentials {
    /// Signs, together with the token.
    pub access_key: String,
    /// The secret access key.
    pub secret: String,
    /// The session, sealed.
    pub session_token: String,
    /// When it ends, in milliseconds since the Unix epoch.
    pub expires_unix_ms: u64,
}

impl Credentials {
    /// Seals a session, and gives it a secret.
    pub fn new(key: &SecretKey, session: &Session) -> Self {
        Credentials {
            access_key: session.access_key.clone(),
            secret: secret(key, &session.access_key),
            session_token: seal(key, session),
            expires_unix_ms: session.expires_unix_ms,
        }
    }
}

/// Makes the cluster's key of temporary credentials, if there is none.
pub fn make_sts_key(identities: &Identities, wrapped_key: &str) -> Outcome {
    let record = StsKeyRecord { format: RECORD_FORMAT, wrapped_key: wrapped_key.to_owned() };
    let is_needed = identities.sts_key().is_none();
    let changes = is_needed.then_some(Change::Put(Record::StsKey(record))).into_iter().collect();
    Outcome { changes, ..Outcome::default() }
}

/// Gives out temporary credentials and recognises them.
#[derive(Clone)]
pub(crate) struct TemporaryCredentials {
    directory: Arc<dyn BucketDirectory>,
    service: Arc<dyn KeyService>,
    keys: Arc<KeyCache>,
}

/// Whether an access key is of temporary credentials, by its form.
pub(crate) fn is_temporary(access_key: &str) -> bool {
    access_key.len() == PREFIX.len() + RANDOM_CHARS && access_key.starts_with(PREFIX)
}

/// An access key for new temporary credentials.
pub fn new_temporary_key() -> String {
    format!("{PREFIX}{}", random_text(&random_bytes::<RANDOM_CHARS>()))
}

impl TemporaryCredentials {
    pub(crate) fn new(
        directory: Arc<dyn BucketDirectory>,
        service: Arc<dyn KeyService>,
        keys: Arc<KeyCache>,
    ) -> Self {
        TemporaryCredentials { directory, service, keys }
    }

    /// The cluster's key, if it has been made.
    async fn key(&self) -> Result<Option<SecretKey>, GatewayError> {
        let identities = self.directory.identities();
        let Some(record) = identities.sts_key() else { return Ok(None) };
        Ok(Some(self.keys.unwrap(STS_KEY_CONTEXT, &record.wrapped_key, 0).await?))
    }

    /// The cluster's key, which is made if there is none. One that cannot be opened stays.
    async fn key_to_issue(&self) -> Result<SecretKey, GatewayError> {
        if let Some(key) = self.key().await? {
            return Ok(key);
        }
        let wrapped_key = self.service.wrap(STS_KEY_CONTEXT, &SecretKey::random()).await?;
        let create = |identities: &Identities| Ok(make_sts_key(identities, &wrapped_key));
        self.directory.change_identities(&create).await.map_err(|error| match error {
            ChangeError::Directory(error) => GatewayError::Directory(error),
            ChangeError::Refused(error) => malformed(error.to_string()),
        })?;
        self.key().await?.ok_or_else(|| malformed("it was made, and is not there".into()))
    }

    /// Seals a session, and gives it a secret.
    pub(crate) async fn issue(&self, session: &Session) -> Result<Credentials, GatewayError> {
        let key = self.key_to_issue().await?;
        Ok(Credentials::new(&key, session))
    }

    /// The secret of temporary credentials; `None` if there never were any.
    pub(crate) async fn secret_of(&self, access_key: &str) -> Result<Option<String>, GatewayError> {
        Ok(self.key().await?.map(|key| secret(&key, access_key)))
    }

    /// The session that a token holds.
    pub(crate) async fn open_session_token(
        &self,
        access_key: &str,
        token: &str,
        now_ms: u64,
    ) -> Result<Session, SessionError> {
        let key = self.key().await?.ok_or(SessionError::Invalid)?;
        let session = open(&key, access_key, token).ok_or(SessionError::Invalid)?;
        if session.expires_unix_ms <= now_ms {
            return Err(SessionError::Expired);
        }
        Ok(session)
    }
}

fn malformed(detail: String) -> GatewayError {
    GatewayError::Malformed { what: "the key of temporary credentials".into(), detail }
}

/// What follows from the cluster's key for one purpose.
fn derived(key: &SecretKey, purpose: &str, of: &str) -> [u8; 32] {
    let mut context = hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA256, key.expose()));
    context.update(purpose.as_bytes());
    context.update(of.as_bytes());
    context.sign().as_ref().try_into().expect("HMAC-SHA256 has 32 bytes")
}

fn secret(key: &SecretKey, access_key: &str) -> String {
    hex::encode(derived(key, "secret", access_key))
}

/// A key of its own, so that no bytes that are sealed can be those that a secret is made of.
fn sealing_key(key: &SecretKey) -> GcmKey {
    GcmKey::new(&SecretKey::from_bytes(derived(key, "token", "")))
}

fn seal(key: &SecretKey, session: &Session) -> String {
    let nonce: [u8; NONCE_BYTES] = random_bytes();
    let mut text = serde_json::to_vec(session).expect("a session is made of texts and numbers");
    let tag = sealing_key(key).seal(nonce, session.access_key.as_bytes(), &mut text);
    STANDARD.encode([&[TOKEN_VERSION][..], &nonce, &text, &tag].concat())
}

fn open(key: &SecretKey, access_key: &str, token: &str) -> Option<Session> {
    if token.len() > TOKEN_CHARS_MAX {
        return None;
    }
    let token = STANDARD.decode(token).ok()?;
    let sealed = token.strip_prefix(&[TOKEN_VERSION])?;
    let (nonce, sealed) = sealed.split_first_chunk::<NONCE_BYTES>()?;
    let (text, tag) = sealed.split_at_checked(sealed.len().checked_sub(TAG_BYTES)?)?;
    let mut opened = vec![0; text.len()];
    if !sealing_key(key).open(*nonce, access_key.as_bytes(), text, tag, &mut opened) {
        return None;
    }
    let session: Session = serde_json::from_slice(&opened).ok()?;
    (session.access_key == access_key).then_some(session)
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_iam::SessionPrincipal;

    fn session(access_key: &str) -> Session {
        Session {
            access_key: access_key.into(),
            account: "100000000000".into(),
            principal: SessionPrincipal::Role { name: "r".into(), id: "AROAX".into(), session_name: "s".into() },
            policies: vec!["{}".into()],
            policy_arns: Vec::new(),
            key_policy: None,
            issued_unix_ms: 1,
            expires_unix_ms: 5,
        }
    }

    #[test]
    fn tokens_open_for_their_access_key_only() {
        let key = SecretKey::random();
        let (mine, other) = (new_temporary_key(), new_temporary_key());
        assert!(is_temporary(&mine) && !is_temporary("ASIA") && !is_temporary("AKIAABCDEFGHIJKLMNOP"));
        let token = seal(&key, &session(&mine));
        assert_eq!(open(&key, &mine, &token), Some(session(&mine)));
        assert_eq!(open(&key, &other, &token), None);
        assert_eq!(open(&SecretKey::random(), &mine, &token), None);
        assert_ne!(token, seal(&key, &session(&mine)), "each has a nonce of its own");
    }

    #[test]
    fn tokens_that_were_touched_do_not_open() {
        let key = SecretKey::random();
        let mine = new_temporary_key();
        let token = STANDARD.decode(seal(&key, &session(&mine))).unwrap();
        for position in 0..token.len() {
            let mut touched = token.clone();
            touched[position] ^= 1;
            assert_eq!(open(&key, &mine, &STANDARD.encode(&touched)), None, "{position}");
            assert_eq!(open(&key, &mine, &STANDARD.encode(&token[..position])), None, "{position}");
        }
        for text in ["", "!", &"A".repeat(TOKEN_CHARS_MAX + 4)] {
            assert_eq!(open(&key, &mine, text), None);
        }
    }

    #[test]
    fn secrets_follow_from_the_access_key() {
        let key = SecretKey::random();
        assert_eq!(secret(&key, "ASIAX"), secret(&key, "ASIAX"));
        assert_ne!(secret(&key, "ASIAX"), secret(&key, "ASIAY"));
        assert_ne!(secret(&key, "ASIAX"), secret(&SecretKey::random(), "ASIAX"));
    }
}
