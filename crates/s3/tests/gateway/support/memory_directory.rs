//! Buckets and identities in memory.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use atoll_iam::operations::{Answer, Change};
use atoll_iam::{Identities, Record};
use atoll_s3::{BucketDirectory, ChangeError, DirectoryError, IdentityOperation};
use atoll_types::identities::LastUsedRecord;
use atoll_types::records::{BucketRecord, PoolRecord};

#[derive(Default)]
pub struct MemoryDirectory {
    buckets: Mutex<BTreeMap<String, BucketRecord>>,
    identities: Mutex<Identities>,
    last_used: Mutex<BTreeMap<String, LastUsedRecord>>,
    pools: Mutex<Vec<PoolRecord>>,
    unconfirmed_for: Mutex<Duration>,
    cluster_unix_ms: Mutex<Option<u64>>,
    /// Look-ups of single buckets and access keys.
    looked_up: AtomicU64,
}

impl MemoryDirectory {
    pub fn add_identity(&self, record: Record) {
        self.identities.lock().unwrap().apply(&record.name(), Some(record));
    }

    /// Simulates that cluster state had not answered for `duration`.
    pub fn set_unconfirmed_for(&self, duration: Duration) {
        *self.unconfirmed_for.lock().unwrap() = duration;
    }

    pub fn set_cluster_unix_ms(&self, unix_ms: Option<u64>) {
        *self.cluster_unix_ms.lock().unwrap() = unix_ms;
    }

    /// How often a bucket or an access key was looked up.
    pub fn looked_up(&self) -> u64 {
        self.looked_up.load(Ordering::Relaxed)
    }

    pub fn add_pool(&self, record: PoolRecord) {
        self.pools.lock().unwrap().push(record);
    }
}

#[async_trait]
impl BucketDirectory for MemoryDirectory {
    fn unconfirmed_for(&self) -> Duration {
        *self.unconfirmed_for.lock().unwrap()
    }

    fn cluster_unix_ms(&self) -> Option<u64> {
        *self.cluster_unix_ms.lock().unwrap()
    }

    async fn bucket(&self, name: &str) -> Result<Option<BucketRecord>, DirectoryError> {
        self.looked_up.fetch_add(1, Ordering::Relaxed);
        Ok(self.buckets.lock().unwrap().get(name).cloned())
    }

    fn is_unheard_bucket(&self, name: &str) -> bool {
        !self.buckets.lock().unwrap().contains_key(name)
    }

    fn is_unheard_access_key(&self, access_key: &str) -> bool {
        self.identities.lock().unwrap().access_key(access_key).is_none()
    }

    async fn buckets(&self) -> Result<Vec<BucketRecord>, DirectoryError> {
        Ok(self.buckets.lock().unwrap().values().cloned().collect())
    }

    async fn create_bucket(&self, record: &BucketRecord) -> Result<Option<BucketRecord>, DirectoryError> {
        let mut buckets = self.buckets.lock().unwrap();
        if let Some(existing) = buckets.get(&record.name) {
            return Ok(Some(existing.clone()));
        }
        buckets.insert(record.name.clone(), record.clone());
        Ok(None)
    }

    async fn update_bucket(&self, old: &BucketRecord, new: &BucketRecord) -> Result<bool, DirectoryError> {
        let mut buckets = self.buckets.lock().unwrap();
        let is_same = buckets.get(&old.name) == Some(old);
        if is_same {
            buckets.insert(new.name.clone(), new.clone());
        }
        Ok(is_same)
    }

    async fn delete_bucket(&self, record: &BucketRecord) -> Result<bool, DirectoryError> {
        let mut buckets = self.buckets.lock().unwrap();
        let is_same = buckets.get(&record.name) == Some(record);
        if is_same {
            buckets.remove(&record.name);
        }
        Ok(is_same)
    }

    async fn pool(&self, name: &str) -> Result<Option<PoolRecord>, DirectoryError> {
        Ok(self.pools.lock().unwrap().iter().find(|pool| pool.name == name).cloned())
    }

    fn identities(&self) -> Arc<Identities> {
        Arc::new(self.identities.lock().unwrap().clone())
    }

    async fn identities_with(&self, access_key: &str) -> Result<Option<Arc<Identities>>, DirectoryError> {
        self.looked_up.fetch_add(1, Ordering::Relaxed);
        Ok(Some(self.identities()).filter(|identities| identities.access_key(access_key).is_some()))
    }

    async fn current_identities(&self) -> Result<Arc<Identities>, DirectoryError> {
        Ok(self.identities())
    }

    async fn change_identities(&self, operation: &IdentityOperation<'_>) -> Result<Answer, ChangeError> {
        let mut identities = self.identities.lock().unwrap();
        let outcome = operation(&identities)?;
        for change in outcome.changes {
            match change {
                Change::Put(record) => identities.apply(&record.name(), Some(record)),
                Change::Delete(name) => identities.apply(&name, None),
            }
        }
        Ok(outcome.answer)
    }

    async fn last_used(&self, access_key: &str) -> Result<Option<LastUsedRecord>, DirectoryError> {
        Ok(self.last_used.lock().unwrap().get(access_key).cloned())
    }

    async fn note_last_use(&self, access_key: &str, record: &LastUsedRecord) -> Result<(), DirectoryError> {
        self.last_used.lock().unwrap().insert(access_key.to_owned(), record.clone());
        Ok(())
    }
}
