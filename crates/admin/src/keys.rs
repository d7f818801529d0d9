//! Keys of the key service: the secrets that they wrapped, new versions, and their end.

use std::collections::BTreeSet;

use atoll_cluster::{ClusterClient, ClusterError};
use atoll_keys::{KeyDescription, KeyService, WrappedBy};
use atoll_types::records::{AuthorizedKeyRecord, BucketRecord, KeyBackupRecord, PeerRole};
use serde::Serialize;

use crate::approvals::{self, ProvedOperator};
use crate::error::AdminError;
use crate::key_policies;
use crate::wrapped_secrets::{KeyUses, UsesByVersion};

/// A key of the key service.
#[derive(Clone, Debug, Serialize)]
pub struct KeyStatus {
    /// Its name.
    pub name: String,
    /// `local` or `transit`.
    pub service: &'static str,
    /// Id of the account that it belongs to; `None` if all accounts may use it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
    /// True if it has a key policy.
    pub has_policy: bool,
    /// Its versions; the newest is the last.
    pub versions: Vec<KeyVersionStatus>,
}

/// A version of a key.
#[derive(Clone, Debug, Serialize)]
pub struct KeyVersionStatus {
    /// Its name.
    pub id: String,
    /// When it was made; 0 if the service does not say.
    pub created_unix_ms: u64,
    /// True if it wraps new secrets. Older versions only open the secrets that they wrapped.
    pub wraps: bool,
    /// Secrets that it has wrapped.
    pub has_wrapped: KeyUses,
}

/// All keys.
pub async fn list(client: &ClusterClient, service: &dyn KeyService) -> Result<Vec<KeyStatus>, AdminError> {
    let uses = UsesByVersion::read(client).await?;
    let identities = crate::identities::current(client).await?;
    let status = |key: KeyDescription| {
        let newest = key.versions.len().saturating_sub(1);
        let versions = key.versions.iter().enumerate().map(|(index, version)| KeyVersionStatus {
            id: version.id.clone(),
            created_unix_ms: version.created_unix_ms,
            wraps: index == newest,
            has_wrapped: uses.of(&key, &version.id),
        });
        let known = identities.kms_key(&key.name).map(|known| &known.record);
        KeyStatus {
            versions: versions.collect(),
            name: key.name.clone(),
            service: key.service,
            account: known.map(|known| known.account.clone()),
            has_policy: known.is_some_and(|known| known.policy.is_some()),
        }
    };
    Ok(service.list().await?.into_iter().map(status).collect())
}

/// Gives a key a new version and returns the version's name. With `is_rewrap_next` it refuses where the next step,
/// [`crate::wrapped_secrets::rewrap_all`], would lock other hosts out.
pub async fn rotate(
    client: &ClusterClient,
    service: &dyn KeyService,
    name: &str,
    is_rewrap_next: bool,
) -> Result<String, AdminError> {
    if is_rewrap_next {
        refuse_if_others_have_copies(client, &service.list().await?, name).await?;
    }
    let key = service.rotate(name).await?;
    forget_backups(client, &local_versions(std::slice::from_ref(&key))).await?;
    Ok(key.versions.last().map(|version| version.id.clone()).unwrap_or_default())
}

fn local_versions(keys: &[KeyDescription]) -> BTreeSet<String> {
    let local = keys.iter().filter(|key| key.service == "local");
    local.flat_map(|key| key.versions.iter().map(|version| version.id.clone())).collect()
}

