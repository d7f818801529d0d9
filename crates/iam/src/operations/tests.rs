//! Operations: the rules of AWS, and that whatever is done, records fit together.

mod histories;

use atoll_types::identities::{AccessKeyRecord, FIRST_ACCOUNT};
use atoll_types::records::RECORD_FORMAT;

use super::*;
use crate::identities::KeyLookup;
use crate::identities::{Identities, Record};

pub(super) const READS: &str =
    r#"{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Action":"s3:Get*","Resource":"*"}]}"#;
const TRUST: &str = r#"{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Principal":{"AWS":"*"},"Action":"sts:AssumeRole"}]}"#;

type Pairs<'a> = &'a [(&'a str, &'a str)];

/// Identities that operations change.
pub(super) struct World {
    pub(super) identities: Identities,
    account: String,
    /// Number of the next operation.
    pub(super) number: u64,
}

impl World {
    pub(super) fn new() -> Self {
        let key = AccessKeyRecord {
            format: RECORD_FORMAT,
            access_key: "FIRST".into(),
            wrapped_secret_key: "local:1:x".into(),
            display_name: "admin".into(),
            created_unix_ms: 1,
            account: None,
            user: None,
            is_disabled: false,
            policy: None,
        };
        let identities = Identities::from_records([Record::AccessKey(key)]);
        World { identities, account: FIRST_ACCOUNT.into(), number: 0 }
    }

    /// Does an operation as this access key, or as an operator.
    fn act(
        &mut self,
        access_key: Option<&str>,
        name: &str,
        parameters: &[(&str, &str)],
    ) -> Result<Answer, IamError> {
        self.number += 1;
        let caller = access_key.map(|key| match self.identities.caller(key) {
            KeyLookup::Found(caller) => *caller,
            other => panic!("{key}: {other:?}"),
        });
        let new = NewAccessKey {
            access_key: format!("AKIA{}", self.number),
            secret: "secret".into(),
            wrapped_secret: "local:1:y".into(),
        };
        let mut random = [0; RANDOM_BYTES];
        for (index, byte) in random.iter_mut().enumerate() {
            *byte = (self.number >> (index % 8 * 4)) as u8 & 15;
        }
        let context = Context {
            identities: &self.identities,
            account: self.identities.account(&self.account).unwrap().clone(),
            caller: caller.as_ref(),
            now_ms: 1_000 + self.number,
            random,
            new_access_key: Some(&new),
            last_used: None,
        };
        let outcome = Operation::find(name)?.run(&context, parameters.iter().copied().collect())?;
        assert!(Operation::find(name)?.is_change || outcome.changes.is_empty(), "{name} changes something");
        for change in outcome.changes {
            match change {
                Change::Put(record) => self.identities.apply(&record.name(), Some(record)),
                Change::Delete(name) => self.identities.apply(&name, None),
            }
        }
        Ok(outcome.answer)
    }

    /// Does an operation as an operator; the error is its code.
    pub(super) fn run(&mut self, name: &str, parameters: &[(&str, &str)]) -> Result<Answer, &'static str> {
        self.act(None, name, parameters).map_err(|error| error.code())
    }

    /// The same, which must be done.
    fn done(&mut self, name: &str, parameters: &[(&str, &str)]) -> Answer {
        self.act(None, name, parameters).unwrap_or_else(|error| panic!("{name} {parameters:?}: {error}"))
    }
}

/// The texts under a name in a list.
fn texts(answer: &Answer, list: &str, name: &str) -> Vec<String> {
    let Some(Value::List(members)) = answer.get(list) else { panic!("{list} in {answer:?}") };
    let text = |member: &Value| match member {
        Value::Fields(fields) => fields.text_at(&[name]).unwrap().to_owned(),
        Value::Text(text) => text.clone(),
        other => panic!("{other:?}"),
    };
    members.iter().map(text).collect()
}

