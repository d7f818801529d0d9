//! New access keys and their secrets.

use atoll_iam::operations::{NewAccessKey, random_text};
use atoll_keys::{KeyError, KeyService, SecretKey, random_bytes};
use atoll_types::identities::AccessKeyRecord;
use atoll_types::records::RECORD_FORMAT;

use crate::contexts::user_key_context;

/// A fresh access key for an operation. S3 wants text for a secret; it is the 256-bit key in hexadecimal.
pub async fn new_access_key(keys: &dyn KeyService) -> Result<NewAccessKey, KeyError> {
    named_access_key(keys, &format!("AKIA{}", random_text(&random_bytes::<16>()))).await
}

async fn named_access_key(keys: &dyn KeyService, access_key: &str) -> Result<NewAccessKey, KeyError> {
    let secret = SecretKey::random();
    Ok(NewAccessKey {
        access_key: access_key.to_owned(),
        secret: hex::encode(secret.expose()),
        wrapped_secret: keys.wrap(&user_key_context(access_key), &secret).await?,
    })
}

/// The first access key of a cluster, with a fresh secret: the record to store, and the secret access key
/// to hand out once.
pub async fn new_user(
    keys: &dyn KeyService,
    access_key: &str,
    display_name: &str,
    now_unix_ms: u64,
) -> Result<(AccessKeyRecord, String), KeyError> {
    let new = named_access_key(keys, access_key).await?;
    let record = AccessKeyRecord {
        format: RECORD_FORMAT,
        access_key: new.access_key,
        wrapped_secret_key: new.wrapped_secret,
        display_name: display_name.to_owned(),
        created_unix_ms: now_unix_ms,
        account: None,
        user: None,
        is_disabled: false,
        policy: None,
    };
    Ok((record, new.secret))
}
