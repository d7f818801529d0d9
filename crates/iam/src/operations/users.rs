//! Users.

use atoll_types::identities::{AttachedPolicies, UserRecord};
use atoll_types::records::RECORD_FORMAT;

use super::call::HolderKind;
use super::holders::{self, check_has_no_policies};
use super::paging::Paging;
use super::tags::tag_list;
use super::{Answer, Call, Change, IamError, Outcome, Value};
use crate::caller_identity::CallerKind;
use crate::identities::{Record, RecordName};

const USERS_MAX: usize = 5_000;
const NAME_CHARS_MAX: usize = 64;

/// A user as listings show it.
pub(super) fn summary(call: &Call<'_>, user: &UserRecord) -> Answer {
    Answer::new()
        .text("Path", &user.path)
        .text("UserName", &user.name)
        .text("UserId", &user.id)
        .text("Arn", holders::arn(call.context, HolderKind::User, &user.path, &user.name))
        .time("CreateDate", user.created_unix_ms)
}

fn details(call: &Call<'_>, user: &UserRecord) -> Answer {
    let tags = (!user.tags.is_empty()).then(|| tag_list(&user.tags));
    let answer = summary(call, user);
    match tags {
        Some(tags) => answer.value("Tags", Value::List(tags)),
        None => answer,
    }
}

pub(super) fn create(call: &mut Call<'_>) -> Result<Outcome, IamError> {
    let name = call.parameters.name("UserName", NAME_CHARS_MAX)?;
    let path = call.parameters.path("Path")?;
    let tags = call.parameters.tags()?;
    let (identities, account) = (call.context.identities, call.context.account_id());
    check_name_is_free(call, &name)?;
    if identities.users(account).count() >= USERS_MAX {
        return Err(IamError::LimitExceeded { quota: "UsersPerAccount", limit: USERS_MAX });
    }
    let user = UserRecord {
        format: RECORD_FORMAT,
        account: account.into(),
        name,
        path,
        id: call.context.new_id("AIDA"),
        policies: AttachedPolicies::default(),
        groups: Default::default(),
        tags,
        created_unix_ms: call.context.now_ms,
    };
    let answer = Answer::new().fields("User", details(call, &user));
    Outcome::put(Record::User(user), answer)
}

fn check_name_is_free(call: &Call<'_>, name: &str) -> Result<(), IamError> {
    match call.context.identities.user(call.context.account_id(), name) {
        Some(_) => Err(IamError::EntityAlreadyExists(format!("User with name {name} already exists."))),
        None => Ok(()),
    }
}

/// The user that is named.
pub(super) fn named(call: &mut Call<'_>) -> Result<UserRecord, IamError> {
    let name = call.parameters.name("UserName", NAME_CHARS_MAX)?;
    find(call, &name)
}

fn find(call: &Call<'_>, name: &str) -> Result<UserRecord, IamError> {
    let user = call.context.identities.user(call.context.account_id(), name);
    user.map(|user| user.record.clone()).ok_or_else(|| IamError::missing("user", name))
}

/// The user that is named, or the caller's; `None` for the root of the account.
pub(super) fn named_or_own(call: &mut Call<'_>) -> Result<Option<UserRecord>, IamError> {
    if let Some(name) = call.parameters.optional_name("UserName", NAME_CHARS_MAX)? {
        return find(call, &name).map(Some);
    }
    match call.context.caller.map(|caller| &caller.kind) {
        Some(CallerKind::User { name, .. }) => find(call, name).map(Some),
        Some(CallerKind::Session { .. }) => {
            IamError::invalid("Must specify userName when calling with non-User credentials")
        }
        Some(CallerKind::Root) | None => Ok(None),
    }
}

pub(super) fn get(call: &mut Call<'_>) -> Result<Outcome, IamError> {
    let user = match named_or_own(call)? {
        Some(user) => details(call, &user),
        None => {
            let account = &call.context.account.record;
            Answer::new()
                .text("Path", "/")
                .text("UserName", &account.name)
                .text("UserId", &account.id)
                .text("Arn", format!("arn:aws:iam::{}:root", account.id))
                .time("CreateDate", account.created_unix_ms)
        }
    };
    Outcome::answer(Answer::new().fields("User", user))
}

pub(super) fn list(call: &mut Call<'_>) -> Result<Outcome, IamError> {
    let prefix = call.parameters.path_prefix()?;
    let paging = Paging::take(&mut call.parameters)?;
    let users = call.context.identities.users(call.context.account_id());
    let found = users.filter(|user| user.record.path.starts_with(&prefix));
    let page = paging.page(found.map(|user| (user.record.name.to_lowercase(), summary(call, &user.record))));
    Outcome::answer(page.end(Answer::new().list("Users", page.items.clone())))
}

pub(super) fn update(call: &mut Call<'_>) -> Result<Outcome, IamError> {
    let old = named(call)?;
    let new_name = call.parameters.optional_name("NewUserName", NAME_CHARS_MAX)?;
    let new_path = call.parameters.optional_path("NewPath")?;
    let mut user = old.clone();
    user.path = new_path.unwrap_or(user.path);
    let mut changes = Vec::new();
    if let Some(name) = new_name.filter(|name| *name != old.name) {
        if name.to_lowercase() != old.name.to_lowercase() {
            check_name_is_free(call, &name)?;
            changes.push(Change::Delete(RecordName::user(&old.account, &old.name)));
        }
        user.name = name;
        for key in super::access_keys::of_user(call.context, Some(&old.name)) {
            let key = atoll_types::identities::AccessKeyRecord { user: Some(user.name.clone()), ..key };
            changes.push(Change::Put(Record::AccessKey(key)));
        }
    }
    changes.push(Change::Put(Record::User(user)));
    Ok(Outcome { changes, answer: Answer::new() })
}

pub(super) fn delete(call: &mut Call<'_>) -> Result<Outcome, IamError> {
    let user = named(call)?;
    if super::access_keys::of_user(call.context, Some(&user.name)).next().is_some() {
        return Err(IamError::DeleteConflict("Cannot delete entity, must delete access keys first.".into()));
    }
    if !user.groups.is_empty() {
        return Err(IamError::DeleteConflict("Cannot delete entity, must remove users from group first.".into()));
    }
    check_has_no_policies(&user.policies)?;
    Outcome::delete(RecordName::user(&user.account, &user.name))
}

pub(super) fn list_groups(call: &mut Call<'_>) -> Result<Outcome, IamError> {
    let user = named(call)?;
    let paging = Paging::take(&mut call.parameters)?;
    let groups = user.groups.iter().filter_map(|name| call.context.identities.group(&user.account, name));
    let page = paging
        .page(groups.map(|group| (group.record.name.to_lowercase(), super::groups::summary(call, &group.record))));
    Outcome::answer(page.end(Answer::new().list("Groups", page.items.clone())))
}

/// Names of users by their groups.
pub(super) fn members<'a>(call: &'a Call<'_>, group: &'a str) -> impl Iterator<Item = &'a UserRecord> + use<'a> {
    let users = call.context.identities.users(call.context.account_id());
    users.map(|user| &user.record).filter(move |user| is_in(user, group))
}

/// Returns true if a user is in a group.
pub(super) fn is_in(user: &UserRecord, group: &str) -> bool {
    user.groups.iter().any(|name| name.eq_ignore_ascii_case(group))
}