#[test]
fn names_are_unique_whatever_their_case() {
    let mut world = World::new();
    let document = ("PolicyDocument", READS);
    let trust = ("AssumeRolePolicyDocument", TRUST);
    for (operation, parameter, more) in [
        ("CreateUser", "UserName", None),
        ("CreateGroup", "GroupName", None),
        ("CreateRole", "RoleName", Some(trust)),
        ("CreatePolicy", "PolicyName", Some(document)),
    ] {
        let with = |name| [Some((parameter, name)), more].into_iter().flatten().collect::<Vec<_>>();
        world.done(operation, &with("Name"));
        assert_eq!(world.run(operation, &with("nAME")), Err("EntityAlreadyExists"), "{operation}");
        world.done(operation, &with("Name2"));
    }
    let found = world.done("GetUser", &[("UserName", "NAME")]);
    assert_eq!(found.text_at(&["User", "UserName"]), Some("Name"), "it keeps its case");
    world.done("UpdateUser", &[("UserName", "name"), ("NewUserName", "NAME")]);
    assert_eq!(
        world.run("UpdateUser", &[("UserName", "name"), ("NewUserName", "name2")]),
        Err("EntityAlreadyExists")
    );
    assert_eq!(texts(&world.done("ListUsers", &[]), "Users", "UserName"), ["NAME", "Name2"]);
}

#[test]
fn what_is_in_use_stays() {
    let mut world = World::new();
    let arn = "arn:aws:iam::100000000000:policy/P";
    world.done("CreatePolicy", &[("PolicyName", "P"), ("PolicyDocument", READS)]);
    world.done("CreateUser", &[("UserName", "u")]);
    world.done("CreateGroup", &[("GroupName", "g")]);
    world.done("CreateRole", &[("RoleName", "r"), ("AssumeRolePolicyDocument", TRUST)]);
    let user = [("UserName", "U")];
    let steps: [(&str, &str, Pairs, Pairs); 4] = [
        ("CreateAccessKey", "DeleteAccessKey", &[], &[("AccessKeyId", "AKIA5")]),
        ("AddUserToGroup", "RemoveUserFromGroup", &[("GroupName", "G")], &[("GroupName", "G")]),
        ("AttachUserPolicy", "DetachUserPolicy", &[("PolicyArn", arn)], &[("PolicyArn", arn)]),
        (
            "PutUserPolicy",
            "DeleteUserPolicy",
            &[("PolicyName", "p"), ("PolicyDocument", READS)],
            &[("PolicyName", "p")],
        ),
    ];
    for (make, unmake, with, without) in steps {
        world.done(make, &[&user, with].concat());
        assert_eq!(world.run("DeleteUser", &user), Err("DeleteConflict"), "{make}");
        match make {
            "AddUserToGroup" => assert_eq!(world.run("DeleteGroup", &[("GroupName", "g")]), Err("DeleteConflict")),
            "AttachUserPolicy" => {
                assert_eq!(world.run("DeletePolicy", &[("PolicyArn", arn)]), Err("DeleteConflict"))
            }
            _ => {}
        }
        world.done(unmake, &[&user, without].concat());
        assert_eq!(world.run(unmake, &[&user, without].concat()), Err("NoSuchEntity"), "{unmake}");
    }
    for (name, kind, word) in [("g", "GroupName", "Group"), ("r", "RoleName", "Role")] {
        let policy = [(kind, name), ("PolicyArn", arn)];
        world.done(&format!("Attach{word}Policy"), &policy);
        assert_eq!(world.run(&format!("Delete{word}"), &[(kind, name)]), Err("DeleteConflict"));
        world.done(&format!("Detach{word}Policy"), &policy);
        world.done(&format!("Delete{word}"), &[(kind, name)]);
    }
    world.done("DeleteUser", &user);
    world.done("DeletePolicy", &[("PolicyArn", arn)]);
}

#[test]
fn a_renamed_user_keeps_what_it_has() {
    let mut world = World::new();
    world.done("CreateGroup", &[("GroupName", "Staff")]);
    world.done("CreateUser", &[("UserName", "alice")]);
    world.done("AddUserToGroup", &[("UserName", "alice"), ("GroupName", "staff")]);
    let key = world.done("CreateAccessKey", &[("UserName", "alice")]);
    let key = key.text_at(&["AccessKey", "AccessKeyId"]).unwrap().to_owned();
    world.done("UpdateUser", &[("UserName", "alice"), ("NewUserName", "Bob"), ("NewPath", "/p/")]);
    world.done("UpdateGroup", &[("GroupName", "STAFF"), ("NewGroupName", "Crew")]);
    world.done("PutGroupPolicy", &[("GroupName", "crew"), ("PolicyName", "p"), ("PolicyDocument", READS)]);
    let KeyLookup::Found(caller) = world.identities.caller(&key) else { panic!("the key is lost") };
    assert_eq!(caller.arn(), "arn:aws:iam::100000000000:user/p/Bob");
    assert_eq!(
        caller.policies.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(),
        ["policy p of group Crew"]
    );
    assert_eq!(world.run("GetUser", &[("UserName", "alice")]), Err("NoSuchEntity"));
    assert_eq!(texts(&world.done("GetGroup", &[("GroupName", "crew")]), "Users", "UserName"), ["Bob"]);
}

