//! Access control lists: what they allow, whether they are public, and the canned ones.

use atoll_types::access::Acl;

use crate::caller::Caller;
use crate::question::AclSide;

/// Whether it allows anything to everybody, or to everybody with a signature.
pub fn is_public(_acl: &Acl) -> bool {
    todo!()
}

/// The canned ACL of that name, with all its grants; `None` if there is none or Atoll does not have it.
pub fn canned(_name: &str, _bucket_owner: &str, _object_owner: &str) -> Option<Acl> {
    todo!()
}

/// Whether it allows the caller what is needed.
pub fn allows(_side: &AclSide<'_>, _caller: Option<&Caller>, _ignore_public: bool) -> bool {
    todo!()
}
