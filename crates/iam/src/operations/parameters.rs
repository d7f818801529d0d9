//! The parameters of an operation, checked as AWS checks them. Parameters that no operation takes are refused.

use std::collections::{BTreeMap, BTreeSet};

use super::IamError;
use crate::policy::Policy;
use crate::policy_kind::PolicyKind;

/// Longest policy that is looked at, in bytes.
const DOCUMENT_BYTES_MAX: usize = 131_072;
const PATH_CHARS_MAX: usize = 512;
/// Most members of any list.
const MEMBERS_MAX: usize = 200;
pub(crate) const TAGS_MAX: usize = 50;

/// The parameters of an operation by name. Lists are flat: `Tags.member.1.Key`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parameters(BTreeMap<String, String>);

impl<K: Into<String>, V: Into<String>> FromIterator<(K, V)> for Parameters {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(pairs: I) -> Self {
        Parameters(pairs.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }
}

impl Parameters {
    /// With one more.
    pub fn with(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.0.insert(name.into(), value.into());
        self
    }

    /// With a tag more; call it for each one with numbers from 1.
    pub fn with_tag(self, number: usize, key: &str, value: &str) -> Self {
        self.with(format!("Tags.member.{number}.Key"), key).with(format!("Tags.member.{number}.Value"), value)
    }

    /// The value of a parameter; it still has to be taken.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// Takes a parameter. One that is empty is as good as absent.
    pub fn take(&mut self, name: &str) -> Option<String> {
        self.0.remove(name).filter(|value| !value.is_empty())
    }

    /// Takes a parameter that must be there.
    pub fn required(&mut self, name: &str) -> Result<String, IamError> {
        self.take(name).ok_or_else(|| {
            let argument = lower_camel(name);
            IamError::ValidationError(format!(
                "1 validation error detected: Value null at '{argument}' failed to satisfy constraint: Member must not \
                 be null"
            ))
        })
    }

    /// A name of letters, digits and `+=,.@_-`.
    pub fn name(&mut self, parameter: &str, chars_max: usize) -> Result<String, IamError> {
        let name = self.required(parameter)?;
        check_name(parameter, &name, chars_max)?;
        Ok(name)
    }

    pub(crate) fn optional_name(&mut self, parameter: &str, chars_max: usize) -> Result<Option<String>, IamError> {
        if self.get(parameter).is_none_or(str::is_empty) {
            self.0.remove(parameter);
            return Ok(None);
        }
        self.name(parameter, chars_max).map(Some)
    }

    /// A path that begins and ends with a slash; `/` if there is none.
    pub(crate) fn path(&mut self, parameter: &str) -> Result<String, IamError> {
        Ok(self.optional_path(parameter)?.unwrap_or_else(|| "/".into()))
    }

    pub(crate) fn optional_path(&mut self, parameter: &str) -> Result<Option<String>, IamError> {
        let Some(path) = self.take(parameter) else { return Ok(None) };
        let is_plain = path.chars().all(|c| ('!'..='~').contains(&c));
        let is_whole = path.starts_with('/') && path.ends_with('/');
        if !is_plain || !is_whole || path.len() > PATH_CHARS_MAX || path.contains("//") {
            return IamError::invalid(format!(
                "The specified value for {} is invalid. It must begin and end with / and contain only \
                 printable ASCII characters.",
                lower_camel(parameter)
            ));
        }
        Ok(Some(path))
    }

    /// `PathPrefix` of listings.
    pub(crate) fn path_prefix(&mut self) -> Result<String, IamError> {
        let prefix = self.take("PathPrefix").unwrap_or_else(|| "/".into());
        if !prefix.starts_with('/') || prefix.len() > PATH_CHARS_MAX {
            return IamError::invalid("The specified value for pathPrefix is invalid. It must begin with /.");
        }
        Ok(prefix)
    }

