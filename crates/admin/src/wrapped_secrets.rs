//! Secrets in cluster state that the key service has wrapped: the keys of images and buckets, the secrets of
//! access keys, of NVMe hosts and of log-ins, and the key of temporary credentials. They can be rewrapped, or
//! deleted, without touching any data.

use std::collections::BTreeMap;

use atoll_cluster::{ClusterClient, ClusterError, Contention, keys};
use atoll_credentials::nvme::{SecretRole, secret_part_context};
use atoll_credentials::{
    STS_KEY_CONTEXT, bucket_key_context, named_key_context, unsealed_permit_context, user_key_context,
};
use atoll_image::image_key_context;
use atoll_keys::{KeyDescription, KeyError, KeyService, WrappedBy};
use atoll_types::identities::{AccessKeyRecord, StsKeyRecord};
use atoll_types::login_oidc::OidcRecord;
use atoll_types::nvme_hosts::{NvmeHostRecord, NvmeTlsRecord, WrappedNvmeSecret};
use atoll_types::operators::OperatorRecord;
use atoll_types::records::{BucketRecord, ImageRecord, RemovedImageRecord};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::AdminError;
use crate::{login_oidc, second_factor};

/// Secrets of a cluster that a key has wrapped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct KeyUses {
    /// Images.
    pub images: u64,
    /// Keys of buckets.
    pub buckets: u64,
    /// Access keys of S3.
    pub users: u64,
    /// The key under which temporary credentials are made.
    pub sts_keys: u64,
    /// Parts of 32 bytes of secrets and keys of NVMe hosts.
    pub nvme_secrets: u64,
    /// Keys that sign records of cluster state.
    pub signing_keys: u64,
    /// Secrets of operators' one-time passwords.
    pub second_factors: u64,
    /// Keys of the secret of the OpenID Connect client.
    pub oidc_secrets: u64,
}

impl KeyUses {
    /// All together.
    pub fn total(&self) -> u64 {
        let wrapping = self.images + self.buckets + self.users + self.sts_keys + self.nvme_secrets;
        wrapping + self.signing_keys + self.second_factors + self.oidc_secrets
    }
}

impl std::fmt::Display for KeyUses {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let counts = [
            (self.images, "image"),
            (self.buckets, "bucket key"),
            (self.users, "access key"),
            (self.sts_keys, "STS key"),
            (self.nvme_secrets, "part of an NVMe secret"),
            (self.signing_keys, "key of signed records"),
            (self.second_factors, "second factor"),
            (self.oidc_secrets, "OpenID Connect secret"),
        ];
        let some = counts.iter().filter(|(count, _)| *count > 0);
        let texts: Vec<String> =
            some.map(|(count, what)| format!("{count} {what}{}", if *count == 1 { "" } else { "s" })).collect();
        write!(f, "{}", texts.join(", "))
    }
}

/// A record with wrapped secrets in it.
trait Wrapped: Clone + PartialEq + Serialize + DeserializeOwned {
    /// Returns each secret with its context.
    fn secrets(&mut self) -> Vec<(String, &mut String)>;
    fn count(uses: &mut KeyUses) -> &mut u64;
}

impl Wrapped for ImageRecord {
    fn secrets(&mut self) -> Vec<(String, &mut String)> {
        vec![(image_key_context(self), self.key.wrapped_mut())]
    }

    fn count(uses: &mut KeyUses) -> &mut u64 {
        &mut uses.images
    }
}

impl Wrapped for BucketRecord {
    fn secrets(&mut self) -> Vec<(String, &mut String)> {
        let named = self.named_keys.iter_mut();
        let named = named.map(|(name, wrapped)| (named_key_context(&self.id, name), wrapped));
        let permit = self.unsealed_permit.iter_mut();
        let permit = permit.map(|wrapped| (unsealed_permit_context(&self.id), wrapped));
        let own = std::iter::once((bucket_key_context(&self.id), &mut self.wrapped_key));
        own.chain(named).chain(permit).collect()
    }

    fn count(uses: &mut KeyUses) -> &mut u64 {
        &mut uses.buckets
    }
}

impl Wrapped for RemovedImageRecord {
    fn secrets(&mut self) -> Vec<(String, &mut String)> {
        self.image.secrets()
    }

    fn count(uses: &mut KeyUses) -> &mut u64 {
        &mut uses.images
    }
}

