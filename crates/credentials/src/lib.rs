//! Secrets of users and hosts: access keys, temporary credentials, identity tokens of OpenID Connect, the secrets of
//! NVMe hosts ([`nvme`]), the contexts in which the key service wraps them, and a cache of unwrapped keys.
//!
//! This crate knows the form of secrets. It may not know their place in cluster state, nor the protocols in which they
//! are proved.

mod access_keys;
mod contexts;
mod identity_token;
mod issuer_keys;
mod key_cache;
pub mod nvme;
mod sessions;

pub use access_keys::{new_access_key, new_user};
pub use contexts::{
    STS_KEY_CONTEXT, bucket_key_context, named_key_context, unsealed_permit_context, user_key_context,
};
pub use identity_token::{Claims, ExpectedToken, IdentityToken, SKEW_SECONDS, TokenError};
pub use issuer_keys::IssuerKeys;
pub use key_cache::KeyCache;
pub use sessions::{
    Credentials, OpenSessionError, SESSION_SECONDS_MAX, StsKeys, is_temporary, make_sts_key, rotate_sts_key,
};