#[test]
fn nothing_is_dropped() {
    let mut world = World::new();
    for (name, parameters) in [
        ("CreateUser", &[("UserName", "a"), ("PermissionsBoundary", "arn:aws:iam::aws:policy/X")][..]),
        ("CreateUser", &[("UserName", "a"), ("Tags.member.1.Key", "k"), ("Tags.member.1.Colour", "red")]),
        ("CreateUser", &[("UserName", "a"), ("Tags.member.x.Key", "k")]),
        ("CreateUser", &[("UserName", "a/b")]),
        ("CreateUser", &[]),
        ("ListUsers", &[("MaxItems", "0")]),
        ("ListUsers", &[("PathPrefix", "none")]),
        ("GetAccountSummary", &[("Verbose", "true")]),
        ("UpdateAccessKey", &[("AccessKeyId", "FIRST"), ("Status", "Sleeping")]),
    ] {
        assert_eq!(world.run(name, parameters), Err("ValidationError"), "{name} {parameters:?}");
    }
    assert_eq!(world.run("CreateUsers", &[]), Err("InvalidAction"));
    assert_eq!(world.identities.users(FIRST_ACCOUNT).count(), 0);
    // What only operators may say is nobody else's.
    let policy = [("PolicyDocument", READS)];
    let refused = world.act(Some("FIRST"), "CreateAccessKey", &policy).unwrap_err();
    assert_eq!(refused.code(), "ValidationError");
    world.done("CreateAccessKey", &policy);
}

#[test]
fn policies_have_limits() {
    let mut world = World::new();
    world.done("CreateUser", &[("UserName", "u")]);
    let of_size = |size: usize| {
        let resource = "x".repeat(size - READS.len() + 1);
        READS.replace("\"*\"}", &format!("\"{resource}\"}}")).replace("xxxxxxxxxxxxx", "arn:aws:s3:::")
    };
    let put = |world: &mut World, name, document: &str| {
        world.run("PutUserPolicy", &[("UserName", "u"), ("PolicyName", name), ("PolicyDocument", document)]).err()
    };
    assert_eq!(document_size(&of_size(1_000)), 1_000);
    assert_eq!(put(&mut world, "a", &of_size(1_024)), None);
    assert_eq!(put(&mut world, "b", &of_size(1_025)), Some("LimitExceeded"), "together");
    assert_eq!(put(&mut world, "b", &format!("   \n{}   ", of_size(1_024))), None, "white space does not count");
    assert_eq!(put(&mut world, "b", "{}"), Some("MalformedPolicyDocument"));
    let create = |world: &mut World, size: usize| {
        world.run("CreatePolicy", &[("PolicyName", "p"), ("PolicyDocument", &of_size(size))]).err()
    };
    assert_eq!(create(&mut world, 6_145), Some("LimitExceeded"));
    assert_eq!(create(&mut world, 6_144), None);
}

#[test]
fn versions_are_five_and_one_counts() {
    let mut world = World::new();
    world.done("CreatePolicy", &[("PolicyName", "P"), ("Path", "/a/"), ("PolicyDocument", READS)]);
    let arn = ("PolicyArn", "arn:aws:iam::100000000000:policy/a/P");
    assert_eq!(
        world.run("GetPolicy", &[("PolicyArn", "arn:aws:iam::100000000000:policy/P")]),
        Err("NoSuchEntity")
    );
    for number in 2..=5 {
        let made = world.done("CreatePolicyVersion", &[arn, ("PolicyDocument", READS), ("SetAsDefault", "true")]);
        assert_eq!(made.text_at(&["PolicyVersion", "VersionId"]), Some(&*format!("v{number}")));
    }
    assert_eq!(world.run("CreatePolicyVersion", &[arn, ("PolicyDocument", READS)]), Err("LimitExceeded"));
    assert_eq!(world.run("DeletePolicyVersion", &[arn, ("VersionId", "v5")]), Err("DeleteConflict"));
    world.done("DeletePolicyVersion", &[arn, ("VersionId", "v2")]);
    assert_eq!(world.run("SetDefaultPolicyVersion", &[arn, ("VersionId", "v2")]), Err("NoSuchEntity"));
    let made = world.done("CreatePolicyVersion", &[arn, ("PolicyDocument", READS)]);
    assert_eq!(made.text_at(&["PolicyVersion", "VersionId"]), Some("v6"), "no number is given twice");
    assert_eq!(
        texts(&world.done("ListPolicyVersions", &[arn]), "Versions", "VersionId"),
        ["v6", "v5", "v4", "v3", "v1"]
    );
}

