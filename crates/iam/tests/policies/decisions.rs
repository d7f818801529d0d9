//! The order of evaluation, a row for each rule.

use crate::support::{
    Request, bucket_side, get_object, parse, root, session, user, with_acl, with_key_policy, with_policy,
    with_session_policy,
};
use atoll_iam::{
    AclSide, Caller, Decision, Grant, PolicyKind, PolicySource, Question, Reason, ResourceSide, StatementRef, acl,
    decide,
};
use atoll_types::access::{Acl, AclGrant, AclGrantee, AclPermission};
use serde_json::{Value, json};

const OWNER: &str = "canonical-a";

fn own(effect: &str, action: &str) -> Value {
    json!({"Version": "2012-10-17", "Statement": [{"Effect": effect, "Action": action, "Resource": "*"}]})
}

fn bucket(effect: &str, principal: &Value) -> Value {
    json!({"Version": "2012-10-17", "Statement": [
        {"Sid": "One", "Effect": effect, "Principal": principal, "Action": "*",
            "Resource": ["arn:aws:s3:::b", "arn:aws:s3:::b/*"]}]})
}

fn aws(name: &str) -> Value {
    json!({ "AWS": name })
}

fn anna() -> Caller {
    user("a", "/", "anna")
}

fn anna_may() -> Caller {
    with_policy(anna(), &own("Allow", "s3:Get*"))
}

fn bruno_may() -> Caller {
    with_policy(user("b", "/", "bruno"), &own("Allow", "*"))
}

/// Asks with the policy on the bucket of account a.
fn ask(caller: Option<&Caller>, policy: &Value) -> Decision {
    let policy = parse(policy, PolicyKind::Resource);
    get_object(caller, bucket_side(OWNER, Some(&policy)))
}

fn of_bucket() -> StatementRef {
    StatementRef { policy: PolicySource::Bucket, number: 1, sid: Some("One".into()) }
}

fn of_own(name: &str) -> StatementRef {
    StatementRef { policy: PolicySource::Identity(name.to_owned()), number: 1, sid: None }
}

#[track_caller]
fn expect(decision: &Decision, is_allowed: bool, reason: &Reason) {
    assert_eq!((decision.is_allowed, &decision.reason), (is_allowed, reason), "{}", decision.reason);
}

#[test]
fn explicit_deny_of_each_side() {
    let denied = with_policy(anna_may(), &own("Deny", "s3:GetObject"));
    expect(&get_object(Some(&denied), bucket_side(OWNER, None)), false, &Reason::ExplicitDeny(of_own("own-1")));
    let narrowed = with_session_policy(anna_may(), &own("Deny", "*"));
    let reason = StatementRef { policy: PolicySource::Session("session-0".to_owned()), number: 1, sid: None };
    expect(&get_object(Some(&narrowed), bucket_side(OWNER, None)), false, &Reason::ExplicitDeny(reason));
    for caller in [anna_may(), root("a"), bruno_may()] {
        expect(&ask(Some(&caller), &bucket("Deny", &json!("*"))), false, &Reason::ExplicitDeny(of_bucket()));
    }
    expect(&ask(None, &bucket("Deny", &json!("*"))), false, &Reason::ExplicitDeny(of_bucket()));
}

#[test]
fn root_of_the_owner_keeps_the_bucket_policy() {
    let deny = parse(&bucket("Deny", &json!("*")), PolicyKind::Resource);
    let may = |caller: &Caller, action: &str| {
        let question = Question {
            caller: Some(caller),
            action,
            resource: "arn:aws:s3:::b",
            resource_side: Some(bucket_side(OWNER, Some(&deny))),
            conditions: &Request::default(),
        };
        decide(&question)
    };
    for action in ["s3:GetBucketPolicy", "s3:PutBucketPolicy", "s3:deletebucketpolicy"] {
        expect(&may(&root("a"), action), true, &Reason::RootKeepsBucketPolicy);
        assert!(!may(&root("b"), action).is_allowed);
        assert!(!may(&with_policy(anna(), &own("Allow", "*")), action).is_allowed);
        let narrowed = with_session_policy(root("a"), &own("Allow", "s3:GetObject"));
        let reason = Reason::SessionPolicyDoesNotAllow("session-0".to_owned());
        expect(&may(&narrowed, action), false, &reason);
    }
    assert!(!may(&root("a"), "s3:PutBucketAcl").is_allowed);
}

