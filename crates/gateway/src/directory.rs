//! The directory in cluster state, with a copy that a watch keeps current.
//!
//! As long as cluster state answers, every call goes there. When it does not, reads are answered
//! from the copy: losing cluster state stops no I/O, only changes of buckets.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use atoll_cluster::{ClusterClient, ClusterError, PrefixWatch, WatchEvent, keys};
use atoll_s3::{BucketDirectory, DirectoryError};
use atoll_types::identities::AccessKeyRecord;
use atoll_types::record_json::read_record;
use atoll_types::records::{BucketRecord, PoolRecord};
use serde::de::DeserializeOwned;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// How long a read waits for cluster state before the copy has to do.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long only one caller at a time asks cluster state after it has not answered.
const PAUSE: Duration = Duration::from_secs(2);

/// Buckets and users as records in cluster state.
pub struct EtcdDirectory {
    cluster: ClusterClient,
    copy: Arc<Mutex<Copy>>,
    followers: Vec<JoinHandle<()>>,
}

/// What cluster state said last.
#[derive(Default)]
struct Copy {
    /// By key.
    records: BTreeMap<String, Vec<u8>>,
    /// When cluster state may be asked again, if it has not answered.
    ask_again_at: Option<Instant>,
}

impl EtcdDirectory {
    /// A directory over an open connection.
    pub async fn start(cluster: ClusterClient) -> Result<Self, ClusterError> {
        let copy = Arc::new(Mutex::new(Copy::default()));
        let mut followers = Vec::new();
        for prefix in [keys::BUCKETS, keys::ACCESS_KEYS] {
            let listing = cluster.list_raw(prefix).await?;
            lock(&copy).records.extend(listing.entries.into_iter().map(|(key, value, _)| (key, value)));
            let watch = cluster.watch_prefix(prefix, listing.revision + 1);
            followers.push(tokio::spawn(follow(prefix, watch, copy.clone())));
        }
        Ok(EtcdDirectory { cluster, copy, followers })
    }

    /// The answer of cluster state, or nothing if it has none to give now.
    async fn ask<T>(
        &self,
        question: impl Future<Output = Result<T, ClusterError>>,
    ) -> Result<Option<T>, ClusterError> {
        {
            let mut copy = lock(&self.copy);
            let now = Instant::now();
            if copy.ask_again_at.is_some_and(|at| now < at) {
                return Ok(None);
            }
            if copy.ask_again_at.is_some() {
                // This caller tries; the others go on without.
                copy.ask_again_at = Some(now + PAUSE);
            }
        }
        let answer = match tokio::time::timeout(PATIENCE, question).await {
            // A record that cannot be read is an answer; anything else may be better later.
            Ok(Err(error @ ClusterError::Decode { .. })) => return Err(error),
            Ok(Err(_)) | Err(_) => {
                let mut copy = lock(&self.copy);
                if copy.ask_again_at.is_none() {
                    tracing::warn!("cluster state does not answer; buckets and users are those last seen");
                }
                copy.ask_again_at = Some(Instant::now() + PAUSE);
                return Ok(None);
            }
            Ok(Ok(answer)) => answer,
        };
        if lock(&self.copy).ask_again_at.take().is_some() {
            tracing::info!("cluster state answers again");
        }
        Ok(Some(answer))
    }

    async fn record<T: DeserializeOwned>(&self, key: &str) -> Result<Option<T>, DirectoryError> {
        if let Some(found) = self.ask(self.cluster.get::<T>(key)).await.map_err(error)? {
            return Ok(found.map(|(record, _)| record));
        }
        match lock(&self.copy).records.get(key) {
            Some(value) => parse(key, value).map(Some),
            // It may have been made since.
            None => Err(DirectoryError::Unavailable(format!("it does not answer, and {key} was not seen before"))),
        }
    }
}

impl Drop for EtcdDirectory {
    fn drop(&mut self) {
        self.followers.iter().for_each(JoinHandle::abort);
    }
}