    /// A number in a range.
    pub fn number<T: std::str::FromStr + PartialOrd + std::fmt::Display>(
        &mut self,
        parameter: &str,
        range: std::ops::RangeInclusive<T>,
    ) -> Result<Option<T>, IamError> {
        let Some(text) = self.take(parameter) else { return Ok(None) };
        match text.parse::<T>() {
            Ok(number) if range.contains(&number) => Ok(Some(number)),
            _ => IamError::invalid(format!(
                "1 validation error detected: Value '{text}' at '{}' failed to satisfy constraint: Member must have \
                 value between {} and {}",
                lower_camel(parameter),
                range.start(),
                range.end()
            )),
        }
    }

    pub(crate) fn flag(&mut self, parameter: &str) -> Result<Option<bool>, IamError> {
        match self.take(parameter).as_deref() {
            None => Ok(None),
            Some("true" | "True") => Ok(Some(true)),
            Some("false" | "False") => Ok(Some(false)),
            Some(other) => IamError::invalid(format!("{parameter} must be true or false, not '{other}'")),
        }
    }

    /// Returns one of some words; the first is the default.
    pub(crate) fn choice(
        &mut self,
        parameter: &str,
        words: &'static [&'static str],
    ) -> Result<&'static str, IamError> {
        let Some(text) = self.take(parameter) else { return Ok(words[0]) };
        match words.iter().find(|word| **word == text) {
            Some(word) => Ok(word),
            None => IamError::invalid(format!(
                "1 validation error detected: Value '{text}' at '{}' failed to satisfy constraint: Member must satisfy \
                 enum value set: [{}]",
                lower_camel(parameter),
                words.join(", ")
            )),
        }
    }

    /// Text for people.
    pub(crate) fn description(&mut self) -> Result<Option<String>, IamError> {
        // An empty one takes the place of what was there.
        let text = self.0.remove("Description");
        if text.as_ref().is_some_and(|text| text.chars().count() > 1_000) {
            return IamError::invalid("The description has more than 1000 characters.");
        }
        Ok(text)
    }

    /// A policy that parses.
    pub(crate) fn document(&mut self, parameter: &str, kind: PolicyKind) -> Result<String, IamError> {
        let document = self.required(parameter)?;
        check_document(&document, kind)?;
        Ok(document)
    }

    /// The members of a list: each with the part of its parameters' names behind its number.
    fn members(&mut self, list: &str) -> Result<Vec<BTreeMap<String, String>>, IamError> {
        // An empty list is sent as its bare name.
        if self.0.get(list).is_some_and(String::is_empty) {
            self.0.remove(list);
        }
        let prefix = format!("{list}.member.");
        let names: Vec<String> = self.0.keys().filter(|name| name.starts_with(&prefix)).cloned().collect();
        let mut members: BTreeMap<usize, BTreeMap<String, String>> = BTreeMap::new();
        for name in names {
            let rest = &name[prefix.len()..];
            let (number, field) = rest.split_once('.').unwrap_or((rest, ""));
            let number: usize =
                number.parse().ok().filter(|number| (1..=MEMBERS_MAX).contains(number)).ok_or_else(|| {
                    IamError::ValidationError(format!("{name} is no member of a list of at most {MEMBERS_MAX}"))
                })?;
            let field = field.to_owned();
            let value = self.0.remove(&name).unwrap_or_default();
            members.entry(number).or_default().insert(field, value);
        }
        Ok(members.into_values().collect())
    }

    /// A list of texts.
    pub fn texts(&mut self, list: &str) -> Result<Vec<String>, IamError> {
        let members = self.members(list)?.into_iter();
        members.map(|mut member| self::only(&mut member, list, "")).collect()
    }

    /// A list of structures with one field each.
    pub fn texts_in(&mut self, list: &str, field: &str) -> Result<Vec<String>, IamError> {
        let members = self.members(list)?.into_iter();
        members.map(|mut member| self::only(&mut member, list, field)).collect()
    }

    /// `Tags`.
    pub fn tags(&mut self) -> Result<BTreeMap<String, String>, IamError> {
        let mut tags = BTreeMap::new();
        let mut folded = BTreeSet::new();
        for mut member in self.members("Tags")? {
            let value = member.remove("Value").unwrap_or_default();
            let key = self::only(&mut member, "Tags", "Key")?;
            check_tag(&key, &value)?;
            if !folded.insert(key.to_lowercase()) {
                return Err(IamError::InvalidInput(
                    "Duplicate tag keys found. Please note that Tag keys are case insensitive.".into(),
                ));
            }
            tags.insert(key, value);
        }
        if tags.len() > TAGS_MAX {
            return Err(IamError::LimitExceeded { quota: "TagsPerResource", limit: TAGS_MAX });
        }
        Ok(tags)
    }

    /// Refuses parameters that no operation has taken.
    pub fn finish(&self) -> Result<(), IamError> {
        match self.0.keys().next() {
            None => Ok(()),
            Some(name) => IamError::invalid(format!("The parameter {name} is not supported for this action")),
        }
    }
}