#[test]
fn session_policies_narrow() {
    let wide = own("Allow", "*");
    let other = own("Allow", "s3:PutObject");
    let missing = Reason::SessionPolicyDoesNotAllow("session-1".to_owned());
    for caller in [anna_may(), root("a"), with_policy(session("a", "/", "ops", "s1"), &wide)] {
        let narrowed = with_session_policy(with_session_policy(caller.clone(), &wide), &other);
        expect(&get_object(Some(&narrowed), bucket_side(OWNER, None)), false, &missing);
        let kept = with_session_policy(caller, &wide);
        assert!(get_object(Some(&kept), bucket_side(OWNER, None)).is_allowed);
    }
}

#[test]
fn only_the_arn_of_a_session_bypasses_its_policies() {
    let other = own("Allow", "s3:PutObject");
    let ops = with_session_policy(session("a", "/p/", "ops", "s1"), &other);
    for (principal, is_allowed) in [
        ("arn:aws:sts::1111-a:assumed-role/ops/s1", true),
        ("arn:aws:sts::1111-a:assumed-role/ops/s2", false),
        ("arn:aws:iam::1111-a:role/p/ops", false),
        ("arn:aws:iam::1111-a:root", false),
        ("*", false),
    ] {
        assert_eq!(ask(Some(&ops), &bucket("Allow", &aws(principal))).is_allowed, is_allowed, "{principal}");
    }
    // The policy of the access key that began the session is not bypassed: its bearer chose the session's name.
    let own_arn = bucket("Allow", &aws("arn:aws:sts::1111-a:assumed-role/ops/s1"));
    let of_key = with_key_policy(session("a", "/p/", "ops", "s1"), &other);
    expect(&ask(Some(&of_key), &own_arn), false, &Reason::SessionPolicyDoesNotAllow("key".to_owned()));
    let of_wide_key = with_key_policy(with_session_policy(of_key, &other), &own("Allow", "*"));
    assert!(ask(Some(&of_wide_key), &own_arn).is_allowed);
    let service_account = with_key_policy(anna(), &other);
    assert!(!ask(Some(&service_account), &bucket("Allow", &aws("arn:aws:iam::1111-a:user/anna"))).is_allowed);
    // Other accounts always need their own side.
    let foreign = with_policy(session("b", "/", "ops", "s1"), &own("Allow", "*"));
    let policy = bucket("Allow", &aws("arn:aws:sts::1111-b:assumed-role/ops/s1"));
    assert!(ask(Some(&foreign), &policy).is_allowed);
    assert!(!ask(Some(&with_session_policy(foreign, &other)), &policy).is_allowed);
}

#[test]
fn same_account() {
    let nothing = bucket_side(OWNER, None);
    expect(&get_object(Some(&root("a")), nothing), true, &Reason::Allowed(Grant::Root));
    let reason = Reason::Allowed(Grant::Statement(of_own("own-0")));
    expect(&get_object(Some(&anna_may()), nothing), true, &reason);
    expect(&get_object(Some(&anna()), nothing), false, &Reason::NothingAllows);
    let by_bucket = Reason::Allowed(Grant::Statement(of_bucket()));
    for principal in [aws("arn:aws:iam::1111-a:user/anna"), json!("*"), aws("*")] {
        expect(&ask(Some(&anna()), &bucket("Allow", &principal)), true, &by_bucket);
    }
    for principal in [aws("1111-a"), aws("arn:aws:iam::1111-a:root"), json!({"CanonicalUser": OWNER})] {
        let policy = bucket("Allow", &principal);
        expect(&ask(Some(&anna()), &policy), false, &Reason::OnlyAccountNamed(of_bucket()));
        assert!(ask(Some(&anna_may()), &policy).is_allowed);
        assert!(ask(Some(&root("a")), &policy).is_allowed);
    }
}

#[test]
fn other_account_by_policy() {
    let allowed = Reason::AllowedAcrossAccounts {
        own: Grant::Statement(of_own("own-0")),
        resource: Grant::Statement(of_bucket()),
    };
    for principal in
        [aws("1111-b"), aws("arn:aws:iam::1111-b:user/bruno"), json!("*"), json!({"CanonicalUser": "canonical-b"})]
    {
        let policy = bucket("Allow", &principal);
        expect(&ask(Some(&bruno_may()), &policy), true, &allowed);
        let reason = Reason::OwnSideDoesNotAllow(Grant::Statement(of_bucket()));
        expect(&ask(Some(&user("b", "/", "bruno")), &policy), false, &reason);
    }
    assert!(ask(Some(&root("b")), &bucket("Allow", &aws("1111-b"))).is_allowed);
    let reason = Reason::OtherSideDoesNotAllow(Grant::Root);
    expect(&ask(Some(&root("b")), &bucket("Allow", &aws("1111-a"))), false, &reason);
    expect(&ask(Some(&user("b", "/", "x")), &bucket("Allow", &aws("1111-a"))), false, &Reason::NothingAllows);
}

