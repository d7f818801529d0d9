//! Secrets of NVMe hosts: for DH-HMAC-CHAP, and pre-shared keys for TLS.

mod dhchap;
mod hash;
mod interchange;
mod tls_key;
mod wrapped;

pub use dhchap::{DhchapSecret, HostSecrets, SecretError};
pub use hash::HashFunction;
pub use tls_key::{TlsKey, TlsKeyError};
pub use wrapped::{
    SecretRole, UnwrapError, secret_part_context, unwrap_secret, unwrap_tls_key, wrap_secret, wrap_tls_key,
};