/// The only field of a member.
fn only(member: &mut BTreeMap<String, String>, list: &str, field: &str) -> Result<String, IamError> {
    match (member.remove(field), member.is_empty()) {
        (Some(value), true) if !value.is_empty() => Ok(value),
        _ => IamError::invalid(format!("a member of {list} is malformed")),
    }
}

/// Returns true for characters of tags: letters, numbers, spaces and `_.:/=+-@`.
pub fn is_tag_character(c: char) -> bool {
    // Line feeds are spaces, too, and controls.
    c.is_alphanumeric() || c.is_whitespace() && !c.is_control() || "_.:/=+-@".contains(c)
}

fn check_tag(key: &str, value: &str) -> Result<(), IamError> {
    let is_key = (1..=128).contains(&key.chars().count()) && key.chars().all(is_tag_character);
    if !is_key || value.chars().count() > 256 || !value.chars().all(is_tag_character) {
        return IamError::invalid(format!("The tag '{key}' is malformed or too long"));
    }
    if key.to_lowercase().starts_with("aws:") {
        return Err(IamError::InvalidInput("Tag keys starting with 'aws:' are reserved for system use".into()));
    }
    Ok(())
}

/// Checks a name of letters, digits and `+=,.@_-`.
pub(crate) fn check_name(parameter: &str, name: &str, chars_max: usize) -> Result<(), IamError> {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "+=,.@_-".contains(c);
    if name.is_empty() || !name.chars().all(is_allowed) {
        return IamError::invalid(format!(
            "The specified value for {} is invalid. It must contain only alphanumeric characters and/or the \
             following: +=,.@_-",
            lower_camel(parameter)
        ));
    }
    if name.len() > chars_max {
        return IamError::invalid(format!(
            "1 validation error detected: Value at '{}' failed to satisfy constraint: Member must have length less \
             than or equal to {chars_max}",
            lower_camel(parameter)
        ));
    }
    Ok(())
}

/// Makes sure that a text is a policy of this kind.
pub fn check_document(document: &str, kind: PolicyKind) -> Result<(), IamError> {
    if document.len() > DOCUMENT_BYTES_MAX {
        return Err(IamError::LimitExceeded { quota: "PolicySize", limit: DOCUMENT_BYTES_MAX });
    }
    Policy::parse_new(document, kind)
        .map(drop)
        .map_err(|error| IamError::MalformedPolicyDocument(error.to_string()))
}

/// The size of a policy as AWS counts it: without white space.
pub fn document_size(document: &str) -> usize {
    document.chars().filter(|c| !c.is_whitespace()).count()
}

/// As AWS names parameters in messages.
fn lower_camel(parameter: &str) -> String {
    let mut chars = parameter.chars();
    chars.next().map_or_else(String::new, |first| first.to_lowercase().chain(chars).collect())
}
