//! Policies of one user, group or role alone.

use std::collections::BTreeMap;

use super::call::HolderKind;
use super::holders;
use super::paging::Paging;
use super::{Answer, Call, IamError, Outcome, Value, document_size};
use crate::identities::Record;
use crate::policy_kind::PolicyKind;

const NAME_CHARS_MAX: usize = 128;

fn quota(kind: HolderKind) -> &'static str {
    match kind {
        HolderKind::User => "UserPolicySize",
        HolderKind::Group => "GroupPolicySize",
        HolderKind::Role | HolderKind::Policy => "RolePolicySize",
    }
}

fn inline(record: &Record) -> &BTreeMap<String, String> {
    static NONE: BTreeMap<String, String> = BTreeMap::new();
    holders::policies(record).map_or(&NONE, |policies| &policies.inline)
}

fn missing(call: &Call<'_>, name: &str) -> IamError {
    IamError::NoSuchEntity(format!("The {} policy with name {name} cannot be found.", call.kind.word()))
}

pub(super) fn put(call: &mut Call<'_>) -> Result<Outcome, IamError> {
    let mut holder = call.holder()?;
    let name = call.parameters.name("PolicyName", NAME_CHARS_MAX)?;
    let document = call.parameters.document("PolicyDocument", PolicyKind::Identity)?;
    if let Some(policies) = holders::policies_mut(&mut holder) {
        policies.inline.insert(name, document);
        let limit = call.kind.inline_chars_max();
        if policies.inline.values().map(|document| document_size(document)).sum::<usize>() > limit {
            return Err(IamError::LimitExceeded { quota: quota(call.kind), limit });
        }
    }
    Outcome::put(holder, Answer::new())
}

pub(super) fn get(call: &mut Call<'_>) -> Result<Outcome, IamError> {
    let holder = call.holder()?;
    let name = call.parameters.name("PolicyName", NAME_CHARS_MAX)?;
    let document = inline(&holder).get(&name).ok_or_else(|| missing(call, &name))?;
    let (kind, _, holder_name, _) = holders::identity_of(&holder);
    let answer = Answer::new()
        .text(kind.parameter(), holder_name)
        .text("PolicyName", &name)
        .value("PolicyDocument", Value::Document(document.clone()));
    Outcome::answer(answer)
}

pub(super) fn delete(call: &mut Call<'_>) -> Result<Outcome, IamError> {
    let mut holder = call.holder()?;
    let name = call.parameters.name("PolicyName", NAME_CHARS_MAX)?;
    let removed = holders::policies_mut(&mut holder).and_then(|policies| policies.inline.remove(&name));
    removed.ok_or_else(|| missing(call, &name))?;
    Outcome::put(holder, Answer::new())
}

pub(super) fn list(call: &mut Call<'_>) -> Result<Outcome, IamError> {
    let holder = call.holder()?;
    let paging = Paging::take(&mut call.parameters)?;
    let page = paging.page(inline(&holder).keys().map(|name| (name.clone(), name.clone())));
    Outcome::answer(page.end(Answer::new().texts("PolicyNames", &page.items)))
}
