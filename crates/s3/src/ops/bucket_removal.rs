//! DeleteBucket, safe against concurrent writes and against a gateway that dies half-way.
//!
//! Every index object gets the mark `x/deleting`; writes carry the condition that there is none. With
//! all marks in place the bucket cannot gain objects, so that it can be checked whether it is empty.
//! The point of no return is making the mark of index object 0 final, which needs it to be still this
//! attempt's. After that, another DeleteBucket or the collector finishes the job: data of garbage and
//! unfinished uploads, index objects with object 0 as the last, data beside them that no record named, record.
//!
//! A mark names its attempt. It is replaced or removed by others only when they have seen it for
//! [`crate::GatewayConfig::abandoned_after`], beginning with index object 0, so a stalled attempt can never become
//! final after that.

use std::time::Instant;

use atoll_types::limits::OMAP_LIST_MAX;
use atoll_types::{Condition, Mutation};
use bytes::Bytes;
use s3s::dto::{DeleteBucketInput, DeleteBucketOutput};
use s3s::{S3Request, S3Response, S3Result, s3_error};
use serde::{Deserialize, Serialize};

use super::Service;
use crate::clock::unix_ms;
use crate::data::remove_objects_of;
use crate::error::GatewayError;
use crate::index::{Index, after};
use crate::names::{DELETING_KEY, ENTRY_PREFIX, GARBAGE_PREFIX, INTENT_PREFIX, PART_PREFIX, VERSION_PREFIX};
use crate::record::decode_pieces;

#[derive(Serialize, Deserialize)]
struct Mark {
    format: u32,
    /// For people.
    since_ms: u64,
    token: String,
    /// Nothing can stop the deletion.
    is_final: bool,
}

impl Mark {
    fn encode(&self) -> Bytes {
        serde_json::to_vec(self).expect("a mark is plain JSON").into()
    }

    fn decode(value: &[u8]) -> Result<Self, GatewayError> {
        let malformed = |error: serde_json::Error| GatewayError::Malformed {
            what: "a bucket's deletion mark".into(),
            detail: error.to_string(),
        };
        serde_json::from_slice(value).map_err(malformed)
    }
}

/// Result of an attempt to mark an index object.
enum Marking {
    Marked,
    /// An earlier attempt went past the point of no return.
    Final,
    /// The index object is gone already.
    Missing,
    /// Another attempt is at work.
    Taken,
}

impl Service {
    pub(super) async fn delete_bucket(
        &self,
        request: S3Request<DeleteBucketInput>,
    ) -> S3Result<S3Response<DeleteBucketOutput>> {
        let name = request.input.bucket;
        let record = self.directory.bucket(&name).await.map_err(GatewayError::from)?;
        let record = record.ok_or_else(|| GatewayError::NoSuchBucket(name.clone()))?;
        self.buckets.see(&record)?;
        let index = self.index_of(record);

        let token = hex::encode(atoll_keys::random_bytes::<8>());
        let mark = Mark { format: 1, since_ms: unix_ms(), token, is_final: false };
        let mark_value = mark.encode();
        for shard in 0..index.shards() {
            match self.set_mark(&index, shard, &mark_value).await? {
                Marking::Marked => {}
                Marking::Missing if shard == 0 => {
                    finish_record(self, &index).await?;
                    return Ok(S3Response::new(DeleteBucketOutput::default()));
                }
                Marking::Final if shard == 0 => {
                    finish_removal(self, &index).await?;
                    return Ok(S3Response::new(DeleteBucketOutput::default()));
                }
                Marking::Final | Marking::Missing | Marking::Taken => {
                    remove_marks(&index, &mark_value).await;
                    return Err(s3_error!(OperationAborted, "The bucket is being deleted by another request"));
                }
            }
        }
        match is_empty(&index).await {
            Ok(true) => {}
            Ok(false) => {
                remove_marks(&index, &mark_value).await;
                return Err(s3_error!(BucketNotEmpty, "The bucket you tried to delete is not empty"));
            }
            Err(error) => {
                remove_marks(&index, &mark_value).await;
                return Err(error.into());
            }
        }
        let own = vec![Condition::OmapEquals { key: DELETING_KEY.into(), value: mark_value }];
        let value = Mark { is_final: true, ..mark }.encode();
        let make_final = vec![Mutation::OmapSet { key: DELETING_KEY.into(), value }];
        if let Err(error) = index.change_shard(0, own, make_final).await {
            return Err(if error.is_no_such_object() || error.failed_condition().is_some() {
                s3_error!(OperationAborted, "The bucket is being deleted by another request")
            } else {
                GatewayError::from(error).into()
            });
        }
        finish_removal(self, &index).await?;
        Ok(S3Response::new(DeleteBucketOutput::default()))
    }

