//! Who owns a bucket and what is in it, and whether anything may be public. Everything belongs to the
//! owner of the bucket and nothing is public, which is S3's own default: ACLs are off
//! (`BucketOwnerEnforced`).

use atoll_types::records::PublicAccessBlock;
use s3s::dto::{
    AccessControlPolicy, BucketCannedACL, DeletePublicAccessBlockInput, DeletePublicAccessBlockOutput,
    GetBucketAclInput, GetBucketAclOutput, GetBucketOwnershipControlsInput, GetBucketOwnershipControlsOutput,
    GetObjectAclInput, GetObjectAclOutput, GetPublicAccessBlockInput, GetPublicAccessBlockOutput, Grant, Grantee,
    ObjectOwnership, OwnershipControls, OwnershipControlsRule, Permission, PublicAccessBlockConfiguration,
    PutBucketAclInput, PutBucketAclOutput, PutBucketOwnershipControlsInput, PutBucketOwnershipControlsOutput,
    PutObjectAclInput, PutObjectAclOutput, PutPublicAccessBlockInput, PutPublicAccessBlockOutput, Type,
};
use s3s::{S3Request, S3Response, S3Result, s3_error};

use super::Service;
use super::answers::owner;
use super::entries::version_answer;
use crate::error::custom_error;
use crate::known_requests::acl_not_supported;

fn full_control(access_key: &str) -> Vec<Grant> {
    let grantee = Grantee {
        display_name: Some(access_key.to_owned()),
        email_address: None,
        id: Some(access_key.to_owned()),
        type_: Type::from_static(Type::CANONICAL_USER),
        uri: None,
    };
    let permission = Permission::from_static(Permission::FULL_CONTROL);
    vec![Grant { grantee: Some(grantee), permission: Some(permission) }]
}

/// Refuses every ACL but the one that everything has. Canned ACLs of headers have been looked at.
fn check_acl(has_canned: bool, policy: Option<&AccessControlPolicy>, owner: &str) -> S3Result<()> {
    let is_own = |policy: &AccessControlPolicy| {
        let grants = policy.grants.as_deref().unwrap_or_default();
        let is_full = |grant: &Grant| {
            let id = grant.grantee.as_ref().and_then(|grantee| grantee.id.as_deref());
            id == Some(owner)
                && grant.permission.as_ref().map(Permission::as_str) == Some(Permission::FULL_CONTROL)
        };
        !grants.is_empty() && grants.iter().all(is_full)
    };
    match policy {
        None if has_canned => Ok(()),
        None => Err(s3_error!(MissingSecurityHeader, "Your request is missing a required header")),
        Some(_) if has_canned => Err(s3_error!(UnexpectedContent, "This request does not support content")),
        Some(policy) if is_own(policy) => Ok(()),
        Some(_) => Err(acl_not_supported()),
    }
}

impl Service {
    pub(super) async fn get_bucket_acl(
        &self,
        request: S3Request<GetBucketAclInput>,
    ) -> S3Result<S3Response<GetBucketAclOutput>> {
        let bucket = self.buckets.get(&request.input.bucket).await?;
        let key = &bucket.record.owner;
        Ok(S3Response::new(GetBucketAclOutput { grants: Some(full_control(key)), owner: Some(owner(key)) }))
    }

    pub(super) async fn get_object_acl(
        &self,
        request: S3Request<GetObjectAclInput>,
    ) -> S3Result<S3Response<GetObjectAclOutput>> {
        let input = request.input;
        let index = self.note(&input.bucket, self.index(&input.bucket).await)?;
        let head = self.object(&index, &input.key, input.version_id.as_deref()).await?.head;
        let key = &index.bucket.record.owner;
        let mut response = S3Response::new(GetObjectAclOutput {
            grants: Some(full_control(key)),
            owner: Some(owner(key)),
            ..Default::default()
        });
        if let Some(id) = version_answer(&index, &head).and_then(|id| http::HeaderValue::try_from(id).ok()) {
            response.headers.insert(s3s::header::X_AMZ_VERSION_ID, id);
        }
        Ok(response)
    }

    pub(super) async fn put_bucket_acl(
        &self,
        request: S3Request<PutBucketAclInput>,
    ) -> S3Result<S3Response<PutBucketAclOutput>> {
        let input = request.input;
        let bucket = self.buckets.get(&input.bucket).await?;
        let is_private = input.acl.as_ref().is_none_or(|acl| acl.as_str() == BucketCannedACL::PRIVATE);
        if !is_private {
            return Err(acl_not_supported());
        }
        check_acl(input.acl.is_some(), input.access_control_policy.as_ref(), &bucket.record.owner)?;
        Ok(S3Response::new(PutBucketAclOutput::default()))
    }

    pub(super) async fn put_object_acl(
        &self,
        request: S3Request<PutObjectAclInput>,
    ) -> S3Result<S3Response<PutObjectAclOutput>> {
        let input = request.input;
        let index = self.note(&input.bucket, self.index(&input.bucket).await)?;
        self.object(&index, &input.key, input.version_id.as_deref()).await?;
        let owner = &index.bucket.record.owner;
        check_acl(input.acl.is_some(), input.access_control_policy.as_ref(), owner)?;
        Ok(S3Response::new(PutObjectAclOutput::default()))
    }

    pub(super) async fn get_bucket_ownership_controls(
        &self,
        request: S3Request<GetBucketOwnershipControlsInput>,
    ) -> S3Result<S3Response<GetBucketOwnershipControlsOutput>> {
        self.buckets.get(&request.input.bucket).await?;
        let object_ownership = ObjectOwnership::from_static(ObjectOwnership::BUCKET_OWNER_ENFORCED);
        let controls = OwnershipControls { rules: vec![OwnershipControlsRule { object_ownership }] };
        Ok(S3Response::new(GetBucketOwnershipControlsOutput { ownership_controls: Some(controls) }))
    }

    pub(super) async fn put_bucket_ownership_controls(
        &self,
        request: S3Request<PutBucketOwnershipControlsInput>,
    ) -> S3Result<S3Response<PutBucketOwnershipControlsOutput>> {
        self.buckets.get(&request.input.bucket).await?;
        let [rule] = &request.input.ownership_controls.rules[..] else {
            return Err(s3_error!(MalformedXML, "There must be one rule"));
        };
        match rule.object_ownership.as_str() {
            ObjectOwnership::BUCKET_OWNER_ENFORCED => {
                Ok(S3Response::new(PutBucketOwnershipControlsOutput::default()))
            }
            other => {
                Err(s3_error!(NotImplemented, "The object ownership {other} is not supported: it needs ACLs"))
            }
        }
    }

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