fn acl_of(grantee: AclGrantee, permission: AclPermission) -> Acl {
    Acl { grants: vec![AclGrant { grantee, permission }] }
}

fn by_acl(caller: Option<&Caller>, acl: &Acl, ignore_public_acls: bool) -> Decision {
    let side = AclSide { owner: OWNER, acl: Some(acl), needed: AclPermission::Read };
    let mut side = with_acl(bucket_side(OWNER, None), side);
    side.public_access_block.ignore_public_acls = ignore_public_acls;
    get_object(caller, side)
}

#[test]
fn other_account_and_anonymous_by_acl() {
    let account = || AclGrantee::Account("canonical-b".to_owned());
    for (grantee, permission, to_other, to_anonymous, is_public) in [
        (account(), AclPermission::Read, true, false, false),
        (account(), AclPermission::FullControl, true, false, false),
        (account(), AclPermission::Write, false, false, false),
        (AclGrantee::Account(OWNER.to_owned()), AclPermission::FullControl, false, false, false),
        (AclGrantee::AuthenticatedUsers, AclPermission::Read, true, false, true),
        (AclGrantee::AllUsers, AclPermission::Read, true, true, true),
        (AclGrantee::AllUsers, AclPermission::ReadAcp, false, false, true),
    ] {
        let acl = acl_of(grantee, permission);
        assert_eq!(acl::is_public(&acl), is_public, "{acl:?}");
        assert_eq!(by_acl(Some(&bruno_may()), &acl, false).is_allowed, to_other, "{acl:?}");
        assert!(!by_acl(Some(&user("b", "/", "x")), &acl, false).is_allowed, "{acl:?}");
        assert_eq!(by_acl(None, &acl, false).is_allowed, to_anonymous, "{acl:?}");
        assert_eq!(by_acl(Some(&bruno_may()), &acl, true).is_allowed, to_other && !is_public, "{acl:?}");
        assert!(!by_acl(None, &acl, true).is_allowed, "{acl:?}");
    }
    let public = acl_of(AclGrantee::AllUsers, AclPermission::Read);
    assert!(by_acl(Some(&user("a", "/", "x")), &public, false).is_allowed, "a user of the owner's account");
    assert!(!by_acl(Some(&user("a", "/", "x")), &public, true).is_allowed);
    let own = acl_of(AclGrantee::Account(OWNER.to_owned()), AclPermission::FullControl);
    assert!(!by_acl(Some(&user("a", "/", "x")), &own, false).is_allowed, "that is the root's");
    expect(&by_acl(None, &public, false), true, &Reason::Allowed(Grant::Acl));
    expect(&by_acl(None, &public, true), false, &Reason::PublicAccessBlocked(Grant::Acl));
}

#[test]
fn owners_of_acls() {
    let nothing = Acl::default();
    for (acl, needed, is_allowed) in [
        (None, AclPermission::Read, true),
        (Some(&nothing), AclPermission::Read, false),
        (Some(&nothing), AclPermission::ReadAcp, true),
        (Some(&nothing), AclPermission::WriteAcp, true),
    ] {
        let side = AclSide { owner: "canonical-b", acl, needed };
        assert_eq!(acl::allows(&side, Some(&root("b")), true), is_allowed, "{needed:?}");
        assert!(!acl::allows(&side, Some(&root("a")), false), "{needed:?}");
        assert!(!acl::allows(&side, None, false), "{needed:?}");
    }
}

#[test]
fn canned_acls() {
    for (name, grants) in [
        ("private", "o:FullControl"),
        ("public-read", "o:FullControl all:Read"),
        ("public-read-write", "o:FullControl all:Read all:Write"),
        ("authenticated-read", "o:FullControl auth:Read"),
        ("bucket-owner-read", "o:FullControl b:Read"),
        ("bucket-owner-full-control", "o:FullControl b:FullControl"),
    ] {
        let acl = acl::canned(name, "b", "o").unwrap();
        let shown: Vec<String> = acl.grants.iter().map(show_grant).collect();
        assert_eq!(shown.join(" "), grants, "{name}");
        let own = acl::canned(name, "b", "b").unwrap();
        assert_eq!(show_grant(&own.grants[0]), "b:FullControl");
        assert_eq!(own.grants.len(), if name.starts_with("bucket") { 1 } else { acl.grants.len() }, "{name}");
    }
    for name in ["log-delivery-write", "aws-exec-read", "Private", ""] {
        assert_eq!(acl::canned(name, "b", "o"), None, "{name}");
    }
}

