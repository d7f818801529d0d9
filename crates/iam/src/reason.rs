//! Decisions and their reasons, for people.

use std::fmt;
use std::sync::Arc;

/// A decision and its reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// True if the action is allowed.
    pub is_allowed: bool,
    /// Why, or why not.
    pub reason: Reason,
}

/// Owner of a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PolicySource {
    /// The caller, with the policy's name in [`crate::Caller::policies`].
    Identity(String),
    /// A limit of the caller, with its name in [`crate::Caller::session_policies`].
    Session(String),
    /// The bucket.
    Bucket,
    /// The role to be assumed.
    Trust,
    /// The key of the key service.
    Key,
}

/// One statement of a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatementRef {
    /// Owner of the policy.
    pub policy: PolicySource,
    /// Its place in the policy, from 1.
    pub number: usize,
    /// Its Sid, if it has one.
    pub sid: Option<Arc<str>>,
}

/// Source of a grant.
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
        /// Grant on the side of the resource.
        resource: Grant,
    },
    /// Allowed by a trust policy to the whole account, which has to allow its users and sessions to assume the
    /// role. The root needs no more.
    AccountTrusted(StatementRef),
    /// Allowed: the root of the bucket owner's account always gets at the bucket policy.
    RootKeepsBucketPolicy,
    /// Allowed: the key has no policy, and its account is the caller's or none.
    KeyWithoutPolicy,
    /// Denied: the key has an owner, and is used by those only who sign.
    KeyNeedsSignature,
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
    /// Denied: the grant is public, and the public access block disables it.
    PublicAccessBlocked(Grant),
}

impl Decision {
    pub(crate) fn allowed(reason: Reason) -> Decision {
        Decision { is_allowed: true, reason }
    }

    pub(crate) fn denied(reason: Reason) -> Decision {
        Decision { is_allowed: false, reason }
    }
}

impl fmt::Display for PolicySource {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PolicySource::Identity(name) => write!(formatter, "policy '{name}'"),
            PolicySource::Session(name) => write!(formatter, "session policy '{name}'"),
            PolicySource::Bucket => formatter.write_str("the bucket policy"),
            PolicySource::Trust => formatter.write_str("the trust policy"),
            PolicySource::Key => formatter.write_str("the key policy"),
        }
    }
}

impl fmt::Display for StatementRef {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.sid {
            Some(sid) => write!(formatter, "statement '{sid}' of {}", self.policy),
            None => write!(formatter, "statement {} of {}", self.number, self.policy),
        }
    }
}

impl fmt::Display for Grant {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Grant::Root => formatter.write_str("being the root of the account"),
            Grant::Statement(statement) => statement.fmt(formatter),
            Grant::Acl => formatter.write_str("the ACL"),
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Allowed(grant) => write!(formatter, "allowed by {grant}"),
            Reason::AllowedAcrossAccounts { own, resource } => {
                write!(formatter, "allowed to another account by {resource}, and on the caller's side by {own}")
            }
            Reason::AccountTrusted(statement) => {
                write!(formatter, "allowed to the whole account by {statement}; its users need a policy, too")
            }
            Reason::RootKeepsBucketPolicy => formatter.write_str(
                "allowed, since the root of the bucket owner's account always gets at the bucket policy",
            ),
            Reason::KeyWithoutPolicy => formatter.write_str("allowed, since the key has no policy"),
            Reason::KeyNeedsSignature => {
                formatter.write_str("denied, since the key belongs to an account, and the request is not signed")
            }
            Reason::ExplicitDeny(statement) => write!(formatter, "denied by {statement}"),
            Reason::NothingAllows => formatter.write_str("denied, since nothing allows it"),
            Reason::SessionPolicyDoesNotAllow(name) => {
                write!(formatter, "denied, since session policy '{name}' does not allow it")
            }
            Reason::OnlyAccountNamed(statement) => write!(
                formatter,
                "denied, since {statement} names only the account, and no policy of the caller allows it"
            ),
            Reason::OwnSideDoesNotAllow(grant) => {
                write!(formatter, "denied: {grant} allows it to another account, but no policy of the caller does")
            }
            Reason::OtherSideDoesNotAllow(Grant::Root) => formatter.write_str(
                "denied: it belongs to another account, and neither a policy nor an ACL of that account allows \
                 it",
            ),
            Reason::OtherSideDoesNotAllow(grant) => write!(
                formatter,
                "denied: {grant} allows it, but neither a policy nor an ACL of the owner's account does"
            ),
            Reason::ObjectOfOtherAccount(statement) => write!(
                formatter,
                "denied: {statement} allows it, but does not count for an object of another account"
            ),
            Reason::PublicAccessBlocked(grant) => {
                write!(formatter, "denied: {grant} allows it to the public, which the public access block forbids")
            }
        }
    }
}
