//! Buckets and users in memory.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use atoll_iam::{Identities, Record};
use atoll_s3::{BucketDirectory, DirectoryError};
use atoll_types::identities::{AccessKeyRecord, AccountRecord};
use atoll_types::records::{BucketRecord, PoolRecord};

#[derive(Default)]
pub struct MemoryDirectory {
    buckets: Mutex<BTreeMap<String, BucketRecord>>,
    users: Mutex<BTreeMap<String, AccessKeyRecord>>,
    accounts: Mutex<Vec<AccountRecord>>,
    pools: Mutex<Vec<PoolRecord>>,
}

impl MemoryDirectory {
    pub fn add_user(&self, record: AccessKeyRecord) {
        self.users.lock().unwrap().insert(record.access_key.clone(), record);
    }

    pub fn add_account(&self, record: AccountRecord) {
        self.accounts.lock().unwrap().push(record);
    }

    pub fn add_pool(&self, record: PoolRecord) {
        self.pools.lock().unwrap().push(record);
    }
}

#[async_trait]
impl BucketDirectory for MemoryDirectory {
    async fn bucket(&self, name: &str) -> Result<Option<BucketRecord>, DirectoryError> {
        Ok(self.buckets.lock().unwrap().get(name).cloned())
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
        let keys = self.users.lock().unwrap().values().cloned().map(Record::AccessKey).collect::<Vec<_>>();
        let accounts = self.accounts.lock().unwrap().iter().cloned().map(Record::Account).collect::<Vec<_>>();
        Arc::new(Identities::from_records(accounts.into_iter().chain(keys)))
    }

    async fn user(&self, access_key: &str) -> Result<Option<AccessKeyRecord>, DirectoryError> {
        Ok(self.users.lock().unwrap().get(access_key).cloned())
    }
}
