//! Policies, parsed and ready to be evaluated.

use std::collections::{BTreeMap, BTreeSet};

use crate::fault::Fault;
use crate::json::Json;
use crate::pattern;
use crate::policy_kind::PolicyKind;
use crate::principal::Principals;
use crate::public;
use crate::statement::Statement;

/// Why a text is no policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// The text is not JSON, or an element stands twice.
    #[error("the policy is not valid JSON: {0}. Correct the text")]
    Json(String),
    /// Something outside of the statements.
    #[error("{problem}. {remedy}")]
    Document {
        /// The error.
        problem: String,
        /// The remedy.
        remedy: String,
    },
    /// Something in a statement.
    #[error("statement {place}: {problem}. {remedy}")]
    Statement {
        /// Its number, from 1, and its Sid.
        place: String,
        /// The error.
        problem: String,
        /// The remedy.
        remedy: String,
    },
}

/// A policy, parsed and ready to be evaluated.
#[derive(Clone, Debug)]
pub struct Policy {
    pub(crate) statements: Vec<Statement>,
    is_public: bool,
    /// In lower case.
    condition_keys: BTreeSet<String>,
    unknown_name: Option<PolicyError>,
}

impl Policy {
    /// Reads a new policy: all names of actions and condition keys must be known, since a Deny with a misspelled
    /// one would deny nothing.
    pub fn parse_new(json: &str, kind: PolicyKind) -> Result<Policy, PolicyError> {
        let policy = Policy::parse(json, kind)?;
        policy.unknown_name.clone().map_or(Ok(policy), Err)
    }

    /// Reads a policy that was stored, perhaps before names were checked. Callers check its size.
    pub fn parse(json: &str, kind: PolicyKind) -> Result<Policy, PolicyError> {
        let document: Json = serde_json::from_str(json).map_err(|error| PolicyError::Json(error.to_string()))?;
        let Json::Object(elements) = &document else {
            return Err(of_document(format!("the policy is {}", document.kind()), "Give an object"));
        };
        let has_variables = parse_header(elements)?;
        let list = match elements.get("Statement") {
            Some(Json::List(list)) if !list.is_empty() => list.as_slice(),
            Some(one @ Json::Object(_)) => std::slice::from_ref(one),
            _ => return Err(of_document("the policy has no statements", "Give at least one as \"Statement\"")),
        };
        let mut sids = BTreeSet::new();
        let mut statements = Vec::with_capacity(list.len());
        let mut unknown_name = None;
        for (index, element) in list.iter().enumerate() {
            let number = index + 1;
            let sid = parse_sid(element).map_err(|fault| of_statement(number, None, fault))?;
            if sid.is_some_and(|sid| !sids.insert(sid)) {
                let fault = Fault::new("an earlier statement has the same Sid", "Give each statement its own");
                return Err(of_statement(number, sid, fault));
            }
            let statement = match element {
                Json::Object(elements) => {
                    let parsed = Statement::parse(elements, kind, number, sid, has_variables);
                    let known = parsed.as_ref().map(|statement| statement.unknown_name(elements, kind));
                    if let Ok(Some(fault)) = known {
                        unknown_name.get_or_insert_with(|| of_statement(number, sid, fault));
                    }
                    parsed
                }
                other => Err(Fault::new(format!("it is {}", other.kind()), "Give an object")),
            };
            statements.push(statement.map_err(|fault| of_statement(number, sid, fault))?);
        }
        let is_public = public::is_public(&statements);
        let keys = statements.iter().flat_map(Statement::keys);
        let condition_keys = keys.map(|key| key.name.to_ascii_lowercase()).collect();
        Ok(Policy { statements, is_public, condition_keys, unknown_name })
    }

    /// With the users and roles that it names by their ids, so that it lets in none who has got such a name since.
    pub fn bound(mut self, ids: &BTreeMap<String, String>) -> Policy {
        if !ids.is_empty() {
            self.statements
                .iter_mut()
                .filter_map(|statement| statement.principals.as_mut())
                .for_each(|p| p.bind(ids));
        }
        self
    }

