//! Values that conditions compare with, by the family of their operator.

use std::cmp::Ordering;
use std::net::IpAddr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ipnet::{IpNet, Ipv4Net};

use crate::context::Context;
use crate::fault::Fault;
use crate::pattern::{self, ANY_RUN};
use crate::template::{Syntax, Template};
use crate::timestamp;

/// Kind of an operator's operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    Text,
    TextIgnoringCase,
    Like,
    Number,
    Date,
    Bool,
    Binary,
    Network,
    Arn,
}

/// How a value of the request has to be to that of the policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Comparison {
    Equal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

impl Comparison {
    fn holds(self, ordering: Ordering) -> bool {
        match self {
            Comparison::Equal => ordering.is_eq(),
            Comparison::Less => ordering.is_lt(),
            Comparison::LessOrEqual => ordering.is_le(),
            Comparison::Greater => ordering.is_gt(),
            Comparison::GreaterOrEqual => ordering.is_ge(),
        }
    }
}

/// A value of a policy, read ahead if it has no variables.
#[derive(Clone, Debug)]
pub(crate) enum Operand {
    Text(Template),
    Typed(Typed),
    /// Read when the variables are known.
    Late(Template),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Scalar {
    Number(f64),
    Date(i64),
    Bool(bool),
    Network(IpNet),
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Typed {
    Scalar(Scalar),
    Binary(Vec<u8>),
}

impl Operand {
    pub(crate) fn parse(family: Family, text: &str, has_variables: bool) -> Result<Operand, Fault> {
        let has_wildcards = matches!(family, Family::Like | Family::Arn);
        let template = Template::parse(text, Syntax { has_wildcards, has_variables })?;
        let fixed = match &template {
            _ if is_textual(family) => return Ok(Operand::Text(template)),
            Template::Mixed(_) => return Ok(Operand::Late(template)),
            Template::Fixed(fixed) => fixed,
        };
        let typed = std::str::from_utf8(fixed).ok().and_then(|text| parse_typed(family, text));
        typed.map(Operand::Typed).ok_or_else(|| {
            Fault::new(format!("the condition value \"{text}\" is not {}", expected(family)), "Correct the value")
        })
    }

    /// Returns true if the value of the request compares so with this one. An unreadable value does not.
    pub(crate) fn holds(
        &self,
        family: Family,
        comparison: Comparison,
        context: &Context<'_>,
        value: &str,
    ) -> bool {
        match self {
            Operand::Text(template) => template.resolve(context).is_some_and(|bytes| match family {
                Family::TextIgnoringCase => equals_ignoring_case(&bytes, value),
                Family::Arn => matches_arn(&bytes, value),
                _ => pattern::matches_compiled(&bytes, value),
            }),
            Operand::Typed(typed) => typed.holds(family, comparison, value),
            Operand::Late(template) => template.resolve(context).is_some_and(|bytes| {
                let typed = std::str::from_utf8(&bytes).ok().and_then(|text| parse_typed(family, text));
                typed.is_some_and(|typed| typed.holds(family, comparison, value))
            }),
        }
    }

    pub(crate) fn template(&self) -> Option<&Template> {
        match self {
            Operand::Text(template) | Operand::Late(template) => Some(template),
            Operand::Typed(_) => None,
        }
    }
}

impl Typed {
    fn holds(&self, family: Family, comparison: Comparison, value: &str) -> bool {
        let Some(found) = parse_typed(family, value) else { return false };
        match (&found, self) {
            (Typed::Scalar(found), Typed::Scalar(expected)) => found.holds(comparison, expected),
            (found, expected) => found == expected,
        }
    }
}

impl Scalar {
    fn holds(self, comparison: Comparison, expected: &Scalar) -> bool {
        let ordering = match (&self, expected) {
            (Scalar::Number(found), Scalar::Number(expected)) => found.partial_cmp(expected),
            (Scalar::Date(found), Scalar::Date(expected)) => Some(found.cmp(expected)),
            (Scalar::Bool(found), Scalar::Bool(expected)) => Some(found.cmp(expected)),
            (Scalar::Network(found), Scalar::Network(expected)) => return expected.contains(found),
            _ => None,
        };
        ordering.is_some_and(|ordering| comparison.holds(ordering))
    }
}

fn is_textual(family: Family) -> bool {
    matches!(family, Family::Text | Family::TextIgnoringCase | Family::Like | Family::Arn)
}

fn expected(family: Family) -> &'static str {
    match family {
        Family::Number => "a number",
        Family::Date => "a date, such as 2026-01-31T12:00:00Z or seconds since 1970",
        Family::Bool => "true or false",
        Family::Binary => "base64",
        Family::Network => "an IP address or a network, such as 203.0.113.0/24",
        Family::Text | Family::TextIgnoringCase | Family::Like | Family::Arn => "a text",
    }
}

fn parse_typed(family: Family, text: &str) -> Option<Typed> {
    let scalar = match family {
        Family::Number => Scalar::Number(text.parse().ok().filter(|number: &f64| number.is_finite())?),
        Family::Date => Scalar::Date(timestamp::parse(text)?),
        Family::Bool => Scalar::Bool(parse_bool(text)?),
        Family::Network => Scalar::Network(parse_network(text)?),
        Family::Binary => return STANDARD.decode(text).ok().map(Typed::Binary),
        Family::Text | Family::TextIgnoringCase | Family::Like | Family::Arn => return None,
    };
    Some(Typed::Scalar(scalar))
}

pub(crate) fn parse_bool(text: &str) -> Option<bool> {
    if text.eq_ignore_ascii_case("true") {
        Some(true)
    } else if text.eq_ignore_ascii_case("false") {
        Some(false)
    } else {
        None
    }
}

/// IPv4 addresses in IPv6 ones are taken as IPv4.
fn parse_network(text: &str) -> Option<IpNet> {
    let network = match text.parse::<IpNet>() {
        Ok(network) => network,
        Err(_) => IpNet::from(text.parse::<IpAddr>().ok()?),
    };
    let IpNet::V6(mapped) = network else { return Some(network) };
    match (mapped.addr().to_ipv4_mapped(), mapped.prefix_len().checked_sub(96)) {
        (Some(address), Some(prefix)) => Ipv4Net::new(address, prefix).ok().map(IpNet::V4),
        _ => Some(network),
    }
}

fn equals_ignoring_case(expected: &[u8], value: &str) -> bool {
    if expected.is_ascii() || value.is_ascii() {
        return expected.eq_ignore_ascii_case(value.as_bytes());
    }
    std::str::from_utf8(expected).is_ok_and(|expected| expected.to_lowercase() == value.to_lowercase())
}

/// Each of the six parts by itself. A run at the end of an earlier part takes all parts that follow.
fn matches_arn(pattern: &[u8], value: &str) -> bool {
    let parts: Vec<&[u8]> = pattern.splitn(6, |byte| *byte == b':').collect();
    if parts.len() < 6 && parts.last().is_none_or(|last| last.last() != Some(&ANY_RUN)) {
        return false;
    }
    let mut values = value.splitn(parts.len(), ':');
    parts.iter().all(|part| values.next().is_some_and(|value| pattern::matches_compiled(part, value)))
}
