//! Ownership of the objects of a bucket, and the effect of its ACLs.

use atoll_types::access::{BucketAccess, ObjectOwnership};
use http::StatusCode;
use s3s::dto::{
    DeleteBucketOwnershipControlsInput, DeleteBucketOwnershipControlsOutput, GetBucketOwnershipControlsInput,
    GetBucketOwnershipControlsOutput, ObjectOwnership as OwnershipName, OwnershipControls, OwnershipControlsRule,
    PutBucketOwnershipControlsInput, PutBucketOwnershipControlsOutput,
};
use s3s::{S3Error, S3Request, S3Response, S3Result, s3_error};

use super::Service;
use crate::error::custom_error;

fn name(ownership: ObjectOwnership) -> &'static str {
    match ownership {
        ObjectOwnership::BucketOwnerEnforced => OwnershipName::BUCKET_OWNER_ENFORCED,
        ObjectOwnership::BucketOwnerPreferred => OwnershipName::BUCKET_OWNER_PREFERRED,
        ObjectOwnership::ObjectWriter => OwnershipName::OBJECT_WRITER,
    }
}

pub(super) fn parse_ownership(text: &str) -> S3Result<ObjectOwnership> {
    let all = [
        ObjectOwnership::BucketOwnerEnforced,
        ObjectOwnership::BucketOwnerPreferred,
        ObjectOwnership::ObjectWriter,
    ];
    let found = all.into_iter().find(|ownership| name(*ownership) == text);
    found.ok_or_else(|| s3_error!(InvalidArgument, "'{text}' is no object ownership"))
}

/// Returns the error for an ACL that gives rights to others, which would have no effect under
/// `BucketOwnerEnforced`.
pub(super) fn acl_in_the_way() -> S3Error {
    custom_error(
        "InvalidBucketAclWithObjectOwnership",
        StatusCode::BAD_REQUEST,
        "Bucket cannot have ACLs set with ObjectOwnership's BucketOwnerEnforced setting",
    )
}

impl Service {
    pub(super) async fn get_bucket_ownership_controls(
        &self,
        request: S3Request<GetBucketOwnershipControlsInput>,
    ) -> S3Result<S3Response<GetBucketOwnershipControlsOutput>> {
        let bucket = self.buckets.get(&request.input.bucket).await?;
        if bucket.record.access.as_ref().is_some_and(|access| !access.is_ownership_set) {
            return Err(custom_error(
                "OwnershipControlsNotFoundError",
                StatusCode::NOT_FOUND,
                "The bucket ownership controls were not found",
            ));
        }
        let object_ownership = OwnershipName::from_static(name(bucket.ownership()));
        let controls = OwnershipControls { rules: vec![OwnershipControlsRule { object_ownership }] };
        Ok(S3Response::new(GetBucketOwnershipControlsOutput { ownership_controls: Some(controls) }))
    }

    pub(super) async fn put_bucket_ownership_controls(
        &self,
        request: S3Request<PutBucketOwnershipControlsInput>,
    ) -> S3Result<S3Response<PutBucketOwnershipControlsOutput>> {
        let [rule] = &request.input.ownership_controls.rules[..] else {
            return Err(s3_error!(MalformedXML, "There must be one rule"));
        };
        let ownership = parse_ownership(rule.object_ownership.as_str())?;
        self.buckets
            .try_change(&request.input.bucket, |record| {
                let access = record.access.get_or_insert_default();
                if ownership == ObjectOwnership::BucketOwnerEnforced && access.acl.is_some() {
                    return Err(acl_in_the_way());
                }
                (access.ownership, access.is_ownership_set) = (ownership, true);
                record.settle_format();
                Ok(())
            })
            .await?;
        Ok(S3Response::new(PutBucketOwnershipControlsOutput::default()))
    }

    /// As in S3, ACLs count in a bucket whose ownership controls were removed.
    pub(super) async fn delete_bucket_ownership_controls(
        &self,
        request: S3Request<DeleteBucketOwnershipControlsInput>,
    ) -> S3Result<S3Response<DeleteBucketOwnershipControlsOutput>> {
        self.buckets
            .change(&request.input.bucket, |record| {
                let access: &mut BucketAccess = record.access.get_or_insert_default();
                (access.ownership, access.is_ownership_set) = (ObjectOwnership::ObjectWriter, false);
                record.settle_format();
            })
            .await?;
        Ok(S3Response::new(DeleteBucketOwnershipControlsOutput::default()))
    }
}
