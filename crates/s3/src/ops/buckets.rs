//! Making, finding and listing buckets.

use std::sync::Arc;

use atoll_credentials::bucket_key_context;
use atoll_keys::{SecretKey, random_bytes};
use atoll_seal::SEGMENT_BYTES;
use atoll_types::access::ObjectOwnership;
use atoll_types::records::{
    BucketAccess, BucketObjectLock, BucketRecord, BucketVersioning, PoolRecord, RECORD_FORMAT, Redundancy,
};
use atoll_types::{Condition, Mutation, PoolId};
use s3s::dto::{
    Bucket as BucketAnswer, BucketLocationConstraint, CreateBucketInput, CreateBucketOutput,
    GetBucketLocationInput, GetBucketLocationOutput, HeadBucketInput, HeadBucketOutput, ListBucketsInput,
    ListBucketsOutput,
};
use s3s::{S3Request, S3Response, S3Result, s3_error};

use super::Service;
use super::acl::{WantedAcl, resolve_acl};
use super::answers::timestamp;
use super::bucket_removal::is_being_deleted;
use super::ownership::{acl_in_the_way, parse_ownership};
use crate::DirectoryError;
use crate::access::Asking;
use crate::clock::unix_ms;
use crate::error::GatewayError;
use crate::names::{VERSIONING_KEY, index_object};
use crate::observed::Observed;
use crate::versions::versioning_value;

/// The region in which S3 keeps some habits of its beginnings.
const OLDEST_REGION: &str = "us-east-1";

/// A location constraint that begins so names the pool for the bucket's data.
const POOL_CONSTRAINT: &str = "pool:";

/// Checks if a pool can hold S3 data; the error has the reason and the remedy. A sealed segment must lie in one
/// chunk, or every shard that has a part of it would need its seal.
pub fn check_data_pool(pool: &PoolRecord) -> Result<(), String> {
    match pool.redundancy {
        Redundancy::Erasure { chunk_bytes, .. } if (chunk_bytes as usize) < SEGMENT_BYTES => Err(format!(
            "the pool '{}' cannot hold S3 data: its chunks have {} KiB, and S3 data is sealed in segments of {} KiB; make \
             one with 'atoll pool create --ec K+M --chunk {2}K'",
            pool.name,
            chunk_bytes >> 10,
            SEGMENT_BYTES >> 10
        )),
        Redundancy::Erasure { .. } | Redundancy::Replicated { .. } => Ok(()),
    }
}

/// Properties of a requested bucket.
#[derive(Clone, Copy)]
struct WantedBucket<'a> {
    owner: &'a str,
    access: Option<&'a BucketAccess>,
    data_pool: Option<PoolId>,
    has_lock: bool,
}

fn created(name: &str) -> S3Response<CreateBucketOutput> {
    S3Response::new(CreateBucketOutput { location: Some(format!("/{name}")) })
}