fn show_grant(grant: &AclGrant) -> String {
    let grantee = match &grant.grantee {
        AclGrantee::Account(id) => id,
        AclGrantee::AllUsers => "all",
        AclGrantee::AuthenticatedUsers => "auth",
    };
    format!("{grantee}:{:?}", grant.permission)
}

#[test]
fn anonymous() {
    expect(&ask(None, &bucket("Allow", &json!("*"))), true, &Reason::Allowed(Grant::Statement(of_bucket())));
    expect(&ask(None, &bucket("Allow", &aws("1111-a"))), false, &Reason::NothingAllows);
    expect(&get_object(None, bucket_side(OWNER, None)), false, &Reason::NothingAllows);
}

#[test]
fn bucket_policies_and_objects_of_others() {
    let ask = |caller: Option<&Caller>, effect: &str| {
        let policy = parse(&bucket(effect, &json!("*")), PolicyKind::Resource);
        let side = ResourceSide { object_owner: Some("canonical-b"), ..bucket_side(OWNER, Some(&policy)) };
        get_object(caller, side)
    };
    let uncounted = Reason::ObjectOfOtherAccount(of_bucket());
    expect(&ask(None, "Allow"), false, &uncounted);
    expect(&ask(Some(&anna_may()), "Allow"), false, &uncounted);
    expect(&ask(Some(&root("a")), "Allow"), false, &uncounted);
    expect(&ask(Some(&user("b", "/", "x")), "Allow"), false, &uncounted);
    assert!(ask(Some(&bruno_may()), "Allow").is_allowed);
    for caller in [root("a"), root("b"), bruno_may()] {
        expect(&ask(Some(&caller), "Deny"), false, &Reason::ExplicitDeny(of_bucket()));
    }
    let acl = acl_of(AclGrantee::Account(OWNER.to_owned()), AclPermission::Read);
    let side = AclSide { owner: "canonical-b", acl: Some(&acl), needed: AclPermission::Read };
    let side = with_acl(ResourceSide { object_owner: Some("canonical-b"), ..bucket_side(OWNER, None) }, side);
    assert!(get_object(Some(&anna_may()), side).is_allowed);
}

#[test]
fn restricted_public_buckets() {
    let ask = |caller: Option<&Caller>, statements: Value| {
        let policy = parse(&json!({"Version": "2012-10-17", "Statement": statements}), PolicyKind::Resource);
        let mut side = bucket_side(OWNER, Some(&policy));
        side.public_access_block.restrict_public_buckets = true;
        get_object(caller, side)
    };
    let public = bucket("Allow", &json!("*"))["Statement"][0].clone();
    let private = bucket("Allow", &aws("1111-b"))["Statement"][0].clone();
    let blocked = Reason::PublicAccessBlocked(Grant::Statement(of_bucket()));
    expect(&ask(None, public.clone()), false, &blocked);
    expect(&ask(Some(&bruno_may()), public.clone()), false, &blocked);
    assert!(ask(Some(&anna()), public.clone()).is_allowed);
    assert!(ask(Some(&bruno_may()), private.clone()).is_allowed);
    let mut second = private;
    second["Sid"] = json!("Two");
    assert!(!ask(Some(&bruno_may()), json!([public, second])).is_allowed);
}

#[test]
fn without_a_resource_side_only_the_callers_policies_count() {
    let ask = |caller: Option<&Caller>| {
        let question = Question {
            caller,
            action: "s3:CreateBucket",
            resource: "arn:aws:s3:::new",
            resource_side: None,
            conditions: &Request::default(),
        };
        decide(&question).is_allowed
    };
    assert!(ask(Some(&root("a"))));
    assert!(!ask(Some(&anna_may())));
    assert!(ask(Some(&bruno_may())));
    assert!(!ask(Some(&with_session_policy(root("a"), &own("Allow", "s3:Get*")))));
    assert!(!ask(Some(&with_policy(bruno_may(), &own("Deny", "s3:create*")))));
    assert!(!ask(None));
}

#[test]
fn reasons_are_for_people() {
    for (reason, text) in [
        (Reason::ExplicitDeny(of_bucket()), "denied by statement 'One' of the bucket policy"),
        (Reason::Allowed(Grant::Statement(of_own("p"))), "allowed by statement 1 of policy 'p'"),
        (Reason::Allowed(Grant::Root), "allowed by being the root of the account"),
        (Reason::NothingAllows, "denied, since nothing allows it"),
        (Reason::SessionPolicyDoesNotAllow("s".to_owned()), "denied, since session policy 's' does not allow it"),
    ] {
        assert_eq!(reason.to_string(), text);
    }
}
