//! Conditions of statements, by the operators of AWS.

use crate::context::{Context, Key};
use crate::fault::Fault;
use crate::json::Json;
use crate::operand::{self, Comparison, Family, Operand};

/// One key with the values that it is compared with.
#[derive(Clone, Debug)]
pub(crate) struct Condition {
    pub(crate) key: Key,
    check: Check,
}

#[derive(Clone, Debug)]
enum Check {
    /// The key's absence must be one of these.
    IsMissing(Vec<bool>),
    Compare(Compare),
}

#[derive(Clone, Debug)]
struct Compare {
    operator: Operator,
    operands: Vec<Operand>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Operator {
    quantifier: Quantifier,
    family: Family,
    comparison: Comparison,
    is_negated: bool,
    is_if_exists: bool,
}

/// Which of several values of the request have to match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Quantifier {
    /// A key with one value. Of several, one has to match, or none if the operator is negated.
    One,
    /// `ForAllValues:`
    All,
    /// `ForAnyValue:`
    Any,
}

/// Reads one operator with its keys.
pub(crate) fn parse_operator(
    name: &str,
    body: &Json,
    has_variables: bool,
    conditions: &mut Vec<Condition>,
) -> Result<(), Fault> {
    let Json::Object(keys) = body else {
        return Err(Fault::new(
            format!("the condition operator {name} has {} for its keys", body.kind()),
            "Give an object of condition keys with their values",
        ));
    };
    if keys.is_empty() {
        return Err(Fault::new(
            format!("the condition operator {name} has no keys"),
            "Name a condition key, or remove the operator",
        ));
    }
    let operator = Operator::parse(name);
    if operator.is_none() && name != "Null" {
        return Err(Fault::new(
            format!("there is no condition operator \"{name}\""),
            "Use one of AWS's, such as StringEquals, with its case",
        ));
    }
    for (key, values) in keys {
        check_key(key)?;
        let texts = value_texts(key, values)?;
        let check = match operator {
            Some(operator) => {
                let parse = |text: &String| Operand::parse(operator.family, text, has_variables);
                Check::Compare(Compare { operator, operands: texts.iter().map(parse).collect::<Result<_, _>>()? })
            }
            None => Check::IsMissing(texts.iter().map(|text| parse_null(key, text)).collect::<Result<_, _>>()?),
        };
        conditions.push(Condition { key: Key::new(key), check });
    }
    Ok(())
}

/// Keys are `service:name`. Those of OIDC providers begin with the provider, which may have slashes.
fn check_key(key: &str) -> Result<(), Fault> {
    let is_well_formed =
        key.split_once(':').is_some_and(|(service, name)| !service.is_empty() && !name.is_empty())
            && !key.chars().any(char::is_control);
    if is_well_formed {
        return Ok(());
    }
    Err(Fault::new(format!("\"{key}\" is no condition key"), "Write it as service:name, such as aws:SourceIp"))
}

fn value_texts(key: &str, values: &Json) -> Result<Vec<String>, Fault> {
    let one = |value: &Json| match value {
        Json::Text(text) | Json::Number(text) => Ok(text.clone()),
        Json::Bool(value) => Ok(value.to_string()),
        _ => Err(Fault::new(
            format!("the condition key {key} has {} for a value", value.kind()),
            "Give strings, booleans or numbers, or a list of them",
        )),
    };
    match values {
        Json::List(list) if list.is_empty() => {
            Err(Fault::new(format!("the condition key {key} has an empty list of values"), "Give a value"))
        }
        Json::List(list) => list.iter().map(one).collect(),
        value => Ok(vec![one(value)?]),
    }
}

fn parse_null(key: &str, text: &str) -> Result<bool, Fault> {
    operand::parse_bool(text).ok_or_else(|| {
        Fault::new(
            format!("the condition operator Null has \"{text}\" for {key}"),
            "Give true if the key has to be missing, and false if it must not be",
        )
    })
}