    /// The ARNs of the users and roles that it names as principals.
    pub fn principal_arns(&self) -> BTreeSet<String> {
        self.statements
            .iter()
            .filter_map(|statement| statement.principals.as_ref())
            .flat_map(Principals::arns)
            .collect()
    }

    /// Returns the first unknown name. An action that is not known is never asked for; a key is absent.
    pub fn unknown_name(&self) -> Option<&PolicyError> {
        self.unknown_name.as_ref()
    }

    /// Returns true if AWS calls it public: a statement allows something to all users, and no condition narrows
    /// that to fixed networks, accounts or the like.
    pub fn is_public(&self) -> bool {
        self.is_public
    }

    /// Returns true if a condition or a variable names a key that begins so, in upper or lower case.
    pub fn uses_condition_key(&self, prefix: &str) -> bool {
        self.condition_keys.iter().any(|key| {
            key.as_bytes().get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix.as_bytes()))
        })
    }

    /// Returns true if each resource that it names, as `Resource` or `NotResource`, is an ARN of S3 that can be
    /// this bucket or in it. `*` is not.
    pub fn resources_within(&self, bucket: &str) -> bool {
        let mut resources = self.statements.iter().flat_map(|statement| statement.resources.iter().flatten());
        resources.all(|resource| is_within(&resource.widest(), bucket))
    }

    /// Returns true if a statement allows all principals but those it names: unforeseen ones are allowed.
    pub fn allows_all_but_some(&self) -> bool {
        self.statements.iter().any(|statement| {
            !statement.is_deny && statement.principals.as_ref().is_some_and(Principals::is_negated)
        })
    }
}

/// Checks the elements around the statements. Returns whether the version has policy variables.
fn parse_header(elements: &BTreeMap<String, Json>) -> Result<bool, PolicyError> {
    if let Some(unknown) = elements.keys().find(|name| !["Version", "Id", "Statement"].contains(&name.as_str())) {
        let problem = format!("there is no element \"{unknown}\" in policies");
        return Err(of_document(problem, "Remove it, or correct its spelling and case"));
    }
    if let Some(id) = elements.get("Id").filter(|id| !matches!(id, Json::Text(_))) {
        return Err(of_document(format!("the Id is {}", id.kind()), "Give a string"));
    }
    match elements.get("Version") {
        None => Ok(false),
        Some(Json::Text(version)) if version == "2008-10-17" => Ok(false),
        Some(Json::Text(version)) if version == "2012-10-17" => Ok(true),
        Some(_) => Err(of_document("there is no such version of the policy language", "Give \"2012-10-17\"")),
    }
}

/// An empty Sid is none.
fn parse_sid(statement: &Json) -> Result<Option<&str>, Fault> {
    let Json::Object(elements) = statement else { return Ok(None) };
    match elements.get("Sid") {
        None => Ok(None),
        Some(Json::Text(sid)) => Ok(Some(sid.as_str()).filter(|sid| !sid.is_empty())),
        Some(other) => Err(Fault::new(format!("its Sid is {}", other.kind()), "Give a string")),
    }
}

fn of_document(problem: impl Into<String>, remedy: &str) -> PolicyError {
    PolicyError::Document { problem: problem.into(), remedy: remedy.to_owned() }
}

fn of_statement(number: usize, sid: Option<&str>, fault: Fault) -> PolicyError {
    let place = match sid {
        Some(sid) => format!("{number} (Sid \"{sid}\")"),
        None => number.to_string(),
    };
    PolicyError::Statement { place, problem: fault.problem, remedy: fault.remedy }
}

/// ARNs of S3 have neither region nor account, so patterns for those have to match nothing.
fn is_within(resource: &[u8], bucket: &str) -> bool {
    let parts: Vec<&[u8]> = resource.splitn(6, |byte| *byte == b':').collect();
    let [arn, partition, service, region, account, path] = parts.as_slice() else { return false };
    let is_s3 = [(arn, "arn"), (partition, "aws"), (service, "s3"), (region, ""), (account, "")]
        .into_iter()
        .all(|(pattern, text)| pattern::matches_compiled(pattern, text));
    let bucket_part = path.split(|byte| *byte == b'/').next().unwrap_or_default();
    is_s3 && pattern::matches_compiled(bucket_part, bucket)
}