impl Wrapped for AccessKeyRecord {
    fn secrets(&mut self) -> Vec<(String, &mut String)> {
        vec![(user_key_context(&self.access_key), &mut self.wrapped_secret_key)]
    }

    fn count(uses: &mut KeyUses) -> &mut u64 {
        &mut uses.users
    }
}

impl Wrapped for StsKeyRecord {
    fn secrets(&mut self) -> Vec<(String, &mut String)> {
        let previous = self.previous.as_mut().map(|previous| &mut previous.wrapped_key);
        let all = std::iter::once(&mut self.wrapped_key).chain(previous);
        all.map(|wrapped| (STS_KEY_CONTEXT.into(), wrapped)).collect()
    }

    fn count(uses: &mut KeyUses) -> &mut u64 {
        &mut uses.sts_keys
    }
}

impl Wrapped for OperatorRecord {
    fn secrets(&mut self) -> Vec<(String, &mut String)> {
        let totp = self.totp.iter_mut();
        totp.map(|totp| (second_factor::context(&totp.id), &mut totp.wrapped_secret)).collect()
    }

    fn count(uses: &mut KeyUses) -> &mut u64 {
        &mut uses.second_factors
    }
}

impl Wrapped for OidcRecord {
    fn secrets(&mut self) -> Vec<(String, &mut String)> {
        let secret = self.secret.iter_mut();
        secret.map(|secret| (login_oidc::context(&secret.id), &mut secret.wrapped_key)).collect()
    }

    fn count(uses: &mut KeyUses) -> &mut u64 {
        &mut uses.oidc_secrets
    }
}

impl Wrapped for NvmeHostRecord {
    fn secrets(&mut self) -> Vec<(String, &mut String)> {
        let controller = self.controller_secret.as_mut().map(|secret| (SecretRole::Controller, secret));
        let both = std::iter::once((SecretRole::Host, &mut self.secret)).chain(controller);
        let host = &self.host;
        both.flat_map(|(role, secret)| nvme_parts(host, role, secret)).collect()
    }

    fn count(uses: &mut KeyUses) -> &mut u64 {
        &mut uses.nvme_secrets
    }
}

impl Wrapped for NvmeTlsRecord {
    fn secrets(&mut self) -> Vec<(String, &mut String)> {
        nvme_parts(&self.host, SecretRole::Tls, &mut self.key).collect()
    }

    fn count(uses: &mut KeyUses) -> &mut u64 {
        &mut uses.nvme_secrets
    }
}

fn nvme_parts<'a>(
    host: &str,
    role: SecretRole,
    secret: &'a mut WrappedNvmeSecret,
) -> impl Iterator<Item = (String, &'a mut String)> {
    let parts = secret.wrapped_parts.iter_mut().enumerate();
    parts.map(move |(part, wrapped)| (secret_part_context(host, role, part), wrapped))
}

/// Number of secrets that each version of a key has wrapped, by the names in the wrapped secrets.
pub struct UsesByVersion(BTreeMap<(String, String, String), KeyUses>);

impl UsesByVersion {
    /// Reads all records.
    pub async fn read(state: &ClusterClient) -> Result<Self, AdminError> {
        let mut uses = UsesByVersion(BTreeMap::new());
        uses.add::<ImageRecord>(state, keys::IMAGES).await?;
        uses.add::<RemovedImageRecord>(state, keys::REMOVED_IMAGES).await?;
        uses.add::<BucketRecord>(state, keys::BUCKETS).await?;
        uses.add::<AccessKeyRecord>(state, keys::ACCESS_KEYS).await?;
        uses.add::<StsKeyRecord>(state, keys::STS_KEY).await?;
        uses.add::<NvmeHostRecord>(state, keys::NVME_HOSTS).await?;
        uses.add::<NvmeTlsRecord>(state, keys::NVME_TLS).await?;
        uses.add::<OperatorRecord>(state, keys::OPERATORS).await?;
        uses.add::<OidcRecord>(state, keys::LOGIN_OIDC).await?;
        for by in
            atoll_authority::wrapped_keys(state).await?.iter().filter_map(|wrapped| WrappedBy::parse(wrapped))
        {
            uses.of_version(by).signing_keys += 1;
        }
        Ok(uses)
    }

    fn of_version(&mut self, by: WrappedBy) -> &mut KeyUses {
        self.0.entry((by.service, by.key_name, by.version)).or_default()
    }

