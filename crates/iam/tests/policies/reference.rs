//! The engine decides as the plain evaluator does, for random policies and questions.

mod evaluator;
use std::sync::Arc;

use crate::support::{Request, parse, root, session, user};
use atoll_iam::{AclSide, Caller, Policy, PolicyKind, Question, ResourceSide, decide};
use atoll_types::access::{Acl, AclGrant, AclGrantee, AclPermission};
use evaluator::{AclWorld, BUCKET_OWNER, Who, World};
use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use serde_json::{Map, Value, json};

const ACTION_PATTERNS: [&str; 7] =
    ["*", "s3:*", "s3:Get*", "S3:getobject", "s3:?etObject", "s3:PutBucketPolicy", "s3:*BucketPolicy"];
const ACTIONS: [&str; 4] = ["s3:GetObject", "s3:PutObject", "s3:GetBucketPolicy", "s3:PutBucketPolicy"];
const RESOURCE_PATTERNS: [&str; 7] = [
    "*",
    "arn:aws:s3:::b",
    "arn:aws:s3:::b/*",
    "arn:aws:s3:::?/k*",
    "arn:aws:s3:::*",
    "arn:aws:s3:::b/${aws:username}/*",
    "arn:aws:s3:::b/${*}/x",
];
const RESOURCES: [&str; 5] =
    ["arn:aws:s3:::b", "arn:aws:s3:::b/key", "arn:aws:s3:::b/anna/x", "arn:aws:s3:::b/a*/x", "arn:aws:s3:::b/*/x"];
const PRINCIPALS: [&str; 13] = [
    "*",
    "*",
    "1111-a",
    "1111-b",
    "arn:aws:iam::1111-a:root",
    "arn:aws:iam::1111-a:user/anna",
    "arn:aws:iam::1111-b:user/team/anna",
    "arn:aws:iam::1111-a:user/a*",
    "arn:aws:iam::1111-a:role/p/ops",
    "arn:aws:sts::1111-a:assumed-role/ops/s1",
    "arn:aws:sts::1111-b:assumed-role/ops/s1",
    "canonical-a",
    "canonical-b",
];

fn element(
    name: &'static str,
    values: impl Strategy<Value = Vec<Value>>,
) -> impl Strategy<Value = (String, Value)> {
    (values, prop::bool::weighted(0.15)).prop_map(move |(values, is_negated)| {
        let name = if is_negated { format!("Not{name}") } else { name.to_owned() };
        (name, Value::from(values))
    })
}

fn some_of(all: &'static [&'static str]) -> impl Strategy<Value = Vec<Value>> {
    subsequence(all, 1..3).prop_map(|some| some.into_iter().map(Value::from).collect())
}

fn principal() -> impl Strategy<Value = (String, Value)> {
    let names = subsequence(&PRINCIPALS[..], 1..4);
    (names, prop::bool::weighted(0.15)).prop_map(|(names, is_negated)| {
        let (canonical, mut aws): (Vec<_>, Vec<_>) =
            names.into_iter().partition(|name| name.starts_with("canonical"));
        // Wildcards may stand alone only.
        aws.retain(|name| *name == "*" || !name.contains('*'));
        let mut element = Map::new();
        for (kind, names) in [("AWS", aws), ("CanonicalUser", canonical)] {
            if !names.is_empty() {
                element.insert(kind.to_owned(), json!(names));
            }
        }
        let everyone = element.is_empty() || (element.get("AWS") == Some(&json!(["*"])) && element.len() == 1);
        let name = if is_negated { "NotPrincipal" } else { "Principal" };
        (name.to_owned(), if everyone { json!("*") } else { Value::Object(element) })
    })
}

