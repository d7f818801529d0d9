//! The bucket index: the one place that says which objects exist. Every visible change is one
//! conditional change of one index object.

use std::sync::Arc;
use std::time::Duration;

use atoll_objects::ClientError;
use atoll_types::limits::OMAP_KEY_BYTES_MAX;
use atoll_types::{Condition, Mutation, ObjectName, WriteRequest};
use bytes::Bytes;

use crate::DataStore;
use crate::bucket::Bucket;
use crate::error::GatewayError;
use crate::names::{DELETING_KEY, VERSIONING_KEY, beside_prefix, entry_key, index_object, shard_of};
use crate::versions::{versioning_generation, versioning_value};

/// How often and how long a change waits for a deletion of its bucket to be decided.
const DELETION_WAITS: u32 = 5;
const DELETION_WAIT: Duration = Duration::from_millis(200);

/// The index of one bucket.
#[derive(Clone)]
pub(crate) struct Index {
    pub store: Arc<dyn DataStore>,
    pub bucket: Arc<Bucket>,
}

/// Data that a change of the index names, and that may go beside the index.
pub(crate) trait BesideIndex {
    /// Returns the object of data that goes beside the index.
    fn beside(&self) -> Option<&ObjectName>;

    /// Returns the write that puts the data beside the index, if it is not there yet. It is about to be sent.
    fn write_beside(&mut self) -> Option<WriteRequest>;

    /// Notes that the data is beside the index.
    fn note_beside(&mut self);
}

/// Data that a change names.
pub(crate) type Named = dyn BesideIndex + Send;

/// The first key behind a key.
pub(crate) fn after(key: &Bytes) -> Bytes {
    [key, &b"\0"[..]].concat().into()
}

impl Index {
    pub(crate) fn new(store: Arc<dyn DataStore>, bucket: Arc<Bucket>) -> Self {
        Index { store, bucket }
    }

    fn no_such_bucket(&self) -> GatewayError {
        GatewayError::NoSuchBucket(self.bucket.record.name.clone())
    }

    /// Returns the meaning of an error of a call on an index object: a missing one is a missing bucket.
    pub(crate) fn explain(&self, error: ClientError) -> GatewayError {
        if error.is_no_such_object() { self.no_such_bucket() } else { error.into() }
    }

    pub(crate) fn shards(&self) -> u32 {
        self.bucket.record.index_shards.max(1)
    }

    /// Returns true if small data has objects beside the index.
    pub(crate) fn is_data_with_index(&self) -> bool {
        self.bucket.record.data_pool() == self.bucket.record.pool
    }

    pub(crate) fn object(&self, shard: u32) -> ObjectName {
        index_object(&self.bucket.record.id, shard)
    }

    /// The objects beside an index object, after one of them; and the name after which there may be more.
    pub(crate) async fn list_beside(
        &self,
        shard: u32,
        after: Option<ObjectName>,
    ) -> Result<(Vec<ObjectName>, Option<ObjectName>), GatewayError> {
        let (pool, object) = (self.bucket.record.pool, self.object(shard));
        let prefix = beside_prefix(&object);
        Ok(self.store.list_beside(pool, object, prefix, after).await?)
    }

    pub(crate) fn shard_of(&self, key: &str) -> u32 {
        shard_of(key, self.shards())
    }

    /// The value under an index key that lives in the shard of an S3 key.
    pub(crate) async fn get(&self, key: &str, index_key: Bytes) -> Result<Option<Bytes>, GatewayError> {
        if index_key.len() > OMAP_KEY_BYTES_MAX {
            return Ok(None);
        }
        let object = self.object(self.shard_of(key));
        let value = self.store.omap_get(self.bucket.record.pool, object, index_key).await;
        value.map_err(|error| self.explain(error))
    }

    /// The entry of a visible object, as stored.
    pub(crate) async fn entry(&self, key: &str) -> Result<Option<Bytes>, GatewayError> {
        self.get(key, entry_key(key)).await
    }

    /// A page of a shard's records.
    pub(crate) async fn page(
        &self,
        shard: u32,
        prefix: Bytes,
        mut from: Bytes,
        limit: u32,
    ) -> Result<(Vec<(Bytes, Bytes)>, bool), GatewayError> {
        if prefix.len() > OMAP_KEY_BYTES_MAX {
            return Ok((Vec::new(), false));
        }
        // No key is as long as that, so none lies between the two.
        from.truncate(OMAP_KEY_BYTES_MAX);
        let page = self.store.omap_list(self.bucket.record.pool, self.object(shard), prefix, from, limit).await;
        page.map_err(|error| self.explain(error))
    }

    /// All records of a shard with a prefix.
    pub(crate) async fn all(&self, shard: u32, prefix: Bytes) -> Result<Vec<(Bytes, Bytes)>, GatewayError> {
        let mut records = Vec::new();
        let mut from = prefix.clone();
        loop {
            let limit = atoll_types::limits::OMAP_LIST_MAX;
            let (mut page, more) = self.page(shard, prefix.clone(), from, limit).await?;
            records.append(&mut page);
            match records.last() {
                Some((key, _)) if more => from = after(key),
                _ => return Ok(records),
            }
        }
    }

