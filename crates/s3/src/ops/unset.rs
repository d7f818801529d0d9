//! Settings of buckets that cannot be set: the answers are those of S3 for a bucket without them, so that tools
//! which read all settings of a bucket succeed.

use http::StatusCode;
use s3s::dto::{
    DeleteBucketLifecycleInput, DeleteBucketLifecycleOutput, DeleteBucketWebsiteInput, DeleteBucketWebsiteOutput,
    GetBucketAccelerateConfigurationInput, GetBucketAccelerateConfigurationOutput,
    GetBucketLifecycleConfigurationInput, GetBucketLifecycleConfigurationOutput, GetBucketLoggingInput,
    GetBucketLoggingOutput, GetBucketNotificationConfigurationInput, GetBucketNotificationConfigurationOutput,
    GetBucketReplicationInput, GetBucketReplicationOutput, GetBucketRequestPaymentInput,
    GetBucketRequestPaymentOutput, GetBucketWebsiteInput, GetBucketWebsiteOutput, Payer,
    PutBucketRequestPaymentInput, PutBucketRequestPaymentOutput,
};
use s3s::{S3Request, S3Response, S3Result, s3_error};

use super::Service;
use crate::error::custom_error;

/// Operations that answer as S3 does for a bucket without the setting.
macro_rules! empty_answers {
    ($($name:ident: $input:ident => $output:ident,)*) => {
        impl Service {
            $(pub(super) async fn $name(&self, request: S3Request<$input>) -> S3Result<S3Response<$output>> {
                self.buckets.get(&request.input.bucket).await?;
                Ok(S3Response::new($output::default()))
            })*
        }
    };
}

empty_answers! {
    delete_bucket_lifecycle: DeleteBucketLifecycleInput => DeleteBucketLifecycleOutput,
    delete_bucket_website: DeleteBucketWebsiteInput => DeleteBucketWebsiteOutput,
    get_bucket_accelerate_configuration:
        GetBucketAccelerateConfigurationInput => GetBucketAccelerateConfigurationOutput,
    get_bucket_logging: GetBucketLoggingInput => GetBucketLoggingOutput,
    get_bucket_notification_configuration:
        GetBucketNotificationConfigurationInput => GetBucketNotificationConfigurationOutput,
}

/// Operations that answer with an error, as S3 does where the setting is missing.
macro_rules! missing_answers {
    ($($name:ident: $input:ident => $output:ident, $code:literal, $message:literal;)*) => {
        impl Service {
            $(pub(super) async fn $name(&self, request: S3Request<$input>) -> S3Result<S3Response<$output>> {
                self.buckets.get(&request.input.bucket).await?;
                Err(custom_error($code, StatusCode::NOT_FOUND, $message))
            })*
        }
    };
}

missing_answers! {
    get_bucket_lifecycle_configuration:
        GetBucketLifecycleConfigurationInput => GetBucketLifecycleConfigurationOutput,
        "NoSuchLifecycleConfiguration", "The lifecycle configuration does not exist";
    get_bucket_replication: GetBucketReplicationInput => GetBucketReplicationOutput,
        "ReplicationConfigurationNotFoundError", "The replication configuration was not found";
    get_bucket_website: GetBucketWebsiteInput => GetBucketWebsiteOutput,
        "NoSuchWebsiteConfiguration", "The specified bucket does not have a website configuration";
}

impl Service {
    pub(super) async fn get_bucket_request_payment(
        &self,
        request: S3Request<GetBucketRequestPaymentInput>,
    ) -> S3Result<S3Response<GetBucketRequestPaymentOutput>> {
        self.buckets.get(&request.input.bucket).await?;
        let payer = Some(Payer::from_static(Payer::BUCKET_OWNER));
        Ok(S3Response::new(GetBucketRequestPaymentOutput { payer }))
    }

    pub(super) async fn put_bucket_request_payment(
        &self,
        request: S3Request<PutBucketRequestPaymentInput>,
    ) -> S3Result<S3Response<PutBucketRequestPaymentOutput>> {
        self.buckets.get(&request.input.bucket).await?;
        match request.input.request_payment_configuration.payer.as_str() {
            Payer::BUCKET_OWNER => Ok(S3Response::new(PutBucketRequestPaymentOutput::default())),
            _ => Err(s3_error!(NotImplemented, "Requesters cannot be made to pay")),
        }
    }
}
