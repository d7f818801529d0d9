//! The condition keys of a request, as policies name them. Source: "Actions, resources, and condition keys"
//! for IAM and STS, and "AWS global condition context keys".

use std::borrow::Cow;
use std::collections::BTreeMap;

use atoll_iam::ConditionValues;

use super::QueryRequest;
use crate::access::{RequestConditions, region_of_header};
use crate::arrival::Arrival;
use crate::authentication::Authentication;
use crate::clock::unix_ms;

/// Keys of one request.
pub(super) struct QueryConditions<'a> {
    request: RequestConditions<'a>,
    /// Keys of the action.
    given: Vec<(String, Vec<String>)>,
}

/// A key as the engine asks for it: in lower case up to the first slash.
fn engine_key(name: &str) -> String {
    let (lowered, kept) = name.split_at(name.find('/').unwrap_or(name.len()));
    lowered.to_ascii_lowercase() + kept
}

impl QueryRequest<'_> {
    /// Condition values of every request. `account` is that of the resource.
    pub(super) fn conditions<'a>(&'a self, account: &'a str) -> QueryConditions<'a> {
        let request = RequestConditions {
            headers: &self.parts.headers,
            uri: &self.parts.uri,
            arrival: self.parts.extensions.get::<Arrival>().copied(),
            // Its keys are S3's own.
            authentication: Authentication::default(),
            region: region_of_header(&self.parts.headers).unwrap_or(&self.gateway.config.region),
            operation: "",
            now_ms: unix_ms(),
            resource_account: Some(account),
            existing_tags: None,
            body_tags: None,
            body_lock: None,
            version_id: None,
            location: None,
            named_key: None,
            prefix: None,
        };
        QueryConditions { request, given: Vec::new() }
    }
}

impl QueryConditions<'_> {
    /// With a key of the action.
    pub(super) fn with(mut self, key: &str, values: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.given.push((engine_key(key), values.into_iter().map(Into::into).collect()));
        self
    }

    /// Adds the tags of the action's resource.
    pub(super) fn with_resource_tags(self, tags: &BTreeMap<String, String>) -> Self {
        tags.iter().fold(self, |conditions, (key, value)| {
            let conditions = conditions.with(&format!("aws:resourcetag/{key}"), [value]);
            conditions.with(&format!("iam:resourcetag/{key}"), [value])
        })
    }

    /// With the tags that the action sets or removes.
    pub(super) fn with_request_tags(self, tags: &BTreeMap<String, String>, removed: Vec<String>) -> Self {
        let keys: Vec<String> = tags.keys().cloned().chain(removed).collect();
        let conditions = tags
            .iter()
            .fold(self, |conditions, (key, value)| conditions.with(&format!("aws:requesttag/{key}"), [value]));
        if keys.is_empty() { conditions } else { conditions.with("aws:tagkeys", keys) }
    }
}

impl ConditionValues for QueryConditions<'_> {
    fn values(&self, key: &str) -> Vec<Cow<'_, str>> {
        if let Some((_, values)) = self.given.iter().find(|(given, _)| given == key) {
            return values.iter().map(|value| Cow::Borrowed(value.as_str())).collect();
        }
        // The others are of S3.
        if key.starts_with("aws:") { self.request.values(key) } else { Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_lowered_up_to_the_first_slash() {
        assert_eq!(engine_key("sts:ExternalId"), "sts:externalid");
        assert_eq!(engine_key("Issuer.Example/Realms/A:Sub"), "issuer.example/Realms/A:Sub");
        assert_eq!(engine_key("127.0.0.1:80:aud"), "127.0.0.1:80:aud");
    }
}