#[test]
fn accounts_are_apart() {
    let mut world = World::new();
    let made = world.done("CreateAccount", &[("AccountName", "Second"), ("Email", "a@example.com")]);
    let id = made.text_at(&["Account", "Id"]).unwrap().to_owned();
    assert_eq!((id.len(), made.text_at(&["Account", "CanonicalId"]).unwrap().len()), (12, 64));
    assert_eq!(world.run("CreateAccount", &[("AccountName", "second")]), Err("EntityAlreadyExists"));
    assert_eq!(
        world.run("CreateAccount", &[("AccountName", "admin")]),
        Err("EntityAlreadyExists"),
        "the first one"
    );
    let same = [("AccountName", "third"), ("Email", "A@EXAMPLE.com")];
    assert_eq!(world.run("CreateAccount", &same), Err("EntityAlreadyExists"));
    world.done("CreateUser", &[("UserName", "u")]);
    assert_eq!(world.run("DeleteAccount", &[]), Err("DeleteConflict"), "the first one stays");

    world.account = id;
    assert_eq!(world.run("GetUser", &[("UserName", "u")]), Err("NoSuchEntity"));
    assert_eq!(world.run("DeleteAccessKey", &[("AccessKeyId", "FIRST")]), Err("NoSuchEntity"));
    world.done("CreateUser", &[("UserName", "u")]);
    world.done("UpdateAccount", &[("AccountName", "Renamed"), ("Email", "")]);
    assert!(world.identities.account_by_email("a@example.com").is_none());
    assert_eq!(texts(&world.done("ListAccounts", &[]), "Accounts", "Name"), ["admin", "Renamed"]);
    assert_eq!(world.run("DeleteAccount", &[]), Err("DeleteConflict"));
    world.done("DeleteUser", &[("UserName", "u")]);
    world.done("DeleteAccount", &[]);
    world.account = FIRST_ACCOUNT.into();
    assert_eq!(world.identities.accounts().count(), 1);
}

#[test]
fn keys_say_by_their_format_who_may_read_them() {
    let mut world = World::new();
    world.done("CreateUser", &[("UserName", "u")]);
    let record = |world: &World, key: &str| world.identities.access_key(key).unwrap().record.clone();
    let created = |world: &mut World, parameters: &[(&str, &str)]| {
        let made = world.done("CreateAccessKey", parameters);
        record(world, made.text_at(&["AccessKey", "AccessKeyId"]).unwrap())
    };
    let root = created(&mut world, &[]);
    assert_eq!((root.format, root.account), (RECORD_FORMAT, None), "it has all rights in any release");
    let of_account = Some(FIRST_ACCOUNT.to_owned());
    for parameters in [&[("UserName", "u")][..], &[("PolicyDocument", READS)]] {
        let key = created(&mut world, parameters);
        assert_eq!((key.format, key.account), (3, of_account.clone()), "{parameters:?}");
    }
    world.done("UpdateAccessKey", &[("AccessKeyId", "FIRST"), ("Status", "Inactive")]);
    let disabled = record(&world, "FIRST");
    assert_eq!((disabled.format, disabled.account), (3, of_account), "earlier releases would let it in");
}

#[test]
fn callers_need_not_name_themselves() {
    let mut world = World::new();
    world.done("CreateUser", &[("UserName", "u")]);
    let key = world.done("CreateAccessKey", &[("UserName", "u")]);
    let key = key.text_at(&["AccessKey", "AccessKeyId"]).unwrap().to_owned();
    let found = world.act(Some(&key), "GetUser", &[]).unwrap();
    assert_eq!(found.text_at(&["User", "UserName"]), Some("u"));
    let listed = world.act(Some(&key), "ListAccessKeys", &[]).unwrap();
    assert_eq!(texts(&listed, "AccessKeyMetadata", "AccessKeyId"), [&*key]);
    let other = [("AccessKeyId", "FIRST")];
    assert_eq!(world.act(Some(&key), "DeleteAccessKey", &other).unwrap_err().code(), "NoSuchEntity", "the root's");
    let root = world.act(Some("FIRST"), "GetUser", &[]).unwrap();
    assert_eq!(root.text_at(&["User", "Arn"]), Some("arn:aws:iam::100000000000:root"));
    let listed = world.act(Some("FIRST"), "ListAccessKeys", &[]).unwrap();
    assert_eq!(texts(&listed, "AccessKeyMetadata", "AccessKeyId"), ["FIRST"]);
}