impl Service {
    pub(super) async fn create_bucket(
        &self,
        request: S3Request<CreateBucketInput>,
    ) -> S3Result<S3Response<CreateBucketOutput>> {
        let asking = Asking::of(&request.headers, &request.uri, &request.extensions)?;
        let owner = asking.permit.canonical_id().to_owned();
        let name = request.input.bucket;
        // Each label of a name is one of a host's name.
        let has_labels = !name.contains("-.") && !name.contains(".-");
        if !s3s::path::check_bucket_name(&name) || !has_labels {
            return Err(s3_error!(InvalidBucketName, "The specified bucket is not valid"));
        }
        let has_lock = request.input.object_lock_enabled_for_bucket.unwrap_or(false);
        let configuration = request.input.create_bucket_configuration.unwrap_or_default();
        if configuration.bucket.is_some() || configuration.location.is_some() {
            return Err(s3_error!(NotImplemented, "Directory buckets are not supported"));
        }
        let constraint = configuration.location_constraint;
        let location = constraint.as_ref().map(BucketLocationConstraint::as_str).filter(|text| !text.is_empty());
        asking.with_location(location).check_new_bucket(&name)?;
        if let Some(observed) = request.extensions.get::<Arc<Observed>>() {
            observed.note_allowed_change();
        }
        let data_pool = self.data_pool_of(constraint.as_ref()).await?.filter(|pool| *pool != self.pool);
        let ownership = request.input.object_ownership.as_ref().map(|name| parse_ownership(name.as_str()));
        let acl = self.wanted_acl(&request.headers)?;
        let access = self.first_access(ownership.transpose()?, &owner, acl)?;
        let wanted = WantedBucket { owner: &owner, access: access.as_ref(), data_pool, has_lock };
        if let Some(existing) = self.directory.bucket(&name).await.map_err(GatewayError::from)? {
            return self.created_before(existing, wanted).await;
        }

        let id = hex::encode(random_bytes::<8>());
        let wrapped_key =
            self.keys.wrap(&bucket_key_context(&id), &SecretKey::random()).await.map_err(GatewayError::from)?;
        let mut record = BucketRecord {
            format: RECORD_FORMAT,
            id,
            name: name.clone(),
            owner: owner.clone(),
            pool: self.pool,
            data_pool,
            index_shards: self.index_shards,
            wrapped_key,
            created_unix_ms: unix_ms(),
            named_keys: Default::default(),
            key_generation: 0,
            default_encryption: None,
            unsealed_permit: None,
            versioning: has_lock.then_some(BucketVersioning { generation: 1, is_enabled: true }),
            object_lock: has_lock.then(BucketObjectLock::default),
            tags: Default::default(),
            public_access_block: None,
            cors: Vec::new(),
            access: access.clone(),
        };
        record.settle_format();
        // The index comes before the record: a gateway that finds the record finds a working bucket.
        let made = async {
            self.make_index(&record).await?;
            Ok::<_, GatewayError>(self.directory.create_bucket(&record).await?)
        };
        let answer = match made.await {
            Ok(None) => {
                self.buckets.forget(&name);
                return Ok(created(&name));
            }
            Ok(Some(existing)) => self.created_before(existing, wanted).await,
            Err(error @ GatewayError::Directory(DirectoryError::Gone(_))) => Err(error.into()),
            // It is not certain that the record was not written: the index must stay.
            Err(error @ GatewayError::Directory(_)) => return Err(error.into()),
            Err(error) => Err(error.into()),
        };
        self.remove_fresh_index(&record).await;
        answer
    }

    /// The answer where a bucket of this name is there. S3's oldest region takes a second creation by the
    /// owner for the first one, if it asks for the same.
    async fn created_before(
        &self,
        existing: BucketRecord,
        wanted: WantedBucket<'_>,
    ) -> S3Result<S3Response<CreateBucketOutput>> {
        if existing.owner != wanted.owner {
            return Err(s3_error!(BucketAlreadyExists, "The requested bucket name is not available"));
        }
        let acl = |access: Option<&BucketAccess>| access.and_then(|access| access.acl.clone());
        let is_same = existing.object_lock.is_some() == wanted.has_lock && existing.data_pool == wanted.data_pool;
        if self.region != OLDEST_REGION || !is_same {
            return Err(s3_error!(BucketAlreadyOwnedByYou, "You already own this bucket"));
        }
        if acl(existing.access.as_ref()) != acl(wanted.access) {
            return Err(s3_error!(BucketAlreadyExists, "You already own this bucket, with another ACL"));
        }
        let name = existing.name.clone();
        if is_being_deleted(&self.index_of(existing)).await? {
            return Err(s3_error!(OperationAborted, "The bucket is being deleted by another request"));
        }
        Ok(created(&name))
    }

    /// Returns the access settings of a new bucket: none if all rights are its owner's.
    fn first_access(
        &self,
        asked: Option<ObjectOwnership>,
        owner: &str,
        acl: WantedAcl,
    ) -> S3Result<Option<BucketAccess>> {
        let ownership = asked.unwrap_or(self.object_ownership);
        let acl = resolve_acl(owner, owner, acl)?;
        if ownership == ObjectOwnership::BucketOwnerEnforced {
            return if acl.is_some() { Err(acl_in_the_way()) } else { Ok(None) };
        }
        Ok(Some(BucketAccess { ownership, is_ownership_set: asked.is_some(), acl, ..BucketAccess::default() }))
    }