    /// Reads the records that this host may read: they show if a key is the cluster's, not if it is used.
    pub async fn read_some(state: &ClusterClient) -> Result<Self, AdminError> {
        let roles = state.own_roles().await?.unwrap_or_default();
        let may = |keys: &str| atoll_cluster::roles::may_read(&roles, keys);
        let mut uses = UsesByVersion(BTreeMap::new());
        if may(keys::IMAGES) {
            uses.add::<ImageRecord>(state, keys::IMAGES).await?;
            uses.add::<RemovedImageRecord>(state, keys::REMOVED_IMAGES).await?;
        }
        if may(keys::BUCKETS) {
            uses.add::<BucketRecord>(state, keys::BUCKETS).await?;
            uses.add::<AccessKeyRecord>(state, keys::ACCESS_KEYS).await?;
            uses.add::<StsKeyRecord>(state, keys::STS_KEY).await?;
        }
        if may(keys::NVME_HOSTS) {
            uses.add::<NvmeHostRecord>(state, keys::NVME_HOSTS).await?;
            uses.add::<NvmeTlsRecord>(state, keys::NVME_TLS).await?;
        }
        Ok(uses)
    }

    async fn add<T: Wrapped>(&mut self, state: &ClusterClient, prefix: &str) -> Result<(), AdminError> {
        for (_, mut record, _) in state.list::<T>(prefix).await?.entries {
            for by in record.secrets().iter().filter_map(|(_, wrapped)| WrappedBy::parse(wrapped)) {
                *T::count(self.of_version(by)) += 1;
            }
        }
        Ok(())
    }

    /// Returns the number of secrets that each version of a local key has wrapped.
    pub fn local(&self) -> BTreeMap<&str, KeyUses> {
        let local = self.0.iter().filter(|((service, ..), _)| service == "local");
        local.map(|((_, _, version), uses)| (version.as_str(), *uses)).collect()
    }

    /// Returns the number of secrets that a version of this key has wrapped.
    pub fn of(&self, key: &KeyDescription, version: &str) -> KeyUses {
        // Wrapped secrets of local keys say their version, which is of one key only.
        let name = if key.service == "local" { "" } else { &key.name };
        let found = self.0.get(&(key.service.to_owned(), name.to_owned(), version.to_owned()));
        found.copied().unwrap_or_default()
    }
}

/// Result of a walk over all records.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RewrapReport {
    /// Secrets that were rewrapped.
    pub rewrapped: u64,
    /// Secrets that the newest version had wrapped already, or whose key was destroyed.
    pub unchanged: u64,
    /// Records of cluster state that were signed with a new key.
    pub signed: u64,
    /// Secrets that could not be rewrapped, and the reasons.
    pub failed: Vec<String>,
}

/// Wraps everything with the newest versions of keys, and with the service that is in use. `progress` gets the
/// number of processed records.
pub async fn rewrap_all(
    state: &ClusterClient,
    service: &dyn KeyService,
    progress: &dyn Fn(u64),
) -> Result<RewrapReport, AdminError> {
    let mut walk = Walk { state, service, progress, done: 0, report: RewrapReport::default() };
    walk.records::<ImageRecord>(keys::IMAGES).await?;
    walk.records::<RemovedImageRecord>(keys::REMOVED_IMAGES).await?;
    walk.records::<BucketRecord>(keys::BUCKETS).await?;
    walk.records::<AccessKeyRecord>(keys::ACCESS_KEYS).await?;
    walk.records::<StsKeyRecord>(keys::STS_KEY).await?;
    walk.records::<NvmeHostRecord>(keys::NVME_HOSTS).await?;
    walk.records::<NvmeTlsRecord>(keys::NVME_TLS).await?;
    walk.records::<OperatorRecord>(keys::OPERATORS).await?;
    walk.records::<OidcRecord>(keys::LOGIN_OIDC).await?;
    let mut report = walk.report;
    let (rewrapped, unchanged) = atoll_authority::rewrap(state, service).await?;
    report.rewrapped += rewrapped;
    report.unchanged += unchanged;
    Ok(report)
}

struct Walk<'a> {
    state: &'a ClusterClient,
    service: &'a dyn KeyService,
    progress: &'a dyn Fn(u64),
    done: u64,
    report: RewrapReport,
}