    async fn set_mark(&self, index: &Index, shard: u32, value: &Bytes) -> Result<Marking, GatewayError> {
        let set = vec![Mutation::OmapSet { key: DELETING_KEY.into(), value: value.clone() }];
        let free = vec![Condition::ObjectExists, Condition::OmapAbsent { key: DELETING_KEY.into() }];
        match index.change_shard(shard, free, set.clone()).await {
            Ok(()) => return Ok(Marking::Marked),
            Err(error) => match error.failed_condition() {
                Some(0) => return Ok(Marking::Missing),
                Some(_) => {}
                None => return Err(error.into()),
            },
        }
        let old = match get_mark(index, shard).await {
            Ok(Some(old)) => old,
            Ok(None) => return Ok(Marking::Taken),
            Err(GatewayError::NoSuchBucket(_)) => return Ok(Marking::Missing),
            Err(error) => return Err(error),
        };
        let old_mark = Mark::decode(&old)?;
        if old_mark.is_final {
            return Ok(Marking::Final);
        }
        if !self.is_abandoned(index, &old_mark) {
            return Ok(Marking::Taken);
        }
        let unchanged = vec![Condition::OmapEquals { key: DELETING_KEY.into(), value: old }];
        match index.change_shard(shard, unchanged, set).await {
            Ok(()) => Ok(Marking::Marked),
            Err(error) if error.failed_condition().is_some() => Ok(Marking::Taken),
            Err(error) if error.is_no_such_object() => Ok(Marking::Missing),
            Err(error) => Err(error.into()),
        }
    }

    fn is_abandoned(&self, index: &Index, mark: &Mark) -> bool {
        let is_this = (&index.bucket.record.id, &mark.token);
        self.standing.is_since(is_this, self.abandoned_after, Instant::now())
    }
}

/// Makes the bucket usable again by removing the marks that are still this attempt's.
async fn remove_marks(index: &Index, value: &Bytes) {
    for shard in 0..index.shards() {
        let own = vec![Condition::OmapEquals { key: DELETING_KEY.into(), value: value.clone() }];
        let remove = vec![Mutation::OmapRemove { key: DELETING_KEY.into() }];
        match index.change_shard(shard, own, remove).await {
            Ok(()) => {}
            Err(error) if error.failed_condition().is_some() || error.is_no_such_object() => {}
            Err(error) => {
                tracing::warn!(bucket = index.bucket.record.name, %error, "a deletion mark stays behind");
            }
        }
    }
}

async fn is_empty(index: &Index) -> Result<bool, GatewayError> {
    for shard in 0..index.shards() {
        // Older versions stand behind an entry, but what follows is final.
        for prefix in [ENTRY_PREFIX, VERSION_PREFIX].map(Bytes::from_static) {
            if !index.page(shard, prefix.clone(), prefix, 1).await?.0.is_empty() {
                return Ok(false);
            }
        }
    }
    Ok(true)
}

async fn get_mark(index: &Index, shard: u32) -> Result<Option<Bytes>, GatewayError> {
    let mark = index.store.omap_get(index.bucket.record.pool, index.object(shard), DELETING_KEY.into()).await;
    mark.map_err(|error| index.explain(error))
}

/// Returns true if a deletion of the bucket has begun, or removed its index already.
pub(super) async fn is_being_deleted(index: &Index) -> Result<bool, GatewayError> {
    match get_mark(index, 0).await {
        Err(GatewayError::NoSuchBucket(_)) => Ok(true),
        mark => mark.map(|mark| mark.is_some()),
    }
}

