//! Managed policies of users, groups and roles.

use super::call::HolderKind;
use super::holders;
use super::managed_policies::{no_such_policy, policy_name};
use super::paging::Paging;
use super::{Answer, Call, IamError, Outcome};
use crate::identities::{Identities, Record};

fn quota(kind: HolderKind) -> &'static str {
    match kind {
        HolderKind::User => "PoliciesPerUser",
        HolderKind::Group => "PoliciesPerGroup",
        HolderKind::Role | HolderKind::Policy => "PoliciesPerRole",
    }
}

pub(super) fn attach(call: &mut Call<'_>) -> Result<Outcome, IamError> {
    let mut holder = call.holder()?;
    let arn = call.parameters.required("PolicyArn")?;
    if call.context.identities.managed_policy(call.context.account_id(), &arn).is_none() {
        return Err(IamError::NoSuchEntity(format!("Policy {arn} does not exist or is not attachable.")));
    }
    let limit = call.kind.attached_max();
    if let Some(policies) = holders::policies_mut(&mut holder) {
        policies.managed.insert(arn);
        if policies.managed.len() > limit {
            return Err(IamError::LimitExceeded { quota: quota(call.kind), limit });
        }
    }
    Outcome::put(holder, Answer::new())
}

pub(super) fn detach(call: &mut Call<'_>) -> Result<Outcome, IamError> {
    let mut holder = call.holder()?;
    let arn = call.parameters.required("PolicyArn")?;
    if !holders::policies_mut(&mut holder).is_some_and(|policies| policies.managed.remove(&arn)) {
        return Err(no_such_policy(&arn));
    }
    Outcome::put(holder, Answer::new())
}

pub(super) fn list(call: &mut Call<'_>) -> Result<Outcome, IamError> {
    let holder = call.holder()?;
    let prefix = call.parameters.path_prefix()?;
    let paging = Paging::take(&mut call.parameters)?;
    let attached = holders::policies(&holder).map(|policies| policies.managed.clone()).unwrap_or_default();
    let found =
        attached.into_iter().filter(|arn| policy_name(arn).is_some_and(|(path, _)| path.starts_with(&prefix)));
    let page = paging.page(found.map(|arn| {
        let name = policy_name(&arn).map(|(_, name)| name.to_owned()).unwrap_or_default();
        (arn.clone(), Answer::new().text("PolicyName", name).text("PolicyArn", arn))
    }));
    Outcome::answer(page.end(Answer::new().list("AttachedPolicies", page.items.clone())))
}

/// Returns all users, groups and roles of an account with an attached policy.
pub(super) fn holders_of<'a>(
    identities: &'a Identities,
    account: &'a str,
    arn: &'a str,
) -> impl Iterator<Item = Record> + use<'a> {
    let users = identities.users(account).map(|user| Record::User(user.record.clone()));
    let groups = identities.groups(account).map(|group| Record::Group(group.record.clone()));
    let roles = identities.roles(account).map(|role| Record::Role(role.record.clone()));
    let all = users.chain(groups).chain(roles);
    all.filter(move |holder| holders::policies(holder).is_some_and(|policies| policies.managed.contains(arn)))
}

/// How many users, groups and roles of an account have a policy.
pub(super) fn attachment_count(identities: &Identities, account: &str, arn: &str) -> usize {
    let users = identities.users(account).filter(|user| user.record.policies.managed.contains(arn)).count();
    let groups = identities.groups(account).filter(|group| group.record.policies.managed.contains(arn)).count();
    let roles = identities.roles(account).filter(|role| role.record.policies.managed.contains(arn)).count();
    users + groups + roles
}

pub(super) fn list_holders(call: &mut Call<'_>) -> Result<Outcome, IamError> {
    let arn = call.parameters.required("PolicyArn")?;
    let filter = call
        .parameters
        .choice("EntityFilter", &["", "User", "Group", "Role", "LocalManagedPolicy", "AWSManagedPolicy"])?;
    let prefix = call.parameters.path_prefix()?;
    let is_of_boundaries =
        call.parameters.choice("PolicyUsageFilter", &["PermissionsPolicy", "PermissionsBoundary"])?
            == "PermissionsBoundary";
    let paging = Paging::take(&mut call.parameters)?;
    let (identities, account) = (call.context.identities, call.context.account_id());
    if identities.managed_policy(account, &arn).is_none() {
        return Err(no_such_policy(&arn));
    }
    let found = holders_of(identities, account, &arn).filter(|holder| {
        let (kind, path, _, _) = holders::identity_of(holder);
        path.starts_with(&prefix)
            && !is_of_boundaries
            && (filter.is_empty() || filter.to_lowercase() == kind.word())
    });
    let page = paging.page(found.map(|holder| {
        let (kind, _, name, _) = holders::identity_of(&holder);
        (format!("{}/{}", kind.word(), name.to_lowercase()), holder)
    }));
    let named = |wanted: HolderKind, id_name: &'static str| {
        let of_kind = page.items.iter().filter(move |holder| holders::identity_of(holder).0 == wanted);
        let lines = of_kind.map(move |holder| {
            let id = match holder {
                Record::User(user) => &user.id,
                Record::Group(group) => &group.id,
                Record::Role(role) => &role.id,
                _ => "",
            };
            Answer::new().text(wanted.parameter(), holders::identity_of(holder).2).text(id_name, id)
        });
        lines.collect::<Vec<_>>()
    };
    let answer = Answer::new()
        .list("PolicyGroups", named(HolderKind::Group, "GroupId"))
        .list("PolicyUsers", named(HolderKind::User, "UserId"))
        .list("PolicyRoles", named(HolderKind::Role, "RoleId"));
    Outcome::answer(page.end(answer))
}