/// Forgets the backups that lack any of this.
pub async fn forget_backups(client: &ClusterClient, needed: &BTreeSet<String>) -> Result<(), AdminError> {
    let found = client.list::<KeyBackupRecord>(atoll_cluster::keys::KEY_BACKUPS).await?.entries;
    for (key, record, revision) in found {
        if record.holds.is_superset(needed) {
            continue;
        }
        match client.delete_if(&key, revision).await {
            // Whoever made a newer one looks at what it has.
            Ok(_) | Err(ClusterError::Conflict { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Makes a key for SSE-KMS, which belongs to an account; without one, to the first. One that exists stays as it is.
pub async fn create(
    client: &ClusterClient,
    service: &dyn KeyService,
    account: Option<&str>,
    name: &str,
) -> Result<(), AdminError> {
    crate::identities::find_account(&crate::identities::current(client).await?, account)?;
    let is_there = service.list().await?.iter().any(|key| key.name == name);
    service.create(name).await?;
    if !is_there {
        key_policies::give(client, service, account, name).await?;
    }
    forget_backups(client, &local_versions(&service.list().await?)).await
}

/// Local keys are in a file that every host with clients has a copy of: a secret wrapped with a version in one
/// copy only does not open with the others.
async fn refuse_if_others_have_copies(
    client: &ClusterClient,
    keys: &[KeyDescription],
    name: &str,
) -> Result<(), AdminError> {
    let is_local = keys.iter().any(|key| key.name == name && key.service == "local");
    let holders = client.list::<AuthorizedKeyRecord>(atoll_cluster::keys::AUTHORIZED_KEYS).await?.entries;
    let hosts = holders.iter().filter(|(_, record, _)| record.role == PeerRole::Client).count();
    if is_local && hosts > 1 {
        return AdminError::refused(format!(
            "{hosts} hosts have copies of keys/kms.json, and only this one would get the new version: run 'atoll key rotate \
             --no-rewrap', copy the file to the others at once, then 'atoll key rewrap'"
        ));
    }
    Ok(())
}

/// Consent of an operator to a loss of data.
#[derive(Clone, Debug, Default)]
pub struct Consent {
    /// Data may be lost.
    pub force: bool,
    /// Consent to the loss of versions that object lock retains: from this operator, and another has to approve
    /// it.
    pub retained: Option<ProvedOperator>,
}

/// Destroys a key. A key that has wrapped secrets is destroyed only with consent: all data below it is lost.
pub async fn destroy(
    client: &ClusterClient,
    service: &dyn KeyService,
    name: &str,
    consent: Consent,
) -> Result<(), AdminError> {
    let keys = list(client, service).await?;
    let key = keys.iter().find(|key| key.name == name).ok_or_else(|| AdminError::NoSuchKey(name.to_owned()))?;
    let wrapped: u64 = key.versions.iter().map(|version| version.has_wrapped.total()).sum();
    if wrapped > 0 && !consent.force {
        return AdminError::refused(format!(
            "the key '{name}' has wrapped the keys of {wrapped} images, buckets and users, and all that is in them would be \
             lost for good; 'atoll key ls' shows them; say --force if that is meant"
        ));
    }
    let buckets = client.list::<BucketRecord>(atoll_cluster::keys::BUCKETS).await?.entries;
    let below = buckets.into_iter().map(|(_, bucket, _)| bucket).filter(|bucket| is_below(bucket, key));
    check_retained(client, below, &format!("key destroy --key {name}"), &consent).await?;
    service.destroy(name).await?;
    // Both, whichever fails: the key is gone, and this cannot be done again.
    let forgotten = crate::wrapped_secrets::forget_bucket_keys(client, None).await;
    key_policies::forget(client, service, name).await?;
    forgotten.map(drop)
}

/// Destroys the keys of a bucket, and with them all that is in it.
pub async fn destroy_of_bucket(client: &ClusterClient, name: &str, consent: Consent) -> Result<(), AdminError> {
    let found = client.get::<BucketRecord>(&atoll_cluster::keys::bucket(name)).await?;
    let (bucket, _) = found.ok_or_else(|| AdminError::NoSuchBucket(name.to_owned()))?;
    let action = format!("key destroy --bucket {name}");
    check_retained(client, std::iter::once(bucket.clone()), &action, &consent).await?;
    crate::wrapped_secrets::destroy_bucket_keys(client, &bucket).await
}

/// Returns true if a key has wrapped one of a bucket's own.
fn is_below(bucket: &BucketRecord, key: &KeyStatus) -> bool {
    let wrapped = std::iter::once(&bucket.wrapped_key).chain(bucket.named_keys.values());
    let is_of_key = |by: WrappedBy| {
        // Wrapped secrets of local keys say their version, which is of one key only.
        let is_named = key.service == "local" || by.key_name == key.name;
        by.service == key.service && is_named && key.versions.iter().any(|version| version.id == by.version)
    };
    wrapped.filter_map(|wrapped| WrappedBy::parse(wrapped)).any(is_of_key)
}

/// Refuses to destroy retained versions, unless two operators consent: only its gateway knows if a version of a
/// bucket with object lock is retained, so all of them count.
async fn check_retained(
    client: &ClusterClient,
    buckets: impl Iterator<Item = BucketRecord>,
    action: &str,
    consent: &Consent,
) -> Result<(), AdminError> {
    let locked: Vec<String> =
        buckets.filter(|bucket| bucket.object_lock.is_some()).map(|bucket| format!("'{}'", bucket.name)).collect();
    if locked.is_empty() {
        return Ok(());
    }
    let Some(operator) = &consent.retained else {
        return AdminError::refused(format!(
            "object lock may retain versions in {}, which would be lost for good; 'aws s3api get-object-retention' shows it; \
             say --force-destroy-retained --operator NAME if that is meant, which a second operator has to approve",
            locked.join(", ")
        ));
    };
    approvals::require(client, action, operator).await.map(drop)
}
