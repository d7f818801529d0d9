//! Who may sign requests. All users may use all buckets: there are no policies.

use std::sync::Arc;

use async_trait::async_trait;
use atoll_iam::{Caller, KeyLookup};
use atoll_keys::{KeyError, KeyService, SecretKey};
use atoll_types::identities::AccessKeyRecord;
use atoll_types::records::RECORD_FORMAT;
use s3s::auth::S3Auth;
use s3s::{S3Result, s3_error};

use crate::bucket::{RECORD_TTL, ShortCache};
use crate::clock::unix_ms;
use crate::directory::BucketDirectory;
use crate::error::GatewayError;
use crate::key_cache::KeyCache;

const ACCESS_KEY_BYTES_MAX: usize = 128;

/// What the key-management service binds the secret of a user to.
pub fn user_key_context(access_key: &str) -> String {
    format!("s3 user {access_key}")
}

/// A user with a fresh secret: the record to store, and the secret access key to hand out once. S3
/// wants text for a secret; it is the 256-bit key in hexadecimal.
pub async fn new_user(
    keys: &dyn KeyService,
    access_key: &str,
    display_name: &str,
) -> Result<(AccessKeyRecord, String), KeyError> {
    let secret = SecretKey::random();
    let record = AccessKeyRecord {
        format: RECORD_FORMAT,
        access_key: access_key.to_owned(),
        wrapped_secret_key: keys.wrap(&user_key_context(access_key), &secret).await?,
        display_name: display_name.to_owned(),
        created_unix_ms: unix_ms(),
        account: None,
        user: None,
        is_disabled: false,
        policy: None,
    };
    Ok((record, hex::encode(secret.expose())))
}

/// Finds the secrets with which signatures are verified. Clones share what they have found.
#[derive(Clone)]
pub(crate) struct Users {
    directory: Arc<dyn BucketDirectory>,
    keys: Arc<KeyCache>,
    records: Arc<ShortCache<AccessKeyRecord>>,
}

impl Users {
    pub(crate) fn new(directory: Arc<dyn BucketDirectory>, keys: Arc<KeyCache>) -> Self {
        Users { directory, keys, records: Arc::new(ShortCache::new(RECORD_TTL)) }
    }

    async fn secret(&self, access_key: &str) -> Result<Option<SecretKey>, GatewayError> {
        let record = match self.records.get(access_key) {
            Some(record) => record,
            None => {
                let Some(record) = self.directory.user(access_key).await? else { return Ok(None) };
                self.records.insert(access_key, record.clone());
                record
            }
        };
        let context = user_key_context(access_key);
        let secret = self.keys.unwrap(&context, &record.wrapped_secret_key, 0).await?;
        Ok(Some(secret))
    }
}

impl Users {
    /// Whose key signed a request; temporary credentials come with a token.
    pub(crate) async fn caller(&self, access_key: &str, token: Option<&str>) -> S3Result<Caller> {
        if token.is_some() {
            return Err(s3_error!(InvalidToken, "The provided token is malformed or otherwise invalid"));
        }
        match self.directory.identities().caller(access_key) {
            KeyLookup::Found(caller) => Ok(*caller),
            KeyLookup::Unknown | KeyLookup::Disabled => Err(s3_error!(
                InvalidAccessKeyId,
                "The AWS Access Key Id you provided does not exist in our records"
            )),
        }
    }
}

#[async_trait]
impl S3Auth for Users {
    async fn get_secret_key(&self, access_key: &str) -> S3Result<s3s::auth::SecretKey> {
        let unknown =
            || s3_error!(InvalidAccessKeyId, "The AWS Access Key Id you provided does not exist in our records");
        if access_key.is_empty() || access_key.len() > ACCESS_KEY_BYTES_MAX {
            return Err(unknown());
        }
        let secret = self.secret(access_key).await?.ok_or_else(unknown)?;
        Ok(s3s::auth::SecretKey::from(hex::encode(secret.expose())))
    }
}
