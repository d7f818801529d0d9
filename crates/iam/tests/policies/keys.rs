//! Decisions about keys of the key service.

use std::sync::Arc;

use crate::support::{Request, parse, root, user, with_policy, with_session_policy};
use atoll_iam::{Caller, KeyQuestion, Policy, PolicyKind, decide_key};
use serde_json::{Value, json};

const KEY: &str = "arn:aws:kms:us-east-1:1111-a:key/project";

fn statement(effect: &str, action: &str) -> Value {
    json!({"Version": "2012-10-17", "Statement": [{"Effect": effect, "Action": action, "Resource": KEY}]})
}

fn key_policy(effect: &str, principal: &Value) -> Arc<Policy> {
    let statement = json!({"Effect": effect, "Principal": principal, "Action": "kms:*", "Resource": "*"});
    parse(&json!({"Version": "2012-10-17", "Statement": [statement]}), PolicyKind::Key)
}

fn may(caller: Option<&Caller>, owner: Option<&str>, policy: Option<&Policy>) -> bool {
    let conditions = Request::default();
    let question =
        KeyQuestion { caller, action: "kms:Decrypt", key_arn: KEY, owner, policy, conditions: &conditions };
    decide_key(&question).is_allowed
}

/// Callers of the account of the key and of another: root, user without a right, with it, with a Deny, narrowed to other
/// things, narrowed and still with it.
fn callers(account: &str) -> [Caller; 6] {
    let anna = || user(account, "/", "anna");
    let allowed = || with_policy(anna(), &statement("Allow", "kms:Decrypt"));
    [
        root(account),
        anna(),
        allowed(),
        with_policy(allowed(), &statement("Deny", "kms:*")),
        with_session_policy(allowed(), &statement("Allow", "s3:*")),
        with_session_policy(allowed(), &statement("Allow", "kms:*")),
    ]
}

#[test]
fn who_may_use_a_key() {
    let to = |account: &str| key_policy("Allow", &json!({ "AWS": format!("arn:aws:iam::{account}:root") }));
    let to_anna = key_policy("Allow", &json!({"AWS": "arn:aws:iam::1111-a:user/anna"}));
    let (own, other) = (to("1111-a"), to("1111-b"));
    let (everybody, nobody) = (key_policy("Allow", &json!("*")), key_policy("Deny", &json!("*")));
    let owner = Some("1111-a");
    for (owner, policy, own_account, other_account, stranger) in [
        // Whose account has the key: as without rights of keys, but for a Deny.
        (None, None, [true, true, true, false, true, true], [true, true, true, false, true, true], true),
        (owner, None, [true, true, true, false, true, true], [false; 6], false),
        (owner, Some(&own), [true, false, true, false, false, true], [false; 6], false),
        (owner, Some(&other), [false; 6], [true, false, true, false, false, true], false),
        (owner, Some(&to_anna), [false, true, true, false, false, true], [false; 6], false),
        (
            owner,
            Some(&everybody),
            [true, true, true, false, false, true],
            [true, false, true, false, false, true],
            false,
        ),
        (owner, Some(&nobody), [false; 6], [false; 6], false),
    ] {
        let policy = policy.map(|policy| &**policy);
        for (account, expected) in [("a", own_account), ("b", other_account)] {
            let found = callers(account).map(|caller| may(Some(&caller), owner, policy));
            assert_eq!(found, expected, "owner {owner:?}, account {account}, policy {policy:?}");
        }
        assert_eq!(may(None, owner, policy), stranger, "owner {owner:?}, policy {policy:?}");
    }
}