impl Operator {
    /// `None` for unknown ones, and for `Null`.
    fn parse(name: &str) -> Option<Operator> {
        let (quantifier, rest) = if let Some(rest) = name.strip_prefix("ForAllValues:") {
            (Quantifier::All, rest)
        } else if let Some(rest) = name.strip_prefix("ForAnyValue:") {
            (Quantifier::Any, rest)
        } else {
            (Quantifier::One, name)
        };
        let (rest, is_if_exists) = match rest.strip_suffix("IfExists") {
            Some(rest) => (rest, true),
            None => (rest, false),
        };
        let (family, comparison, is_negated) = parse_comparison(rest)?;
        Some(Operator { quantifier, family, comparison, is_negated, is_if_exists })
    }

    fn of_missing_key(self) -> bool {
        self.is_if_exists
            || match self.quantifier {
                Quantifier::One => self.is_negated,
                Quantifier::All => true,
                Quantifier::Any => false,
            }
    }
}

fn parse_comparison(name: &str) -> Option<(Family, Comparison, bool)> {
    let (family, comparison) = match name {
        "StringEquals" | "StringNotEquals" => (Family::Text, "Equals"),
        "StringEqualsIgnoreCase" | "StringNotEqualsIgnoreCase" => (Family::TextIgnoringCase, "Equals"),
        "StringLike" | "StringNotLike" => (Family::Like, "Equals"),
        "ArnEquals" | "ArnNotEquals" | "ArnLike" | "ArnNotLike" => (Family::Arn, "Equals"),
        "IpAddress" | "NotIpAddress" => (Family::Network, "Equals"),
        "Bool" => (Family::Bool, "Equals"),
        "BinaryEquals" => (Family::Binary, "Equals"),
        _ => match (name.strip_prefix("Numeric"), name.strip_prefix("Date")) {
            (Some(comparison), _) => (Family::Number, comparison),
            (_, Some(comparison)) => (Family::Date, comparison),
            _ => return None,
        },
    };
    let comparison = match comparison {
        "Equals" | "NotEquals" => Comparison::Equal,
        "LessThan" => Comparison::Less,
        "LessThanEquals" => Comparison::LessOrEqual,
        "GreaterThan" => Comparison::Greater,
        "GreaterThanEquals" => Comparison::GreaterOrEqual,
        _ => return None,
    };
    Some((family, comparison, name.contains("Not")))
}

impl Condition {
    pub(crate) fn holds(&self, context: &Context<'_>) -> bool {
        context.with_values(&self.key, |values| match &self.check {
            Check::IsMissing(expected) => expected.contains(&values.is_empty()),
            Check::Compare(compare) => {
                let operator = compare.operator;
                if values.is_empty() {
                    return operator.of_missing_key();
                }
                let holds = |value: &str| compare.has_match(context, value) != operator.is_negated;
                let is_for_all = match operator.quantifier {
                    Quantifier::One => operator.is_negated,
                    Quantifier::All => true,
                    Quantifier::Any => false,
                };
                if is_for_all {
                    values.iter().all(|value| holds(value))
                } else {
                    values.iter().any(|value| holds(value))
                }
            }
        })
    }

    /// The keys that it reads.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &Key> {
        let operands = match &self.check {
            Check::IsMissing(_) => &[],
            Check::Compare(compare) => compare.operands.as_slice(),
        };
        let variables = operands.iter().filter_map(Operand::template).flat_map(|template| template.keys());
        std::iter::once(&self.key).chain(variables)
    }

    /// The operands and their family, if the condition holds only if the key has one of these values.
    pub(crate) fn required(&self) -> Option<(Family, &[Operand])> {
        let Check::Compare(Compare { operator, operands }) = &self.check else { return None };
        let is_required = operator.comparison == Comparison::Equal
            && operator.quantifier != Quantifier::All
            && !operator.is_negated
            && !operator.is_if_exists;
        is_required.then_some((operator.family, operands.as_slice()))
    }
}

impl Compare {
    fn has_match(&self, context: &Context<'_>, value: &str) -> bool {
        let Operator { family, comparison, .. } = self.operator;
        self.operands.iter().any(|operand| operand.holds(family, comparison, context, value))
    }
}
