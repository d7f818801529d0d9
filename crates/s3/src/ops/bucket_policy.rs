//! The policy of a bucket, and whether anything of the bucket is public.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use atoll_audit::DocumentChange;
use atoll_iam::{Policy, PolicyError, PolicyKind, acl};
use atoll_types::limits::BUCKET_POLICY_BYTES_MAX;
use http::StatusCode;
use s3s::dto::{
    DeleteBucketPolicyInput, DeleteBucketPolicyOutput, GetBucketPolicyInput, GetBucketPolicyOutput,
    GetBucketPolicyStatusInput, GetBucketPolicyStatusOutput, PolicyStatus, PutBucketPolicyInput,
    PutBucketPolicyOutput,
};
use s3s::{S3Error, S3Request, S3Response, S3Result};

use super::Service;
use crate::access::access_denied;
use crate::error::{GatewayError, custom_error};
use crate::observed::Observed;

fn malformed(error: impl std::fmt::Display) -> S3Error {
    custom_error("MalformedPolicy", StatusCode::BAD_REQUEST, error.to_string())
}

fn checked(document: &str, bucket: &str) -> S3Result<Policy> {
    if document.len() > BUCKET_POLICY_BYTES_MAX {
        let message = format!("A bucket policy may have {} KiB", BUCKET_POLICY_BYTES_MAX >> 10);
        return Err(custom_error("PolicyTooLarge", StatusCode::BAD_REQUEST, message));
    }
    let policy =
        Policy::parse_new(document, PolicyKind::Resource).map_err(|error: PolicyError| malformed(error))?;
    if policy.allows_all_but_some() {
        return Err(malformed("NotPrincipal goes with Deny only: name those whom the statement lets in"));
    }
    if !policy.resources_within(bucket) {
        return Err(malformed(format!(
            "Policy has invalid resource: each must be arn:aws:s3:::{bucket} or in it"
        )));
    }
    Ok(policy)
}

/// The policy that a change has found, as it was tried last.
#[derive(Default)]
struct Before(Mutex<Option<String>>);

impl Before {
    fn is(&self, policy: Option<&String>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = policy.cloned();
    }

    /// Notes the result in the audit log.
    fn note(self, extensions: &http::Extensions, bucket: &str, after: Option<&str>) {
        let before = self.0.into_inner().unwrap_or_else(PoisonError::into_inner);
        let change = DocumentChange::new(format!("bucket {bucket}"), before.as_deref(), after);
        if let (Some(observed), Some(change)) = (extensions.get::<Arc<Observed>>(), change) {
            observed.changes_policies(vec![change]);
        }
    }
}

impl Service {
    pub(super) async fn put_bucket_policy(
        &self,
        request: S3Request<PutBucketPolicyInput>,
    ) -> S3Result<S3Response<PutBucketPolicyOutput>> {
        let PutBucketPolicyInput { bucket, policy: document, .. } = request.input;
        let policy = checked(&document, &bucket)?;
        let is_public = policy.is_public();
        let principals = self.principal_ids(&policy).await?;
        let before = Before::default();
        self.buckets
            .try_change(&bucket, |record| {
                let block = record.public_access_block.unwrap_or_default();
                if block.block_public_policy && is_public {
                    return Err(access_denied());
                }
                let access = record.access.get_or_insert_default();
                before.is(access.policy.as_ref());
                (access.policy, access.policy_principals) = (Some(document.clone()), principals.clone());
                record.settle_format();
                Ok(())
            })
            .await?;
        before.note(&request.extensions, &bucket, Some(&document));
        let mut response = S3Response::new(PutBucketPolicyOutput::default());
        response.status = Some(StatusCode::NO_CONTENT);
        Ok(response)
    }

    /// Returns the ids of the principals that a policy names, which must exist.
    async fn principal_ids(&self, policy: &Policy) -> S3Result<BTreeMap<String, String>> {
        if policy.principal_arns().is_empty() {
            return Ok(BTreeMap::new());
        }
        let identities = self.directory.current_identities().await.map_err(GatewayError::from)?;
        identities.principal_ids(policy).map_err(|arn| malformed(format!("Invalid principal in policy: {arn}")))
    }

    pub(super) async fn get_bucket_policy(
        &self,
        request: S3Request<GetBucketPolicyInput>,
    ) -> S3Result<S3Response<GetBucketPolicyOutput>> {
        let bucket = self.buckets.get(&request.input.bucket).await?;
        match bucket.record.access.as_ref().and_then(|access| access.policy.clone()) {
            Some(policy) => Ok(S3Response::new(GetBucketPolicyOutput { policy: Some(policy) })),
            None => {
                Err(custom_error("NoSuchBucketPolicy", StatusCode::NOT_FOUND, "The bucket policy does not exist"))
            }
        }
    }

    pub(super) async fn delete_bucket_policy(
        &self,
        request: S3Request<DeleteBucketPolicyInput>,
    ) -> S3Result<S3Response<DeleteBucketPolicyOutput>> {
        let before = Before::default();
        self.buckets
            .change(&request.input.bucket, |record| {
                if let Some(access) = &mut record.access {
                    before.is(access.policy.as_ref());
                    access.policy = None;
                    access.policy_principals.clear();
                }
            })
            .await?;
        before.note(&request.extensions, &request.input.bucket, None);
        Ok(S3Response::new(DeleteBucketPolicyOutput::default()))
    }

    pub(super) async fn get_bucket_policy_status(
        &self,
        request: S3Request<GetBucketPolicyStatusInput>,
    ) -> S3Result<S3Response<GetBucketPolicyStatusOutput>> {
        let bucket = self.buckets.get(&request.input.bucket).await?;
        let block = bucket.record.public_access_block.unwrap_or_default();
        let has_public_acl = || {
            let access = bucket.record.access.as_ref().filter(|_| bucket.counts_acls());
            access.and_then(|access| access.acl.as_ref()).is_some_and(acl::is_public)
        };
        let is_public = bucket.policy().is_some_and(Policy::is_public) && !block.restrict_public_buckets
            || !block.ignore_public_acls && has_public_acl();
        let policy_status = Some(PolicyStatus { is_public: Some(is_public) });
        Ok(S3Response::new(GetBucketPolicyStatusOutput { policy_status }))
    }
}
