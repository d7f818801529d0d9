//! Tags of users, roles and managed policies.

use std::collections::BTreeMap;

use super::call::HolderKind;
use super::holders;
use super::paging::Paging;
use super::parameters::TAGS_MAX;
use super::{Answer, Call, IamError, Outcome, Value};
use crate::identities::Record;

/// Tags as answers list them.
pub(super) fn tag_list(tags: &BTreeMap<String, String>) -> Vec<Value> {
    tags.iter().map(|(key, value)| Value::Fields(tag(key, value))).collect()
}

fn tag(key: &str, value: &str) -> Answer {
    Answer::new().text("Key", key).text("Value", value)
}

/// Returns the tagged record: managed policies are named by their ARNs.
fn tagged(call: &mut Call<'_>) -> Result<Record, IamError> {
    match call.kind {
        HolderKind::Policy => super::managed_policies::own(call).map(Record::Policy),
        _ => call.holder(),
    }
}

pub(super) fn add(call: &mut Call<'_>) -> Result<Outcome, IamError> {
    let mut record = tagged(call)?;
    let new = call.parameters.tags()?;
    if let Some(tags) = holders::tags_mut(&mut record) {
        for (key, value) in new {
            // Keys are one key whatever their case.
            tags.retain(|old, _| !old.eq_ignore_ascii_case(&key));
            tags.insert(key, value);
        }
        if tags.len() > TAGS_MAX {
            return Err(IamError::LimitExceeded { quota: "TagsPerResource", limit: TAGS_MAX });
        }
    }
    Outcome::put(record, Answer::new())
}

pub(super) fn remove(call: &mut Call<'_>) -> Result<Outcome, IamError> {
    let mut record = tagged(call)?;
    let keys = call.parameters.texts("TagKeys")?;
    if let Some(tags) = holders::tags_mut(&mut record) {
        tags.retain(|key, _| !keys.iter().any(|gone| gone.eq_ignore_ascii_case(key)));
    }
    Outcome::put(record, Answer::new())
}

pub(super) fn list(call: &mut Call<'_>) -> Result<Outcome, IamError> {
    let mut record = tagged(call)?;
    let paging = Paging::take(&mut call.parameters)?;
    let tags = holders::tags_mut(&mut record).cloned().unwrap_or_default();
    let page = paging.page(tags.iter().map(|(key, value)| (key.clone(), tag(key, value))));
    Outcome::answer(page.end(Answer::new().list("Tags", page.items.clone())))
}
