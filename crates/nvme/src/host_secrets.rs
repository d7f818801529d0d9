//! Secrets and keys of hosts in cluster state.

use std::sync::Arc;

use atoll_cluster::{ClusterClient, ClusterError, keys};
use atoll_credentials::nvme::{HostSecrets, SecretRole, TlsKey, UnwrapError, unwrap_secret, unwrap_tls_key};
use atoll_keys::{KeyError, KeyService};
use atoll_types::nvme_hosts::{NvmeHostRecord, NvmeTlsRecord};

use crate::protocol::ChannelSecurity;

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
        "the record of NVMe host {host} in cluster state is malformed; set it again with 'atoll nvme host set' \
         or 'set-tls'"
    )]
    Malformed {
        /// The host.
        host: String,
    },
}

impl SecretsError {
    fn unwrapping(host: &str) -> impl Fn(UnwrapError) -> SecretsError {
        move |error| match error {
            UnwrapError::Keys(error) => SecretsError::Keys(error),
            UnwrapError::Malformed => SecretsError::Malformed { host: host.to_owned() },
        }
    }
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
        let error = SecretsError::unwrapping(host);
        let secret = unwrap_secret(&*self.keys, host, SecretRole::Host, &record.secret).await.map_err(&error)?;
        let controller = match &record.controller_secret {
            Some(wrapped) => {
                Some(unwrap_secret(&*self.keys, host, SecretRole::Controller, wrapped).await.map_err(&error)?)
            }
            None => None,
        };
        Ok(Some(HostSecrets { host: secret, controller }))
    }

    /// The key of a host for TLS, if it has one.
    pub async fn tls_key(&self, host: &str) -> Result<Option<TlsKey>, SecretsError> {
        let Some(record) = self.tls_record(host).await? else { return Ok(None) };
        unwrap_tls_key(&*self.keys, host, &record.key).await.map(Some).map_err(SecretsError::unwrapping(host))
    }

    /// Returns if a host can connect with TLS, and if it must.
    pub async fn channel_security(&self, host: &str) -> Result<ChannelSecurity, SecretsError> {
        Ok(match self.tls_record(host).await? {
            None => ChannelSecurity::None,
            Some(record) if record.is_plain_allowed => ChannelSecurity::Offered,
            Some(_) => ChannelSecurity::Required,
        })
    }

    async fn tls_record(&self, host: &str) -> Result<Option<NvmeTlsRecord>, SecretsError> {
        let found = self.cluster.get::<NvmeTlsRecord>(&keys::nvme_tls(host)).await?;
        Ok(found.map(|(record, _)| record))
    }
}
