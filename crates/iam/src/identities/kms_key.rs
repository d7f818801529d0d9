//! Keys of the key service that have an owner or a policy.

use std::sync::Arc;

use atoll_types::identities::KmsKeyRecord;

use super::{Identities, compiled};
use crate::policy::{Policy, PolicyKind};

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

impl Identities {
    /// A key of the key service, if it has an owner or a policy.
    pub fn kms_key(&self, name: &str) -> Option<&Arc<KmsKeyEntry>> {
        self.kms_keys.get(name)
    }

    /// All keys of the key service that have an owner or a policy, by name.
    pub fn kms_keys(&self) -> impl Iterator<Item = &Arc<KmsKeyEntry>> {
        self.kms_keys.values()
    }
}
