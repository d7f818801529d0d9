//! Whether new objects of a bucket are sealed: an operator's choice, which the key service confirms.

use atoll_base::records::BucketRecord;
use atoll_cluster::{ClusterClient, keys};
use atoll_crypto::{KeyService, SecretKey};
use atoll_s3::unsealed_permit_context;

use crate::error::SupervisorError;
use crate::wrapped_secrets::change_bucket;

/// Has new objects of a bucket sealed, or not. Objects that it has stay as they are.
pub async fn set_bucket_sealing(
    state: &ClusterClient,
    service: &dyn KeyService,
    name: &str,
    is_sealed: bool,
) -> Result<BucketRecord, SupervisorError> {
    let no_bucket = || SupervisorError::Invalid(format!("there is no bucket '{name}'"));
    let (record, _) = state.get::<BucketRecord>(&keys::bucket(name)).await?.ok_or_else(no_bucket)?;
    if !is_sealed && record.default_encryption.is_some() {
        return Err(SupervisorError::Invalid(format!(
            "an S3 client has set a default encryption for bucket '{name}', which its objects are sealed by; remove it \
             first: aws s3api delete-bucket-encryption --bucket {name}"
        )));
    }
    let permit = match is_sealed {
        true => None,
        false => Some(service.wrap(&unsealed_permit_context(&record.id), &SecretKey::random()).await?),
    };
    change_bucket(state, name, |record| record.unsealed_permit = permit.clone()).await?;
    let (record, _) = state.get::<BucketRecord>(&keys::bucket(name)).await?.ok_or_else(no_bucket)?;
    Ok(record)
}
