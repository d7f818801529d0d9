//! Operators of conditions, by the tables of AWS, and policy variables.

use crate::support::{Request, parse, session, user, with_policy};
use atoll_iam::{Caller, PolicyKind, Question, decide};
use serde_json::{Value, json};

fn policy(condition: &Value) -> Value {
    json!({"Version": "2012-10-17", "Statement":
        {"Effect": "Allow", "Action": "*", "Resource": "*", "Condition": condition}})
}

fn holds_for(caller: Caller, condition: &Value, request: &Request) -> bool {
    let caller = with_policy(caller, &policy(condition));
    let question = Question {
        caller: Some(&caller),
        action: "s3:ListBucket",
        resource: "arn:aws:s3:::b",
        resource_side: None,
        conditions: request,
    };
    decide(&question).is_allowed
}

fn holds(operator: &str, expected: &Value, values: &[&str]) -> bool {
    let request = if values.is_empty() { Request::default() } else { Request::new(&[("s3:key", values)]) };
    holds_for(user("a", "/", "anna"), &json!({operator: {"s3:Key": expected}}), &request)
}

/// Operator, a value of the policy, one of a request that matches, and one that does not.
const POSITIVE: [(&str, &str, &str, &str); 17] = [
    ("StringEquals", "a*", "a*", "ab"),
    ("StringEqualsIgnoreCase", "Äb", "äB", "ab"),
    ("StringLike", "a*c?", "abbcd", "abbc"),
    ("NumericEquals", "10", "10.0", "11"),
    ("NumericLessThan", "10", "9", "10"),
    ("NumericLessThanEquals", "10", "10", "10.5"),
    ("NumericGreaterThan", "10", "11", "10"),
    ("NumericGreaterThanEquals", "10", "10", "-11"),
    ("DateEquals", "2026-01-01T00:00:00Z", "1767225600", "1767225601"),
    ("DateLessThan", "2026-01-01T00:00:00Z", "2025-12-31T23:59:59Z", "2026-01-01"),
    ("DateLessThanEquals", "2026-01-01", "2026-01-01T01:00:00+01:00", "2026-01-02"),
    ("DateGreaterThan", "1767225600", "2026-01-01T00:00:00.5Z", "2026-01-01T00:00:00Z"),
    ("DateGreaterThanEquals", "2026-01-01", "2026-01-01", "soon"),
    ("Bool", "true", "True", "false"),
    ("BinaryEquals", "QmluYXJ5", "QmluYXJ5", "QmluYXJ6"),
    ("IpAddress", "203.0.113.0/24", "::ffff:203.0.113.9", "203.0.114.9"),
    ("ArnLike", "arn:aws:s3:::b*", "arn:aws:s3:::bucket", "arn:aws:sns:::bucket"),
];

/// The negation of each, where there is one.
const NEGATIVE: [(&str, &str); 8] = [
    ("StringEquals", "StringNotEquals"),
    ("StringEqualsIgnoreCase", "StringNotEqualsIgnoreCase"),
    ("StringLike", "StringNotLike"),
    ("NumericEquals", "NumericNotEquals"),
    ("DateEquals", "DateNotEquals"),
    ("IpAddress", "NotIpAddress"),
    ("ArnLike", "ArnNotLike"),
    ("ArnLike", "ArnNotEquals"),
];

#[test]
fn operators_with_their_prefixes_suffix_and_missing_keys() {
    for (positive, expected, good, bad) in POSITIVE {
        let negations = NEGATIVE.iter().filter(|(of, _)| *of == positive).map(|(_, negation)| (*negation, true));
        for (operator, is_negated) in negations.chain([(positive, false)]) {
            let expected = json!(expected);
            let (good, bad) = if is_negated { (bad, good) } else { (good, bad) };
            // Operator, on a good value, a bad one, both, and none.
            for (operator, on_good, on_bad, on_both, on_none) in [
                (operator.to_owned(), true, false, !is_negated, is_negated),
                (format!("{operator}IfExists"), true, false, !is_negated, true),
                (format!("ForAllValues:{operator}"), true, false, false, true),
                (format!("ForAllValues:{operator}IfExists"), true, false, false, true),
                (format!("ForAnyValue:{operator}"), true, false, true, false),
                (format!("ForAnyValue:{operator}IfExists"), true, false, true, true),
            ] {
                assert_eq!(holds(&operator, &expected, &[good]), on_good, "{operator} on {good}");
                assert_eq!(holds(&operator, &expected, &[bad]), on_bad, "{operator} on {bad}");
                assert_eq!(holds(&operator, &expected, &[good, bad]), on_both, "{operator} on both");
                assert_eq!(holds(&operator, &expected, &[]), on_none, "{operator} on a missing key");
            }
        }
    }
}