fn condition() -> impl Strategy<Value = (String, Value)> {
    let prefix = select(vec!["", "", "ForAllValues:", "ForAnyValue:"]);
    let suffix = select(vec!["", "", "IfExists"]);
    let text = (
        select(vec!["StringEquals", "StringNotEquals", "StringLike", "StringNotLike"]),
        select(vec!["s3:prefix", "aws:username", "aws:PrincipalAccount"]),
        some_of(&["x", "x/*", "anna", "${aws:username}/*", "${*}", "1111-a", "1111-*", "${aws:PrincipalAccount}"]),
    );
    let ignoring_case = (
        select(vec!["StringEqualsIgnoreCase", "StringNotEqualsIgnoreCase"]),
        select(vec!["s3:prefix", "aws:username"]),
        some_of(&["X", "Anna", "y"]),
    );
    let number = (
        select(vec!["NumericLessThan", "NumericGreaterThanEquals", "NumericNotEquals"]),
        Just("s3:max-keys"),
        some_of(&["5", "10"]),
    );
    let address = (
        select(vec!["IpAddress", "NotIpAddress"]),
        Just("aws:SourceIp"),
        some_of(&["10.0.0.0/8", "0.0.0.0/1", "192.168.1.7"]),
    );
    let bool = (Just("Bool"), Just("aws:SecureTransport"), some_of(&["true", "false"]));
    let compared = prop_oneof![4 => text, 1 => ignoring_case, 1 => number, 1 => address, 1 => bool];
    let compared = (prefix, compared, suffix).prop_map(|(prefix, (operator, key, values), suffix)| {
        (format!("{prefix}{operator}{suffix}"), json!({ key: values }))
    });
    let null = some_of(&["true", "false"]).prop_map(|values| ("Null".to_owned(), json!({"s3:prefix": values})));
    prop_oneof![9 => compared, 1 => null]
}

fn conditions() -> impl Strategy<Value = Vec<(String, Value)>> {
    prop_oneof![3 => Just(vec![]), 2 => vec(condition(), 1..3)]
}

fn policy(has_principals: bool) -> impl Strategy<Value = Value> {
    let statement = (
        prop::bool::weighted(0.2),
        element("Action", some_of(&ACTION_PATTERNS)),
        element("Resource", some_of(&RESOURCE_PATTERNS)),
        principal(),
        conditions(),
    );
    let statement = statement.prop_map(move |(is_deny, action, resource, principal, conditions)| {
        let mut elements: Map<String, Value> = [action, resource].into_iter().collect();
        elements.insert("Effect".to_owned(), json!(if is_deny { "Deny" } else { "Allow" }));
        if !conditions.is_empty() {
            elements.insert("Condition".to_owned(), Value::Object(conditions.into_iter().collect()));
        }
        if has_principals {
            elements.extend([principal]);
        }
        Value::Object(elements)
    });
    vec(statement, 1..4).prop_map(|statements| json!({"Version": "2012-10-17", "Statement": statements}))
}

fn caller() -> impl Strategy<Value = Option<Who>> {
    let (accounts, kinds) = (select(vec!["a", "a", "b"]), select(vec!["root", "user", "user", "session"]));
    let who = (accounts, kinds, any::<bool>(), any::<bool>()).prop_map(|(account, kind, first, second)| Who {
        account,
        kind,
        path: match kind {
            "session" => "/p/",
            _ if first => "/",
            _ => "/team/",
        },
        name: match kind {
            "session" => "ops",
            _ if second => "anna",
            _ => "a*",
        },
        session_name: if second { "s1" } else { "s2" },
    });
    option::weighted(0.85, who)
}

fn request() -> impl Strategy<Value = Request> {
    let owned = |values: Vec<&str>| values.into_iter().map(str::to_owned).collect::<Vec<_>>();
    let values = btree_map(
        select(vec!["s3:prefix", "s3:max-keys", "aws:sourceip", "aws:securetransport"]),
        (
            subsequence(vec!["x", "x/y", "y", "anna/z", "*"], 1..3),
            select(vec!["4", "5", "10"]),
            select(vec!["10.1.2.3", "192.168.1.7", "8.8.8.8"]),
            select(vec!["true", "false"]),
        ),
        0..4,
    );
    values.prop_map(move |keys| {
        let keys = keys.into_iter().map(|(key, (prefixes, number, address, bool))| {
            let values = match key {
                "s3:prefix" => prefixes,
                "s3:max-keys" => vec![number],
                "aws:sourceip" => vec![address],
                _ => vec![bool],
            };
            (key.to_owned(), owned(values))
        });
        Request(keys.collect())
    })
}

fn acl() -> impl Strategy<Value = AclWorld> {
    let grants = vec(
        (
            select(vec!["all", "authenticated", "canonical-a", "canonical-b"]),
            select(vec!["FullControl", "Read", "Write"]),
        ),
        0..3,
    );
    (
        select(vec![BUCKET_OWNER, "canonical-b"]),
        option::weighted(0.8, grants),
        select(vec!["Read", "Write", "ReadAcp"]),
    )
        .prop_map(|(owner, grants, needed)| AclWorld { owner, grants, needed })
}

