//! Buckets as the data path sees them: their records, cached for a short time, and their keys.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use atoll_credentials::{KeyCache, bucket_key_context, named_key_context, unsealed_permit_context};
use atoll_iam::{Identities, Policy, PolicyKind};
use atoll_keys::{KeyError, KeyService, SecretKey};
use atoll_types::records::BucketRecord;

use crate::asked;
use crate::directory::BucketDirectory;
use crate::error::GatewayError;
use crate::look_ups::{UnheardNames, Wanted};

/// Longest time that a bucket's record may be out of date on the data path: a policy set by another gateway does
/// not count yet, and a bucket that it made again can still look missing, for this long. A deleted bucket is
/// noticed at once, since its index objects are gone.
pub(crate) const RECORD_TTL: Duration = Duration::from_millis(800);
const CACHE_ENTRIES_MAX: usize = 4_096;

/// A bucket.
pub(crate) struct Bucket {
    pub record: BucketRecord,
    pub policy: BucketPolicy,
    /// Id of the account that owns it, if that account is known.
    pub owner_account: Option<String>,
}

/// The policy of a bucket, ready to be asked.
pub(crate) enum BucketPolicy {
    None,
    Set(Policy),
    /// It allows no request.
    Unreadable,
}

impl Bucket {
    pub(crate) fn new(record: BucketRecord, identities: &Identities) -> Self {
        let document = record.access.as_ref().and_then(|access| access.policy.as_deref());
        let policy = match document.map(|document| Policy::parse(document, PolicyKind::Resource)) {
            None => BucketPolicy::None,
            Some(Ok(policy)) => {
                if let Some(name) = policy.unknown_name() {
                    tracing::warn!(bucket = record.name, %name, "the policy of a bucket has a name that is not known");
                }
                let ids =
                    record.access.as_ref().map(|access| access.policy_principals.clone()).unwrap_or_default();
                BucketPolicy::Set(policy.bound(&ids))
            }
            Some(Err(error)) => {
                tracing::error!(bucket = record.name, %error, "the policy of a bucket cannot be read; no request \
                    is allowed");
                BucketPolicy::Unreadable
            }
        };
        let owner = identities.account_by_canonical_id(&record.owner);
        Bucket { policy, owner_account: owner.map(|account| account.id.clone()), record }
    }
}

/// A bounded map whose entries expire.
pub(crate) struct ShortCache<V> {
    entries: Mutex<HashMap<String, (Instant, V)>>,
    ttl: Duration,
    entries_max: usize,
}

impl<V: Clone> ShortCache<V> {
    pub(crate) fn new(ttl: Duration) -> Self {
        Self::with_room(ttl, CACHE_ENTRIES_MAX)
    }

    pub(crate) fn with_room(ttl: Duration, entries_max: usize) -> Self {
        ShortCache { entries: Mutex::new(HashMap::new()), ttl, entries_max }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, (Instant, V)>> {
        // Nothing panics while the lock is held, and a map is whole after every call.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn get(&self, name: &str) -> Option<V> {
        let entries = self.lock();
        let (since, value) = entries.get(name)?;
        (since.elapsed() < self.ttl).then(|| value.clone())
    }

    pub(crate) fn insert(&self, name: &str, value: V) {
        let mut entries = self.lock();
        if entries.len() >= self.entries_max {
            let ttl = self.ttl;
            entries.retain(|_, (since, _)| since.elapsed() < ttl);
            if entries.len() >= self.entries_max {
                entries.clear();
            }
        }
        entries.insert(name.to_owned(), (Instant::now(), value));
    }

    pub(crate) fn remove(&self, name: &str) {
        self.lock().remove(name);
    }
}

/// Looks buckets and their keys up, with a cache in front of the directory.
pub(crate) struct Buckets {
    directory: Arc<dyn BucketDirectory>,
    service: Arc<dyn KeyService>,
    keys: Arc<KeyCache>,
    records: ShortCache<Arc<Bucket>>,
    unheard: Arc<UnheardNames>,
}

/// How often a change of a bucket's record is tried while others change it, too.
const CHANGES_MAX: u32 = 10;

impl Buckets {
    pub(crate) fn new(
        directory: Arc<dyn BucketDirectory>,
        service: Arc<dyn KeyService>,
        keys: Arc<KeyCache>,
        unheard: Arc<UnheardNames>,
    ) -> Self {
        Buckets { directory, service, keys, records: ShortCache::new(RECORD_TTL), unheard }
    }

    /// The bucket of this name, perhaps [`RECORD_TTL`] out of date.
    pub(crate) async fn get(&self, name: &str) -> Result<Arc<Bucket>, GatewayError> {
        if let Some(bucket) = self.records.get(name) {
            self.see(&bucket.record)?;
            return Ok(bucket);
        }
        let asked = self.directory.bucket(name);
        let record = match self.directory.is_unheard_bucket(name) {
            true => self.unheard.look_up(Wanted::Bucket, name, asked).await?,
            false => asked.await?,
        };
        let record = record.ok_or_else(|| GatewayError::NoSuchBucket(name.into()))?;
        let bucket = Arc::new(Bucket::new(record, &self.directory.identities()));
        self.records.insert(name, bucket.clone());
        self.see(&bucket.record)?;
        Ok(bucket)
    }