#[test]
fn every_page_goes_on_where_the_last_ended() {
    let mut world = World::new();
    let names: Vec<String> = (0..25).map(|number| format!("user-{number:02}")).collect();
    for name in &names {
        world.done("CreateUser", &[("UserName", name)]);
    }
    let (mut found, mut marker) = (Vec::new(), None::<String>);
    loop {
        let mut parameters = vec![("MaxItems", "7")];
        parameters.extend(marker.as_deref().map(|marker| ("Marker", marker)));
        let page = world.done("ListUsers", &parameters);
        found.extend(texts(&page, "Users", "UserName"));
        marker = page.text_at(&["Marker"]).map(str::to_owned);
        assert_eq!(page.text_at(&["IsTruncated"]), Some(if marker.is_some() { "true" } else { "false" }));
        if marker.is_none() {
            break;
        }
    }
    assert_eq!(found, names);
}

#[test]
fn subjects_have_the_paths_of_what_is_there() {
    let mut world = World::new();
    world.done(
        "CreateUser",
        &[("UserName", "Alice"), ("Path", "/staff/"), ("Tags.member.1.Key", "team"), ("Tags.member.1.Value", "a")],
    );
    let subject = |name: &str, parameters: &[(&str, &str)]| {
        let context = Context {
            identities: &world.identities,
            account: world.identities.account(FIRST_ACCOUNT).unwrap().clone(),
            caller: None,
            now_ms: 0,
            random: [0; RANDOM_BYTES],
            new_access_key: None,
            last_used: None,
        };
        Operation::find(name).unwrap().subject(&context, &parameters.iter().copied().collect())
    };
    let found = subject("DeleteUser", &[("UserName", "ALICE")]);
    assert_eq!(found.arn, "arn:aws:iam::100000000000:user/staff/Alice");
    assert_eq!(found.tags["team"], "a");
    for (name, parameters, arn) in [
        ("DeleteUser", &[("UserName", "bob")][..], "arn:aws:iam::100000000000:user/bob"),
        ("CreateUser", &[("UserName", "bob"), ("Path", "/x/")], "arn:aws:iam::100000000000:user/x/bob"),
        ("ListUsers", &[("PathPrefix", "/x")], "arn:aws:iam::100000000000:user/x"),
        ("ListRoles", &[], "arn:aws:iam::100000000000:role/"),
        ("CreateAccessKey", &[], "arn:aws:iam::100000000000:root"),
        ("GetPolicy", &[("PolicyArn", "arn:aws:iam::aws:policy/X")], "arn:aws:iam::aws:policy/X"),
        ("GetAccountSummary", &[], "*"),
    ] {
        assert_eq!(subject(name, parameters).arn, arn, "{name}");
    }
    let renamed = |name: &str, parameters: &[(&str, &str)]| subject(name, parameters).renamed_arn;
    let new_name = [("UserName", "alice"), ("NewUserName", "Root")];
    assert_eq!(renamed("UpdateUser", &new_name).as_deref(), Some("arn:aws:iam::100000000000:user/staff/Root"));
    let new_path = [("UserName", "alice"), ("NewPath", "/admin/")];
    assert_eq!(renamed("UpdateUser", &new_path).as_deref(), Some("arn:aws:iam::100000000000:user/admin/Alice"));
    assert_eq!(renamed("UpdateUser", &[("UserName", "alice"), ("NewPath", "/staff/")]), None);
    let attached = subject("AttachUserPolicy", &[("UserName", "Alice"), ("PolicyArn", "arn:x")]);
    assert_eq!(attached.policy_arn.as_deref(), Some("arn:x"));
}

