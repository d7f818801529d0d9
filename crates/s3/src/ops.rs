//! The S3 operations. Each file holds one family; this one holds their common parts.

mod acl;
mod answers;
mod attributes;
mod body;
mod bucket_cors;
mod bucket_encryption;
mod bucket_policy;
mod bucket_removal;
mod buckets;
mod conditions;
mod copy;
mod delete;
mod encryption;
mod entries;
mod get;
mod list;
mod multipart;
mod multipart_complete;
mod multipart_list;
mod object_lock;
mod ownership;
mod public_access_block;
mod put;
mod s3_trait;
mod tagging;
mod unset;
mod versioning;

pub(crate) use answers::url_encode;
pub(crate) use body::{BODY_BYTES_MAX, BodyLength, body_error};
pub(crate) use bucket_removal::{tend_deletion, tend_mark};
pub use buckets::check_data_pool;
pub(crate) use encryption::parse_key_id;

use std::sync::Arc;
use std::time::Duration;

use atoll_keys::KeyService;
use atoll_types::PoolId;
use atoll_types::access::ObjectOwnership;
use atoll_types::records::BucketRecord;
use http::Extensions;
use s3s::S3Result;
use tokio::sync::Mutex;

use crate::access::Permit;
use crate::arrival::Arrival;
use crate::bucket::{Bucket, Buckets};
use crate::data::{Budget, Caller};
use crate::entry_hints::EntryHints;
use crate::error::GatewayError;
use crate::index::Index;
use crate::sightings::{CollectorMemory, Sightings, Standing};
use crate::users::Users;
use crate::{BucketDirectory, DataStore};

/// Shared state of all operations.
pub(crate) struct Service {
    pub store: Arc<dyn DataStore>,
    pub directory: Arc<dyn BucketDirectory>,
    pub keys: Arc<dyn KeyService>,
    pub buckets: Buckets,
    /// Signers of requests.
    pub users: Users,
    /// Pool for the indexes of new buckets.
    pub pool: PoolId,
    /// Name of the pool for their data, see [`crate::GatewayConfig::data_pool`].
    pub data_pool: Option<String>,
    pub index_shards: u32,
    pub region: String,
    /// Ownership in new buckets, see [`crate::GatewayConfig::object_ownership`].
    pub object_ownership: ObjectOwnership,
    pub entry_hints: EntryHints,
    pub budget: Budget,
    /// See [`crate::GatewayConfig`].
    pub garbage_grace: Duration,
    /// See [`crate::GatewayConfig`].
    pub abandoned_after: Duration,
    /// Marks and notes of requests, whose gateways may be gone.
    pub standing: Standing,
    pub collector: Mutex<CollectorMemory>,
    /// Objects beside indexes that had no record at the latest search.
    pub unnamed: Mutex<Sightings>,
}

/// A cheap handle on the operations, which s3s calls.
#[derive(Clone)]
pub(crate) struct Operations(pub Arc<Service>);

impl Service {
    /// The index of a bucket by name.
    async fn index(&self, bucket: &str) -> Result<Index, GatewayError> {
        Ok(Index::new(self.store.clone(), self.buckets.get(bucket).await?))
    }

    /// The memory that a request may take.
    pub(crate) fn budget_of(&self, extensions: &Extensions) -> Budget {
        let permit = extensions.get::<Permit>().and_then(|permit| permit.caller.as_ref());
        let account = permit.map(|caller| Caller::Account(caller.account.canonical_id.clone()));
        let client = extensions.get::<Arrival>().and_then(|arrival| arrival.client);
        self.budget.of([account, client.map(|client| Caller::of_address(client.ip()))].into_iter().flatten())
    }

    /// The index of a bucket by record.
    pub(crate) fn index_of(&self, record: BucketRecord) -> Index {
        Index::new(self.store.clone(), Arc::new(Bucket::new(record, &self.directory.identities())))
    }

    /// Passes a result on, but forgets a bucket whose index turned out to be gone.
    fn note<T>(&self, bucket: &str, result: Result<T, GatewayError>) -> S3Result<T> {
        if let Err(GatewayError::NoSuchBucket(_)) = &result {
            self.buckets.forget(bucket);
        }
        Ok(result?)
    }
}
