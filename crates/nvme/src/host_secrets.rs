//! Secrets of hosts as cluster state keeps them: wrapped by the key service, like all other secrets.

use std::sync::Arc;

use atoll_cluster::{ClusterClient, ClusterError, keys};
use atoll_keys::{KeyError, KeyService, SecretKey};
use atoll_types::nvme_hosts::{NvmeHostRecord, WrappedDhchapSecret};
use zeroize::Zeroizing;

use crate::protocol::{DhchapSecret, HashFunction, HostSecrets};

const PART_BYTES: usize = 32;

/// Whose secret it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecretRole {
    /// The host's.
    Host,
    /// That of gateways towards the host.
    Controller,
}

/// What the key service binds a piece of a secret to, so that none opens as another.
pub fn secret_part_context(host: &str, role: SecretRole, part: usize) -> String {
    let role = match role {
        SecretRole::Host => "host",
        SecretRole::Controller => "controller",
    };
    format!("atoll nvme {role} secret {part} {host}")
}

/// Wraps a secret of or for a host.
pub async fn wrap_secret(
    service: &dyn KeyService,
    host: &str,
    role: SecretRole,
    secret: &DhchapSecret,
) -> Result<WrappedDhchapSecret, KeyError> {
    let mut wrapped_parts = Vec::new();
    for (part, bytes) in secret.expose().chunks(PART_BYTES).enumerate() {
        let mut key = Zeroizing::new([0; PART_BYTES]);
        key[..bytes.len()].copy_from_slice(bytes);
        let key = SecretKey::from_bytes(*key);
        wrapped_parts.push(service.wrap(&secret_part_context(host, role, part), &key).await?);
    }
    Ok(WrappedDhchapSecret {
        hash: secret.hash().map_or(0, |hash| hash as u8),
        length_bytes: secret.expose().len() as u8,
        wrapped_parts,
    })
}

async fn unwrap_secret(
    service: &dyn KeyService,
    host: &str,
    role: SecretRole,
    wrapped: &WrappedDhchapSecret,
) -> Result<DhchapSecret, SecretsError> {
    let mut bytes = Zeroizing::new(Vec::with_capacity(2 * PART_BYTES));
    for (part, wrapped) in wrapped.wrapped_parts.iter().enumerate().take(2) {
        let key = service.unwrap(&secret_part_context(host, role, part), wrapped).await?;
        bytes.extend_from_slice(key.expose());
    }
    let malformed = || SecretsError::Malformed { host: host.to_owned() };
    if bytes.len() < usize::from(wrapped.length_bytes) {
        return Err(malformed());
    }
    bytes.truncate(wrapped.length_bytes.into());
    let hash = match wrapped.hash {
        0 => None,
        id => Some(HashFunction::from_id(id).ok_or_else(malformed)?),
    };
    DhchapSecret::from_bytes(hash, bytes).map_err(|_| malformed())
}

/// Why the secrets of a host are not known.
#[derive(Debug, thiserror::Error)]
pub enum SecretsError {
    /// Cluster state.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// The key service.
    #[error(transparent)]
    Keys(#[from] KeyError),
    /// The record does not hold together.
    #[error(
        "the secrets of NVMe host {host} in cluster state are malformed; set them anew with 'atoll nvme host set'"
    )]
    Malformed {
        /// The host.
        host: String,
    },
}

/// Where gateways find the secrets of hosts.
#[derive(Clone)]
pub struct HostSecretStore {
    cluster: ClusterClient,
    keys: Arc<dyn KeyService>,
}

impl HostSecretStore {
    /// In this cluster's state; `keys` has wrapped them.
    pub fn new(cluster: ClusterClient, keys: Arc<dyn KeyService>) -> Self {
        HostSecretStore { cluster, keys }
    }

    /// The secrets of a host; none if it need not prove itself.
    pub async fn get(&self, host: &str) -> Result<Option<HostSecrets>, SecretsError> {
        let Some((record, _)) = self.cluster.get::<NvmeHostRecord>(&keys::nvme_host(host)).await? else {
            return Ok(None);
        };
        let secret = unwrap_secret(&*self.keys, host, SecretRole::Host, &record.secret).await?;
        let controller = match &record.controller_secret {
            Some(wrapped) => Some(unwrap_secret(&*self.keys, host, SecretRole::Controller, wrapped).await?),
            None => None,
        };
        Ok(Some(HostSecrets { host: secret, controller }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_keys::LocalKeys;
    use futures::executor::block_on;

    #[test]
    fn secrets_open_for_whom_they_were_wrapped() {
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
            let short = WrappedDhchapSecret { wrapped_parts: Vec::new(), ..wrapped };
            assert!(matches!(open("nqn.a", SecretRole::Host, &short), Err(SecretsError::Malformed { .. })));
        }
    }
}