impl Walk<'_> {
    async fn records<T: Wrapped>(&mut self, prefix: &str) -> Result<(), AdminError> {
        for (key, record, revision) in self.state.list::<T>(prefix).await?.entries {
            self.record(&key, record, revision).await?;
            self.done += 1;
            (self.progress)(self.done);
        }
        Ok(())
    }

    async fn record<T: Wrapped>(&mut self, key: &str, mut record: T, mut revision: i64) -> Result<(), AdminError> {
        let mut contention = Contention::default();
        loop {
            let old = record.clone();
            let mut report = RewrapReport::default();
            for (context, wrapped) in record.secrets().into_iter().filter(|(_, wrapped)| !wrapped.is_empty()) {
                match self.service.rewrap(&context, wrapped).await {
                    Ok(Some(anew)) => {
                        *wrapped = anew;
                        report.rewrapped += 1;
                    }
                    Ok(None) => report.unchanged += 1,
                    // The others still can be; a service that is away ends the walk.
                    Err(error @ (KeyError::NoSuchKey { .. } | KeyError::NotAuthentic { .. })) => {
                        report.failed.push(format!("{key}: {error}"));
                    }
                    Err(error) => return Err(error.into()),
                }
            }
            let written = match record == old {
                true => Ok(revision),
                false => self.state.compare_and_swap(key, revision, &record).await,
            };
            match written {
                Ok(_) => {
                    self.report.rewrapped += report.rewrapped;
                    self.report.unchanged += report.unchanged;
                    self.report.failed.append(&mut report.failed);
                    return Ok(());
                }
                Err(ClusterError::Conflict { .. } | ClusterError::Unclear { .. }) => {
                    if !contention.pause().await {
                        self.report.failed.push(format!("{key}: others change it all the time"));
                        return Ok(());
                    }
                    let Some(found) = self.state.get::<T>(key).await? else { return Ok(()) };
                    (record, revision) = found;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Makes all gateways forget the keys of a bucket that they have unwrapped, or of all buckets. Returns the number of
/// buckets.
pub async fn forget_bucket_keys(state: &ClusterClient, bucket: Option<&str>) -> Result<u64, AdminError> {
    let forget = |record: &mut BucketRecord| {
        record.key_generation += 1;
        Ok(())
    };
    if let Some(name) = bucket {
        return change_bucket(state, name, forget).await.map(|()| 1);
    }
    let mut changed = 0;
    for (_, bucket, _) in state.list::<BucketRecord>(keys::BUCKETS).await?.entries {
        match change_bucket(state, &bucket.name, forget).await {
            Ok(()) => changed += 1,
            // It was removed meanwhile: its keys are needed no more, and those of the others are to be forgotten.
            Err(AdminError::NoSuchBucket(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(changed)
}

/// Destroys the keys of a bucket, and with them whatever is in it, if it still is the bucket that was looked at
/// and has no object lock that was not there then.
pub(crate) async fn destroy_bucket_keys(state: &ClusterClient, seen: &BucketRecord) -> Result<(), AdminError> {
    change_bucket(state, &seen.name, |record| {
        if record.id != seen.id || (record.object_lock.is_some() && seen.object_lock.is_none()) {
            return AdminError::refused(format!(
                "the bucket '{}' has got object lock meanwhile, or is another one; look at it again",
                seen.name
            ));
        }
        record.key_generation += 1;
        record.unsealed_permit = None;
        record.secrets().into_iter().for_each(|(_, wrapped)| wrapped.clear());
        Ok(())
    })
    .await
}

pub(crate) async fn change_bucket(
    state: &ClusterClient,
    name: &str,
    change: impl Fn(&mut BucketRecord) -> Result<(), AdminError>,
) -> Result<(), AdminError> {
    let key = keys::bucket(name);
    let mut contention = Contention::default();
    loop {
        let found = state.get::<BucketRecord>(&key).await?;
        let (mut record, revision) = found.ok_or_else(|| AdminError::NoSuchBucket(name.to_owned()))?;
        change(&mut record)?;
        match state.compare_and_swap(&key, revision, &record).await {
            Err(ClusterError::Conflict { .. } | ClusterError::Unclear { .. }) => {}
            other => return Ok(other.map(drop)?),
        }
        if !contention.pause().await {
            return AdminError::refused(format!("others change the bucket '{name}' all the time; try again"));
        }
    }
}
