//! Valid and invalid policies; public ones; policies for one bucket.

use crate::support::parse;
use atoll_iam::{Policy, PolicyKind};
use proptest::prelude::*;
use serde_json::{Value, json};

fn error(json: &str, kind: PolicyKind) -> String {
    match Policy::parse(json, kind) {
        Ok(_) => panic!("accepted: {json}"),
        Err(error) => error.to_string(),
    }
}

fn identity() -> Value {
    json!({"Version": "2012-10-17", "Id": "x", "Statement": [
        {"Sid": "First", "Effect": "Allow", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::b/*"}]})
}

fn resource() -> Value {
    let mut policy = identity();
    policy["Statement"][0]["Principal"] = json!("*");
    policy
}

fn trust() -> Value {
    let mut policy = resource();
    policy["Statement"][0].as_object_mut().unwrap().remove("Resource");
    policy
}

/// With an element of its statement set, or removed.
fn with(mut policy: Value, element: &str, value: Option<Value>) -> Value {
    let statement = policy["Statement"][0].as_object_mut().unwrap();
    match value {
        Some(value) => statement.insert(element.to_owned(), value),
        None => statement.remove(element),
    };
    policy
}

#[test]
fn well_formed() {
    for (policy, kind) in [
        (identity(), PolicyKind::Identity),
        (identity(), PolicyKind::Session),
        (resource(), PolicyKind::Resource),
        (trust(), PolicyKind::Trust),
        (json!({"Statement": {"Effect": "Deny", "NotAction": ["*"], "NotResource": "*"}}), PolicyKind::Identity),
        (with(identity(), "Action", Some(json!(["bogus:Do?It*", "*:*"]))), PolicyKind::Identity),
        (with(identity(), "Resource", Some(json!(["arn:aws:s3:::*", "arn:aws:*", "*"]))), PolicyKind::Identity),
        (with(identity(), "Sid", Some(json!(""))), PolicyKind::Identity),
        (with(identity(), "Condition", Some(json!({}))), PolicyKind::Identity),
        (
            with(identity(), "Condition", Some(json!({"StringEquals": {"bogus:key": ["a", 1, true]}}))),
            PolicyKind::Identity,
        ),
    ] {
        parse(&policy, kind);
    }
}

fn expect_in_first(policy: &Value, kind: PolicyKind, problem: &str) {
    let message = error(&policy.to_string(), kind);
    assert!(message.contains(problem), "{message} for {policy}");
    assert!(message.starts_with("statement 1 (Sid \"First\"): "), "{message}");
}

#[test]
fn malformed_statements() {
    for (policy, kind, problem) in [
        (with(identity(), "Effect", Some(json!("allow"))), PolicyKind::Identity, "neither Allow nor Deny"),
        (with(identity(), "Effect", None), PolicyKind::Identity, "neither Allow nor Deny"),
        (with(identity(), "Action", None), PolicyKind::Identity, "neither \"Action\" nor \"NotAction\""),
        (with(identity(), "NotAction", Some(json!("*"))), PolicyKind::Identity, "both \"Action\""),
        (with(identity(), "Action", Some(json!([]))), PolicyKind::Identity, "empty list"),
        (with(identity(), "Action", Some(json!(7))), PolicyKind::Identity, "\"Action\" has a number"),
        (with(identity(), "Action", Some(json!("GetObject"))), PolicyKind::Identity, "no action"),
        (with(identity(), "Action", Some(json!("s3:"))), PolicyKind::Identity, "no action"),
        (with(identity(), "Action", Some(json!("s*:Get"))), PolicyKind::Identity, "no action"),
        (with(identity(), "Resource", None), PolicyKind::Identity, "neither \"Resource\""),
        (with(identity(), "NotResource", Some(json!("*"))), PolicyKind::Identity, "both \"Resource\""),
        (with(identity(), "Resource", Some(json!("b/*"))), PolicyKind::Identity, "no resource"),
        (with(identity(), "Resource", Some(json!([]))), PolicyKind::Identity, "empty list"),
        (with(identity(), "Resource", Some(json!("arn:aws:s3:::${a"))), PolicyKind::Identity, "policy variable"),
        (
            with(identity(), "Resource", Some(json!("arn:aws:s3:::${a, b}"))),
            PolicyKind::Identity,
            "policy variable",
        ),
        (with(identity(), "Principal", Some(json!("*"))), PolicyKind::Identity, "\"Principal\" stands"),
        (with(identity(), "NotPrincipal", Some(json!("*"))), PolicyKind::Session, "\"NotPrincipal\" stands"),
        (with(identity(), "effect", Some(json!("Allow"))), PolicyKind::Identity, "no element \"effect\""),
        (identity(), PolicyKind::Resource, "neither \"Principal\""),
        (with(resource(), "NotPrincipal", Some(json!("*"))), PolicyKind::Resource, "both \"Principal\""),
        (resource(), PolicyKind::Trust, "\"Resource\" stands in a trust policy"),
    ] {
        expect_in_first(&policy, kind, problem);
    }
}

#[test]
fn malformed_principals() {
    let principal = |value: Value| with(resource(), "Principal", Some(value));
    for (policy, kind, problem) in [
        (principal(json!("arn:aws:iam::1:root")), PolicyKind::Resource, "neither \"*\" nor"),
        (principal(json!({})), PolicyKind::Resource, "neither \"*\" nor"),
        (principal(json!({"AWS": []})), PolicyKind::Resource, "is empty"),
        (principal(json!({"AWS": [1]})), PolicyKind::Resource, "is a number"),
        (principal(json!({"aws": "1"})), PolicyKind::Resource, "no kind of principal"),
        (principal(json!({"AWS": "arn:aws:iam::1:user/*"})), PolicyKind::Resource, "no principal"),
        (principal(json!({"AWS": "arn:aws:iam::1:user/"})), PolicyKind::Resource, "no principal"),
        (principal(json!({"AWS": "arn:aws:iam::1:group/x"})), PolicyKind::Resource, "no principal"),
        (principal(json!({"AWS": "arn:aws:iam::1:rooted"})), PolicyKind::Resource, "no principal"),
        (principal(json!({"AWS": "arn:aws:iam:::user/x"})), PolicyKind::Resource, "no principal"),
        (principal(json!({"AWS": "arn:aws:sts::1:assumed-role/x"})), PolicyKind::Resource, "no principal"),
        (principal(json!({"AWS": "a b"})), PolicyKind::Resource, "no principal"),
        (principal(json!({"Federated": "*"})), PolicyKind::Resource, "no principal"),
    ] {
        expect_in_first(&policy, kind, problem);
    }
}

#[test]
fn malformed_conditions() {
    let condition = |value: Value| with(identity(), "Condition", Some(value));
    for (policy, kind, problem) in [
        (condition(json!([])), PolicyKind::Identity, "the condition is a list"),
        (condition(json!({"StringIs": {"a:b": "c"}})), PolicyKind::Identity, "no condition operator \"StringIs\""),
        (condition(json!({"NullIfExists": {"a:b": "true"}})), PolicyKind::Identity, "no condition operator"),
        (condition(json!({"BoolNotEquals": {"a:b": "true"}})), PolicyKind::Identity, "no condition operator"),
        (condition(json!({"StringEquals": "a"})), PolicyKind::Identity, "has a string for its keys"),
        (condition(json!({"StringEquals": {}})), PolicyKind::Identity, "has no keys"),
        (condition(json!({"StringEquals": {"b": "c"}})), PolicyKind::Identity, "no condition key"),
        (condition(json!({"StringEquals": {"a:b": []}})), PolicyKind::Identity, "empty list"),
        (condition(json!({"StringEquals": {"a:b": null}})), PolicyKind::Identity, "has null"),
        (condition(json!({"StringEquals": {"a:b": [["c"]]}})), PolicyKind::Identity, "has a list"),
        (condition(json!({"StringEquals": {"a:b": "${}"}})), PolicyKind::Identity, "policy variable"),
        (condition(json!({"NumericEquals": {"a:b": "many"}})), PolicyKind::Identity, "not a number"),
        (condition(json!({"DateEquals": {"a:b": "soon"}})), PolicyKind::Identity, "not a date"),
        (condition(json!({"Bool": {"a:b": "yes"}})), PolicyKind::Identity, "not true or false"),
        (condition(json!({"BinaryEquals": {"a:b": "?"}})), PolicyKind::Identity, "not base64"),
        (condition(json!({"IpAddress": {"a:b": "10.0.0.0/33"}})), PolicyKind::Identity, "not an IP address"),
        (condition(json!({"Null": {"a:b": "maybe"}})), PolicyKind::Identity, "Null has \"maybe\""),
    ] {
        expect_in_first(&policy, kind, problem);
    }
}

#[test]
fn malformed_documents() {
    for (json, problem) in [
        ("", "not valid JSON"),
        ("[]", "the policy is a list"),
        ("{}", "no statements"),
        (r#"{"Statement": []}"#, "no statements"),
        (r#"{"Statement": [7]}"#, "statement 1: it is a number"),
        (r#"{"Version": "2013-01-01", "Statement": []}"#, "no such version"),
        (r#"{"Version": 2012, "Statement": []}"#, "no such version"),
        (r#"{"Version": "2012-10-17", "Version": "2012-10-17"}"#, "\"Version\" stands twice"),
        (r#"{"version": "2012-10-17"}"#, "no element \"version\""),
        (r#"{"Id": 7, "Statement": []}"#, "the Id is a number"),
        (r#"{"Statement": [{"Effect": "Allow", "Effect": "Deny"}]}"#, "\"Effect\" stands twice"),
        (r#"{"Statement": {"Sid": 7}}"#, "Sid is a number"),
        (r#"{"Statement": {}} x"#, "not valid JSON"),
    ] {
        let message = error(json, PolicyKind::Identity);
        assert!(message.contains(problem), "{message} for {json}");
    }
    let twice = json!({"Statement": [identity()["Statement"][0], identity()["Statement"][0]]});
    let message = error(&twice.to_string(), PolicyKind::Identity);
    assert!(message.starts_with("statement 2 (Sid \"First\"): an earlier statement"), "{message}");
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    assert!(error(&deep, PolicyKind::Identity).contains("not valid JSON"));
}

fn json_strategy() -> impl Strategy<Value = Value> {
    let words = prop::sample::select(vec![
        "*",
        "Allow",
        "Deny",
        "s3:*",
        "arn:aws:s3:::b",
        "2012-10-17",
        "${",
        "${a:b,'",
        "é",
        "10.0.0.0/8",
        "true",
        "",
        "arn:aws:iam::1:user/é",
        "arn:aws:sts::1:assumed-role//",
        "-1",
        "T",
        "2020-01-01T",
    ]);
    let names = prop::sample::select(vec![
        "Version",
        "Statement",
        "Effect",
        "Action",
        "Resource",
        "Principal",
        "Condition",
        "AWS",
        "StringLike",
        "a:b",
        "IpAddress",
        "DateEquals",
        "ForAllValues:NumericEquals",
        "Null",
        "BinaryEquals",
        "Sid",
    ]);
    let leaf = prop_oneof![
        words.prop_map(Value::from),
        any::<bool>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from)
    ];
    leaf.prop_recursive(6, 40, 6, move |inner| {
        let object = prop::collection::btree_map(names.clone(), inner.clone(), 0..6);
        prop_oneof![
            prop::collection::vec(inner, 0..3).prop_map(Value::from),
            object.prop_map(|map| map.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()),
        ]
    })
}

const KINDS: [PolicyKind; 4] =
    [PolicyKind::Identity, PolicyKind::Resource, PolicyKind::Session, PolicyKind::Trust];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn nothing_panics(text in any::<String>(), bytes in any::<Vec<u8>>(), value in json_strategy()) {
        for kind in KINDS {
            let _ = Policy::parse(&text, kind);
            let _ = Policy::parse(&String::from_utf8_lossy(&bytes), kind);
            let _ = Policy::parse(&value.to_string(), kind);
        }
    }

    #[test]
    fn no_element_panics(
        element in prop::sample::select(vec!["Action", "Resource", "Principal", "Condition", "Effect", "Sid"]),
        value in json_strategy(),
        text in any::<String>(),
    ) {
        for kind in KINDS {
            let _ = Policy::parse(&with(resource(), element, Some(value.clone())).to_string(), kind);
            let _ = Policy::parse(&with(resource(), element, Some(json!(text))).to_string(), kind);
            let operators = json!({"StringLike": {"a:b": text}, "ArnLike": {text.as_str(): "x"}});
            let _ = Policy::parse(&with(identity(), "Condition", Some(operators)).to_string(), kind);
            let typed = json!({"DateEquals": {"a:b": text}});
            let _ = Policy::parse(&with(identity(), "Condition", Some(typed)).to_string(), kind);
        }
    }
}

const POINTS_OF_ACCOUNT: &str = "arn:aws:s3:us-east-1:111122223333:accesspoint/*";

/// Returns `count` networks with a prefix of 8 bits.
fn eights(step: usize, count: usize) -> Vec<String> {
    (0..count).map(|number| format!("{}.0.0.0/8", number * step)).collect()
}

/// The internet in statements each of which is narrow.
#[test]
fn statements_are_public_together() {
    let network = |number: u32, address: &str| {
        let statement = with(resource(), "Condition", Some(json!({"IpAddress": {"aws:SourceIp": address}})));
        let mut statement = statement["Statement"][0].clone();
        statement["Sid"] = json!(format!("Number{number}"));
        statement["Principal"] = json!("*");
        statement
    };
    let policy = |statements: Vec<Value>| {
        let mut policy = resource();
        policy["Statement"] = json!(statements);
        parse(&policy, PolicyKind::Resource)
    };
    assert!(policy((0..256).map(|number| network(number, &format!("{number}.0.0.0/8"))).collect()).is_public());
    assert!(policy(vec![network(1, "3.0.0.0/8"), network(2, "5.0.0.0/9")]).is_public());
    assert!(!policy(vec![network(1, "3.0.0.0/8"), network(2, "3.1.0.0/16")]).is_public());
    // What a narrow condition stands beside does not count.
    let mut narrowed = network(2, "5.0.0.0/8");
    narrowed["Condition"]["StringEquals"] = json!({"aws:SourceVpc": "vpc-1"});
    assert!(!policy(vec![network(1, "3.0.0.0/8"), narrowed]).is_public());
}

#[test]
fn public_policies() {
    let everyone = json!("*");
    for (principal, condition, is_public) in [
        (&everyone, json!({}), true),
        (&json!({"AWS": "*"}), json!({}), true),
        (&json!({"AWS": ["1111-a", "*"]}), json!({}), true),
        (&json!({"AWS": "1111-a"}), json!({}), false),
        (&json!({"CanonicalUser": "x"}), json!({}), false),
        (&everyone, json!({"StringEquals": {"aws:SourceVpc": "vpc-91237329"}}), false),
        (&everyone, json!({"StringLike": {"aws:SourceVpc": "vpc-91237329"}}), false),
        (&everyone, json!({"StringLike": {"aws:SourceVpc": "vpc-*"}}), true),
        (&everyone, json!({"StringEquals": {"aws:SourceVpce": ["vpce-1", "vpce-2"]}}), false),
        (&everyone, json!({"StringLike": {"aws:SourceVpce": ["vpce-1", "vpce-*"]}}), true),
        (&everyone, json!({"ArnEquals": {"aws:SourceArn": "arn:aws:s3:::x"}}), false),
        (&everyone, json!({"ArnLike": {"aws:PrincipalArn": "arn:aws:iam::1:user/*"}}), true),
        (&everyone, json!({"StringEquals": {"AWS:SourceAccount": "1"}}), false),
        (&everyone, json!({"StringEquals": {"aws:PrincipalOrgID": "o-1"}}), false),
        (&everyone, json!({"StringEquals": {"aws:PrincipalAccount": "${aws:PrincipalAccount}"}}), true),
        (&everyone, json!({"StringEquals": {"aws:userid": "AIDA1"}}), false),
        (&everyone, json!({"StringEquals": {"aws:userid": ["AIDA1", "AROA1:session"]}}), true),
        (&everyone, json!({"StringLike": {"aws:userid": "AROA1:*"}}), true),
        (&everyone, json!({"StringLike": {"aws:userid": "AIDA*"}}), true),
        (&everyone, json!({"StringEquals": {"aws:userid": "anonymous"}}), true),
        (&everyone, json!({"StringEqualsIgnoreCase": {"aws:userid": "Anonymous"}}), true),
        (&everyone, json!({"StringEquals": {"aws:userid": ["AIDA1", "anonymous"]}}), true),
        (&everyone, json!({"StringEquals": {"aws:SourceOwner": "111122223333"}}), false),
        (&everyone, json!({"StringLike": {"aws:SourceOwner": "*"}}), true),
        (&everyone, json!({"StringLike": {"aws:SourceAccount": "11112222333?"}}), true),
        (&everyone, json!({"StringEquals": {"aws:username": "anna"}}), true),
        (&everyone, json!({"StringEquals": {"aws:PrincipalType": "Anonymous"}}), true),
        (&everyone, json!({"StringEquals": {"aws:PrincipalTag/a": "b"}}), true),
        (&everyone, json!({"StringEquals": {"aws:Referer": "https://example.com/"}}), true),
        (&everyone, json!({"StringEquals": {"s3:authType": "REST-HEADER"}}), true),
        (&everyone, json!({"StringEquals": {"s3:x-amz-server-side-encryption-aws-kms-key-id": "key"}}), true),
        (&everyone, json!({"StringEquals": {"s3:DataAccessPointAccount": "1"}}), false),
        (&everyone, json!({"StringEquals": {"s3:DataAccessPointArn": "arn:aws:s3:::x"}}), true),
        (&everyone, json!({"ArnLike": {"s3:DataAccessPointArn": POINTS_OF_ACCOUNT}}), false),
        (&everyone, json!({"StringLike": {"s3:DataAccessPointArn": POINTS_OF_ACCOUNT}}), false),
        (
            &everyone,
            json!({"ArnLike": {"s3:DataAccessPointArn": "arn:aws:s3:*:111122223333:accesspoint/a"}}),
            true,
        ),
        (&everyone, json!({"ArnLike": {"s3:DataAccessPointArn": "arn:aws:s3:us-east-1:*:accesspoint/a"}}), true),
        (&everyone, json!({"StringEquals": {"aws:UserAgent": "x"}}), true),
        (&everyone, json!({"StringNotEquals": {"aws:SourceVpc": "vpc-1"}}), true),
        (&everyone, json!({"StringEqualsIfExists": {"aws:SourceVpc": "vpc-1"}}), true),
        (&everyone, json!({"ForAllValues:StringEquals": {"aws:SourceVpc": "vpc-1"}}), true),
        (&everyone, json!({"ForAnyValue:StringEquals": {"aws:SourceVpc": "vpc-1"}}), false),
        (&everyone, json!({"Null": {"aws:SourceVpc": "false"}}), true),
        (&everyone, json!({"Bool": {"aws:SecureTransport": "true"}}), true),
        (&everyone, json!({"IpAddress": {"aws:SourceIp": "10.0.0.0/8"}}), false),
        (&everyone, json!({"IpAddress": {"aws:SourceIp": "203.0.113.7"}}), false),
        (&everyone, json!({"IpAddress": {"aws:SourceIp": "0.0.0.0/0"}}), true),
        (&everyone, json!({"IpAddress": {"aws:SourceIp": ["10.0.0.0/8", "0.0.0.0/1"]}}), true),
        (&everyone, json!({"IpAddress": {"aws:SourceIp": "128.0.0.0/7"}}), true),
        (&everyone, json!({"IpAddress": {"aws:SourceIp": "128.0.0.0/8"}}), false),
        (&everyone, json!({"IpAddress": {"aws:SourceIp": eights(1, 255)}}), true),
        (&everyone, json!({"IpAddress": {"aws:SourceIp": eights(2, 128)}}), true),
        (&everyone, json!({"IpAddress": {"aws:SourceIp": ["128.0.0.0/8", "3.0.0.0/9"]}}), true),
        (&everyone, json!({"IpAddress": {"aws:SourceIp": ["128.0.0.0/9", "3.0.0.0/9"]}}), false),
        (&everyone, json!({"IpAddress": {"aws:SourceIp": ["10.0.0.0/8", "172.16.0.0/12", "128.0.0.0/8"]}}), false),
        (&everyone, json!({"IpAddress": {"aws:SourceIp": ["10.0.0.0/8", "11.0.0.0/8"]}}), false),
        (&everyone, json!({"IpAddress": {"aws:SourceIp": ["2001:db8::/32", "2a00::/32"]}}), true),
        (&everyone, json!({"IpAddress": {"aws:SourceIp": ["2001:db8::/33", "fd00::/8"]}}), false),
        (&everyone, json!({"IpAddress": {"aws:SourceIp": ["203.0.113.7", "${aws:SourceIp}"]}}), true),
        (&everyone, json!({"StringLike": {"aws:SourceIp": "203.0.113.7"}}), true),
        (&everyone, json!({"IpAddress": {"aws:SourceIp": "2001:db8::/32"}}), false),
        (&everyone, json!({"IpAddress": {"aws:SourceIp": "2001:db8::/31"}}), true),
        (&everyone, json!({"IpAddress": {"aws:SourceIp": "::/0"}}), true),
        (&everyone, json!({"NotIpAddress": {"aws:SourceIp": "10.0.0.0/8"}}), true),
        (&everyone, json!({"IpAddress": {"aws:VpcSourceIp": "10.0.0.0/8"}}), true),
    ] {
        let mut policy = with(resource(), "Principal", Some(principal.clone()));
        policy = with(policy, "Condition", Some(condition.clone()));
        assert_eq!(parse(&policy, PolicyKind::Resource).is_public(), is_public, "{principal} {condition}");
        policy = with(policy, "Effect", Some(json!("Deny")));
        assert!(!parse(&policy, PolicyKind::Resource).is_public(), "denied: {principal} {condition}");
    }
    let others = with(with(resource(), "Principal", None), "NotPrincipal", Some(json!({"AWS": "1111-a"})));
    assert!(parse(&others, PolicyKind::Resource).is_public());
    let mut two = with(resource(), "Principal", Some(json!({"AWS": "1"})));
    let second = with(resource(), "Sid", Some(json!("Second")))["Statement"][0].clone();
    two["Statement"].as_array_mut().unwrap().push(second);
    assert!(parse(&two, PolicyKind::Resource).is_public());
    assert!(!parse(&identity(), PolicyKind::Identity).is_public());
}

#[test]
fn resources_of_a_bucket() {
    for (resource_arn, is_within) in [
        ("arn:aws:s3:::bucket", true),
        ("arn:aws:s3:::bucket/*", true),
        ("arn:aws:s3:::bucket/a/b", true),
        ("arn:aws:s3:::*", true),
        ("arn:aws:s3:::*/*", true),
        ("arn:aws:s3:::buck*", true),
        ("arn:aws:s3:::b?cket/x", true),
        ("arn:aws:s3:::${aws:username}/x", true),
        ("arn:aws:s3::*:bucket", true),
        ("arn:aws:s3:::other", false),
        ("arn:aws:s3:::bucket2/*", false),
        ("arn:aws:s3:::buck/et", false),
        ("arn:aws:s3:::/bucket", false),
        ("arn:aws:s3:eu:1:bucket", false),
        ("arn:aws:sns:::bucket", false),
        ("arn:aws:*", false),
        ("*", false),
    ] {
        for element in ["Resource", "NotResource"] {
            let policy = with(
                with(resource(), "Resource", None),
                element,
                Some(json!(["arn:aws:s3:::bucket", resource_arn])),
            );
            let policy = parse(&policy, PolicyKind::Resource);
            assert_eq!(policy.resources_within("bucket"), is_within, "{resource_arn}");
        }
    }
}
