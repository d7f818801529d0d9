//! Kinds of policies.

/// Holder of a policy, which decides on the required elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyKind {
    /// Policy of a user, group or role: without principals.
    Identity,
    /// Policy of a bucket: names principals.
    Resource,
    /// Policy of a session or service account: as that of an identity.
    Session,
    /// Policy of a role: names the principals that may assume it, and no resources.
    Trust,
    /// Policy of a key of the key service: as that of a bucket.
    Key,
}
