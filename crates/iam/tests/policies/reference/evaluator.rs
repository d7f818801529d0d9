//! The rules of evaluation, as plainly as they can be written: over the JSON, without regard to speed, and
//! without the engine's code.

use serde_json::Value;

use crate::support::Request;

#[derive(Clone, Debug)]
pub struct Who {
    pub account: &'static str,
    /// `root`, `user` or `session`.
    pub kind: &'static str,
    pub path: &'static str,
    pub name: &'static str,
    pub session_name: &'static str,
}

#[derive(Clone, Debug)]
pub struct AclWorld {
    pub owner: &'static str,
    /// Grantees and permissions.
    pub grants: Option<Vec<(&'static str, &'static str)>>,
    pub needed: &'static str,
}

#[derive(Clone, Debug)]
pub struct World {
    pub caller: Option<Who>,
    pub own: Vec<Value>,
    pub sessions: Vec<Value>,
    pub has_side: bool,
    pub bucket: Option<Value>,
    pub object_owner: Option<&'static str>,
    pub acl: Option<AclWorld>,
    pub ignore_public_acls: bool,
    pub restrict_public_buckets: bool,
    pub action: &'static str,
    pub resource: &'static str,
    pub request: Request,
}

pub const BUCKET_OWNER: &str = "canonical-a";

fn canonical(who: &Who) -> String {
    format!("canonical-{}", who.account)
}

pub fn is_allowed(world: &World) -> bool {
    let is_root = world.caller.as_ref().is_some_and(|who| who.kind == "root");
    let is_denied_by_own = [&world.own, &world.sessions]
        .into_iter()
        .flatten()
        .flat_map(statements)
        .any(|statement| statement["Effect"] == "Deny" && matches(statement, world));
    if is_denied_by_own {
        return false;
    }
    let own_allows = is_root || world.own.iter().any(|policy| allows(policy, world));
    let sessions_allow = world.sessions.iter().all(|policy| allows(policy, world));
    let own_side = world.caller.is_some() && own_allows && sessions_allow;
    if !world.has_side {
        return own_side;
    }
    let is_bucket_account = world.caller.as_ref().is_some_and(|who| canonical(who) == BUCKET_OWNER);
    let is_about_policy =
        ["s3:GetBucketPolicy", "s3:PutBucketPolicy", "s3:DeleteBucketPolicy"].contains(&world.action);
    let bucket: Vec<&Value> = world.bucket.iter().flat_map(statements).filter(|one| matches(one, world)).collect();
    if bucket.iter().any(|one| one["Effect"] == "Deny" && is_denied_principal(one, world.caller.as_ref())) {
        return is_root && is_bucket_account && is_about_policy && sessions_allow;
    }
    let is_counted = world.object_owner.is_none_or(|owner| owner == BUCKET_OWNER)
        && (is_bucket_account
            || !world.restrict_public_buckets
            || !world.bucket.iter().flat_map(statements).any(is_public));
    let offers: Vec<&str> = bucket
        .iter()
        .filter(|one| is_counted && one["Effect"] == "Allow")
        .filter_map(|one| offered_to(one, world.caller.as_ref()))
        .collect();
    let Some(who) = &world.caller else { return !offers.is_empty() || acl_allows(world) };
    if canonical(who) != world.object_owner.unwrap_or(BUCKET_OWNER) {
        return own_side && (!offers.is_empty() || acl_allows(world));
    }
    let by_acl = sessions_allow && acl_allows_everybody(world);
    offers.contains(&"session") || own_side || by_acl || (offers.contains(&"self") && sessions_allow)
}

fn statements(policy: &Value) -> impl Iterator<Item = &Value> {
    policy["Statement"].as_array().unwrap().iter()
}

fn allows(policy: &Value, world: &World) -> bool {
    statements(policy).any(|statement| statement["Effect"] == "Allow" && matches(statement, world))
}

fn acl_allows(world: &World) -> bool {
    let Some(acl) = &world.acl else { return false };
    let id = world.caller.as_ref().map(canonical);
    if id.as_deref() == Some(acl.owner) && (acl.grants.is_none() || acl.needed.ends_with("Acp")) {
        return true;
    }
    acl.grants.iter().flatten().any(|(grantee, permission)| {
        let is_meant = match *grantee {
            "all" => !world.ignore_public_acls,
            "authenticated" => !world.ignore_public_acls && id.is_some(),
            account => id.as_deref() == Some(account),
        };
        is_meant && (*permission == "FullControl" || *permission == acl.needed)
    })
}

