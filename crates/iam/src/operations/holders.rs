//! Common parts of users, groups, roles and managed policies: names, paths, policies and tags.

use std::collections::BTreeMap;

use atoll_types::identities::AttachedPolicies;

use super::call::{Call, Context, HolderKind};
use super::error::IamError;
use crate::arn::entity_arn;
use crate::identities::{Identities, Record};

impl HolderKind {
    /// In messages and ARNs.
    pub(crate) fn word(self) -> &'static str {
        match self {
            HolderKind::User => "user",
            HolderKind::Group => "group",
            HolderKind::Role => "role",
            HolderKind::Policy => "policy",
        }
    }

    /// The parameter that names it.
    pub(crate) fn parameter(self) -> &'static str {
        match self {
            HolderKind::User => "UserName",
            HolderKind::Group => "GroupName",
            HolderKind::Role => "RoleName",
            HolderKind::Policy => "PolicyName",
        }
    }

    pub(crate) fn name_chars_max(self) -> usize {
        match self {
            HolderKind::User | HolderKind::Role => 64,
            HolderKind::Group | HolderKind::Policy => 128,
        }
    }

    /// Characters of all inline policies together.
    pub(crate) fn inline_chars_max(self) -> usize {
        match self {
            HolderKind::User => 2_048,
            HolderKind::Group => 5_120,
            HolderKind::Role | HolderKind::Policy => 10_240,
        }
    }

    /// Managed policies that can be attached.
    pub(crate) fn attached_max(self) -> usize {
        20
    }
}

impl Call<'_> {
    /// Takes the name of the user, group or role that the call is about, and finds it.
    pub(crate) fn holder(&mut self) -> Result<Record, IamError> {
        let name = self.parameters.name(self.kind.parameter(), self.kind.name_chars_max())?;
        find(self.context.identities, self.context.account_id(), self.kind, &name)
            .ok_or_else(|| IamError::missing(self.kind.word(), &name))
    }
}

/// A user, group or role of an account.
pub(crate) fn find(identities: &Identities, account: &str, kind: HolderKind, name: &str) -> Option<Record> {
    match kind {
        HolderKind::User => identities.user(account, name).map(|user| Record::User(user.record.clone())),
        HolderKind::Group => identities.group(account, name).map(|group| Record::Group(group.record.clone())),
        HolderKind::Role => identities.role(account, name).map(|role| Record::Role(role.record.clone())),
        HolderKind::Policy => identities.policy(account, name).map(|policy| Record::Policy(policy.record.clone())),
    }
}

/// The policies of a user, group or role.
pub(crate) fn policies(record: &Record) -> Option<&AttachedPolicies> {
    match record {
        Record::User(user) => Some(&user.policies),
        Record::Group(group) => Some(&group.policies),
        Record::Role(role) => Some(&role.policies),
        _ => None,
    }
}

/// The same, to change them.
pub(crate) fn policies_mut(record: &mut Record) -> Option<&mut AttachedPolicies> {
    match record {
        Record::User(user) => Some(&mut user.policies),
        Record::Group(group) => Some(&mut group.policies),
        Record::Role(role) => Some(&mut role.policies),
        _ => None,
    }
}

/// The tags of a user, role or policy.
pub(crate) fn tags_mut(record: &mut Record) -> Option<&mut BTreeMap<String, String>> {
    match record {
        Record::User(user) => Some(&mut user.tags),
        Record::Role(role) => Some(&mut role.tags),
        Record::Policy(policy) => Some(&mut policy.tags),
        _ => None,
    }
}

/// Path, name and tags.
pub(crate) fn identity_of(record: &Record) -> (HolderKind, &str, &str, BTreeMap<String, String>) {
    match record {
        Record::User(user) => (HolderKind::User, &user.path, &user.name, user.tags.clone()),
        Record::Group(group) => (HolderKind::Group, &group.path, &group.name, BTreeMap::new()),
        Record::Role(role) => (HolderKind::Role, &role.path, &role.name, role.tags.clone()),
        Record::Policy(policy) => (HolderKind::Policy, &policy.path, &policy.name, policy.tags.clone()),
        _ => (HolderKind::User, "/", "", BTreeMap::new()),
    }
}

/// The ARN of a user, group, role or policy.
pub(crate) fn arn(context: &Context<'_>, kind: HolderKind, path: &str, name: &str) -> String {
    entity_arn(context.account_id(), kind.word(), path, name)
}

/// Makes sure that one can be deleted, as far as its policies are concerned.
pub(crate) fn check_has_no_policies(policies: &AttachedPolicies) -> Result<(), IamError> {
    let conflict = |what: &str| Err(IamError::DeleteConflict(format!("Cannot delete entity, must {what} first.")));
    if !policies.managed.is_empty() {
        return conflict("detach all policies");
    }
    if !policies.inline.is_empty() {
        return conflict("delete policies");
    }
    Ok(())
}
