//! Decisions and their reasons, for people.

use std::fmt;
use std::sync::Arc;

/// Whether it may be done, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Whether it may be done.
    pub is_allowed: bool,
    /// Why, or why not.
    pub reason: Reason,
}

/// Whose policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PolicySource {
    /// Of the caller, by the name that [`crate::Caller::policies`] gives it.
    Identity(String),
    /// What narrows the caller, by the name that [`crate::Caller::session_policies`] gives it.
    Session(String),
    /// Of the bucket.
    Bucket,
    /// Of the role that is to be assumed.
    Trust,
}

/// One statement of a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatementRef {
    /// Whose policy.
    pub policy: PolicySource,
    /// Its place in the policy, from 1.
    pub number: usize,
    /// Its Sid, if it has one.
    pub sid: Option<Arc<str>>,
}

/// What allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Grant {
    /// The caller is the root of its account.
    Root,
    /// A statement allows it.
    Statement(StatementRef),
    /// The ACL allows it.
    Acl,
}

/// Why something is allowed or denied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Allowed, within the account that owns it, or to a request without a signature.
    Allowed(Grant),
    /// Allowed to another account: both sides allow it.
    AllowedAcrossAccounts {
        /// On the caller's side.
        own: Grant,
        /// On the side of what is asked for.
        resource: Grant,
    },
    /// Allowed: the root of the bucket owner's account always gets at the bucket policy.
    RootKeepsBucketPolicy,
    /// Denied by a statement with the effect Deny.
    ExplicitDeny(StatementRef),
    /// Denied: neither a policy nor an ACL allows it.
    NothingAllows,
    /// Denied: this session policy does not allow it, though something else does.
    SessionPolicyDoesNotAllow(String),
    /// Denied: the statement allows it to the whole account, and no policy of the caller does.
    OnlyAccountNamed(StatementRef),
    /// Denied: the side of the resource allows it, and the caller's account does not.
    OwnSideDoesNotAllow(Grant),
    /// Denied: the caller's account allows it, and the owner of the resource does not.
    OtherSideDoesNotAllow(Grant),
    /// Denied: the statement of the bucket policy does not count for an object of another account.
    ObjectOfOtherAccount(StatementRef),
    /// Denied: what allows it is public, and the public access block says that it does not count.
    PublicAccessBlocked(Grant),
}

impl fmt::Display for Reason {
    fn fmt(&self, _formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        todo!()
    }
}
