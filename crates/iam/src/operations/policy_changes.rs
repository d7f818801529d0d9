//! The policy documents that an operation changes.

use std::collections::{BTreeMap, BTreeSet};

use super::call::Change;
use super::holders;
use crate::identities::{Identities, Record, RecordName};

/// A document before and after an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyChange {
    /// Owner and name of the policy: `user ann, policy read`.
    pub document: String,
    /// Previous document.
    pub before: Option<String>,
    /// New document.
    pub after: Option<String>,
}

/// Returns the documents of a record, by kind. The attached policies are one, too: a list of their names.
fn documents(record: Option<&Record>) -> BTreeMap<String, String> {
    let mut documents = BTreeMap::new();
    let Some(record) = record else { return documents };
    let (kind, _, name, _) = holders::identity_of(record);
    let of = format!("{} {name}", kind.word());
    if let Some(policies) = holders::policies(record) {
        let inline = policies.inline.iter();
        documents.extend(inline.map(|(policy, text)| (format!("{of}, policy {policy}"), text.clone())));
        if !policies.managed.is_empty() {
            let names: Vec<String> = policies.managed.iter().map(|arn| format!("{arn:?}")).collect();
            documents
                .insert(format!("{of}, attached policies"), format!("{{\"Statement\":[{}]}}", names.join(",")));
        }
    }
    match record {
        Record::Role(role) => drop(documents.insert(format!("{of}, trust policy"), role.trust_policy.clone())),
        Record::Policy(policy) => {
            let versions = policy.versions.iter();
            documents
                .extend(versions.map(|(number, version)| (format!("{of}, v{number}"), version.document.clone())));
            if let Some(version) = policy.versions.get(&policy.default_version) {
                documents.insert(format!("{of}, default version"), version.document.clone());
            }
        }
        Record::AccessKey(key) => {
            let policy = key.policy.clone();
            documents.extend(policy.map(|policy| (format!("access key {}, policy", key.access_key), policy)));
        }
        _ => {}
    }
    documents
}

fn known(identities: &Identities, name: &RecordName) -> Option<Record> {
    match name {
        RecordName::User { account, name } => {
            identities.user(account, name).map(|found| Record::User(found.record.clone()))
        }
        RecordName::Group { account, name } => {
            identities.group(account, name).map(|found| Record::Group(found.record.clone()))
        }
        RecordName::Role { account, name } => {
            identities.role(account, name).map(|found| Record::Role(found.record.clone()))
        }
        RecordName::Policy { account, name } => {
            identities.policy(account, name).map(|found| Record::Policy(found.record.clone()))
        }
        RecordName::AccessKey(key) => {
            identities.access_key(key).map(|found| Record::AccessKey(found.record.clone()))
        }
        _ => None,
    }
}

/// Returns the changes of policies among changes of records.
pub fn policy_changes(identities: &Identities, changes: &[Change]) -> Vec<PolicyChange> {
    let mut all = Vec::new();
    for change in changes {
        let (name, record) = match change {
            Change::Put(record) => (record.name(), Some(record)),
            Change::Delete(name) => (name.clone(), None),
        };
        let (before, after) = (documents(known(identities, &name).as_ref()), documents(record));
        let names: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
        let changed = names.into_iter().filter(|name| before.get(*name) != after.get(*name));
        all.extend(changed.map(|name| PolicyChange {
            document: name.clone(),
            before: before.get(name).cloned(),
            after: after.get(name).cloned(),
        }));
    }
    all
}

#[cfg(test)]
mod tests {
    use atoll_types::identities::{AttachedPolicies, UserRecord};
    use atoll_types::records::RECORD_FORMAT;

    use super::*;

    fn user(inline: &[(&str, &str)], managed: &[&str]) -> Record {
        let owned = |(name, text): &(&str, &str)| ((*name).to_owned(), (*text).to_owned());
        Record::User(UserRecord {
            format: RECORD_FORMAT,
            account: "1".into(),
            name: "ann".into(),
            path: "/".into(),
            id: "AIDA".into(),
            policies: AttachedPolicies {
                inline: inline.iter().map(owned).collect(),
                managed: managed.iter().map(|arn| (*arn).to_owned()).collect(),
            },
            groups: BTreeSet::new(),
            tags: BTreeMap::new(),
            created_unix_ms: 1,
        })
    }

    #[test]
    fn documents_that_came_went_or_changed_are_told() {
        let before = Identities::from_records([user(&[("a", "1"), ("b", "2"), ("c", "3")], &["arn:x"])]);
        let after = user(&[("a", "1"), ("b", "4"), ("d", "5")], &["arn:x", "arn:y"]);
        let changes = policy_changes(&before, &[Change::Put(after.clone())]);
        let told: Vec<(&str, Option<&str>, Option<&str>)> = changes
            .iter()
            .map(|change| (&change.document[..], change.before.as_deref(), change.after.as_deref()))
            .collect();
        assert_eq!(
            told,
            [
                (
                    "user ann, attached policies",
                    Some(r#"{"Statement":["arn:x"]}"#),
                    Some(r#"{"Statement":["arn:x","arn:y"]}"#)
                ),
                ("user ann, policy b", Some("2"), Some("4")),
                ("user ann, policy c", Some("3"), None),
                ("user ann, policy d", None, Some("5")),
            ]
        );
        let gone = policy_changes(&before, &[Change::Delete(after.name())]);
        assert_eq!(gone.len(), 4, "{gone:?}");
        assert!(gone.iter().all(|change| change.after.is_none()));
        assert_eq!(policy_changes(&before, &[]), []);
    }
}
