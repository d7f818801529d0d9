//! Groups and their members.

use atoll_types::identities::{AttachedPolicies, GroupRecord};
use atoll_types::records::RECORD_FORMAT;

use super::call::HolderKind;
use super::holders::{self, check_has_no_policies};
use super::paging::Paging;
use super::users::{self, is_in, members};
use super::{Answer, Call, Change, IamError, Outcome};
use crate::identities::{Record, RecordName};

const GROUPS_MAX: usize = 300;
const GROUPS_OF_USER_MAX: usize = 10;
const NAME_CHARS_MAX: usize = 128;
/// All are changed together when the group gets another name, and a transaction has a limit.
const RENAMED_MEMBERS_MAX: usize = 100;

/// A group as listings show it.
pub(super) fn summary(call: &Call<'_>, group: &GroupRecord) -> Answer {
    Answer::new()
        .text("Path", &group.path)
        .text("GroupName", &group.name)
        .text("GroupId", &group.id)
        .text("Arn", holders::arn(call.context, HolderKind::Group, &group.path, &group.name))
        .time("CreateDate", group.created_unix_ms)
}

fn named(call: &mut Call<'_>) -> Result<GroupRecord, IamError> {
    let name = call.parameters.name("GroupName", NAME_CHARS_MAX)?;
    let group = call.context.identities.group(call.context.account_id(), &name);
    group.map(|group| group.record.clone()).ok_or_else(|| IamError::missing("group", &name))
}

fn check_name_is_free(call: &Call<'_>, name: &str) -> Result<(), IamError> {
    match call.context.identities.group(call.context.account_id(), name) {
        Some(_) => Err(IamError::EntityAlreadyExists(format!("Group with name {name} already exists."))),
        None => Ok(()),
    }
}

pub(super) fn create(call: &mut Call<'_>) -> Result<Outcome, IamError> {
    let name = call.parameters.name("GroupName", NAME_CHARS_MAX)?;
    let path = call.parameters.path("Path")?;
    check_name_is_free(call, &name)?;
    if call.context.identities.groups(call.context.account_id()).count() >= GROUPS_MAX {
        return Err(IamError::LimitExceeded { quota: "GroupsPerAccount", limit: GROUPS_MAX });
    }
    let group = GroupRecord {
        format: RECORD_FORMAT,
        account: call.context.account_id().into(),
        name,
        path,
        id: call.context.new_id("AGPA"),
        policies: AttachedPolicies::default(),
        created_unix_ms: call.context.now_ms,
    };
    let answer = Answer::new().fields("Group", summary(call, &group));
    Outcome::put(Record::Group(group), answer)
}

pub(super) fn get(call: &mut Call<'_>) -> Result<Outcome, IamError> {
    let group = named(call)?;
    let paging = Paging::take(&mut call.parameters)?;
    let users = members(call, &group.name).map(|user| (user.name.to_lowercase(), users::summary(call, user)));
    let page = paging.page(users);
    let answer = Answer::new().fields("Group", summary(call, &group)).list("Users", page.items.clone());
    Outcome::answer(page.end(answer))
}

pub(super) fn list(call: &mut Call<'_>) -> Result<Outcome, IamError> {
    let prefix = call.parameters.path_prefix()?;
    let paging = Paging::take(&mut call.parameters)?;
    let groups = call.context.identities.groups(call.context.account_id());
    let found = groups.filter(|group| group.record.path.starts_with(&prefix));
    let page = paging.page(found.map(|group| (group.record.name.to_lowercase(), summary(call, &group.record))));
    Outcome::answer(page.end(Answer::new().list("Groups", page.items.clone())))
}

pub(super) fn update(call: &mut Call<'_>) -> Result<Outcome, IamError> {
    let old = named(call)?;
    let new_name = call.parameters.optional_name("NewGroupName", NAME_CHARS_MAX)?;
    let new_path = call.parameters.optional_path("NewPath")?;
    let mut group = old.clone();
    group.path = new_path.unwrap_or(group.path);
    let mut changes = Vec::new();
    if let Some(name) = new_name.filter(|name| *name != old.name) {
        if name.to_lowercase() != old.name.to_lowercase() {
            check_name_is_free(call, &name)?;
            changes.push(Change::Delete(RecordName::group(&old.account, &old.name)));
        }
        if members(call, &old.name).count() > RENAMED_MEMBERS_MAX {
            return Err(IamError::LimitExceeded { quota: "MembersOfRenamedGroup", limit: RENAMED_MEMBERS_MAX });
        }
        for user in members(call, &old.name) {
            let mut user = user.clone();
            user.groups.retain(|group| !group.eq_ignore_ascii_case(&old.name));
            user.groups.insert(name.clone());
            changes.push(Change::Put(Record::User(user)));
        }
        group.name = name;
    }
    changes.push(Change::Put(Record::Group(group)));
    Ok(Outcome { changes, answer: Answer::new() })
}

pub(super) fn delete(call: &mut Call<'_>) -> Result<Outcome, IamError> {
    let group = named(call)?;
    if members(call, &group.name).next().is_some() {
        return Err(IamError::DeleteConflict("Cannot delete entity, must remove users from group first.".into()));
    }
    check_has_no_policies(&group.policies)?;
    Outcome::delete(RecordName::group(&group.account, &group.name))
}

pub(super) fn add_user(call: &mut Call<'_>) -> Result<Outcome, IamError> {
    let group = named(call)?;
    let mut user = users::named(call)?;
    if is_in(&user, &group.name) {
        return Outcome::answer(Answer::new());
    }
    if user.groups.len() >= GROUPS_OF_USER_MAX {
        return Err(IamError::LimitExceeded { quota: "GroupsPerUser", limit: GROUPS_OF_USER_MAX });
    }
    user.groups.insert(group.name);
    Outcome::put(Record::User(user), Answer::new())
}

pub(super) fn remove_user(call: &mut Call<'_>) -> Result<Outcome, IamError> {
    let group = named(call)?;
    let mut user = users::named(call)?;
    if !is_in(&user, &group.name) {
        return Err(IamError::NoSuchEntity(format!("User {} is not in group {}.", user.name, group.name)));
    }
    user.groups.retain(|name| !name.eq_ignore_ascii_case(&group.name));
    Outcome::put(Record::User(user), Answer::new())
}