fn acl_allows_everybody(world: &World) -> bool {
    let Some(acl) = &world.acl else { return false };
    !world.ignore_public_acls
        && acl.grants.iter().flatten().any(|(grantee, permission)| {
            ["all", "authenticated"].contains(grantee) && [acl.needed, "FullControl"].contains(permission)
        })
}

fn list(value: &Value) -> Vec<String> {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    match value {
        Value::Array(list) => list.iter().map(text).collect(),
        one => vec![text(one)],
    }
}

/// The names that a principal element has for the caller: of its account, of itself, of its session.
fn names(who: &Who) -> (Vec<String>, Vec<String>, Vec<String>) {
    let id = format!("1111-{}", who.account);
    let of_account = vec![format!("arn:aws:iam::{id}:root"), canonical(who), id.clone()];
    match who.kind {
        "root" => (of_account, vec![], vec![]),
        "user" => (of_account, vec![format!("arn:aws:iam::{id}:user{}{}", who.path, who.name)], vec![]),
        _ => (
            of_account,
            vec![format!("arn:aws:iam::{id}:role{}{}", who.path, who.name)],
            vec![format!("arn:aws:sts::{id}:assumed-role/{}/{}", who.name, who.session_name)],
        ),
    }
}

fn principals(element: &Value) -> Vec<String> {
    match element {
        Value::Object(kinds) => kinds.values().flat_map(list).collect(),
        everyone => list(everyone),
    }
}

fn named(elements: &[String], who: Option<&Who>) -> Option<&'static str> {
    let has = |names: &[String]| names.iter().any(|name| elements.contains(name));
    let (of_account, of_self, of_session) = who.map(names).unwrap_or_default();
    if has(&of_session) {
        Some("session")
    } else if has(&of_self) || elements.contains(&"*".to_owned()) {
        Some("self")
    } else if has(&of_account) {
        Some("account")
    } else {
        None
    }
}

fn offered_to(statement: &Value, who: Option<&Who>) -> Option<&'static str> {
    match statement.get("NotPrincipal") {
        None => named(&principals(&statement["Principal"]), who),
        Some(element) => named(&principals(element), who).is_none().then_some("self"),
    }
}

fn is_denied_principal(statement: &Value, who: Option<&Who>) -> bool {
    let Some(element) = statement.get("NotPrincipal") else {
        return named(&principals(&statement["Principal"]), who).is_some();
    };
    let elements = principals(element);
    let (of_account, of_self, of_session) = who.map(names).unwrap_or_default();
    let has = |names: &[String]| names.iter().any(|name| elements.contains(name));
    let is_root = who.is_some_and(|who| who.kind == "root");
    let is_spared = has(&of_account) && (is_root || has(&of_self) || has(&of_session));
    !is_spared && !elements.contains(&"*".to_owned())
}

fn matches(statement: &Value, world: &World) -> bool {
    let action = world.action.to_lowercase();
    let is_action = |pattern: &String| glob(&tokens(&pattern.to_lowercase(), true), &chars(&action));
    let is_resource = |pattern: &String| {
        resolve(pattern, true, world).is_some_and(|tokens| glob(&tokens, &chars(world.resource)))
    };
    let is_right_action = match statement.get("NotAction") {
        Some(element) => !list(element).iter().any(is_action),
        None => list(&statement["Action"]).iter().any(is_action),
    };
    let is_right_resource = match statement.get("NotResource") {
        Some(element) => !list(element).iter().any(is_resource),
        None => list(&statement["Resource"]).iter().any(is_resource),
    };
    let conditions = statement.get("Condition").and_then(Value::as_object);
    is_right_action
        && is_right_resource
        && conditions.into_iter().flatten().all(|(operator, keys)| {
            keys.as_object().unwrap().iter().all(|(key, values)| holds(operator, key, &list(values), world))
        })
}

fn values_of(key: &str, world: &World) -> Vec<String> {
    let who = world.caller.as_ref();
    match key {
        "aws:username" => {
            who.filter(|who| who.kind == "user").map(|who| who.name.to_owned()).into_iter().collect()
        }
        "aws:PrincipalAccount" => who.map(|who| format!("1111-{}", who.account)).into_iter().collect(),
        other => world.request.0.get(&other.to_lowercase()).cloned().unwrap_or_default(),
    }
}

