//! Who may do what with a bucket and its objects, as records have it: access control lists, ownership
//! of objects, and the bucket's policy. What they mean together is decided by `atoll-iam`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// To whom new objects of a bucket belong, and whether its ACLs count, by S3's names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ObjectOwnership {
    /// Everything belongs to the owner of the bucket, and ACLs do not count.
    #[default]
    BucketOwnerEnforced,
    /// Objects belong to who writes them, or to the owner of the bucket if the writer gives it full control.
    BucketOwnerPreferred,
    /// Objects belong to who writes them.
    ObjectWriter,
}

/// What an ACL allows, by S3's names.
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

/// To whom an ACL allows it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AclGrantee {
    /// An account, by its canonical id.
    Account(String),
    /// Everybody, with a signature or without.
    AllUsers,
    /// Everybody with a valid signature.
    AuthenticatedUsers,
}

/// One line of an ACL.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct AclGrant {
    /// To whom.
    pub grantee: AclGrantee,
    /// What.
    pub permission: AclPermission,
}

/// An access control list. Its owner is that of the bucket or object; without an ACL the owner has full
/// control and nobody else has any.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Acl {
    /// At most [`crate::limits::ACL_GRANTS_MAX`].
    pub grants: Vec<AclGrant>,
}

/// What the owner of a bucket has set about access to it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BucketAccess {
    /// Of new objects.
    #[serde(default)]
    pub ownership: ObjectOwnership,
    /// Whether the ownership was set, so that it is told and can be removed.
    #[serde(default)]
    pub is_ownership_set: bool,
    /// `None` for full control of the owner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acl: Option<Acl>,
    /// The bucket policy as it was given: JSON of at most 20 KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// The ids of the users and roles that the policy names, by their ARNs, as they were when it was set: who gets the
    /// name of one later does not get its rights. What is not here counts by its name, as in earlier releases.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub policy_principals: BTreeMap<String, String>,
}
