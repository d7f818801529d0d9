//! Buckets: which there are, and whether new objects in them are sealed.

use atoll_cluster::{ClusterClient, keys};
use atoll_credentials::unsealed_permit_context;
use atoll_iam::Identities;
use atoll_keys::{KeyService, SecretKey};
use atoll_types::PoolId;
use atoll_types::records::{BucketEncryption, BucketRecord};
use serde::Serialize;

use crate::error::AdminError;
use crate::identities::current;
use crate::wrapped_secrets::change_bucket;

/// The parts of a bucket's record that are for people and scripts; wrapped keys are not.
#[derive(Clone, Debug, Serialize)]
pub struct BucketSummary {
    /// Its name.
    pub name: String,
    /// Prefix of its objects.
    pub id: String,
    /// Canonical id of the account that owns it.
    pub owner: String,
    /// Name of that account, if there is one.
    pub owner_name: Option<String>,
    /// The pool of its index.
    pub pool: PoolId,
    /// The pool of its data.
    pub data_pool: PoolId,
    /// When it was made.
    pub created_unix_ms: u64,
    /// True if objects are sealed without a request for encryption.
    pub new_objects_sealed: bool,
    /// Default encryption that S3 clients have set.
    pub default_encryption: Option<BucketEncryption>,
}

impl BucketSummary {
    fn new(record: &BucketRecord, identities: &Identities) -> Self {
        BucketSummary {
            owner_name: identities.account_by_canonical_id(&record.owner).map(|account| account.name.clone()),
            name: record.name.clone(),
            id: record.id.clone(),
            owner: record.owner.clone(),
            pool: record.pool,
            data_pool: record.data_pool(),
            created_unix_ms: record.created_unix_ms,
            new_objects_sealed: record.seals_by_default(),
            default_encryption: record.default_encryption.clone(),
        }
    }
}

/// All buckets.
pub async fn list(client: &ClusterClient) -> Result<Vec<BucketSummary>, AdminError> {
    let listing = client.list_usable::<BucketRecord>(keys::BUCKETS).await?;
    let identities = current(client).await?;
    Ok(listing.entries.iter().map(|(_, record, _)| BucketSummary::new(record, &identities)).collect())
}

/// Has new objects of a bucket sealed, or not. Objects that it has stay as they are.
pub async fn set_sealing(
    client: &ClusterClient,
    service: &dyn KeyService,
    name: &str,
    is_sealed: bool,
) -> Result<BucketSummary, AdminError> {
    let no_bucket = || AdminError::NoSuchBucket(name.to_owned());
    let (record, _) = client.get::<BucketRecord>(&keys::bucket(name)).await?.ok_or_else(no_bucket)?;
    let refuse_encrypted = |record: &BucketRecord| match !is_sealed && record.default_encryption.is_some() {
        true => AdminError::refused(format!(
            "an S3 client has set a default encryption for bucket '{name}', which its objects are sealed by; remove it \
             first: aws s3api delete-bucket-encryption --bucket {name}"
        )),
        false => Ok(()),
    };
    refuse_encrypted(&record)?;
    let permit = match is_sealed {
        true => None,
        false => Some(service.wrap(&unsealed_permit_context(&record.id), &SecretKey::random()).await?),
    };
    let id = record.id;
    let changed = change_bucket(client, name, |record| {
        refuse_encrypted(record)?;
        if record.id != id {
            return Err(no_bucket());
        }
        record.unsealed_permit.clone_from(&permit);
        Ok(())
    });
    changed.await?;
    let (record, _) = client.get::<BucketRecord>(&keys::bucket(name)).await?.ok_or_else(no_bucket)?;
    Ok(BucketSummary::new(&record, &current(client).await?))
}
