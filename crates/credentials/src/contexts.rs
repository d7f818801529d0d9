//! Contexts that the key service binds wrapped keys to: a key opens in its own context only.

/// Context of the key of temporary credentials.
pub const STS_KEY_CONTEXT: &str = "sts key";

/// Returns the context of the secret of an access key.
pub fn user_key_context(access_key: &str) -> String {
    format!("s3 user {access_key}")
}

/// Returns the context of a bucket key.
pub fn bucket_key_context(bucket_id: &str) -> String {
    format!("bucket {bucket_id}")
}

/// Returns the context of the permit to store new objects of a bucket without sealing.
pub fn unsealed_permit_context(bucket_id: &str) -> String {
    format!("bucket {bucket_id} unsealed")
}

/// Returns the context of the key that wraps a bucket's data keys for requests that name this key.
pub fn named_key_context(bucket_id: &str, key_name: &str) -> String {
    format!("bucket {bucket_id} key {key_name}")
}
