//! Hosts that must prove themselves to NVMe gateways: setting, listing and forgetting their secrets and keys for TLS.

use atoll_cluster::{ClusterClient, keys};
use atoll_coordinator::unix_ms;
use atoll_credentials::nvme::{HostSecrets, SecretRole, TlsKey, wrap_secret, wrap_tls_key};
use atoll_keys::KeyService;
use atoll_types::nvme_hosts::{NQN_BYTES_MAX, NvmeHostRecord, NvmeTlsRecord};
use atoll_types::records::RECORD_FORMAT;

use crate::AdminError;

/// Sets the secrets of a host. From then on no gateway lets it connect without them.
pub async fn set(
    client: &ClusterClient,
    service: &dyn KeyService,
    host: &str,
    secrets: &HostSecrets,
) -> Result<NvmeHostRecord, AdminError> {
    check_name(host)?;
    if secrets.controller.as_ref() == Some(&secrets.host) {
        return AdminError::refused(
            "the secret of the gateways must differ from the host's, or the host could prove itself with the \
             gateways' answers",
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

fn check_name(host: &str) -> Result<(), AdminError> {
    let is_name = host.starts_with("nqn.") && host.len() <= NQN_BYTES_MAX && !host.contains(char::is_control);
    if is_name {
        return Ok(());
    }
    AdminError::refused(format!(
        "'{host}' is no name of an NVMe host: it begins with 'nqn.' and has at most {NQN_BYTES_MAX} bytes; on Linux it is \
         in /etc/nvme/hostnqn"
    ))
}

/// Sets the key of a host for TLS. From then on it can connect with that, and without only if that is allowed.
pub async fn set_tls(
    client: &ClusterClient,
    service: &dyn KeyService,
    host: &str,
    key: &TlsKey,
    is_plain_allowed: bool,
) -> Result<NvmeTlsRecord, AdminError> {
    check_name(host)?;
    if host.contains(' ') {
        return AdminError::refused(format!("'{host}' has a space, which names of hosts with TLS cannot have"));
    }
    let record = NvmeTlsRecord {
        format: RECORD_FORMAT,
        host: host.to_owned(),
        key: wrap_tls_key(service, host, key).await?,
        is_plain_allowed,
        created_unix_ms: unix_ms(),
    };
    client.put(&keys::nvme_tls(host), &record).await?;
    Ok(record)
}

/// All hosts with keys for TLS, by name.
pub async fn list_tls(client: &ClusterClient) -> Result<Vec<NvmeTlsRecord>, AdminError> {
    let listing = client.list_usable::<NvmeTlsRecord>(keys::NVME_TLS).await?;
    Ok(listing.entries.into_iter().map(|(_, record, _)| record).collect())
}

/// Forgets the key of a host for TLS, which then connects without.
pub async fn remove_tls(client: &ClusterClient, host: &str) -> Result<(), AdminError> {
    if client.delete(&keys::nvme_tls(host)).await? {
        return Ok(());
    }
    AdminError::refused(format!(
        "there is no key for TLS of NVMe host '{host}'; 'atoll nvme host ls' names all hosts that have one"
    ))
}

/// All hosts with secrets, by name.
pub async fn list(client: &ClusterClient) -> Result<Vec<NvmeHostRecord>, AdminError> {
    let listing = client.list_usable::<NvmeHostRecord>(keys::NVME_HOSTS).await?;
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