/// Policies of keys name existing users, which count by their ids, and a key keeps its account without a policy.
#[test]
fn keys_have_accounts_and_policies() {
    let mut world = World::new();
    let policy = |principal: &str| {
        format!(
            r#"{{"Version":"2012-10-17","Statement":[{{"Effect":"Allow","Principal":{{"AWS":"arn:aws:iam::{FIRST_ACCOUNT}:{principal}"}},"Action":"kms:*","Resource":"*"}}]}}"#
        )
    };
    let to_ann = policy("user/ann");
    let put = [("KeyId", "project"), ("Policy", to_ann.as_str())];
    assert_eq!(world.run("PutKeyPolicy", &put), Err("MalformedPolicyDocument"), "there is no such user");
    for wrong in [READS, TRUST, "{}"] {
        assert_eq!(
            world.run("PutKeyPolicy", &[("KeyId", "project"), ("Policy", wrong)]),
            Err("MalformedPolicyDocument")
        );
    }
    for operation in ["GetKeyPolicy", "DeleteKeyPolicy"] {
        assert_eq!(world.run(operation, &[("KeyId", "project")]), Err("NoSuchEntity"));
    }
    world.done("CreateUser", &[("UserName", "ann")]);
    world.done("PutKeyPolicy", &put);
    let key = world.identities.kms_key("project").unwrap().clone();
    assert_eq!(key.record.account, FIRST_ACCOUNT);
    assert_eq!(key.record.policy_principals.len(), 1);
    let shown = world.done("GetKeyPolicy", &[("KeyId", "project")]);
    assert_eq!(shown.text_at(&["Policy"]), Some(to_ann.as_str()));
    world.done("DeleteKeyPolicy", &[("KeyId", "project")]);
    let key = world.identities.kms_key("project").unwrap().clone();
    assert!(key.policy.is_none() && key.record.account == FIRST_ACCOUNT);
    assert_eq!(texts(&world.done("ListKeys", &[]), "Keys", "KeyId"), ["project"]);
    world.done("DeleteKey", &[("KeyId", "project")]);
    assert!(world.identities.kms_key("project").is_none());
}

#[test]
fn an_account_with_a_key_stays() {
    let mut world = World::new();
    let made = world.done("CreateAccount", &[("AccountName", "team")]);
    world.account = made.text_at(&["Account", "Id"]).unwrap().to_owned();
    world.done("CreateKey", &[("KeyId", "project")]);
    assert_eq!(world.run("DeleteAccount", &[]), Err("DeleteConflict"));
    world.done("DeleteKey", &[("KeyId", "project")]);
    world.done("DeleteAccount", &[]);
}

#[test]
fn arns_are_told_apart_by_their_case() {
    let mut world = World::new();
    world.done("CreatePolicy", &[("PolicyName", "Strong"), ("Path", "/Ops/"), ("PolicyDocument", READS)]);
    world.done("CreateRole", &[("RoleName", "Admin"), ("Path", "/Ops/"), ("AssumeRolePolicyDocument", TRUST)]);
    let provider = [("Url", "https://idp.example/Good"), ("ClientIDList.member.1", "a")];
    world.done("CreateOpenIDConnectProvider", &provider);
    let account = world.account.clone();
    let identities = &world.identities;
    let arn = |resource: &str| format!("arn:aws:iam::{account}:{resource}");
    assert!(identities.policy_by_arn(&account, &arn("policy/Ops/Strong")).is_some());
    assert!(identities.role_by_arn(&arn("role/Ops/Admin")).is_some());
    assert!(identities.oidc_provider_by_arn(&arn("oidc-provider/idp.example/Good")).is_some());
    for other in ["policy/Ops/strong", "policy/ops/Strong", "policy/Strong", "policy//Ops/Strong"] {
        assert!(identities.policy_by_arn(&account, &arn(other)).is_none(), "{other}");
        assert!(identities.managed_policy(&account, &arn(other)).is_none(), "{other}");
    }
    for other in ["role/Ops/admin", "role/ops/Admin", "role/Admin", "role//Ops/Admin"] {
        assert!(identities.role_by_arn(&arn(other)).is_none(), "{other}");
    }
    for other in ["oidc-provider/idp.example/good", "oidc-provider/IDP.example/Good"] {
        assert!(identities.oidc_provider_by_arn(&arn(other)).is_none(), "{other}");
    }
}

#[test]
fn what_is_made_with_tags_needs_the_right_to_tag() {
    for operation in Operation::all().iter().filter(|operation| operation.name.starts_with("Create")) {
        let actions = operation.actions(true);
        assert_eq!(actions[0], format!("iam:{}", operation.name));
        assert_eq!((actions.len(), operation.actions(false).len()), (2, 1));
    }
    for kind in ["User", "Role", "Policy"] {
        let create = Operation::find(&format!("Create{kind}")).unwrap();
        assert_eq!(
            create.actions(true)[1],
            format!("iam:{}", Operation::find(&format!("Tag{kind}")).unwrap().name)
        );
    }
    assert_eq!(Operation::find("TagUser").unwrap().actions(true), ["iam:TagUser"]);
}
