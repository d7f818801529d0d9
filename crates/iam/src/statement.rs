//! Statements of policies, ready to be evaluated.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::condition::{self, Condition};
use crate::context::{Context, Key};
use crate::fault::Fault;
use crate::json::Json;
use crate::names;
use crate::pattern;
use crate::policy_kind::PolicyKind;
use crate::principal::Principals;
use crate::template::{Syntax, Template};

const ELEMENTS: [&str; 9] =
    ["Sid", "Effect", "Principal", "NotPrincipal", "Action", "NotAction", "Resource", "NotResource", "Condition"];

#[derive(Clone, Debug)]
pub(crate) struct Statement {
    /// Its place in the policy, from 1.
    pub(crate) number: usize,
    pub(crate) sid: Option<Arc<str>>,
    pub(crate) is_deny: bool,
    /// In policies of buckets, roles and keys only.
    pub(crate) principals: Option<Principals>,
    actions: Vec<Vec<u8>>,
    is_not_action: bool,
    /// `None` in policies of roles.
    pub(crate) resources: Option<Vec<Template>>,
    is_not_resource: bool,
    pub(crate) conditions: Vec<Condition>,
}

impl Statement {
    /// Reads a statement. Its number and Sid are given, since faults name them.
    pub(crate) fn parse(
        elements: &BTreeMap<String, Json>,
        kind: PolicyKind,
        number: usize,
        sid: Option<&str>,
        has_variables: bool,
    ) -> Result<Statement, Fault> {
        if let Some(unknown) = elements.keys().find(|name| !ELEMENTS.contains(&name.as_str())) {
            return Err(Fault::new(
                format!("there is no element \"{unknown}\" in statements"),
                "Remove it, or correct its spelling and case",
            ));
        }
        let is_deny = match elements.get("Effect") {
            Some(Json::Text(effect)) if effect == "Allow" => false,
            Some(Json::Text(effect)) if effect == "Deny" => true,
            _ => return Err(Fault::new("the effect is neither Allow nor Deny", "Give one of both as \"Effect\"")),
        };
        let principals = parse_principals(elements, kind)?;
        let (is_not_action, actions) = one_of(elements, "Action", "NotAction")?;
        let actions = texts(actions, if is_not_action { "NotAction" } else { "Action" })?
            .into_iter()
            .map(parse_action)
            .collect::<Result<_, _>>()?;
        let (is_not_resource, resources) = parse_resources(elements, kind, has_variables)?;
        let conditions = parse_conditions(elements.get("Condition"), has_variables)?;
        let sid = sid.map(Arc::from);
        Ok(Statement {
            number,
            sid,
            is_deny,
            principals,
            actions,
            is_not_action,
            resources,
            is_not_resource,
            conditions,
        })
    }

    /// Returns the result of [`names::check`] for the statement, which was read from these elements.
    pub(crate) fn unknown_name(&self, elements: &BTreeMap<String, Json>, kind: PolicyKind) -> Option<Fault> {
        let (is_not_action, actions) = one_of(elements, "Action", "NotAction").ok()?;
        let actions = texts(actions, if is_not_action { "NotAction" } else { "Action" }).ok()?;
        names::check(self.keys(), &actions, kind).err()
    }

    pub(crate) fn has_action(&self, action: &str) -> bool {
        let is_named = self.actions.iter().any(|pattern| pattern::matches_compiled_ignore_case(pattern, action));
        is_named != self.is_not_action
    }

    /// Returns true if the statement applies to the resource. One without resources is about all.
    pub(crate) fn has_resource(&self, context: &Context<'_>, resource: &str) -> bool {
        let Some(resources) = &self.resources else { return true };
        resources.iter().any(|template| template.matches(context, resource)) != self.is_not_resource
    }

    pub(crate) fn conditions_hold(&self, context: &Context<'_>) -> bool {
        self.conditions.iter().all(|condition| condition.holds(context))
    }

    /// The condition keys that it reads, as conditions or as variables.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &Key> {
        let of_resources = self.resources.iter().flatten().flat_map(Template::keys);
        self.conditions.iter().flat_map(Condition::keys).chain(of_resources)
    }
}

fn parse_conditions(element: Option<&Json>, has_variables: bool) -> Result<Vec<Condition>, Fault> {
    let mut conditions = Vec::new();
    match element {
        None => {}
        Some(Json::Object(operators)) => {
            for (name, body) in operators {
                condition::parse_operator(name, body, has_variables, &mut conditions)?;
            }
        }
        Some(other) => {
            let problem = format!("the condition is {}", other.kind());
            return Err(Fault::new(problem, "Give an object of condition operators"));
        }
    }
    Ok(conditions)
}