    /// Changes the shard of an S3 key if the bucket lives, is not being deleted, and `conditions`
    /// hold. [`GatewayError::ConditionFailed`] counts within `conditions`.
    pub(crate) async fn change(
        &self,
        key: &str,
        conditions: Vec<Condition>,
        mutations: Vec<Mutation>,
    ) -> Result<(), GatewayError> {
        self.change_with(key, conditions, mutations, None).await
    }

    /// Like [`Index::change`], for a change that names data which may have to be written beside the index first.
    pub(crate) async fn change_with(
        &self,
        key: &str,
        conditions: Vec<Condition>,
        mutations: Vec<Mutation>,
        mut data: Option<&mut Named>,
    ) -> Result<(), GatewayError> {
        let object = self.object(self.shard_of(key));
        let mut all = vec![Condition::ObjectExists, Condition::OmapAbsent { key: DELETING_KEY.into() }];
        all.extend(conditions);
        for _ in 0..DELETION_WAITS {
            let sent = self.send_change(&object, all.clone(), mutations.clone(), data.as_deref_mut()).await;
            let Err(error) = sent else { return Ok(()) };
            match error.failed_condition().map(usize::from) {
                Some(0) => return Err(self.no_such_bucket()),
                // The deletion either goes through or finds the bucket not empty and gives way.
                Some(1) => tokio::time::sleep(DELETION_WAIT).await,
                Some(index) => return Err(GatewayError::ConditionFailed(index - 2)),
                None => return Err(self.explain(error)),
            }
        }
        Err(GatewayError::BucketBusy(self.bucket.record.name.clone()))
    }

    /// Sends a change, and with it the data that it names, if that goes beside the index and is not there yet. Both
    /// are under way at once: the change is refused unless the PG has the data in its history before it. So it is,
    /// however late it comes, after the data was removed.
    async fn send_change(
        &self,
        object: &ObjectName,
        conditions: Vec<Condition>,
        mutations: Vec<Mutation>,
        data: Option<&mut Named>,
    ) -> Result<(), ClientError> {
        let pool = self.bucket.record.pool;
        let change = |conditions| self.store.change(pool, object.clone(), conditions, mutations.clone());
        let beside = data.and_then(|data| data.beside().cloned().map(|beside| (data, beside)));
        let Some((data, beside)) = beside else { return change(conditions).await };

        let with_data = [&conditions[..], &[Condition::OtherExists { object: beside }]].concat();
        let Some(write) = data.write_beside() else { return change(with_data).await };
        // The data is sent first.
        let (written, changed) = futures::join!(self.store.send_write(pool, write), change(with_data.clone()));
        if written.is_ok() || changed.is_ok() {
            data.note_beside();
        }
        match changed {
            // The data had to wait, for metadata that was not in memory.
            Err(error) if error.failed_condition().map(usize::from) == Some(conditions.len()) => {
                written?;
                change(with_data).await
            }
            result => result,
        }
    }

    /// Changes a shard as it is, whatever becomes of the bucket.
    pub(crate) async fn change_shard(
        &self,
        shard: u32,
        conditions: Vec<Condition>,
        mutations: Vec<Mutation>,
    ) -> Result<(), ClientError> {
        self.store.change(self.bucket.record.pool, self.object(shard), conditions, mutations).await
    }

    /// Removes a record of a shard if it is still this one.
    pub(crate) async fn remove_if(&self, shard: u32, key: Bytes, value: Bytes) -> Result<(), GatewayError> {
        let is_same = vec![Condition::OmapEquals { key: key.clone(), value }];
        match self.change_shard(shard, is_same, vec![Mutation::OmapRemove { key }]).await {
            Err(error) if error.failed_condition().is_some() => Ok(()),
            removed => removed.map_err(|error| self.explain(error)),
        }
    }

    /// Informs writers of a shard of the bucket's versioning, if they know less than the record. False if they
    /// know more: the record is out of date.
    pub(crate) async fn align_versioning(&self, shard: u32) -> Result<bool, GatewayError> {
        let Some(versioning) = self.bucket.record.versioning else { return Ok(false) };
        let key = Bytes::from_static(VERSIONING_KEY);
        let (pool, object) = (self.bucket.record.pool, self.object(shard));
        let told = self.store.omap_get(pool, object.clone(), key.clone()).await;
        let told = told.map_err(|error| self.explain(error))?;
        let unchanged = match &told {
            Some(value) if versioning_generation(value)? >= versioning.generation => {
                return Ok(versioning_generation(value)? == versioning.generation);
            }
            Some(value) => Condition::OmapEquals { key: key.clone(), value: value.clone() },
            None => Condition::OmapAbsent { key: key.clone() },
        };
        let conditions = vec![Condition::ObjectExists, unchanged];
        let tell = vec![Mutation::OmapSet { key, value: versioning_value(versioning) }];
        match self.store.change(pool, object, conditions, tell).await {
            // Another gateway was quicker.
            Err(error) if error.failed_condition() == Some(1) => Ok(true),
            Err(error) if error.failed_condition() == Some(0) => Err(self.no_such_bucket()),
            other => other.map(|()| true).map_err(|error| self.explain(error)),
        }
    }
}
