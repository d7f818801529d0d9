//! Buckets as the data path sees them: the record with its key unwrapped, cached for a short time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use atoll_base::records::BucketRecord;
use atoll_crypto::{KeyService, SecretKey};

use crate::directory::BucketDirectory;
use crate::error::GatewayError;

/// How long a bucket or user record may be out of date on the data path: a user removed from the
/// directory can still sign requests, and a bucket made anew by another gateway can still look
/// missing, for this long. A deleted bucket is noticed at once, since its index objects are gone.
pub(crate) const RECORD_TTL: Duration = Duration::from_secs(2);
const CACHE_ENTRIES_MAX: usize = 4_096;

/// What the key-management service binds a bucket key to.
pub fn bucket_key_context(bucket_id: &str) -> String {
    format!("bucket {bucket_id}")
}

/// A bucket and its key.
pub(crate) struct Bucket {
    pub record: BucketRecord,
    pub key: SecretKey,
}

/// A bounded map whose entries expire.
pub(crate) struct ShortCache<V> {
    entries: Mutex<HashMap<String, (Instant, V)>>,
    ttl: Duration,
}

impl<V: Clone> ShortCache<V> {
    pub(crate) fn new(ttl: Duration) -> Self {
        ShortCache { entries: Mutex::new(HashMap::new()), ttl }
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
        if entries.len() >= CACHE_ENTRIES_MAX {
            let ttl = self.ttl;
            entries.retain(|_, (since, _)| since.elapsed() < ttl);
            if entries.len() >= CACHE_ENTRIES_MAX {
                entries.clear();
            }
        }
        entries.insert(name.to_owned(), (Instant::now(), value));
    }

    pub(crate) fn remove(&self, name: &str) {
        self.lock().remove(name);
    }
}

/// Looks buckets up, with a cache in front of the directory and of the key-management service.
pub(crate) struct Buckets {
    directory: Arc<dyn BucketDirectory>,
    keys: Arc<dyn KeyService>,
    records: ShortCache<Arc<Bucket>>,
    // By bucket id, which is never reused: unlike records these do not go out of date.
    bucket_keys: ShortCache<(String, SecretKey)>,
}

impl Buckets {
    pub(crate) fn new(directory: Arc<dyn BucketDirectory>, keys: Arc<dyn KeyService>) -> Self {
        Buckets {
            directory,
            keys,
            records: ShortCache::new(RECORD_TTL),
            bucket_keys: ShortCache::new(Duration::from_secs(3_600)),
        }
    }

    /// The bucket of this name, perhaps [`RECORD_TTL`] out of date.
    pub(crate) async fn get(&self, name: &str) -> Result<Arc<Bucket>, GatewayError> {
        if let Some(bucket) = self.records.get(name) {
            return Ok(bucket);
        }
        let record = self.directory.bucket(name).await?;
        let record = record.ok_or_else(|| GatewayError::NoSuchBucket(name.into()))?;
        let bucket = self.open(record).await?;
        self.records.insert(name, bucket.clone());
        Ok(bucket)
    }

    /// Unwraps the bucket key of a record.
    pub(crate) async fn open(&self, record: BucketRecord) -> Result<Arc<Bucket>, GatewayError> {
        let key = match self.bucket_keys.get(&record.id) {
            Some((wrapped, key)) if wrapped == record.wrapped_key => key,
            _ => {
                let key = self.keys.unwrap(&bucket_key_context(&record.id), &record.wrapped_key).await?;
                self.bucket_keys.insert(&record.id, (record.wrapped_key.clone(), key.clone()));
                key
            }
        };
        Ok(Arc::new(Bucket { record, key }))
    }

    /// Forgets what was cached about a bucket.
    pub(crate) fn forget(&self, name: &str) {
        self.records.remove(name);
    }
}
