//! Callers of access keys.

use std::collections::{BTreeMap, BTreeSet};

use atoll_types::identities::{ACCESS_KEY_FORMAT_OF_ACCOUNTS, PolicyVersion};

use super::session::{Session, SessionPrincipal};
use super::*;

const ALLOW: &str = r#"{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Action":"s3:*","Resource":"*"}]}"#;

fn key(name: &str, account: Option<&str>, user: Option<&str>, created: u64) -> AccessKeyRecord {
    AccessKeyRecord {
        format: if account.is_some() { ACCESS_KEY_FORMAT_OF_ACCOUNTS } else { RECORD_FORMAT },
        access_key: name.into(),
        wrapped_secret_key: "local:1:x".into(),
        display_name: String::new(),
        created_unix_ms: created,
        account: account.map(Into::into),
        user: user.map(Into::into),
        is_disabled: false,
        policy: None,
    }
}

fn user(name: &str, groups: &[&str]) -> UserRecord {
    UserRecord {
        format: RECORD_FORMAT,
        account: FIRST_ACCOUNT.into(),
        name: name.into(),
        path: "/".into(),
        id: format!("AIDA{name}"),
        policies: AttachedPolicies::default(),
        groups: groups.iter().map(|&group| group.into()).collect(),
        tags: BTreeMap::new(),
        created_unix_ms: 5,
    }
}

fn found(identities: &Identities, key: &str) -> Caller {
    match identities.caller(key) {
        KeyLookup::Found(caller) => *caller,
        other => panic!("{key}: {other:?}"),
    }
}

#[test]
fn the_first_account_follows_from_the_oldest_key() {
    let mut identities = Identities::from_records([
        Record::AccessKey(key("LATER", None, None, 2)),
        Record::AccessKey(key("OLDEST", None, None, 1)),
    ]);
    let caller = found(&identities, "LATER");
    assert_eq!(caller.kind, CallerKind::Root);
    assert_eq!((caller.account.id.as_str(), caller.account.canonical_id.as_str()), (FIRST_ACCOUNT, "OLDEST"));
    assert_eq!(identities.account_by_canonical_id("LATER").unwrap().id, FIRST_ACCOUNT);
    assert_eq!(identities.accounts().count(), 1);

    // It still does when the key is disabled, and so has an account.
    let disabled = AccessKeyRecord { is_disabled: true, ..key("OLDEST", Some(FIRST_ACCOUNT), None, 1) };
    identities.apply(&RecordName::AccessKey("OLDEST".into()), Some(Record::AccessKey(disabled)));
    assert_eq!(found(&identities, "LATER").account.canonical_id, "OLDEST");
    assert_eq!(identities.account_by_canonical_id("OLDEST").unwrap().id, FIRST_ACCOUNT);

    let record = AccountRecord { email: Some("A@example.com".into()), ..first_account_record("OTHER", 1) };
    identities.apply(&RecordName::Account(FIRST_ACCOUNT.into()), Some(Record::Account(record)));
    assert_eq!(found(&identities, "LATER").account.canonical_id, "OTHER");
    assert_eq!(identities.account_by_canonical_id("OTHER").unwrap().name, "admin");
    assert_eq!(identities.account_by_email("a@EXAMPLE.com").unwrap().id, FIRST_ACCOUNT);
    assert_eq!(identities.accounts().count(), 1);

    identities.apply(&RecordName::Account(FIRST_ACCOUNT.into()), None);
    assert!(identities.account_by_email("a@example.com").is_none());
    assert_eq!(found(&identities, "LATER").account.canonical_id, "OLDEST");
}

#[test]
fn keys_that_do_not_count() {
    let disabled = AccessKeyRecord { is_disabled: true, ..key("OFF", None, None, 1) };
    let identities = Identities::from_records([
        Record::AccessKey(disabled),
        Record::AccessKey(key("ORPHAN", Some(FIRST_ACCOUNT), Some("gone"), 1)),
        Record::AccessKey(key("STRANGE", Some("200000000000"), None, 1)),
        Record::AccessKey(key("ROOT", None, None, 2)),
    ]);
    assert!(matches!(identities.caller("OFF"), KeyLookup::Disabled));
    for unknown in ["ORPHAN", "STRANGE", "NONE"] {
        assert!(matches!(identities.caller(unknown), KeyLookup::Unknown), "{unknown}");
    }
    for cannot in ["OFF", "ORPHAN", "STRANGE", "NONE"] {
        assert!(identities.signing_key(cannot).is_none(), "{cannot}");
    }
    assert_eq!(identities.signing_key("ROOT").unwrap().access_key, "ROOT");
}