    /// Refuses a bucket that has taken the name of one that the same request has seen.
    pub(crate) fn see(&self, record: &BucketRecord) -> Result<(), GatewayError> {
        if asked::is_same(record) {
            return Ok(());
        }
        self.forget(&record.name);
        Err(GatewayError::NoSuchBucket(record.name.clone()))
    }

    /// Returns the key that wraps the data keys of objects that name no other key.
    pub(crate) async fn own_key(&self, record: &BucketRecord) -> Result<SecretKey, GatewayError> {
        if record.wrapped_key.is_empty() {
            return Err(GatewayError::KeyDestroyed(record.name.clone()));
        }
        let context = bucket_key_context(&record.id);
        Ok(self.keys.unwrap(&context, &record.wrapped_key, record.key_generation).await?)
    }

    /// Makes sure that an operator wants new objects stored without sealing, and not someone who can merely
    /// write cluster state.
    pub(crate) async fn check_unsealed_permit(&self, record: &BucketRecord) -> Result<(), GatewayError> {
        let permit = record.unsealed_permit.as_deref();
        let permit = permit.ok_or_else(|| GatewayError::SealingRequired(record.name.clone()))?;
        let context = unsealed_permit_context(&record.id);
        self.keys.unwrap(&context, permit, record.key_generation).await?;
        Ok(())
    }

    /// The key that wraps data keys on behalf of the named key of the key service.
    pub(crate) async fn named_key(
        &self,
        record: &BucketRecord,
        key_name: &str,
    ) -> Result<SecretKey, GatewayError> {
        let wrapped = match record.named_keys.get(key_name) {
            Some(wrapped) => wrapped.clone(),
            // The record may be older than the key.
            None => self
                .fresh(&record.name)
                .await?
                .named_keys
                .get(key_name)
                .cloned()
                .ok_or_else(|| KeyError::NoSuchKey { key_id: key_name.into() })?,
        };
        if wrapped.is_empty() {
            return Err(GatewayError::KeyDestroyed(record.name.clone()));
        }
        let context = named_key_context(&record.id, key_name);
        Ok(self.keys.unwrap(&context, &wrapped, record.key_generation).await?)
    }

    /// Like [`Buckets::named_key`], for writing: the first write for a named key makes it.
    pub(crate) async fn named_key_to_write(
        &self,
        record: &BucketRecord,
        key_name: &str,
    ) -> Result<SecretKey, GatewayError> {
        if !record.named_keys.contains_key(key_name) {
            let context = named_key_context(&record.id, key_name);
            let wrapped = self.service.wrap_with(Some(key_name), &context, &SecretKey::random()).await?;
            self.try_change(&record.name, |current| {
                if current.id != record.id {
                    return Err(GatewayError::NoSuchBucket(record.name.clone()));
                }
                current.named_keys.entry(key_name.to_owned()).or_insert_with(|| wrapped.clone());
                Ok(())
            })
            .await?;
        }
        self.named_key(record, key_name).await
    }

    /// The record as it is in the directory now.
    pub(crate) async fn fresh(&self, name: &str) -> Result<BucketRecord, GatewayError> {
        self.forget(name);
        let record = self.directory.bucket(name).await?;
        let record = record.ok_or_else(|| GatewayError::NoSuchBucket(name.into()))?;
        self.see(&record)?;
        Ok(record)
    }

    /// Changes a bucket's record.
    pub(crate) async fn change(&self, name: &str, change: impl Fn(&mut BucketRecord)) -> Result<(), GatewayError> {
        let change = |record: &mut BucketRecord| {
            change(record);
            Ok::<_, GatewayError>(())
        };
        self.try_change(name, change).await.map(drop)
    }

    /// Changes a bucket's record, unless its content forbids that. Returns it as it is then.
    pub(crate) async fn try_change<E: From<GatewayError>>(
        &self,
        name: &str,
        change: impl Fn(&mut BucketRecord) -> Result<(), E>,
    ) -> Result<BucketRecord, E> {
        for _ in 0..CHANGES_MAX {
            let old = self.fresh(name).await?;
            let mut new = old.clone();
            change(&mut new)?;
            if new == old || self.directory.update_bucket(&old, &new).await.map_err(GatewayError::from)? {
                asked::changed(&old, &new);
                self.forget(name);
                return Ok(new);
            }
        }
        Err(GatewayError::BucketBusy(name.into()).into())
    }

    /// Drops the cached record of a bucket.
    pub(crate) fn forget(&self, name: &str) {
        self.records.remove(name);
        self.unheard.forget(Wanted::Bucket, name);
    }
}