#[test]
fn several_values_of_the_policy() {
    assert!(holds("StringEquals", &json!(["a", "b"]), &["b"]));
    assert!(!holds("StringNotEquals", &json!(["a", "b"]), &["b"]));
    assert!(holds("StringNotEquals", &json!(["a", "b"]), &["c"]));
    assert!(holds("ForAllValues:StringEquals", &json!(["a", "b", "c"]), &["a", "c"]));
    assert!(!holds("ForAllValues:StringNotEquals", &json!(["a", "b"]), &["c", "a"]));
    assert!(holds("ForAnyValue:StringNotEquals", &json!(["a", "b"]), &["a", "c"]));
    assert!(!holds("ForAnyValue:StringNotEquals", &json!(["a", "b"]), &["a", "b"]));
    assert!(holds("NumericEquals", &json!([1, 2.5]), &["2.5"]));
    assert!(holds("Bool", &json!(true), &["true"]));
}

#[test]
fn null() {
    for (expected, on_value, on_none) in
        [(json!("true"), false, true), (json!(false), true, false), (json!(["true", "false"]), true, true)]
    {
        assert_eq!(holds("Null", &expected, &["x"]), on_value, "{expected}");
        assert_eq!(holds("Null", &expected, &[]), on_none, "{expected}");
    }
}

#[test]
fn unreadable_values_of_requests_do_not_match() {
    for (operator, expected) in
        [("NumericLessThan", "5"), ("DateGreaterThan", "0"), ("Bool", "false"), ("IpAddress", "0.0.0.0/0")]
    {
        assert!(!holds(operator, &json!(expected), &["what"]), "{operator}");
    }
    assert!(holds("NotIpAddress", &json!("0.0.0.0/0"), &["what"]));
    assert!(!holds("IpAddress", &json!("0.0.0.0/0"), &["2001:db8::1"]));
    assert!(holds("IpAddress", &json!(["10.0.0.0/8", "2001:db8::/32"]), &["2001:db8::1"]));
    assert!(holds("IpAddress", &json!("10.0.0.1"), &["10.0.0.1"]));
    assert!(holds("IpAddress", &json!("::ffff:10.0.0.0/104"), &["10.1.2.3"]));
}

#[test]
fn arns_by_their_parts() {
    for (pattern, value, expected) in [
        ("arn:aws:sns:*:1111:topic", "arn:aws:sns:eu:1111:topic", true),
        ("arn:aws:sns:*:topic", "arn:aws:sns:eu:1111:topic", false),
        ("arn:aws:sns:*", "arn:aws:sns:eu:1111:topic", true),
        ("*", "arn:aws:sns:eu:1111:topic", true),
        ("arn:aws:sns", "arn:aws:sns:eu:1111:topic", false),
        ("arn:aws:sns:*:1111:a:*", "arn:aws:sns:eu:1111:a:b", true),
        ("arn:aws:s?s:eu:1111:t", "arn:aws:sqs:eu:1111:t", true),
        ("arn:aws:sns:eu:1111:t", "topic", false),
    ] {
        for operator in ["ArnEquals", "ArnLike"] {
            assert_eq!(holds(operator, &json!(pattern), &[value]), expected, "{pattern} on {value}");
        }
    }
}

#[test]
fn keys_are_and_and_operators_are_and() {
    let request = Request::new(&[("s3:a", &["1"]), ("s3:b", &["2"])]);
    let anna = || user("a", "/", "anna");
    assert!(holds_for(anna(), &json!({"StringEquals": {"s3:A": "1", "s3:B": "2"}}), &request));
    assert!(!holds_for(anna(), &json!({"StringEquals": {"s3:A": "1", "s3:B": "3"}}), &request));
    assert!(!holds_for(
        anna(),
        &json!({"StringEquals": {"s3:A": "1"}, "StringNotEquals": {"s3:B": "2"}}),
        &request
    ));
    assert!(holds_for(anna(), &json!({}), &request));
}

#[test]
fn keys_about_the_caller() {
    let mut anna = user("a", "/team/", "anna");
    anna.identity.tags.insert("Project".to_owned(), "x".to_owned());
    let ops = session("a", "/p/", "ops", "s1");
    for (caller, key, expected) in [
        (&anna, "aws:UserName", Some("anna")),
        (&anna, "aws:userid", Some("AIDAanna")),
        (&anna, "aws:PrincipalArn", Some("arn:aws:iam::1111-a:user/team/anna")),
        (&anna, "aws:PrincipalAccount", Some("1111-a")),
        (&anna, "aws:PrincipalType", Some("User")),
        (&anna, "aws:PrincipalTag/Project", Some("x")),
        (&anna, "AWS:principaltag/project", None),
        (&ops, "aws:username", None),
        (&ops, "aws:userid", Some("AROAops:s1")),
        (&ops, "aws:PrincipalArn", Some("arn:aws:iam::1111-a:role/p/ops")),
        (&ops, "aws:PrincipalType", Some("AssumedRole")),
        (&ops, "aws:PrincipalIsAWSService", Some("false")),
    ] {
        let condition = match expected {
            Some(expected) => json!({"StringEquals": {key: expected}}),
            None => json!({"Null": {key: true}}),
        };
        // The request cannot lend itself another name.
        let request = Request::new(&[("aws:username", &["root"]), ("aws:principaltype", &["Account"])]);
        assert!(holds_for(caller.clone(), &condition, &request), "{key} of {}", caller.arn());
    }
}

