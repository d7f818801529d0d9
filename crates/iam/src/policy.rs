//! Policies, parsed and ready to be evaluated.

/// What a policy is attached to, which decides on the elements it must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyKind {
    /// Of a user, group or role: says nothing about principals.
    Identity,
    /// Of a bucket: names principals.
    Resource,
    /// Of a session or service account: as that of an identity.
    Session,
    /// Of a role: names who may assume it, and no resources.
    Trust,
}

/// Why a text is no policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// The text is not JSON, or an element stands twice.
    #[error("the policy is not valid JSON: {0}. Correct the text")]
    Json(String),
    /// Something outside of the statements.
    #[error("{problem}. {remedy}")]
    Document {
        /// What.
        problem: String,
        /// What to do.
        remedy: String,
    },
    /// Something in a statement.
    #[error("statement {place}: {problem}. {remedy}")]
    Statement {
        /// Its number, from 1, and its Sid.
        place: String,
        /// What.
        problem: String,
        /// What to do.
        remedy: String,
    },
}

/// A policy, parsed and ready to be evaluated.
#[derive(Clone, Debug)]
pub struct Policy {}

impl Policy {
    /// Reads a policy as strictly as AWS.
    pub fn parse(_json: &str, _kind: PolicyKind) -> Result<Policy, PolicyError> {
        todo!()
    }

    /// Whether AWS calls the policy of a bucket public.
    pub fn is_public(&self) -> bool {
        todo!()
    }

    /// Whether it names a condition key that begins so.
    pub fn uses_condition_key(&self, _prefix: &str) -> bool {
        todo!()
    }

    /// Whether all its resources can be in this bucket.
    pub fn resources_within(&self, _bucket: &str) -> bool {
        todo!()
    }
}
