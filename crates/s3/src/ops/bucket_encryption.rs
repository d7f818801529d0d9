//! The default encryption of a bucket.

use atoll_keys::{DEFAULT_KEY, KeyError};
use atoll_types::records::BucketEncryption;
use http::StatusCode;
use s3s::dto::{
    DeleteBucketEncryptionInput, DeleteBucketEncryptionOutput, GetBucketEncryptionInput,
    GetBucketEncryptionOutput, PutBucketEncryptionInput, PutBucketEncryptionOutput, ServerSideEncryption,
    ServerSideEncryptionByDefault, ServerSideEncryptionConfiguration, ServerSideEncryptionRule,
};
use s3s::{S3Request, S3Response, S3Result, s3_error};

use super::Service;
use super::encryption::{no_such_kms_key, parse_key_id};
use crate::error::{GatewayError, custom_error};

/// Returns the encryption that a configuration requests: exactly one rule.
fn parse(configuration: &ServerSideEncryptionConfiguration) -> S3Result<BucketEncryption> {
    let [rule] = &configuration.rules[..] else {
        return Err(s3_error!(MalformedXML, "A configuration has exactly one rule"));
    };
    let default = rule.apply_server_side_encryption_by_default.as_ref();
    let default =
        default.ok_or_else(|| s3_error!(MalformedXML, "The rule has no ApplyServerSideEncryptionByDefault"))?;
    let key_id = default.kms_master_key_id.as_deref();
    let bucket_key_enabled = rule.bucket_key_enabled.unwrap_or(false);
    match default.sse_algorithm.as_str() {
        ServerSideEncryption::AES256 if key_id.is_some() => {
            Err(s3_error!(InvalidArgument, "A KMSMasterKeyID does not go with AES256"))
        }
        ServerSideEncryption::AES256 => Ok(BucketEncryption { key_name: None, is_kms: false, bucket_key_enabled }),
        ServerSideEncryption::AWS_KMS => {
            let key_name = key_id.map(parse_key_id).transpose()?.flatten();
            Ok(BucketEncryption { key_name, is_kms: true, bucket_key_enabled })
        }
        other => Err(s3_error!(InvalidArgument, "The encryption method '{other}' is not supported")),
    }
}

fn rule(encryption: &BucketEncryption) -> ServerSideEncryptionRule {
    let algorithm = match encryption.is_kms {
        true => ServerSideEncryption::AWS_KMS,
        false => ServerSideEncryption::AES256,
    };
    let key_id = || encryption.key_name.clone().unwrap_or_else(|| DEFAULT_KEY.into());
    ServerSideEncryptionRule {
        apply_server_side_encryption_by_default: Some(ServerSideEncryptionByDefault {
            kms_master_key_id: encryption.is_kms.then(key_id),
            sse_algorithm: ServerSideEncryption::from_static(algorithm),
        }),
        bucket_key_enabled: Some(encryption.bucket_key_enabled),
    }
}

impl Service {
    pub(super) async fn put_bucket_encryption(
        &self,
        request: S3Request<PutBucketEncryptionInput>,
    ) -> S3Result<S3Response<PutBucketEncryptionOutput>> {
        let input = request.input;
        let wanted = parse(&input.server_side_encryption_configuration)?;
        let rules = input.server_side_encryption_configuration.rules.iter();
        for default in rules.filter_map(|rule| rule.apply_server_side_encryption_by_default.as_ref()) {
            default.kms_master_key_id.as_deref().map_or(Ok(()), |key_id| self.check_key_account(key_id))?;
        }
        let bucket = self.buckets.get(&input.bucket).await?;
        if let Some(name) = &wanted.key_name {
            // Otherwise only the first PUT would notice that the key does not exist.
            match self.buckets.named_key_to_write(&bucket.record, name).await {
                Err(GatewayError::Key(KeyError::NoSuchKey { .. })) => return Err(no_such_kms_key(name)),
                other => other.map(drop)?,
            }
        }
        self.buckets.change(&input.bucket, |record| record.default_encryption = Some(wanted.clone())).await?;
        Ok(S3Response::new(PutBucketEncryptionOutput::default()))
    }

    pub(super) async fn get_bucket_encryption(
        &self,
        request: S3Request<GetBucketEncryptionInput>,
    ) -> S3Result<S3Response<GetBucketEncryptionOutput>> {
        let bucket = self.buckets.get(&request.input.bucket).await?;
        if !bucket.record.seals_by_default() {
            return Err(custom_error(
                "ServerSideEncryptionConfigurationNotFoundError",
                StatusCode::NOT_FOUND,
                "The server side encryption configuration was not found",
            ));
        }
        // As on S3, every other bucket has a default, and SSE-S3 is what it is at first.
        let encryption = bucket.record.default_encryption.clone().unwrap_or_default();
        let configuration = ServerSideEncryptionConfiguration { rules: vec![rule(&encryption)] };
        Ok(S3Response::new(GetBucketEncryptionOutput {
            server_side_encryption_configuration: Some(configuration),
        }))
    }

    pub(super) async fn delete_bucket_encryption(
        &self,
        request: S3Request<DeleteBucketEncryptionInput>,
    ) -> S3Result<S3Response<DeleteBucketEncryptionOutput>> {
        self.buckets.change(&request.input.bucket, |record| record.default_encryption = None).await?;
        Ok(S3Response::new(DeleteBucketEncryptionOutput::default()))
    }
}
