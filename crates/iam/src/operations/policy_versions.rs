//! Versions of managed policies.

use atoll_types::identities::{ManagedPolicyRecord, PolicyVersion};

use super::managed_policies::{Found, document, named, own};
use super::paging::Paging;
use super::{Answer, Call, IamError, Outcome, Value};
use crate::identities::Record;

const VERSIONS_MAX: usize = 5;

fn missing(version: &str) -> IamError {
    IamError::NoSuchEntity(format!("Policy version {version} does not exist."))
}

/// The number in `VersionId`, such as `v2`.
fn number(call: &mut Call<'_>) -> Result<u32, IamError> {
    let text = call.parameters.required("VersionId")?;
    let number = text.strip_prefix('v').and_then(|digits| digits.parse::<u32>().ok()).filter(|number| *number > 0);
    number.ok_or_else(|| {
        IamError::ValidationError(format!(
            "1 validation error detected: Value '{text}' at 'versionId' failed to satisfy constraint: Member must \
             satisfy regular expression pattern: v[1-9][0-9]*(\\.[A-Za-z0-9-]*)?"
        ))
    })
}

fn summary(policy: &ManagedPolicyRecord, number: u32, version: &PolicyVersion) -> Answer {
    Answer::new()
        .text("VersionId", format!("v{number}"))
        .text("IsDefaultVersion", policy.default_version == number)
        .time("CreateDate", version.created_unix_ms)
}

pub(super) fn create(call: &mut Call<'_>) -> Result<Outcome, IamError> {
    let mut policy = own(call)?;
    let document = document(call)?;
    let is_default = call.parameters.flag("SetAsDefault")?.unwrap_or(false);
    if policy.versions.len() >= VERSIONS_MAX {
        return Err(IamError::LimitExceeded { quota: "VersionsPerPolicy", limit: VERSIONS_MAX });
    }
    let number = policy.next_version;
    let version = PolicyVersion { document, created_unix_ms: call.context.now_ms };
    policy.next_version += 1;
    if is_default {
        policy.default_version = number;
    }
    let answer = Answer::new().fields("PolicyVersion", summary(&policy, number, &version));
    policy.versions.insert(number, version);
    Outcome::put(Record::Policy(policy), answer)
}

pub(super) fn get(call: &mut Call<'_>) -> Result<Outcome, IamError> {
    let found = named(call)?.1;
    let number = number(call)?;
    let version = match &found {
        Found::Own(policy) => policy.versions.get(&number).map(|version| {
            Answer::new()
                .value("Document", Value::Document(version.document.clone()))
                .text("VersionId", format!("v{number}"))
                .text("IsDefaultVersion", policy.default_version == number)
                .time("CreateDate", version.created_unix_ms)
        }),
        Found::Aws(policy) => (number == 1).then(|| {
            Answer::new()
                .value("Document", Value::Document(policy.document.into()))
                .text("VersionId", "v1")
                .text("IsDefaultVersion", true)
        }),
    };
    let version = version.ok_or_else(|| missing(&format!("v{number}")))?;
    Outcome::answer(Answer::new().fields("PolicyVersion", version))
}

pub(super) fn list(call: &mut Call<'_>) -> Result<Outcome, IamError> {
    let found = named(call)?.1;
    let paging = Paging::take(&mut call.parameters)?;
    let lines = match &found {
        Found::Own(policy) => {
            let newest_first = policy.versions.iter().rev();
            newest_first.map(|(number, version)| (*number, summary(policy, *number, version))).collect()
        }
        Found::Aws(_) => vec![(1, Answer::new().text("VersionId", "v1").text("IsDefaultVersion", true))],
    };
    let page = paging.page(lines.into_iter().map(|(number, line)| (format!("{:08x}", u32::MAX - number), line)));
    Outcome::answer(page.end(Answer::new().list("Versions", page.items.clone())))
}

pub(super) fn delete(call: &mut Call<'_>) -> Result<Outcome, IamError> {
    let mut policy = own(call)?;
    let number = number(call)?;
    if number == policy.default_version {
        return Err(IamError::DeleteConflict("Cannot delete the default version of a policy.".into()));
    }
    policy.versions.remove(&number).ok_or_else(|| missing(&format!("v{number}")))?;
    Outcome::put(Record::Policy(policy), Answer::new())
}

pub(super) fn set_default(call: &mut Call<'_>) -> Result<Outcome, IamError> {
    let mut policy = own(call)?;
    let number = number(call)?;
    if !policy.versions.contains_key(&number) {
        return Err(missing(&format!("v{number}")));
    }
    policy.default_version = number;
    Outcome::put(Record::Policy(policy), Answer::new())
}
