//! Public access that the owner of a bucket has forbidden.

use atoll_types::records::PublicAccessBlock;
use s3s::dto::{
    DeletePublicAccessBlockInput, DeletePublicAccessBlockOutput, GetPublicAccessBlockInput,
    GetPublicAccessBlockOutput, PublicAccessBlockConfiguration, PutPublicAccessBlockInput,
    PutPublicAccessBlockOutput,
};
use s3s::{S3Request, S3Response, S3Result};

use super::Service;
use crate::error::custom_error;

impl Service {
    pub(super) async fn get_public_access_block(
        &self,
        request: S3Request<GetPublicAccessBlockInput>,
    ) -> S3Result<S3Response<GetPublicAccessBlockOutput>> {
        let bucket = self.buckets.get(&request.input.bucket).await?;
        let Some(block) = bucket.record.public_access_block else {
            return Err(custom_error(
                "NoSuchPublicAccessBlockConfiguration",
                http::StatusCode::NOT_FOUND,
                "The public access block configuration was not found",
            ));
        };
        let configuration = PublicAccessBlockConfiguration {
            block_public_acls: Some(block.block_public_acls),
            block_public_policy: Some(block.block_public_policy),
            ignore_public_acls: Some(block.ignore_public_acls),
            restrict_public_buckets: Some(block.restrict_public_buckets),
        };
        Ok(S3Response::new(GetPublicAccessBlockOutput { public_access_block_configuration: Some(configuration) }))
    }

    pub(super) async fn put_public_access_block(
        &self,
        request: S3Request<PutPublicAccessBlockInput>,
    ) -> S3Result<S3Response<PutPublicAccessBlockOutput>> {
        let wanted = request.input.public_access_block_configuration;
        let block = PublicAccessBlock {
            block_public_acls: wanted.block_public_acls.unwrap_or(false),
            block_public_policy: wanted.block_public_policy.unwrap_or(false),
            ignore_public_acls: wanted.ignore_public_acls.unwrap_or(false),
            restrict_public_buckets: wanted.restrict_public_buckets.unwrap_or(false),
        };
        self.buckets.change(&request.input.bucket, |record| record.public_access_block = Some(block)).await?;
        Ok(S3Response::new(PutPublicAccessBlockOutput::default()))
    }

    pub(super) async fn delete_public_access_block(
        &self,
        request: S3Request<DeletePublicAccessBlockInput>,
    ) -> S3Result<S3Response<DeletePublicAccessBlockOutput>> {
        self.buckets.change(&request.input.bucket, |record| record.public_access_block = None).await?;
        Ok(S3Response::new(DeletePublicAccessBlockOutput::default()))
    }
}
