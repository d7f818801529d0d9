//! Secrets and keys of hosts as records have them: wrapped by the key service, like all other secrets.

use atoll_keys::{KeyError, KeyService, SecretKey};
use atoll_types::nvme_hosts::WrappedNvmeSecret;
use zeroize::Zeroizing;

use super::dhchap::DhchapSecret;
use super::hash::HashFunction;
use super::tls_key::TlsKey;

const PART_BYTES: usize = 32;

/// Why a wrapped secret does not open.
#[derive(Debug, thiserror::Error)]
pub enum UnwrapError {
    /// The key service.
    #[error(transparent)]
    Keys(#[from] KeyError),
    /// The record does not hold together.
    #[error("the wrapped secret is malformed")]
    Malformed,
}

/// Holder of a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecretRole {
    /// The host's.
    Host,
    /// That of gateways towards the host.
    Controller,
    /// The key for TLS, which both have.
    Tls,
}

/// Returns the context that the key service binds a piece of a secret to, so that none opens as another.
pub fn secret_part_context(host: &str, role: SecretRole, part: usize) -> String {
    let role = match role {
        SecretRole::Host => "host",
        SecretRole::Controller => "controller",
        SecretRole::Tls => "tls",
    };
    format!("atoll nvme {role} secret {part} {host}")
}

/// Wraps a secret of or for a host.
pub async fn wrap_secret(
    service: &dyn KeyService,
    host: &str,
    role: SecretRole,
    secret: &DhchapSecret,
) -> Result<WrappedNvmeSecret, KeyError> {
    wrap(service, host, role, secret.hash(), secret.expose()).await
}

/// Wraps the key of a host for TLS.
pub async fn wrap_tls_key(
    service: &dyn KeyService,
    host: &str,
    key: &TlsKey,
) -> Result<WrappedNvmeSecret, KeyError> {
    wrap(service, host, SecretRole::Tls, key.hash(), key.expose()).await
}

async fn wrap(
    service: &dyn KeyService,
    host: &str,
    role: SecretRole,
    hash: Option<HashFunction>,
    secret: &[u8],
) -> Result<WrappedNvmeSecret, KeyError> {
    let mut wrapped_parts = Vec::new();
    for (part, bytes) in secret.chunks(PART_BYTES).enumerate() {
        let mut key = Zeroizing::new([0; PART_BYTES]);
        key[..bytes.len()].copy_from_slice(bytes);
        let key = SecretKey::from_bytes(*key);
        wrapped_parts.push(service.wrap(&secret_part_context(host, role, part), &key).await?);
    }
    let (hash, length_bytes) = (hash.map_or(0, |hash| hash as u8), secret.len() as u8);
    Ok(WrappedNvmeSecret { hash, length_bytes, wrapped_parts })
}

/// The hash function and the bytes of a secret.
async fn unwrap(
    service: &dyn KeyService,
    host: &str,
    role: SecretRole,
    wrapped: &WrappedNvmeSecret,
) -> Result<(Option<HashFunction>, Zeroizing<Vec<u8>>), UnwrapError> {
    let mut bytes = Zeroizing::new(Vec::with_capacity(2 * PART_BYTES));
    for (part, wrapped) in wrapped.wrapped_parts.iter().enumerate().take(2) {
        let key = service.unwrap(&secret_part_context(host, role, part), wrapped).await?;
        bytes.extend_from_slice(key.expose());
    }
    if bytes.len() < usize::from(wrapped.length_bytes) {
        return Err(UnwrapError::Malformed);
    }
    bytes.truncate(wrapped.length_bytes.into());
    let hash = match wrapped.hash {
        0 => None,
        id => Some(HashFunction::from_id(id).ok_or(UnwrapError::Malformed)?),
    };
    Ok((hash, bytes))
}

/// Unwraps a secret of or for a host.
pub async fn unwrap_secret(
    service: &dyn KeyService,
    host: &str,
    role: SecretRole,
    wrapped: &WrappedNvmeSecret,
) -> Result<DhchapSecret, UnwrapError> {
    let (hash, bytes) = unwrap(service, host, role, wrapped).await?;
    DhchapSecret::from_bytes(hash, bytes).map_err(|_| UnwrapError::Malformed)
}

/// Unwraps the key of a host for TLS.
pub async fn unwrap_tls_key(
    service: &dyn KeyService,
    host: &str,
    wrapped: &WrappedNvmeSecret,
) -> Result<TlsKey, UnwrapError> {
    let (hash, bytes) = unwrap(service, host, SecretRole::Tls, wrapped).await?;
    TlsKey::from_bytes(hash, bytes).map_err(|_| UnwrapError::Malformed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_keys::LocalKeys;
    use futures::executor::block_on;

    #[test]
    fn secrets_open_for_their_host_and_role_only() {
        let directory = tempfile::tempdir().unwrap();
        let keys = LocalKeys::create(&directory.path().join("kms.json")).unwrap();
        for hash in [None, Some(HashFunction::Sha256), Some(HashFunction::Sha384), Some(HashFunction::Sha512)] {
            let secret = DhchapSecret::random(hash);
            let wrap = |host: &'static str, role| block_on(wrap_secret(&keys, host, role, &secret)).unwrap();
            let open = |host: &'static str, role, wrapped: &_| block_on(unwrap_secret(&keys, host, role, wrapped));
            let wrapped = wrap("nqn.a", SecretRole::Host);
            assert_eq!(wrapped.wrapped_parts.len(), secret.expose().len().div_ceil(32));
            assert_eq!(open("nqn.a", SecretRole::Host, &wrapped).unwrap(), secret);
            assert!(open("nqn.b", SecretRole::Host, &wrapped).is_err());
            assert!(open("nqn.a", SecretRole::Controller, &wrapped).is_err());
            let mut turned = wrapped.clone();
            turned.wrapped_parts.reverse();
            assert_eq!(open("nqn.a", SecretRole::Host, &turned).is_ok(), turned == wrapped);
            let short = WrappedNvmeSecret { wrapped_parts: Vec::new(), ..wrapped };
            assert!(matches!(open("nqn.a", SecretRole::Host, &short), Err(UnwrapError::Malformed)));
        }
    }

    #[test]
    fn keys_for_tls_open_for_their_host_only() {
        let directory = tempfile::tempdir().unwrap();
        let keys = LocalKeys::create(&directory.path().join("kms.json")).unwrap();
        let plain = TlsKey::from_bytes(None, Zeroizing::new(vec![7; 48])).unwrap();
        for key in [TlsKey::random(HashFunction::Sha256), TlsKey::random(HashFunction::Sha384), plain] {
            let wrapped = block_on(wrap_tls_key(&keys, "nqn.a", &key)).unwrap();
            assert_eq!(block_on(unwrap_tls_key(&keys, "nqn.a", &wrapped)).unwrap(), key);
            assert!(block_on(unwrap_tls_key(&keys, "nqn.b", &wrapped)).is_err());
            assert!(block_on(unwrap_secret(&keys, "nqn.a", SecretRole::Host, &wrapped)).is_err());
        }
    }
}