/// Removes the data of garbage and of unfinished uploads. They come before the index object that
/// names them, or a gateway that dies in between would leave orphans.
async fn remove_leftovers(index: &Index, shard: u32) -> Result<(), GatewayError> {
    for prefix in [GARBAGE_PREFIX, PART_PREFIX, INTENT_PREFIX].map(Bytes::from_static) {
        let mut from = prefix.clone();
        loop {
            let (records, more) = match index.page(shard, prefix.clone(), from, OMAP_LIST_MAX).await {
                Err(GatewayError::NoSuchBucket(_)) => return Ok(()),
                other => other?,
            };
            for (_, value) in &records {
                remove_objects_of(index, shard, &decode_pieces(value)?).await?;
            }
            match records.last() {
                Some((last, _)) if more => from = after(last),
                _ => break,
            }
        }
    }
    Ok(())
}

/// Finishes a deletion whose point of no return has passed.
async fn finish_removal(service: &Service, index: &Index) -> Result<(), GatewayError> {
    for shard in (0..index.shards()).rev() {
        remove_leftovers(index, shard).await?;
        let marked = vec![Condition::ObjectExists, Condition::OmapExists { key: DELETING_KEY.into() }];
        match index.change_shard(shard, marked, vec![Mutation::Remove]).await {
            Ok(()) => {}
            Err(error) if error.failed_condition() == Some(0) || error.is_no_such_object() => {}
            Err(error) => return Err(error.into()),
        }
    }
    remove_record(service, index).await
}

/// Finishes a deletion that has removed index object 0, which is the last of them.
async fn finish_record(service: &Service, index: &Index) -> Result<(), GatewayError> {
    for shard in 1..index.shards() {
        match get_mark(index, shard).await {
            Err(GatewayError::NoSuchBucket(_)) => {}
            Err(error) => return Err(error),
            // No deletion has done this: what the bucket still has must not be lost, too.
            Ok(_) => {
                return Err(GatewayError::Malformed {
                    what: format!("the index of bucket '{}'", index.bucket.record.name),
                    detail: format!("its object 0 is missing, but not object {shard}; it is not removed"),
                });
            }
        }
    }
    remove_record(service, index).await
}

/// Removes data beside the index that no record names. No more can come when the index objects are gone.
async fn remove_orphans(index: &Index) -> Result<(), GatewayError> {
    for shard in (0..index.shards()).filter(|_| index.is_data_with_index()) {
        let mut last = None;
        loop {
            let (objects, next) = index.list_beside(shard, last).await?;
            for object in objects {
                index.store.change(index.bucket.record.pool, object, Vec::new(), vec![Mutation::Remove]).await?;
            }
            match next {
                Some(next) => last = Some(next),
                None => break,
            }
        }
    }
    Ok(())
}

async fn remove_record(service: &Service, index: &Index) -> Result<(), GatewayError> {
    remove_orphans(index).await?;
    let mut record = index.bucket.record.clone();
    service.buckets.forget(&record.name);
    // Somebody may have changed a setting of it meanwhile.
    while !service.directory.delete_bucket(&record).await? {
        match service.directory.bucket(&record.name).await? {
            Some(changed) if changed.id == record.id => record = changed,
            _ => break,
        }
    }
    Ok(())
}

/// Finishes a deletion past its point of no return whose gateway died; whether the bucket is gone then. The
/// collector calls this from time to time.
pub(crate) async fn tend_deletion(service: &Service, index: &Index) -> Result<bool, GatewayError> {
    let value = match get_mark(index, 0).await {
        Ok(Some(value)) => value,
        Ok(None) => return Ok(false),
        // Index objects come before the record, and object 0 is removed after all others.
        Err(GatewayError::NoSuchBucket(_)) => return finish_record(service, index).await.map(|()| true),
        Err(error) => return Err(error),
    };
    let is_final = Mark::decode(&value)?.is_final;
    if is_final {
        tracing::info!(bucket = index.bucket.record.name, "finishing a deletion that was cut short");
        finish_removal(service, index).await?;
    }
    Ok(is_final)
}

/// Withdraws the mark of a shard if its gateway died before the point of no return. To be called for index object 0
/// before the others.
pub(crate) async fn tend_mark(
    service: &Service,
    index: &Index,
    shard: u32,
    value: Bytes,
) -> Result<(), GatewayError> {
    let mark = Mark::decode(&value)?;
    if mark.is_final || !service.is_abandoned(index, &mark) {
        return Ok(());
    }
    tracing::info!(bucket = index.bucket.record.name, shard, "withdrawing a deletion that was cut short");
    index.remove_if(shard, DELETING_KEY.into(), value).await
}
