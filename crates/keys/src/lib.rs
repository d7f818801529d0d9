//! Key services: where the root of the key hierarchy is, in a local key file ([`LocalKeys`]) or in the
//! Transit engine of Vault or OpenBao ([`Transit`]). With them come secret keys, the AES-256-GCM that
//! wraps one key with another, and the operating system's randomness.
//!
//! This crate speaks to key services and reads key files. It does not know the protected data: atoll-seal seals
//! image blocks and S3 segments, and uses this crate.

mod error;
mod gcm;
mod key;
mod key_file;
mod local;
mod locked;
mod metrics;
mod ring;
mod service;
mod stamp;
mod transit;
mod uses;

pub use error::KeyError;
pub use gcm::{GcmKey, watch_nonces, watched_nonces};
pub use key::{
    SecretKey, WRAPPED_KEY_BYTES, fill_random, hmac_sha1, random_bytes, random_u64, sha256, unwrap_key, wrap_key,
};
pub use key_file::{KeyFile, TransitLogin, TransitSettings};
pub use local::LocalKeys;
pub use ring::KeyRing;
pub use service::{DEFAULT_KEY, KeyDescription, KeyService, KeyVersion, WrappedBy, is_key_name};
pub use transit::Transit;
pub use uses::{KeyUse, take_uses};