    /// The pool for a new bucket's data: one that the request names, or the gateway's own. Another
    /// constraint must be the gateway's region.
    async fn data_pool_of(&self, constraint: Option<&BucketLocationConstraint>) -> S3Result<Option<PoolId>> {
        let constraint = constraint.map(BucketLocationConstraint::as_str).filter(|text| !text.is_empty());
        let named = constraint.and_then(|constraint| constraint.strip_prefix(POOL_CONSTRAINT));
        if let (None, Some(other)) = (named, constraint.filter(|text| **text != self.region)) {
            return Err(s3_error!(
                InvalidLocationConstraint,
                "The location constraint '{other}' is not valid: this gateway's region is '{}'; '{POOL_CONSTRAINT}NAME' \
                 chooses a pool",
                self.region
            ));
        }
        let Some(name) = named.or(self.data_pool.as_deref()) else { return Ok(None) };
        let pool = self.directory.pool(name).await.map_err(GatewayError::from)?;
        match pool {
            Some(pool) => match check_data_pool(&pool) {
                Ok(()) => Ok(Some(pool.id)),
                Err(why) => Err(s3_error!(InvalidLocationConstraint, "{why}")),
            },
            None if named.is_some() => {
                Err(s3_error!(InvalidLocationConstraint, "There is no pool '{name}' in this cluster"))
            }
            None => Ok(None),
        }
    }

    async fn make_index(&self, record: &BucketRecord) -> Result<(), GatewayError> {
        for shard in 0..record.index_shards {
            let object = index_object(&record.id, shard);
            let mut mutations = vec![Mutation::Create];
            mutations.extend(record.versioning.map(|versioning| Mutation::OmapSet {
                key: VERSIONING_KEY.into(),
                value: versioning_value(versioning),
            }));
            self.store.change(record.pool, object, vec![Condition::ObjectAbsent], mutations).await?;
        }
        Ok(())
    }

    /// Best effort: an index without a record does no harm, and its id is unknown.
    async fn remove_fresh_index(&self, record: &BucketRecord) {
        for shard in 0..record.index_shards {
            let object = index_object(&record.id, shard);
            if let Err(error) = self.store.change(record.pool, object, Vec::new(), vec![Mutation::Remove]).await {
                tracing::warn!(bucket = record.name, %error, "an index object stays behind");
            }
        }
    }

    pub(super) async fn head_bucket(
        &self,
        request: S3Request<HeadBucketInput>,
    ) -> S3Result<S3Response<HeadBucketOutput>> {
        self.buckets.get(&request.input.bucket).await?;
        Ok(S3Response::new(HeadBucketOutput { bucket_region: Some(self.region.clone()), ..Default::default() }))
    }

    pub(super) async fn list_buckets(
        &self,
        request: S3Request<ListBucketsInput>,
    ) -> S3Result<S3Response<ListBucketsOutput>> {
        let asking = Asking::of(&request.headers, &request.uri, &request.extensions)?;
        let signer = asking.permit.canonical_id();
        let input = request.input;
        let records = self.directory.buckets().await.map_err(GatewayError::from)?;
        let prefix = input.prefix.clone().unwrap_or_default();
        let after = input.continuation_token.clone().unwrap_or_default();
        let is_listed = |record: &&BucketRecord| {
            record.owner == signer && record.name.starts_with(&prefix) && record.name > after
        };
        let mut listed = records.iter().filter(is_listed);
        let limit = input.max_buckets.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(10_000);
        let answer = |record: &BucketRecord| BucketAnswer {
            creation_date: Some(timestamp(record.created_unix_ms)),
            name: Some(record.name.clone()),
            ..Default::default()
        };
        let buckets: Vec<_> = listed.by_ref().take(limit).map(answer).collect();
        let more = listed.next().is_some();
        let last = buckets.last().and_then(|bucket| bucket.name.clone());
        Ok(S3Response::new(ListBucketsOutput {
            continuation_token: last.filter(|_| more),
            buckets: Some(buckets),
            owner: Some(self.owner(signer)),
            prefix: input.prefix,
        }))
    }

    pub(super) async fn get_bucket_location(
        &self,
        request: S3Request<GetBucketLocationInput>,
    ) -> S3Result<S3Response<GetBucketLocationOutput>> {
        self.buckets.get(&request.input.bucket).await?;
        // S3 says "no constraint" for its oldest region.
        let constraint =
            (self.region != OLDEST_REGION).then(|| BucketLocationConstraint::from(self.region.clone()));
        Ok(S3Response::new(GetBucketLocationOutput { location_constraint: constraint }))
    }
}
