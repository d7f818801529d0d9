//! Access control lists: the rights that they grant, public ones, and the canned ones.

use atoll_types::access::{Acl, AclGrant, AclGrantee, AclPermission};

use crate::caller::Caller;
use crate::question::AclSide;

/// Returns true if it grants anything to all users, or to all authenticated users.
pub fn is_public(acl: &Acl) -> bool {
    acl.grants.iter().any(|grant| is_public_grantee(&grant.grantee))
}

fn is_public_grantee(grantee: &AclGrantee) -> bool {
    matches!(grantee, AclGrantee::AllUsers | AclGrantee::AuthenticatedUsers)
}

/// The canned ACL of that name for a bucket or an object, with all its grants; `None` if there is none or Atoll
/// does not have it. Of a bucket, both owners are the same.
pub fn canned(name: &str, bucket_owner: &str, object_owner: &str) -> Option<Acl> {
    let account = |id: &str| AclGrantee::Account(id.to_owned());
    let more = match name {
        "private" => vec![],
        "public-read" => vec![(AclGrantee::AllUsers, AclPermission::Read)],
        "public-read-write" => {
            vec![(AclGrantee::AllUsers, AclPermission::Read), (AclGrantee::AllUsers, AclPermission::Write)]
        }
        "authenticated-read" => vec![(AclGrantee::AuthenticatedUsers, AclPermission::Read)],
        "bucket-owner-read" | "bucket-owner-full-control" if bucket_owner == object_owner => vec![],
        "bucket-owner-read" => vec![(account(bucket_owner), AclPermission::Read)],
        "bucket-owner-full-control" => vec![(account(bucket_owner), AclPermission::FullControl)],
        _ => return None,
    };
    let own = (account(object_owner), AclPermission::FullControl);
    let grants = std::iter::once(own).chain(more);
    Some(Acl { grants: grants.map(|(grantee, permission)| AclGrant { grantee, permission }).collect() })
}

/// Returns true if it grants the needed right to all authenticated users: that counts for the users of the owner's
/// own account, too, whereas a grant to the account itself is its root's alone.
pub(crate) fn allows_everybody(side: &AclSide<'_>, ignore_public: bool) -> bool {
    let grants = side.acl.iter().flat_map(|acl| &acl.grants);
    let is_enough = |grant: &AclGrant| [side.needed, AclPermission::FullControl].contains(&grant.permission);
    !ignore_public && grants.into_iter().any(|grant| is_public_grantee(&grant.grantee) && is_enough(grant))
}

/// Returns true if it grants the caller the needed right. The owner may always read and change the ACL. Grants to
/// all users do not count if `ignore_public`.
pub fn allows(side: &AclSide<'_>, caller: Option<&Caller>, ignore_public: bool) -> bool {
    let canonical_id = caller.map(|caller| caller.account.canonical_id.as_str());
    if canonical_id == Some(side.owner) {
        let is_about_acl = matches!(side.needed, AclPermission::ReadAcp | AclPermission::WriteAcp);
        if is_about_acl || side.acl.is_none() {
            return true;
        }
    }
    let Some(acl) = side.acl else { return false };
    acl.grants.iter().any(|grant| {
        let is_enough = grant.permission == side.needed || grant.permission == AclPermission::FullControl;
        let is_meant = match &grant.grantee {
            AclGrantee::Account(id) => canonical_id == Some(id),
            AclGrantee::AllUsers => !ignore_public,
            AclGrantee::AuthenticatedUsers => !ignore_public && caller.is_some(),
        };
        is_enough && is_meant
    })
}
