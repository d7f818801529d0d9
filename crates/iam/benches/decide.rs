//! Cost of a decision: a caller with three policies of five statements, on a bucket with a policy.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use atoll_iam::{
    Account, Caller, CallerIdentity, CallerKind, ConditionValues, Policy, PolicyKind, Question, ResourceSide,
    decide,
};

const DECISIONS: u32 = 200_000;
const ROUNDS: u32 = 5;

struct Request;

impl ConditionValues for Request {
    fn values(&self, key: &str) -> Vec<Cow<'_, str>> {
        match key {
            "aws:sourceip" => vec![Cow::Borrowed("10.1.2.3")],
            "aws:securetransport" => vec![Cow::Borrowed("true")],
            "s3:prefix" => vec![Cow::Borrowed("home/anna/")],
            _ => Vec::new(),
        }
    }
}

fn identity_policy(number: usize) -> Arc<Policy> {
    let statements = [
        format!(
            r#"{{"Effect": "Allow", "Action": ["s3:Get*", "s3:List*"],
            "Resource": "arn:aws:s3:::data-{number}/*"}}"#
        ),
        r#"{"Effect": "Allow", "Action": "s3:*", "Resource": "arn:aws:s3:::home/${aws:username}/*"}"#.to_owned(),
        r#"{"Effect": "Deny", "Action": "s3:Delete*", "Resource": "*"}"#.to_owned(),
        r#"{"Effect": "Allow", "Action": "s3:ListBucket", "Resource": "*",
            "Condition": {"StringLike": {"s3:prefix": "home/*"}}}"#
            .to_owned(),
        r#"{"Effect": "Deny", "Action": "s3:*", "Resource": "*",
            "Condition": {"Bool": {"aws:SecureTransport": "false"}}}"#
            .to_owned(),
    ];
    parse(&statements.join(","), PolicyKind::Identity)
}

fn parse(statements: &str, kind: PolicyKind) -> Arc<Policy> {
    let json = format!(r#"{{"Version": "2012-10-17", "Statement": [{statements}]}}"#);
    Arc::new(Policy::parse(&json, kind).expect("the policies of the bench are well-formed"))
}

fn measure(name: &str, question: &Question<'_>, is_allowed: bool) {
    let mut best_ns = f64::INFINITY;
    for _ in 0..ROUNDS {
        let begun = Instant::now();
        for _ in 0..DECISIONS {
            assert_eq!(decide(black_box(question)).is_allowed, is_allowed);
        }
        best_ns = best_ns.min(begun.elapsed().as_nanos() as f64 / f64::from(DECISIONS));
    }
    println!("{name}: {best_ns:.0} ns per decision");
}

fn main() {
    let account = Arc::new(Account {
        id: "111122223333".to_owned(),
        canonical_id: "owner".to_owned(),
        name: "a".to_owned(),
    });
    let kind = CallerKind::User { name: "anna".to_owned(), path: "/".to_owned(), id: "AIDA1".to_owned() };
    let caller = Caller {
        identity: CallerIdentity { account, kind, session_issued_unix_ms: None, tags: BTreeMap::new() },
        access_key: "AKIA1".to_owned(),
        policies: (0..3).map(|number| (format!("policy-{number}"), identity_policy(number))).collect(),
        session_policies: Vec::new(),
        key_policy: None,
    };
    let bucket = parse(
        r#"{"Effect": "Deny", "Principal": "*", "Action": "s3:*", "Resource": "arn:aws:s3:::data-2/*",
            "Condition": {"NotIpAddress": {"aws:SourceIp": "10.0.0.0/8"}}},
           {"Effect": "Allow", "Principal": {"AWS": "arn:aws:iam::111122223333:user/berta"}, "Action": "s3:*",
            "Resource": "arn:aws:s3:::data-2/*"}"#,
        PolicyKind::Resource,
    );
    let side = ResourceSide {
        bucket_owner: "owner",
        object_owner: None,
        policy: Some(&bucket),
        acl: None,
        public_access_block: Default::default(),
    };
    let mut question = Question {
        caller: Some(&caller),
        action: "s3:GetObject",
        resource: "arn:aws:s3:::data-2/some/longer/key/of/an/object",
        resource_side: Some(side),
        conditions: &Request,
    };
    measure("allowed by the last policy", &question, true);
    question.resource = "arn:aws:s3:::other/some/longer/key/of/an/object";
    measure("nothing allows", &question, false);
    question.resource = "arn:aws:s3:::home/anna/key";
    measure("allowed by a variable", &question, true);
}