fn holds(operator: &str, key: &str, expected: &[String], world: &World) -> bool {
    let found = values_of(key, world);
    if operator == "Null" {
        return expected.contains(&found.is_empty().to_string());
    }
    let (quantifier, operator) = operator.split_once(':').unwrap_or(("", operator));
    let plain = operator.trim_end_matches("IfExists");
    if found.is_empty() && plain != operator {
        return true;
    }
    let positive = plain.replace("Not", "");
    let has_match = |value: &String| expected.iter().any(|one| is_match(&positive, one, value, world));
    let is_negated = plain != positive;
    match quantifier {
        "ForAllValues" => found.iter().all(|value| has_match(value) != is_negated),
        "ForAnyValue" => found.iter().any(|value| has_match(value) != is_negated),
        _ => found.iter().any(has_match) != is_negated,
    }
}

fn is_match(operator: &str, expected: &str, value: &str, world: &World) -> bool {
    let number = |text: &str| text.parse::<i64>().unwrap();
    let text = |text: &str| resolve(text, operator == "StringLike", world);
    match operator {
        "StringEquals" | "StringLike" => text(expected).is_some_and(|tokens| glob(&tokens, &chars(value))),
        "StringEqualsIgnoreCase" => expected.to_lowercase() == value.to_lowercase(),
        "NumericLessThan" => number(value) < number(expected),
        "NumericGreaterThanEquals" => number(value) >= number(expected),
        "NumericEquals" => number(value) == number(expected),
        "Bool" => expected == value,
        "IpAddress" => {
            let (network, bits) = expected.split_once('/').unwrap_or((expected, "32"));
            let shift = 32 - number(bits);
            address(network) >> shift == address(value) >> shift
        }
        other => panic!("no operator {other}"),
    }
}

/// Wide enough for a shift by 32.
fn address(text: &str) -> u64 {
    text.split('.').fold(0, |number, part| number * 256 + part.parse::<u64>().unwrap())
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Token {
    Is(char),
    One,
    Run,
}

fn chars(text: &str) -> Vec<char> {
    text.chars().collect()
}

fn tokens(text: &str, has_wildcards: bool) -> Vec<Token> {
    let token = |character| match character {
        '*' if has_wildcards => Token::Run,
        '?' if has_wildcards => Token::One,
        other => Token::Is(other),
    };
    text.chars().map(token).collect()
}

fn resolve(text: &str, has_wildcards: bool, world: &World) -> Option<Vec<Token>> {
    let Some((before, rest)) = text.split_once("${") else { return Some(tokens(text, has_wildcards)) };
    let (key, after) = rest.split_once('}').unwrap();
    let mut all = tokens(before, has_wildcards);
    let values = values_of(key, world);
    let value = match (key, values.as_slice()) {
        ("*", _) => "*",
        (_, [value]) => value,
        _ => return None,
    };
    all.extend(tokens(value, false));
    all.extend(resolve(after, has_wildcards, world)?);
    Some(all)
}

fn glob(pattern: &[Token], text: &[char]) -> bool {
    match (pattern.first(), text.first()) {
        (None, found) => found.is_none(),
        (Some(Token::Run), found) => glob(&pattern[1..], text) || (found.is_some() && glob(pattern, &text[1..])),
        (Some(Token::One), Some(_)) => glob(&pattern[1..], &text[1..]),
        (Some(Token::Is(expected)), Some(found)) => expected == found && glob(&pattern[1..], &text[1..]),
        (Some(_), None) => false,
    }
}

fn is_public(statement: &Value) -> bool {
    let is_for_all =
        statement.get("NotPrincipal").is_some() || principals(&statement["Principal"]).contains(&"*".to_owned());
    let conditions = statement.get("Condition").and_then(Value::as_object);
    let is_narrowed = conditions.into_iter().flatten().any(|(operator, keys)| {
        keys.as_object().unwrap().iter().any(|(key, values)| {
            list(values).iter().all(|value| match operator.trim_start_matches("ForAnyValue:") {
                "IpAddress" => key == "aws:SourceIp" && !value.ends_with("/1"),
                "StringEquals" | "StringEqualsIgnoreCase" => {
                    key == "aws:PrincipalAccount" && !value.contains("${")
                }
                "StringLike" => key == "aws:PrincipalAccount" && !value.contains(['*', '$']),
                _ => false,
            })
        })
    });
    statement["Effect"] == "Allow" && is_for_all && !is_narrowed
}
