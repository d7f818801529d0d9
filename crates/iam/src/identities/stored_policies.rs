//! All policies that identities have stored.

use atoll_types::identities::AttachedPolicies;

use super::Identities;
use crate::PolicyKind;

/// A policy as it is stored.
#[derive(Debug)]
pub struct StoredPolicy<'a> {
    /// Where, for people.
    pub place: String,
    /// JSON.
    pub document: &'a str,
    /// How it is read.
    pub kind: PolicyKind,
}

fn inline<'a>(policies: &'a AttachedPolicies, of: &str, found: &mut Vec<StoredPolicy<'a>>) {
    found.extend(policies.inline.iter().map(|(name, document)| StoredPolicy {
        place: format!("policy {name} of {of}"),
        document,
        kind: PolicyKind::Identity,
    }));
}

impl Identities {
    /// All policies that count: those of users, groups, roles, access keys and keys of the key service, trust policies, and
    /// of managed policies the default versions.
    pub fn stored_policies(&self) -> Vec<StoredPolicy<'_>> {
        let mut found = Vec::new();
        for account in self.accounts().map(|account| &account.record.id) {
            for user in self.users.of_account(account) {
                inline(&user.record.policies, &format!("user {account}/{}", user.record.name), &mut found);
            }
            for group in self.groups.of_account(account) {
                inline(&group.record.policies, &format!("group {account}/{}", group.record.name), &mut found);
            }
            for role in self.roles.of_account(account) {
                let of = format!("role {account}/{}", role.record.name);
                inline(&role.record.policies, &of, &mut found);
                let (document, kind) = (&role.record.trust_policy, PolicyKind::Trust);
                found.push(StoredPolicy { place: format!("trust policy of {of}"), document, kind });
            }
            for policy in self.policies.of_account(account) {
                let record = &policy.record;
                let version = record.versions.get(&record.default_version);
                found.push(StoredPolicy {
                    place: format!("managed policy {account}/{}", record.name),
                    document: version.map_or("", |version| &version.document),
                    kind: PolicyKind::Identity,
                });
            }
        }
        for key in self.access_keys.values() {
            found.extend(key.record.policy.as_ref().map(|document| StoredPolicy {
                place: format!("policy of access key {}", key.record.access_key),
                document,
                kind: PolicyKind::Session,
            }));
        }
        found.extend(self.kms_keys.values().filter_map(|key| {
            let (document, kind) = (key.record.policy.as_deref()?, PolicyKind::Key);
            Some(StoredPolicy { place: format!("policy of key {}", key.record.name), document, kind })
        }));
        found
    }
}
