//! Access to a bucket and its objects, as records have it: access control lists, ownership of objects, and the
//! bucket's policy. `atoll-iam` decides what they mean together.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Ownership of a bucket's new objects, and the effect of its ACLs, by S3's names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ObjectOwnership {
    /// Everything belongs to the owner of the bucket, and ACLs do not count.
    #[default]
    BucketOwnerEnforced,
    /// Objects belong to their writer, or to the owner of the bucket if the writer gives it full control.
    BucketOwnerPreferred,
    /// Objects belong to their writer.
    ObjectWriter,
}

/// Right that an ACL grants, by S3's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum AclPermission {
    /// All of the others.
    FullControl,
    /// To list a bucket, or to read an object.
    Read,
    /// To write and delete objects of a bucket.
    Write,
    /// To read the ACL.
    ReadAcp,
    /// To change the ACL.
    WriteAcp,
}

/// Grantee of an ACL.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AclGrantee {
    /// An account, by its canonical id.
    Account(String),
    /// All users, with a signature or without.
    AllUsers,
    /// All users with a valid signature.
    AuthenticatedUsers,
}

/// One line of an ACL.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct AclGrant {
    /// The grantee.
    pub grantee: AclGrantee,
    /// The right.
    pub permission: AclPermission,
}

/// An access control list. Its owner is that of the bucket or object; without an ACL the owner has full control
/// and no other user has any right.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Acl {
    /// At most [`crate::limits::ACL_GRANTS_MAX`].
    pub grants: Vec<AclGrant>,
}

/// Access settings of the owner of a bucket.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BucketAccess {
    /// Ownership of new objects.
    #[serde(default)]
    pub ownership: ObjectOwnership,
    /// True if the ownership was set, so that it is returned and can be removed.
    #[serde(default)]
    pub is_ownership_set: bool,
    /// `None` for full control of the owner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acl: Option<Acl>,
    /// The bucket policy as it was given: JSON of at most 20 KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// The ids of the users and roles that the policy names, by their ARNs, when it was set: a later user or role
    /// of the same name does not get its rights. A principal without an id counts by its name, as in earlier
    /// releases.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub policy_principals: BTreeMap<String, String>,
}
