//! Hosts that must prove themselves to NVMe gateways: setting, listing and forgetting their secrets.

use atoll_cluster::{ClusterClient, keys};
use atoll_coordinator::unix_ms;
use atoll_keys::KeyService;
use atoll_nvme::protocol::{HostSecrets, NQN_BYTES_MAX};
use atoll_nvme::{SecretRole, wrap_secret};
use atoll_types::nvme_hosts::NvmeHostRecord;
use atoll_types::records::RECORD_FORMAT;

use crate::AdminError;

/// Sets the secrets of a host. From then on no gateway lets it connect without them.
pub async fn set(
    client: &ClusterClient,
    service: &dyn KeyService,
    host: &str,
    secrets: &HostSecrets,
) -> Result<NvmeHostRecord, AdminError> {
    let is_name = host.starts_with("nqn.") && host.len() <= NQN_BYTES_MAX && !host.contains(char::is_control);
    if !is_name {
        return AdminError::refused(format!(
            "'{host}' is no name of an NVMe host: it begins with 'nqn.' and has at most {NQN_BYTES_MAX} bytes; on Linux it \
             is in /etc/nvme/hostnqn"
        ));
    }
    if secrets.controller.as_ref() == Some(&secrets.host) {
        return AdminError::refused(
            "the secret of the gateways must be another than the host's, or the host could prove itself by what gateways say",
        );
    }
    let controller_secret = match &secrets.controller {
        Some(secret) => Some(wrap_secret(service, host, SecretRole::Controller, secret).await?),
        None => None,
    };
    let record = NvmeHostRecord {
        format: RECORD_FORMAT,
        host: host.to_owned(),
        secret: wrap_secret(service, host, SecretRole::Host, &secrets.host).await?,
        controller_secret,
        created_unix_ms: unix_ms(),
    };
    client.put(&keys::nvme_host(host), &record).await?;
    Ok(record)
}

/// All hosts with secrets, by name.
pub async fn list(client: &ClusterClient) -> Result<Vec<NvmeHostRecord>, AdminError> {
    let listing = client.list::<NvmeHostRecord>(keys::NVME_HOSTS).await?;
    Ok(listing.entries.into_iter().map(|(_, record, _)| record).collect())
}

/// Forgets the secrets of a host, which then need not prove itself.
pub async fn remove(client: &ClusterClient, host: &str) -> Result<(), AdminError> {
    if client.delete(&keys::nvme_host(host)).await? {
        return Ok(());
    }
    AdminError::refused(format!(
        "there is no secret of NVMe host '{host}'; 'atoll nvme host ls' names all hosts that have one"
    ))
}
