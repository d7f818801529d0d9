//! Callers, policies and requests of the tests.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use atoll_iam::{
    Account, AclSide, Caller, CallerIdentity, CallerKind, ConditionValues, Decision, Policy, PolicyKind, Question,
    ResourceSide, decide,
};
use serde_json::Value;

#[derive(Clone, Debug, Default)]
pub struct Request(pub BTreeMap<String, Vec<String>>);

impl Request {
    pub fn new(keys: &[(&str, &[&str])]) -> Request {
        let owned = |(key, values): &(&str, &[&str])| {
            ((*key).to_owned(), values.iter().map(|value| (*value).to_owned()).collect())
        };
        Request(keys.iter().map(owned).collect())
    }
}

impl ConditionValues for Request {
    fn values(&self, key: &str) -> Vec<Cow<'_, str>> {
        self.0.get(key).into_iter().flatten().map(|value| Cow::Borrowed(value.as_str())).collect()
    }
}

pub fn account(name: &str) -> Arc<Account> {
    Arc::new(Account {
        id: format!("1111-{name}"),
        canonical_id: format!("canonical-{name}"),
        name: name.to_owned(),
    })
}

pub fn caller(account_name: &str, kind: CallerKind) -> Caller {
    let account = account(account_name);
    Caller {
        identity: CallerIdentity { account, kind, session_issued_unix_ms: None, tags: BTreeMap::new() },
        access_key: "AKIA".to_owned(),
        policies: Vec::new(),
        session_policies: Vec::new(),
        key_policy: None,
    }
}

pub fn root(account: &str) -> Caller {
    caller(account, CallerKind::Root)
}

pub fn user(account: &str, path: &str, name: &str) -> Caller {
    let kind = CallerKind::User { name: name.to_owned(), path: path.to_owned(), id: format!("AIDA{name}") };
    caller(account, kind)
}

pub fn session(account: &str, path: &str, role: &str, session_name: &str) -> Caller {
    let kind = CallerKind::Session {
        role: role.to_owned(),
        path: path.to_owned(),
        role_id: format!("AROA{role}"),
        session_name: session_name.to_owned(),
    };
    caller(account, kind)
}

pub fn with_policy(mut caller: Caller, policy: &Value) -> Caller {
    let name = format!("own-{}", caller.policies.len());
    caller.policies.push((name, parse(policy, PolicyKind::Identity)));
    caller
}

pub fn with_session_policy(mut caller: Caller, policy: &Value) -> Caller {
    let name = format!("session-{}", caller.session_policies.len());
    caller.session_policies.push((name, parse(policy, PolicyKind::Session)));
    caller
}

pub fn with_key_policy(mut caller: Caller, policy: &Value) -> Caller {
    caller.key_policy = Some(("key".to_owned(), parse(policy, PolicyKind::Session)));
    caller
}

pub fn parse(policy: &Value, kind: PolicyKind) -> Arc<Policy> {
    Arc::new(Policy::parse(&policy.to_string(), kind).unwrap_or_else(|error| panic!("{error}: {policy}")))
}

pub fn bucket_side<'a>(owner: &'a str, policy: Option<&'a Policy>) -> ResourceSide<'a> {
    ResourceSide {
        bucket_owner: owner,
        object_owner: None,
        policy,
        acl: None,
        public_access_block: Default::default(),
    }
}

pub fn with_acl<'a>(side: ResourceSide<'a>, acl: AclSide<'a>) -> ResourceSide<'a> {
    ResourceSide { acl: Some(acl), ..side }
}

/// Asks for `s3:GetObject` of `arn:aws:s3:::b/key`.
pub fn get_object(caller: Option<&Caller>, side: ResourceSide<'_>) -> Decision {
    decide(&Question {
        caller,
        action: "s3:GetObject",
        resource: "arn:aws:s3:::b/key",
        resource_side: Some(side),
        conditions: &Request::default(),
    })
}
