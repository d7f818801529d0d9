//! Roles.

use std::collections::BTreeMap;

use atoll_types::identities::{AttachedPolicies, RoleRecord};
use atoll_types::records::RECORD_FORMAT;

use super::call::HolderKind;
use super::holders::{self, check_has_no_policies};
use super::paging::Paging;
use super::tags::tag_list;
use super::{Answer, Call, IamError, Outcome, Value, document_size};
use crate::identities::{Record, RecordName};
use crate::policy::Policy;
use crate::policy_kind::PolicyKind;

const ROLES_MAX: usize = 1_000;
const NAME_CHARS_MAX: usize = 64;
const TRUST_POLICY_CHARS_MAX: usize = 2_048;
const SESSION_SECONDS_DEFAULT: u32 = 3_600;
const SESSION_SECONDS: std::ops::RangeInclusive<u32> = 3_600..=43_200;

fn details(call: &Call<'_>, role: &RoleRecord) -> Answer {
    let answer = Answer::new()
        .text("Path", &role.path)
        .text("RoleName", &role.name)
        .text("RoleId", &role.id)
        .text("Arn", holders::arn(call.context, HolderKind::Role, &role.path, &role.name))
        .time("CreateDate", role.created_unix_ms)
        .value("AssumeRolePolicyDocument", Value::Document(role.trust_policy.clone()))
        .optional("Description", (!role.description.is_empty()).then_some(&role.description))
        .text("MaxSessionDuration", role.session_seconds_max);
    match role.tags.is_empty() {
        true => answer,
        false => answer.value("Tags", Value::List(tag_list(&role.tags))),
    }
}

fn named(call: &mut Call<'_>) -> Result<RoleRecord, IamError> {
    let name = call.parameters.name("RoleName", NAME_CHARS_MAX)?;
    let role = call.context.identities.role(call.context.account_id(), &name);
    role.map(|role| role.record.clone()).ok_or_else(|| IamError::missing("role", &name))
}

/// The document, and the ids of those whom it names.
fn trust_policy(call: &mut Call<'_>, parameter: &str) -> Result<(String, BTreeMap<String, String>), IamError> {
    let document = call.parameters.document(parameter, PolicyKind::Trust)?;
    if document_size(&document) > TRUST_POLICY_CHARS_MAX {
        return Err(IamError::LimitExceeded { quota: "ACLSizePerRole", limit: TRUST_POLICY_CHARS_MAX });
    }
    let policy = Policy::parse(&document, PolicyKind::Trust);
    let policy = policy.map_err(|error| IamError::MalformedPolicyDocument(error.to_string()))?;
    let ids = call.context.identities.principal_ids(&policy);
    let ids =
        ids.map_err(|arn| IamError::MalformedPolicyDocument(format!("Invalid principal in policy: {arn}")))?;
    Ok((document, ids))
}

pub(super) fn create(call: &mut Call<'_>) -> Result<Outcome, IamError> {
    let name = call.parameters.name("RoleName", NAME_CHARS_MAX)?;
    let path = call.parameters.path("Path")?;
    let (trust_policy, trust_principals) = trust_policy(call, "AssumeRolePolicyDocument")?;
    let description = call.parameters.description()?.unwrap_or_default();
    let seconds = call.parameters.number("MaxSessionDuration", SESSION_SECONDS)?;
    let tags = call.parameters.tags()?;
    let (identities, account) = (call.context.identities, call.context.account_id());
    if identities.role(account, &name).is_some() {
        return Err(IamError::EntityAlreadyExists(format!("Role with name {name} already exists.")));
    }
    if identities.roles(account).count() >= ROLES_MAX {
        return Err(IamError::LimitExceeded { quota: "RolesPerAccount", limit: ROLES_MAX });
    }
    let role = RoleRecord {
        format: RECORD_FORMAT,
        account: account.into(),
        name,
        path,
        id: call.context.new_id("AROA"),
        description,
        trust_policy,
        trust_principals,
        session_seconds_max: seconds.unwrap_or(SESSION_SECONDS_DEFAULT),
        policies: AttachedPolicies::default(),
        tags,
        created_unix_ms: call.context.now_ms,
    };
    let answer = Answer::new().fields("Role", details(call, &role));
    Outcome::put(Record::Role(role), answer)
}

pub(super) fn get(call: &mut Call<'_>) -> Result<Outcome, IamError> {
    let role = named(call)?;
    Outcome::answer(Answer::new().fields("Role", details(call, &role)))
}

pub(super) fn list(call: &mut Call<'_>) -> Result<Outcome, IamError> {
    let prefix = call.parameters.path_prefix()?;
    let paging = Paging::take(&mut call.parameters)?;
    let roles = call.context.identities.roles(call.context.account_id());
    let found = roles.filter(|role| role.record.path.starts_with(&prefix));
    let page = paging.page(found.map(|role| (role.record.name.to_lowercase(), details(call, &role.record))));
    Outcome::answer(page.end(Answer::new().list("Roles", page.items.clone())))
}

/// Missing parameters leave a value unchanged.
pub(super) fn update(call: &mut Call<'_>) -> Result<Outcome, IamError> {
    let mut role = named(call)?;
    role.description = call.parameters.description()?.unwrap_or(role.description);
    let seconds = call.parameters.number("MaxSessionDuration", SESSION_SECONDS)?;
    role.session_seconds_max = seconds.unwrap_or(role.session_seconds_max);
    Outcome::put(Record::Role(role), Answer::new())
}

pub(super) fn update_description(call: &mut Call<'_>) -> Result<Outcome, IamError> {
    let mut role = named(call)?;
    role.description = call.parameters.description()?.unwrap_or_default();
    let answer = Answer::new().fields("Role", details(call, &role));
    Outcome::put(Record::Role(role), answer)
}

pub(super) fn update_trust_policy(call: &mut Call<'_>) -> Result<Outcome, IamError> {
    let mut role = named(call)?;
    (role.trust_policy, role.trust_principals) = trust_policy(call, "PolicyDocument")?;
    Outcome::put(Record::Role(role), Answer::new())
}

pub(super) fn delete(call: &mut Call<'_>) -> Result<Outcome, IamError> {
    let role = named(call)?;
    check_has_no_policies(&role.policies)?;
    Outcome::delete(RecordName::role(&role.account, &role.name))
}

/// There are no machines that assume roles; Terraform asks before it deletes one.
pub(super) fn list_instance_profiles(call: &mut Call<'_>) -> Result<Outcome, IamError> {
    named(call)?;
    Paging::take(&mut call.parameters)?;
    Outcome::answer(Answer::new().list("InstanceProfiles", []).text("IsTruncated", false))
}