prop_compose! {
    fn world()(
        caller in caller(),
        own in vec(policy(false), 0..3),
        sessions in prop_oneof![2 => Just(vec![]), 1 => vec(policy(false), 1..3)],
        has_side in prop::bool::weighted(0.9),
        bucket in option::weighted(0.7, policy(true)),
        object_owner in option::weighted(0.4, select(vec![BUCKET_OWNER, "canonical-b"])),
        acl in option::of(acl()),
        (ignore_public_acls, restrict_public_buckets) in any::<(bool, bool)>(),
        action in select(&ACTIONS[..]),
        resource in select(&RESOURCES[..]),
        request in request(),
    ) -> World {
        let is_user = caller.as_ref().is_some_and(|who| who.kind != "root");
        World {
            own: if is_user { own } else { vec![] },
            sessions: if caller.is_some() { sessions } else { vec![] },
            caller, has_side, bucket, object_owner, acl, ignore_public_acls, restrict_public_buckets, action,
            resource, request,
        }
    }
}

fn caller_of(world: &World) -> Option<Caller> {
    let who = world.caller.as_ref()?;
    let mut caller = match who.kind {
        "root" => root(who.account),
        "user" => user(who.account, who.path, who.name),
        _ => session(who.account, who.path, who.name, who.session_name),
    };
    let parsed = |policies: &[Value], kind| -> Vec<(String, Arc<Policy>)> {
        policies.iter().map(|policy| ("policy".to_owned(), parse(policy, kind))).collect()
    };
    caller.policies = parsed(&world.own, PolicyKind::Identity);
    caller.session_policies = parsed(&world.sessions, PolicyKind::Session);
    Some(caller)
}

fn permission(name: &str) -> AclPermission {
    match name {
        "FullControl" => AclPermission::FullControl,
        "Read" => AclPermission::Read,
        "Write" => AclPermission::Write,
        _ => AclPermission::ReadAcp,
    }
}

fn acl_of(grants: &[(&str, &str)]) -> Acl {
    let grant = |(grantee, name): &(&str, &str)| AclGrant {
        grantee: match *grantee {
            "all" => AclGrantee::AllUsers,
            "authenticated" => AclGrantee::AuthenticatedUsers,
            account => AclGrantee::Account(account.to_owned()),
        },
        permission: permission(name),
    };
    Acl { grants: grants.iter().map(grant).collect() }
}

fn engine_allows(world: &World) -> bool {
    let caller = caller_of(world);
    let policy = world.bucket.as_ref().map(|policy| parse(policy, PolicyKind::Resource));
    let acl = world.acl.as_ref().and_then(|acl| acl.grants.as_deref().map(acl_of));
    let mut side = ResourceSide {
        bucket_owner: BUCKET_OWNER,
        object_owner: world.object_owner,
        policy: policy.as_deref(),
        acl: world.acl.as_ref().map(|side| AclSide {
            owner: side.owner,
            acl: acl.as_ref(),
            needed: permission(side.needed),
        }),
        public_access_block: Default::default(),
    };
    side.public_access_block.ignore_public_acls = world.ignore_public_acls;
    side.public_access_block.restrict_public_buckets = world.restrict_public_buckets;
    let question = Question {
        caller: caller.as_ref(),
        action: world.action,
        resource: world.resource,
        resource_side: world.has_side.then_some(side),
        conditions: &world.request,
    };
    let decision = decide(&question);
    assert!(!decision.reason.to_string().is_empty());
    decision.is_allowed
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn engine_decides_as_the_plain_evaluator(world in world()) {
        prop_assert_eq!(engine_allows(&world), evaluator::is_allowed(&world));
    }
}

/// Otherwise the property says little.
#[test]
fn both_outcomes_are_common() {
    let mut runner = TestRunner::deterministic();
    let (mut allowed, cases) = (0, 1_000);
    for _ in 0..cases {
        let world = world().new_tree(&mut runner).unwrap().current();
        allowed += usize::from(evaluator::is_allowed(&world));
    }
    assert!((cases / 5..cases * 4 / 5).contains(&allowed), "{allowed} of {cases} allowed");
}
