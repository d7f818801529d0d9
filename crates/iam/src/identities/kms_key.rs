//! Keys of the key service that have an owner or a policy.

use std::sync::Arc;

use atoll_types::identities::KmsKeyRecord;

use super::compiled::compiled;
use crate::policy::Policy;
use crate::policy_kind::PolicyKind;

/// A key of the key service with its policy compiled.
#[derive(Debug)]
pub struct KmsKeyEntry {
    /// As it is kept.
    pub record: KmsKeyRecord,
    /// Allows no request if it does not parse.
    pub policy: Option<Arc<Policy>>,
}

impl KmsKeyEntry {
    pub(super) fn new(record: KmsKeyRecord) -> Self {
        let policy = record.policy.as_ref().map(|document| {
            let policy = compiled(document, PolicyKind::Key);
            match record.policy_principals.is_empty() {
                true => policy,
                false => Arc::new(Policy::clone(&policy).bound(&record.policy_principals)),
            }
        });
        KmsKeyEntry { record, policy }
    }
}
