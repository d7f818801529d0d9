//! Managed policies.

use std::collections::BTreeMap;

use atoll_types::identities::{ManagedPolicyRecord, PolicyVersion};
use atoll_types::records::RECORD_FORMAT;

use super::attached_policies::attachment_count;
use super::call::HolderKind;
use super::holders;
use super::paging::Paging;
use super::tags::tag_list;
use super::{Answer, Call, IamError, Outcome, Value, document_size};
use crate::arn::parse_policy_arn;
use crate::identities::{AWS_MANAGED_POLICIES, AwsManagedPolicy, Record, RecordName, aws_managed_policy};
use crate::policy_kind::PolicyKind;

const POLICIES_MAX: usize = 1_500;
const DOCUMENT_CHARS_MAX: usize = 6_144;
const NAME_CHARS_MAX: usize = 128;
/// When AWS made its own.
const AWS_CREATED_UNIX_MS: u64 = 1_423_168_800_000;

/// One of an account, or one of AWS.
pub(super) enum Found {
    Own(ManagedPolicyRecord),
    Aws(&'static AwsManagedPolicy),
}

pub(super) fn no_such_policy(arn: &str) -> IamError {
    IamError::NoSuchEntity(format!("Policy {arn} was not found."))
}

/// Path and name in a policy's ARN.
pub(super) fn policy_name(arn: &str) -> Option<(&str, &str)> {
    parse_policy_arn(arn).map(|parsed| (parsed.path, parsed.name))
}

/// The policy whose ARN is given.
pub(super) fn named(call: &mut Call<'_>) -> Result<(String, Found), IamError> {
    let arn = call.parameters.required("PolicyArn")?;
    if policy_name(&arn).is_none() {
        return IamError::invalid(format!("ARN {arn} is not valid."));
    }
    if let Some(policy) = aws_managed_policy(&arn) {
        return Ok((arn, Found::Aws(policy)));
    }
    let entry = call.context.identities.policy_by_arn(call.context.account_id(), &arn);
    let record = entry.map(|entry| entry.record.clone()).ok_or_else(|| no_such_policy(&arn))?;
    Ok((arn, Found::Own(record)))
}

/// The same, to change it.
pub(super) fn own(call: &mut Call<'_>) -> Result<ManagedPolicyRecord, IamError> {
    match named(call)? {
        (_, Found::Own(record)) => Ok(record),
        (arn, Found::Aws(_)) => {
            Err(IamError::InvalidInput(format!("{arn} belongs to AWS and cannot be changed.")))
        }
    }
}

fn own_arn(call: &Call<'_>, policy: &ManagedPolicyRecord) -> String {
    holders::arn(call.context, HolderKind::Policy, &policy.path, &policy.name)
}

fn summary(call: &Call<'_>, policy: &ManagedPolicyRecord) -> Answer {
    let arn = own_arn(call, policy);
    let updated = policy.versions.values().map(|version| version.created_unix_ms).max();
    Answer::new()
        .text("PolicyName", &policy.name)
        .text("PolicyId", &policy.id)
        .text("Arn", &arn)
        .text("Path", &policy.path)
        .text("DefaultVersionId", format!("v{}", policy.default_version))
        .text("AttachmentCount", attachment_count(call.context.identities, call.context.account_id(), &arn))
        .text("PermissionsBoundaryUsageCount", 0)
        .text("IsAttachable", true)
        .time("CreateDate", policy.created_unix_ms)
        .time("UpdateDate", updated.unwrap_or(policy.created_unix_ms))
}

fn aws_summary(call: &Call<'_>, policy: &AwsManagedPolicy) -> Answer {
    let arn = policy.arn();
    Answer::new()
        .text("PolicyName", policy.name)
        .text("PolicyId", policy.id)
        .text("Arn", &arn)
        .text("Path", "/")
        .text("DefaultVersionId", "v1")
        .text("AttachmentCount", attachment_count(call.context.identities, call.context.account_id(), &arn))
        .text("PermissionsBoundaryUsageCount", 0)
        .text("IsAttachable", true)
        .time("CreateDate", AWS_CREATED_UNIX_MS)
        .time("UpdateDate", AWS_CREATED_UNIX_MS)
}

fn details(call: &Call<'_>, policy: &ManagedPolicyRecord) -> Answer {
    let description = (!policy.description.is_empty()).then_some(&policy.description);
    let answer = summary(call, policy).optional("Description", description);
    match policy.tags.is_empty() {
        true => answer,
        false => answer.value("Tags", Value::List(tag_list(&policy.tags))),
    }
}

/// A policy's document, if it is not too long.
pub(super) fn document(call: &mut Call<'_>) -> Result<String, IamError> {
    let document = call.parameters.document("PolicyDocument", PolicyKind::Identity)?;
    match document_size(&document) > DOCUMENT_CHARS_MAX {
        true => Err(IamError::LimitExceeded { quota: "PolicySize", limit: DOCUMENT_CHARS_MAX }),
        false => Ok(document),
    }
}

pub(super) fn create(call: &mut Call<'_>) -> Result<Outcome, IamError> {
    let name = call.parameters.name("PolicyName", NAME_CHARS_MAX)?;
    let path = call.parameters.path("Path")?;
    let description = call.parameters.description()?.unwrap_or_default();
    let document = document(call)?;
    let tags = call.parameters.tags()?;
    let (identities, account) = (call.context.identities, call.context.account_id());
    if identities.policy(account, &name).is_some() {
        return Err(IamError::EntityAlreadyExists(format!(
            "A policy called {name} already exists. Duplicate names are not allowed."
        )));
    }
    if identities.policies(account).count() >= POLICIES_MAX {
        return Err(IamError::LimitExceeded { quota: "PoliciesPerAccount", limit: POLICIES_MAX });
    }
    let policy = ManagedPolicyRecord {
        format: RECORD_FORMAT,
        account: account.into(),
        name,
        path,
        id: call.context.new_id("ANPA"),
        description,
        versions: BTreeMap::from([(1, PolicyVersion { document, created_unix_ms: call.context.now_ms })]),
        default_version: 1,
        next_version: 2,
        tags,
        created_unix_ms: call.context.now_ms,
    };
    let answer = Answer::new().fields("Policy", details(call, &policy));
    Outcome::put(Record::Policy(policy), answer)
}

pub(super) fn get(call: &mut Call<'_>) -> Result<Outcome, IamError> {
    let policy = match named(call)?.1 {
        Found::Own(policy) => details(call, &policy),
        Found::Aws(policy) => aws_summary(call, policy).text("Description", policy.description),
    };
    Outcome::answer(Answer::new().fields("Policy", policy))
}

pub(super) fn list(call: &mut Call<'_>) -> Result<Outcome, IamError> {
    let scope = call.parameters.choice("Scope", &["All", "AWS", "Local"])?;
    let only_attached = call.parameters.flag("OnlyAttached")?.unwrap_or(false);
    let prefix = call.parameters.path_prefix()?;
    let usage = call.parameters.choice("PolicyUsageFilter", &["PermissionsPolicy", "PermissionsBoundary"])?;
    let paging = Paging::take(&mut call.parameters)?;
    let (identities, account) = (call.context.identities, call.context.account_id());
    let own = identities.policies(account).map(|entry| &entry.record).filter(|_| scope != "AWS");
    let own = own.filter(|policy| policy.path.starts_with(&prefix));
    let own = own.map(|policy| (own_arn(call, policy), summary(call, policy)));
    let aws = AWS_MANAGED_POLICIES.iter().filter(|_| scope != "Local" && prefix == "/");
    let aws = aws.map(|policy| (policy.arn(), aws_summary(call, policy)));
    let is_wanted = |arn: &str| {
        usage == "PermissionsPolicy" && (!only_attached || attachment_count(identities, account, arn) > 0)
    };
    let page = paging.page(own.chain(aws).filter(|(arn, _)| is_wanted(arn)));
    Outcome::answer(page.end(Answer::new().list("Policies", page.items.clone())))
}

pub(super) fn delete(call: &mut Call<'_>) -> Result<Outcome, IamError> {
    let policy = own(call)?;
    let conflict = |text: &str| Err(IamError::DeleteConflict(text.into()));
    if attachment_count(call.context.identities, &policy.account, &own_arn(call, &policy)) > 0 {
        return conflict("Cannot delete a policy attached to entities.");
    }
    if policy.versions.len() > 1 {
        return conflict(
            "This policy has more than one version. Before you delete a policy, you must delete the policy's \
             versions. The default version is deleted with the policy.",
        );
    }
    Outcome::delete(RecordName::policy(&policy.account, &policy.name))
}