#[test]
fn a_user_has_its_own_policies_and_those_of_its_groups() {
    let mut alice = user("Alice", &["staff", "lost"]);
    alice.policies.inline.insert("own".into(), ALLOW.into());
    alice.policies.inline.insert("broken".into(), "{".into());
    alice.policies.managed.insert("arn:aws:iam::aws:policy/AmazonS3ReadOnlyAccess".into());
    let managed = "arn:aws:iam::100000000000:policy/team/Read";
    let staff = GroupRecord {
        format: RECORD_FORMAT,
        account: FIRST_ACCOUNT.into(),
        name: "Staff".into(),
        path: "/".into(),
        id: "AGPAX".into(),
        policies: AttachedPolicies { inline: BTreeMap::new(), managed: BTreeSet::from([managed.to_owned()]) },
        created_unix_ms: 1,
    };
    let policy = ManagedPolicyRecord {
        format: RECORD_FORMAT,
        account: FIRST_ACCOUNT.into(),
        name: "Read".into(),
        path: "/team/".into(),
        id: "ANPAX".into(),
        description: String::new(),
        versions: BTreeMap::from([(1, PolicyVersion { document: ALLOW.into(), created_unix_ms: 1 })]),
        default_version: 1,
        next_version: 2,
        tags: BTreeMap::new(),
        created_unix_ms: 1,
    };
    let narrowed =
        AccessKeyRecord { policy: Some(ALLOW.into()), ..key("K", Some(FIRST_ACCOUNT), Some("ALICE"), 2) };
    let identities = Identities::from_records([
        Record::AccessKey(key("ROOT", None, None, 1)),
        Record::AccessKey(narrowed),
        Record::User(alice),
        Record::Group(staff),
        Record::Policy(policy),
    ]);
    let caller = found(&identities, "K");
    assert_eq!(caller.arn(), "arn:aws:iam::100000000000:user/Alice");
    let names: Vec<&str> = caller.policies.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(
        names,
        [
            "policy broken of user Alice",
            "policy own of user Alice",
            "arn:aws:iam::aws:policy/AmazonS3ReadOnlyAccess",
            "group lost, which cannot be read",
            managed,
        ]
    );
    for denied in [0, 3] {
        assert!(Arc::ptr_eq(&caller.policies[denied].1, &DENY_ALL), "{denied}");
    }
    assert!(caller.key_policy.is_some() && caller.session_policies.is_empty());
}

#[test]
fn sessions_end_with_their_user() {
    let mut identities = Identities::from_records([
        Record::AccessKey(key("ROOT", None, None, 1)),
        Record::User(user("alice", &[])),
    ]);
    let session = Session {
        access_key: "ASIAX".into(),
        account: FIRST_ACCOUNT.into(),
        principal: SessionPrincipal::User { name: "alice".into(), id: "AIDAalice".into() },
        policies: vec![ALLOW.into(), ALLOW.replace("[{", "{").replace("}]", "}")],
        policy_arns: vec!["arn:aws:iam::aws:policy/AmazonS3FullAccess".into()],
        key_policy: None,
        issued_unix_ms: 1_700_000_000_000,
        expires_unix_ms: 1,
    };
    let caller = identities.session_caller(&session).unwrap();
    assert_eq!((caller.user_name(), caller.session_policies.len()), (Some("alice"), 1));
    assert!(!Arc::ptr_eq(&caller.session_policies[0].1, &DENY_ALL));

    let lost = Session { policy_arns: vec!["arn:aws:iam::100000000000:policy/Lost".into()], ..session.clone() };
    let caller = identities.session_caller(&lost).unwrap();
    assert!(Arc::ptr_eq(&caller.session_policies[0].1, &DENY_ALL));

    // Renamed, then replaced by another of the same name.
    identities.apply(&RecordName::user(FIRST_ACCOUNT, "alice"), None);
    let renamed = UserRecord { name: "bob".into(), ..user("alice", &[]) };
    identities.apply(&RecordName::user(FIRST_ACCOUNT, "bob"), Some(Record::User(renamed)));
    assert_eq!(identities.session_caller(&session).unwrap().user_name(), Some("bob"));
    identities.apply(&RecordName::user(FIRST_ACCOUNT, "bob"), None);
    let other = UserRecord { id: "AIDAother".into(), ..user("alice", &[]) };
    identities.apply(&RecordName::user(FIRST_ACCOUNT, "alice"), Some(Record::User(other)));
    assert!(identities.session_caller(&session).is_none());
}
