//! Questions to the engine.

use atoll_types::access::{Acl, AclPermission};
use atoll_types::records::PublicAccessBlock;

use crate::caller::Caller;
use crate::condition_values::ConditionValues;
use crate::policy::Policy;

/// May this caller do that?
#[derive(Clone, Copy)]
pub struct Question<'a> {
    /// `None` for a request without a signature.
    pub caller: Option<&'a Caller>,
    /// Such as `s3:GetObject`.
    pub action: &'a str,
    /// ARN such as `arn:aws:s3:::bucket/key`, or `*` for actions without one.
    pub resource: &'a str,
    /// Access settings of an existing resource: a bucket, or an object in it. `None` for actions on the caller's
    /// own account, such as `s3:CreateBucket`, `s3:ListAllMyBuckets` and all of `iam:`; then only the caller's
    /// policies count.
    pub resource_side: Option<ResourceSide<'a>>,
    /// Keys of the request.
    pub conditions: &'a dyn ConditionValues,
}

/// Access settings of the owners of a bucket and an object.
#[derive(Clone, Copy)]
pub struct ResourceSide<'a> {
    /// Canonical id of the account that owns the bucket.
    pub bucket_owner: &'a str,
    /// Canonical id of the account that owns the object that is asked for; `None` if the question is about the
    /// bucket, or the object is yet to be written, is to be deleted, or does not exist, or if ACLs do not count in
    /// the bucket, so that all objects belong to its owner.
    pub object_owner: Option<&'a str>,
    /// The bucket's policy.
    pub policy: Option<&'a Policy>,
    /// The ACL that counts for the action, if ACLs count in the bucket and one does for the action.
    pub acl: Option<AclSide<'a>>,
    /// Public access that the bucket's owner has forbidden.
    pub public_access_block: PublicAccessBlock,
}

/// An ACL, and the permission that the action needs.
#[derive(Clone, Copy)]
pub struct AclSide<'a> {
    /// Canonical id of the owner of the ACL's resource, who may always read and change it.
    pub owner: &'a str,
    /// `None` for full control of the owner.
    pub acl: Option<&'a Acl>,
    /// Permission that a grant must have; full control suffices, too.
    pub needed: AclPermission,
}