#[test]
fn tags_of_objects_keep_their_case() {
    let request = Request::new(&[("s3:existingobjecttag/Owner", &["anna"])]);
    let anna = || user("a", "/", "anna");
    assert!(holds_for(anna(), &json!({"StringEquals": {"S3:ExistingObjectTag/Owner": "anna"}}), &request));
    assert!(!holds_for(anna(), &json!({"StringEquals": {"s3:ExistingObjectTag/owner": "anna"}}), &request));
}

fn may_get(caller: Caller, version: &str, resource: &str, key: &str) -> bool {
    let policy =
        json!({"Version": version, "Statement": {"Effect": "Allow", "Action": "s3:*", "Resource": resource}});
    let caller = with_policy(caller, &policy);
    let question = Question {
        caller: Some(&caller),
        action: "s3:GetObject",
        resource: &format!("arn:aws:s3:::b/{key}"),
        resource_side: None,
        conditions: &Request::new(&[("s3:prefix", &["p"]), ("s3:many", &["x", "y"])]),
    };
    decide(&question).is_allowed
}

#[test]
fn variables_in_resources() {
    let anna = || user("a", "/", "anna");
    let (old, new) = ("2008-10-17", "2012-10-17");
    for (caller, version, resource, key, expected) in [
        (anna(), new, "${aws:username}/*", "anna/x", true),
        (anna(), new, "${AWS:UserName}/*", "berta/x", false),
        (anna(), old, "${aws:username}/*", "anna/x", false),
        (anna(), old, "${aws:username}/*", "${aws:username}/x", true),
        (user("a", "/", "an*"), new, "${aws:username}/*", "anna/x", false),
        (user("a", "/", "an*"), new, "${aws:username}/*", "an*/x", true),
        (session("a", "/", "r", "s"), new, "${aws:username}*", "anna", false),
        (session("a", "/", "r", "s"), new, "${aws:username, 'guest'}/*", "guest/x", true),
        (anna(), new, "${aws:username,'guest'}/*", "anna/x", true),
        (anna(), new, "${aws:PrincipalTag/k, 'a*'}", "ab", false),
        (anna(), new, "${s3:prefix}/${aws:userid}", "p/AIDAanna", true),
        (anna(), new, "${s3:many}", "x", false),
        (anna(), new, "${*}${?}${$}{a}", "*?${a}", true),
        (anna(), new, "${*}", "x", false),
        (anna(), new, "$x", "$x", true),
    ] {
        let resource = format!("arn:aws:s3:::b/{resource}");
        assert_eq!(may_get(caller, version, &resource, key), expected, "{version} {resource} on {key}");
    }
}

#[test]
fn variables_in_conditions() {
    let anna = || user("a", "/", "anna");
    let request = |prefix: &str| Request::new(&[("s3:prefix", &[prefix]), ("s3:limit", &["7"])]);
    let like = json!({"StringLike": {"s3:prefix": ["${aws:username}/*", "${*}"]}});
    assert!(holds_for(anna(), &like, &request("anna/x")));
    assert!(holds_for(anna(), &like, &request("*")));
    assert!(!holds_for(anna(), &like, &request("berta/x")));
    assert!(!holds_for(session("a", "/", "r", "s"), &like, &request("anna/x")));
    let not_like = json!({"StringNotLike": {"s3:prefix": "${aws:username}/*"}});
    assert!(holds_for(session("a", "/", "r", "s"), &not_like, &request("anna/x")));
    let number = json!({"NumericLessThan": {"s3:limit": "${s3:missing, '8'}"}});
    assert!(holds_for(anna(), &number, &request("")));
    let unreadable = json!({"NumericLessThan": {"s3:limit": "${aws:username}"}});
    assert!(!holds_for(anna(), &unreadable, &request("")));
}

#[test]
fn keys_in_use_are_known() {
    let condition = json!({"StringEquals": {"s3:ExistingObjectTag/Owner": "${s3:RequestObjectTag/By}"}});
    let policy = parse(&policy(&condition), PolicyKind::Identity);
    for (prefix, expected) in [
        ("s3:existingobjecttag/", true),
        ("s3:ExistingObjectTag/", true),
        ("s3:existingobjecttag/owner", true),
        ("s3:requestobjecttag/", true),
        ("s3:prefix", false),
        ("s3:existingobjecttag/owners", false),
    ] {
        assert_eq!(policy.uses_condition_key(prefix), expected, "{prefix}");
    }
}