fn parse_principals(elements: &BTreeMap<String, Json>, kind: PolicyKind) -> Result<Option<Principals>, Fault> {
    match kind {
        PolicyKind::Resource | PolicyKind::Trust | PolicyKind::Key => {
            let (is_negated, element) = one_of(elements, "Principal", "NotPrincipal")?;
            Principals::parse(element, is_negated).map(Some)
        }
        PolicyKind::Identity | PolicyKind::Session => {
            match ["Principal", "NotPrincipal"].iter().find(|name| elements.contains_key(**name)) {
                None => Ok(None),
                Some(name) => Err(Fault::new(
                    format!("\"{name}\" stands in a policy that is about whom it is attached to"),
                    "Remove it; only policies of buckets, roles and keys name principals",
                )),
            }
        }
    }
}

fn parse_resources(
    elements: &BTreeMap<String, Json>,
    kind: PolicyKind,
    has_variables: bool,
) -> Result<(bool, Option<Vec<Template>>), Fault> {
    if kind == PolicyKind::Trust {
        return match ["Resource", "NotResource"].iter().find(|name| elements.contains_key(**name)) {
            None => Ok((false, None)),
            Some(name) => Err(Fault::new(
                format!("\"{name}\" stands in a trust policy"),
                "Remove it; a trust policy is about the role that has it",
            )),
        };
    }
    let (is_negated, element) = one_of(elements, "Resource", "NotResource")?;
    let parse = |text: &str| parse_resource(text, has_variables);
    let resources = texts(element, if is_negated { "NotResource" } else { "Resource" })?
        .into_iter()
        .map(parse)
        .collect::<Result<_, _>>()?;
    Ok((is_negated, Some(resources)))
}

/// The one of both elements that is there, and whether it is the second.
fn one_of<'a>(elements: &'a BTreeMap<String, Json>, name: &str, negated: &str) -> Result<(bool, &'a Json), Fault> {
    match (elements.get(name), elements.get(negated)) {
        (Some(element), None) => Ok((false, element)),
        (None, Some(element)) => Ok((true, element)),
        (None, None) => {
            Err(Fault::new(format!("there is neither \"{name}\" nor \"{negated}\""), format!("Add \"{name}\"")))
        }
        (Some(_), Some(_)) => {
            Err(Fault::new(format!("there are both \"{name}\" and \"{negated}\""), "Remove one of both"))
        }
    }
}

/// A string, or a list of at least one.
fn texts<'a>(element: &'a Json, name: &str) -> Result<Vec<&'a str>, Fault> {
    let list = match element {
        Json::List(list) if list.is_empty() => {
            return Err(Fault::new(format!("\"{name}\" is an empty list"), "Give at least one string"));
        }
        Json::List(list) => list.as_slice(),
        one => std::slice::from_ref(one),
    };
    let text = |element: &'a Json| match element {
        Json::Text(text) => Ok(text.as_str()),
        other => Err(Fault::new(format!("\"{name}\" has {}", other.kind()), "Give a string or a list of strings")),
    };
    list.iter().map(text).collect()
}

fn parse_action(text: &str) -> Result<Vec<u8>, Fault> {
    let is_service =
        |service: &str| service == "*" || service.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    let is_name =
        |name: &str| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'*' | b'?'));
    let is_action = text == "*"
        || text.split_once(':').is_some_and(|(service, name)| {
            !service.is_empty() && is_service(service) && !name.is_empty() && is_name(name)
        });
    if is_action {
        return Ok(pattern::compile(text));
    }
    Err(Fault::new(
        format!("\"{text}\" is no action"),
        "Write it as service:Name, such as s3:GetObject, with * and ? as wildcards, or write *",
    ))
}

fn parse_resource(text: &str, has_variables: bool) -> Result<Template, Fault> {
    let parts = text.splitn(6, ':').count();
    let is_arn = text.starts_with("arn:") && (parts == 6 || text.ends_with('*'));
    if text != "*" && !is_arn {
        return Err(Fault::new(
            format!("\"{text}\" is no resource"),
            "Write an ARN, such as arn:aws:s3:::bucket/*, or *",
        ));
    }
    Template::parse(text, Syntax { has_wildcards: true, has_variables })
}