/// A map is whole between any two changes, so a panic elsewhere does not spoil it.
fn lock(copy: &Mutex<Copy>) -> MutexGuard<'_, Copy> {
    copy.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn follow(prefix: &'static str, mut watch: PrefixWatch, copy: Arc<Mutex<Copy>>) {
    while let Some(event) = watch.next().await {
        let records = &mut lock(&copy).records;
        match event {
            WatchEvent::Put { key, value, .. } => drop(records.insert(key, value)),
            WatchEvent::Delete { key, .. } => drop(records.remove(&key)),
            WatchEvent::Resync { entries, .. } => {
                records.retain(|key, _| !key.starts_with(prefix));
                records.extend(entries.into_iter().map(|(key, value, _)| (key, value)));
            }
        }
    }
}

fn parse<T: DeserializeOwned>(key: &str, value: &[u8]) -> Result<T, DirectoryError> {
    read_record(value).map_err(|error| DirectoryError::Malformed { name: key.into(), detail: error.to_string() })
}

fn error(error: ClusterError) -> DirectoryError {
    match error {
        ClusterError::Decode { key, .. } => {
            DirectoryError::Malformed { name: key, detail: "it is not the JSON of such a record".into() }
        }
        other => DirectoryError::Unavailable(other.to_string()),
    }
}

#[async_trait]
impl BucketDirectory for EtcdDirectory {
    async fn bucket(&self, name: &str) -> Result<Option<BucketRecord>, DirectoryError> {
        self.record(&keys::bucket(name)).await
    }

    async fn buckets(&self) -> Result<Vec<BucketRecord>, DirectoryError> {
        if let Some(listing) = self.ask(self.cluster.list::<BucketRecord>(keys::BUCKETS)).await.map_err(error)? {
            return Ok(listing.entries.into_iter().map(|(_, record, _)| record).collect());
        }
        let copy = lock(&self.copy);
        let buckets = copy.records.iter().filter(|(key, _)| key.starts_with(keys::BUCKETS));
        buckets.map(|(key, value)| parse(key, value)).collect()
    }

    async fn create_bucket(&self, record: &BucketRecord) -> Result<Option<BucketRecord>, DirectoryError> {
        match self.cluster.create(&keys::bucket(&record.name), record).await {
            Ok(_) => Ok(None),
            Err(ClusterError::AlreadyExists { .. }) => self.bucket(&record.name).await,
            // Whether the record was written is not known: look.
            Err(unclear @ ClusterError::Unclear { .. }) => match self.bucket(&record.name).await? {
                Some(found) if found == *record => Ok(None),
                Some(found) => Ok(Some(found)),
                None => Err(error(unclear)),
            },
            Err(other) => Err(error(other)),
        }
    }

    async fn update_bucket(&self, old: &BucketRecord, new: &BucketRecord) -> Result<bool, DirectoryError> {
        let key = keys::bucket(&old.name);
        let found = self.cluster.get::<BucketRecord>(&key).await.map_err(error)?;
        let Some((_, revision)) = found.filter(|(found, _)| found == old) else { return Ok(false) };
        match self.cluster.compare_and_swap(&key, revision, new).await {
            Ok(_) => Ok(true),
            // The caller looks at the record again, and finds what it wanted or tries anew.
            Err(ClusterError::Conflict { .. } | ClusterError::Unclear { .. }) => Ok(false),
            Err(other) => Err(error(other)),
        }
    }

    async fn delete_bucket(&self, record: &BucketRecord) -> Result<bool, DirectoryError> {
        let key = keys::bucket(&record.name);
        let found = self.cluster.get::<BucketRecord>(&key).await.map_err(error)?;
        let Some((_, revision)) = found.filter(|(found, _)| found == record) else { return Ok(false) };
        match self.cluster.delete_if(&key, revision).await {
            Ok(_) => Ok(true),
            Err(ClusterError::Conflict { .. }) => Ok(false),
            Err(other) => Err(error(other)),
        }
    }

    async fn pool(&self, name: &str) -> Result<Option<PoolRecord>, DirectoryError> {
        // Only the making of a bucket asks, which needs cluster state anyway: there is no copy.
        let listing = self.cluster.list::<PoolRecord>(keys::POOLS).await.map_err(error)?;
        Ok(listing.entries.into_iter().map(|(_, pool, _)| pool).find(|pool| pool.name == name))
    }

    async fn user(&self, access_key: &str) -> Result<Option<AccessKeyRecord>, DirectoryError> {
        self.record(&keys::access_key(access_key)).await
    }
}

#[cfg(test)]
mod tests;
