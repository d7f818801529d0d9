//! Principals of statements, and assuming a role.

use crate::support::{
    Request, bucket_side, get_object, parse, root, session, user, with_policy, with_session_policy,
};
use atoll_iam::{AssumeQuestion, Caller, Policy, PolicyKind, Reason, TrustPrincipal, decide_assume_role, trusts};
use serde_json::{Value, json};

fn bucket(effect: &str, element: &str, principal: &Value) -> Value {
    json!({"Version": "2012-10-17", "Statement": [
        {"Effect": effect, element: principal, "Action": "*", "Resource": "arn:aws:s3:::b/*"}]})
}

/// Everyone whose own policies allow everything, in another account than the bucket's.
fn callers() -> [(&'static str, Option<Caller>); 6] {
    let all = json!({"Statement": {"Effect": "Allow", "Action": "*", "Resource": "*"}});
    [
        ("root", Some(root("b"))),
        ("user", Some(with_policy(user("b", "/", "bruno"), &all))),
        ("pathed", Some(with_policy(user("b", "/team/", "bruno"), &all))),
        ("session", Some(with_policy(session("b", "/p/", "ops", "s1"), &all))),
        ("foreign", Some(root("c"))),
        ("anonymous", None),
    ]
}

fn who(is_met: impl Fn(Option<&Caller>) -> bool) -> String {
    let met = callers().into_iter().filter(|(_, caller)| is_met(caller.as_ref()));
    met.map(|(name, _)| name).collect::<Vec<_>>().join(" ")
}

/// An Allow follows the id, and leaves who has got the name since outside. A Deny is about both.
#[test]
fn names_are_bound_to_ids() {
    // Both users have the same id here.
    for (arn, named, of_id) in [
        ("arn:aws:iam::1111-b:user/bruno", "user", "user pathed"),
        ("arn:aws:iam::1111-b:role/p/ops", "session", "session"),
        ("arn:aws:sts::1111-b:assumed-role/ops/s1", "session", "session"),
    ] {
        let caller =
            callers().into_iter().find(|(name, _)| *name == named).and_then(|(_, caller)| caller).unwrap();
        let own_id = caller.user_id().split(':').next().unwrap_or_default().to_owned();
        for (id, is_named) in [(own_id.as_str(), true), ("AIDAANOTHER", false)] {
            let ids = std::collections::BTreeMap::from([(arn.to_owned(), id.to_owned())]);
            let of = |effect: &str, element: &str| {
                Policy::clone(&parse(&bucket(effect, element, &json!({ "AWS": arn })), PolicyKind::Resource))
                    .bound(&ids)
            };
            let allow = of("Allow", "Principal");
            let is_allowed =
                |caller: Option<&Caller>| get_object(caller, bucket_side("canonical-a", Some(&allow))).is_allowed;
            assert_eq!(who(is_allowed), if is_named { of_id } else { "" }, "{arn}");
            let denied = if is_named { of_id } else { named };
            assert_eq!(who(|caller| is_denied(caller, &of("Deny", "Principal"))), denied, "{arn}");
        }
    }
}

#[test]
fn kinds_of_principals() {
    for (principal, expected) in [
        (json!("*"), "root user pathed session foreign anonymous"),
        (json!({"AWS": "*"}), "root user pathed session foreign anonymous"),
        (json!({"AWS": "1111-b"}), "root user pathed session"),
        (json!({"AWS": "arn:aws:iam::1111-b:root"}), "root user pathed session"),
        (json!({"CanonicalUser": "canonical-b"}), "root user pathed session"),
        (json!({"AWS": "arn:aws:iam::1111-b:user/bruno"}), "user"),
        (json!({"AWS": "arn:aws:iam::1111-b:user/team/bruno"}), "pathed"),
        (json!({"AWS": "arn:aws:iam::1111-b:user/Bruno"}), ""),
        (json!({"AWS": "arn:aws:iam::1111-b:role/p/ops"}), "session"),
        (json!({"AWS": "arn:aws:iam::1111-b:role/ops"}), ""),
        (json!({"AWS": "arn:aws:sts::1111-b:assumed-role/ops/s1"}), "session"),
        (json!({"AWS": "arn:aws:sts::1111-b:assumed-role/ops/s2"}), ""),
        (json!({"AWS": ["1111-c", "arn:aws:iam::1111-b:user/bruno"]}), "user foreign"),
        (json!({"AWS": "1111-c", "CanonicalUser": ["canonical-b"]}), "root user pathed session foreign"),
        (json!({"Federated": "1111-b"}), ""),
        (json!({"Service": "s3.amazonaws.com"}), ""),
    ] {
        let allow = parse(&bucket("Allow", "Principal", &principal), PolicyKind::Resource);
        let is_allowed =
            |caller: Option<&Caller>| get_object(caller, bucket_side("canonical-a", Some(&allow))).is_allowed;
        assert_eq!(who(is_allowed), expected, "{principal}");
        let deny = parse(&bucket("Deny", "Principal", &principal), PolicyKind::Resource);
        assert_eq!(who(|caller| is_denied(caller, &deny)), expected, "{principal}");
    }
}

fn is_denied(caller: Option<&Caller>, policy: &Policy) -> bool {
    matches!(get_object(caller, bucket_side("canonical-a", Some(policy))).reason, Reason::ExplicitDeny(_))
}

#[test]
fn all_but_some() {
    // Who is allowed, and who is denied. A Deny spares users and sessions only if their account is named, too.
    for (principal, allowed, denied) in [
        (json!("*"), "", ""),
        (json!({"AWS": "1111-c"}), "root user pathed session anonymous", "root user pathed session anonymous"),
        (json!({"AWS": "1111-b"}), "foreign anonymous", "user pathed session foreign anonymous"),
        (
            json!({"AWS": "arn:aws:iam::1111-b:user/bruno"}),
            "root pathed session foreign anonymous",
            "root user pathed session foreign anonymous",
        ),
        (
            json!({"AWS": ["1111-b", "arn:aws:iam::1111-b:user/bruno"]}),
            "foreign anonymous",
            "pathed session foreign anonymous",
        ),
        (
            json!({"AWS": ["1111-b", "arn:aws:iam::1111-b:role/p/ops"]}),
            "foreign anonymous",
            "user pathed foreign anonymous",
        ),
    ] {
        let allow = parse(&bucket("Allow", "NotPrincipal", &principal), PolicyKind::Resource);
        let is_allowed =
            |caller: Option<&Caller>| get_object(caller, bucket_side("canonical-a", Some(&allow))).is_allowed;
        assert_eq!(who(is_allowed), allowed, "{principal}");
        let deny = parse(&bucket("Deny", "NotPrincipal", &principal), PolicyKind::Resource);
        assert_eq!(who(|caller| is_denied(caller, &deny)), denied, "{principal}");
    }
}

fn trust(effect: &str, principal: &Value) -> Value {
    json!({"Effect": effect, "Principal": principal, "Action": "sts:AssumeRole*"})
}

fn trust_policy(statements: &Value) -> Policy {
    let policy = json!({"Version": "2012-10-17", "Statement": statements});
    (*parse(&policy, PolicyKind::Trust)).clone()
}

const PROVIDER: &str = "arn:aws:iam::1111-a:oidc-provider/login.example";

#[test]
fn roles_for_tokens() {
    let federated = trust("Allow", &json!({ "Federated": PROVIDER }));
    let mut for_app = federated.clone();
    for_app["Condition"] = json!({"StringEquals": {"login.example:aud": "app"}});
    let everyone = trust("Allow", &json!("*"));
    let denied = trust("Deny", &json!("*"));
    let request = Request::new(&[("login.example:aud", &["app"])]);
    for (statements, provider_arn, request, expected) in [
        (json!([federated]), PROVIDER, &Request::default(), true),
        (json!([federated]), "arn:aws:iam::1111-a:oidc-provider/other", &Request::default(), false),
        (json!([for_app]), PROVIDER, &request, true),
        (json!([for_app]), PROVIDER, &Request::default(), false),
        (json!([everyone]), PROVIDER, &Request::default(), false),
        (json!([federated, denied]), PROVIDER, &Request::default(), false),
    ] {
        let principal = TrustPrincipal::Federated { provider_arn };
        let decision = trusts(&trust_policy(&statements), principal, "sts:AssumeRoleWithWebIdentity", request);
        assert_eq!(decision.is_allowed, expected, "{statements} for {provider_arn}");
    }
    let decision = trusts(
        &trust_policy(&json!([federated])),
        TrustPrincipal::Federated { provider_arn: PROVIDER },
        "sts:TagSession",
        &Request::default(),
    );
    assert!(!decision.is_allowed);
}

#[test]
fn roles_for_callers() {
    let may_assume = |account: &str| {
        let policy = json!({"Statement": {"Effect": "Allow", "Action": "sts:AssumeRole",
            "Resource": "arn:aws:iam::1111-a:role/ops"}});
        with_policy(user(account, "/", "x"), &policy)
    };
    let must_not = json!({"Statement": {"Effect": "Deny", "Action": "sts:*", "Resource": "*"}});
    let narrow = json!({"Statement": {"Effect": "Allow", "Action": "s3:*", "Resource": "*"}});
    let (account, foreign) = (json!({"AWS": "1111-a"}), json!({"AWS": "1111-b"}));
    let named = json!({"AWS": ["arn:aws:iam::1111-a:user/x", "arn:aws:iam::1111-b:user/x"]});
    for (caller, principal, expected) in [
        (user("a", "/", "x"), &named, true),
        (user("a", "/", "x"), &account, false),
        (may_assume("a"), &account, true),
        (may_assume("a"), &foreign, false),
        (may_assume("a"), &named, true),
        (root("a"), &account, true),
        (root("a"), &foreign, false),
        (user("b", "/", "x"), &named, false),
        (may_assume("b"), &named, true),
        (may_assume("b"), &foreign, true),
        (may_assume("b"), &account, false),
        (user("b", "/", "x"), &foreign, false),
        (root("b"), &foreign, true),
        (with_policy(user("a", "/", "x"), &must_not), &named, false),
        (with_session_policy(may_assume("a"), &narrow), &named, false),
        (with_session_policy(may_assume("b"), &narrow), &foreign, false),
    ] {
        let question = AssumeQuestion {
            caller: &caller,
            role_account: "1111-a",
            role_arn: "arn:aws:iam::1111-a:role/ops",
            trust_policy: &trust_policy(&trust("Allow", principal)),
            action: "sts:AssumeRole",
            conditions: &Request::default(),
        };
        let decision = decide_assume_role(&question);
        assert_eq!(decision.is_allowed, expected, "{} by {principal}: {}", caller.arn(), decision.reason);
        let by_trust =
            trusts(question.trust_policy, TrustPrincipal::Caller(&caller), "sts:AssumeRole", &Request::default());
        assert!(by_trust.is_allowed || !expected, "{} by {principal}", caller.arn());
        let is_only_account = matches!(by_trust.reason, Reason::AccountTrusted(_));
        assert_eq!(is_only_account, by_trust.is_allowed && principal != &named, "{principal}");
    }
    let statements = json!([trust("Allow", &json!("*")), trust("Deny", &account)]);
    let question = AssumeQuestion {
        caller: &root("a"),
        role_account: "1111-a",
        role_arn: "arn:aws:iam::1111-a:role/ops",
        trust_policy: &trust_policy(&statements),
        action: "sts:AssumeRole",
        conditions: &Request::default(),
    };
    assert!(matches!(decide_assume_role(&question).reason, Reason::ExplicitDeny(_)));
}
