//! The signer of a request, with its policies.

use std::ops::Deref;
use std::sync::Arc;

use crate::caller_identity::CallerIdentity;
use crate::policy::Policy;

/// The signer of a request. Requests without a signature have none.
#[derive(Clone, Debug)]
pub struct Caller {
    /// Its account, kind and names.
    pub identity: CallerIdentity,
    /// The key that signed.
    pub access_key: String,
    /// Allowing policies: inline, managed and those of groups, each with its name in explanations. Empty for the
    /// root.
    pub policies: Vec<(String, Arc<Policy>)>,
    /// Policies that a session began with. Each must allow, too, except for grants to the session itself.
    pub session_policies: Vec<(String, Arc<Policy>)>,
    /// Policy of the access key that signed, or that began the session. It must allow, too, whatever else does.
    pub key_policy: Option<(String, Arc<Policy>)>,
}

impl Caller {
    /// All policies that this caller is subject to, with their names.
    pub fn all_policies(&self) -> impl Iterator<Item = &(String, Arc<Policy>)> {
        self.policies.iter().chain(&self.session_policies).chain(&self.key_policy)
    }
}

impl Deref for Caller {
    type Target = CallerIdentity;

    fn deref(&self) -> &CallerIdentity {
        &self.identity
    }
}
