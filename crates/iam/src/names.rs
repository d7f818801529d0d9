//! Names of actions and condition keys in new policies. A Deny for an unknown action or key never matches, so a
//! policy with a misspelled name protects nothing: it is refused when it is written. Policies that were stored
//! before are read all the same, and an unknown key of theirs is absent.

mod lists;

use lists::{
    AWS_KEYS, IAM_ACTIONS, IAM_KEYS, KMS_ACTIONS, KMS_KEYS, OTHER_SERVICES, S3_ACTIONS, S3_KEYS, SAML_KEYS,
    STS_ACTIONS, STS_KEYS,
};

use crate::context::Key;
use crate::fault::Fault;
use crate::pattern;
use crate::policy_kind::PolicyKind;

/// Families of keys: the part behind the slash is the writer's.
const FAMILIES: [&str; 9] = [
    "aws:principaltag",
    "aws:requesttag",
    "aws:resourcetag",
    "iam:resourcetag",
    "s3:accesspointtag",
    "s3:buckettag",
    "s3:existingobjecttag",
    "s3:requestobjecttag",
    "sts:requestcontext",
];
/// Services whose keys are listed here.
const OWN_SERVICES: [&str; 6] = ["aws", "iam", "kms", "s3", "saml", "sts"];
/// A pair of the encryption context; its name follows, whose case does not count.
const ENCRYPTION_CONTEXT: &str = "encryptioncontext:";

/// Refuses the names of a statement that are not known. `actions` are as they are written.
pub(crate) fn check<'a>(
    mut keys: impl Iterator<Item = &'a Key>,
    actions: &[&str],
    kind: PolicyKind,
) -> Result<(), Fault> {
    actions.iter().try_for_each(|action| check_action(action, kind))?;
    let is_elsewhere = !actions.is_empty() && actions.iter().all(|action| is_of_other_service(action));
    let unknown = keys.find(|key| !is_known_key(&key.name, is_elsewhere));
    match unknown {
        None => Ok(()),
        Some(key) => Err(Fault::new(
            format!("there is no condition key \"{}\"", key.name),
            "Correct its spelling: a condition on a key that no request has would never hold",
        )),
    }
}

fn check_action(action: &str, kind: PolicyKind) -> Result<(), Fault> {
    let Some((service, name)) = action.split_once(':') else { return Ok(()) };
    let is = |expected: &str| service.eq_ignore_ascii_case(expected);
    let of_kind = match kind {
        PolicyKind::Resource => Some("s3"),
        PolicyKind::Trust => Some("sts"),
        PolicyKind::Key => Some("kms"),
        PolicyKind::Identity | PolicyKind::Session => None,
    };
    if let Some(expected) = of_kind.filter(|expected| service != "*" && !is(expected)) {
        return Err(Fault::new(
            format!("\"{action}\" is no action of this kind of policy"),
            format!("Name actions of {expected}: others have no effect here"),
        ));
    }
    let lists: &[&[&str]] = match service {
        "*" => &[S3_ACTIONS, IAM_ACTIONS, STS_ACTIONS, KMS_ACTIONS],
        _ if is("s3") => &[S3_ACTIONS],
        _ if is("iam") => &[IAM_ACTIONS],
        _ if is("sts") => &[STS_ACTIONS],
        _ if is("kms") => &[KMS_ACTIONS],
        _ if is_other_service(service) => return Ok(()),
        _ => return Err(Fault::new(format!("there is no service \"{service}\""), "Correct its spelling")),
    };
    let pattern = pattern::compile(name);
    let is_known = |known: &&str| pattern::matches_compiled_ignore_case(&pattern, known);
    if lists.iter().copied().flatten().any(is_known) {
        return Ok(());
    }
    Err(Fault::new(
        format!("there is no action \"{action}\""),
        "Correct its spelling: AWS's \"Actions, resources, and condition keys\" lists all",
    ))
}

fn is_other_service(service: &str) -> bool {
    OTHER_SERVICES.iter().any(|known| known.eq_ignore_ascii_case(service))
}

fn is_of_other_service(action: &str) -> bool {
    action.split_once(':').is_some_and(|(service, _)| is_other_service(service))
}

/// Returns true if AWS documents a key. `is_elsewhere` says that the statement is about services that are not
/// here.
fn is_known_key(name: &str, is_elsewhere: bool) -> bool {
    if let Some((family, rest)) = name.split_once('/')
        && FAMILIES.contains(&family)
    {
        return !rest.is_empty();
    }
    let Some((first, rest)) = name.split_once(':') else { return false };
    let (service, key) = match OWN_SERVICES.contains(&first) {
        true => (first, rest),
        false => name.rsplit_once(':').unwrap_or((first, rest)),
    };
    match service {
        "aws" => AWS_KEYS.contains(&key),
        "s3" => S3_KEYS.contains(&key),
        "iam" => IAM_KEYS.contains(&key),
        "sts" => STS_KEYS.contains(&key),
        "kms" => {
            let pair = key.strip_prefix(ENCRYPTION_CONTEXT);
            KMS_KEYS.contains(&key) || pair.is_some_and(|name| !name.is_empty())
        }
        "saml" => SAML_KEYS.contains(&key),
        // A claim of a provider of tokens, which is named by its URL without the scheme.
        _ if service.contains(['.', '/', ':']) || service == "localhost" => !key.is_empty(),
        _ => is_elsewhere && is_other_service(service),
    }
}

#[cfg(test)]
mod tests {
    use super::lists::*;
    use crate::{Policy, PolicyKind};

    fn said(kind: PolicyKind, effect: &str, action: &str, key: Option<&str>) -> Result<(), String> {
        let mut statement = serde_json::json!({ "Effect": effect, "Action": action });
        if kind != PolicyKind::Trust {
            statement["Resource"] = "*".into();
        }
        if matches!(kind, PolicyKind::Trust | PolicyKind::Resource | PolicyKind::Key) {
            statement["Principal"] = "*".into();
        }
        if let Some(key) = key {
            statement["Condition"] = serde_json::json!({ "StringEquals": { key: "x" } });
        }
        let document = serde_json::json!({ "Version": "2012-10-17", "Statement": statement }).to_string();
        assert!(Policy::parse(&document, kind).is_ok(), "what was stored is read: {document}");
        Policy::parse_new(&document, kind).map(drop).map_err(|error| error.to_string())
    }

    const KINDS: [PolicyKind; 2] = [PolicyKind::Identity, PolicyKind::Session];

    #[test]
    fn documented_actions_are_known() {
        for (service, names) in
            [("s3", S3_ACTIONS), ("iam", IAM_ACTIONS), ("sts", STS_ACTIONS), ("kms", KMS_ACTIONS)]
        {
            for name in names {
                for action in [format!("{service}:{name}"), format!("{service}:{}*", &name[..name.len() / 2])] {
                    for kind in KINDS {
                        assert_eq!(said(kind, "Deny", &action, None), Ok(()), "{action}");
                        assert_eq!(
                            said(kind, "Deny", &action.to_ascii_uppercase().replace("S3:", "s3:"), None),
                            Ok(())
                        );
                    }
                }
                let wrong = format!("{service}:{name}x");
                assert!(said(PolicyKind::Identity, "Deny", &wrong, None).is_err(), "{wrong}");
            }
        }
        for operation in crate::operations::Operation::all().iter().filter(|operation| !operation.is_of_operators)
        {
            assert!(IAM_ACTIONS.contains(&operation.name), "{}", operation.name);
        }
    }

    #[test]
    fn what_is_misspelled_is_refused() {
        for action in [
            "s3:GetObjct",
            "s3:Get?bject?x*",
            "s3:Frobnicate*",
            "iam:CreateUsers",
            "sts:Assume",
            "s33:*",
            "*:Frob*",
        ] {
            for effect in ["Allow", "Deny"] {
                for kind in KINDS {
                    assert!(said(kind, effect, action, None).is_err(), "{effect} {action}");
                }
            }
        }
        assert!(said(PolicyKind::Resource, "Deny", "s3:GetObjct", None).is_err());
        assert!(said(PolicyKind::Resource, "Deny", "iam:GetUser", None).is_err(), "of no effect in a bucket");
        assert!(said(PolicyKind::Resource, "Deny", "*", None).is_ok());
        assert!(said(PolicyKind::Trust, "Allow", "s3:GetObject", None).is_err());
        assert!(said(PolicyKind::Trust, "Allow", "sts:AssumeRole*", None).is_ok());
        for key in [
            "aws:SourceIpp",
            "s3:prefx",
            "s3:x-amz-foo",
            "aws:PrincipalTag",
            "aws:PrincipalTag/",
            "ec2:Region",
            "x:y",
        ] {
            for kind in KINDS {
                assert!(said(kind, "Deny", "s3:GetObject", Some(key)).is_err(), "{key}");
            }
            assert!(said(PolicyKind::Resource, "Deny", "s3:GetObject", Some(key)).is_err(), "{key}");
        }
    }

    #[test]
    fn documented_keys_are_known() {
        for (service, keys) in
            [("aws", AWS_KEYS), ("s3", S3_KEYS), ("iam", IAM_KEYS), ("sts", STS_KEYS), ("saml", SAML_KEYS)]
        {
            for key in keys {
                let key = format!("{service}:{key}");
                assert_eq!(said(PolicyKind::Resource, "Deny", "s3:GetObject", Some(&key)), Ok(()), "{key}");
                let upper = key.to_ascii_uppercase();
                assert_eq!(said(PolicyKind::Identity, "Deny", "s3:*", Some(&upper)), Ok(()), "{key}");
                assert_eq!(said(PolicyKind::Identity, "Allow", "s3:*", Some(&key)), Ok(()), "{key}");
            }
        }
        for key in
            ["AWS:PrincipalTag/Team", "s3:ExistingObjectTag/a b", "s3:RequestObjectTag/x/y", "aws:RequestTag/x"]
        {
            assert_eq!(said(PolicyKind::Identity, "Deny", "s3:*", Some(key)), Ok(()), "{key}");
        }
        for key in
            ["accounts.google.com:aud", "token.actions.githubusercontent.com:sub", "localhost:8080/realms/a:azp"]
        {
            let action = "sts:AssumeRoleWithWebIdentity";
            assert_eq!(said(PolicyKind::Trust, "Allow", action, Some(key)), Ok(()), "{key}");
        }
    }

    /// Policies that people bring along name services that are not here.
    #[test]
    fn other_services_pass_where_they_do_no_harm() {
        for action in ["ec2:*", "cloudwatch:PutMetricData"] {
            assert_eq!(said(PolicyKind::Identity, "Allow", action, None), Ok(()), "{action}");
        }
        assert_eq!(said(PolicyKind::Identity, "Deny", "ec2:*", Some("ec2:Region")), Ok(()));
    }

    /// Keys of KMS are only accepted if uses of keys have them: a condition on another would not hold, or hold
    /// always.
    #[test]
    fn keys_of_kms_are_those_that_uses_have() {
        for key in
            ["kms:ViaService", "kms:CallerAccount", "kms:EncryptionContextKeys", "kms:EncryptionContext:Team"]
        {
            for kind in [PolicyKind::Identity, PolicyKind::Session, PolicyKind::Key] {
                for effect in ["Allow", "Deny"] {
                    assert_eq!(said(kind, effect, "kms:Decrypt", Some(key)), Ok(()), "{key}");
                }
            }
        }
        for key in
            ["kms:GrantIsForAWSResource", "kms:EncryptionContext:", "kms:EncryptionContext", "kms:x:y", "s3:x:y"]
        {
            for effect in ["Allow", "Deny"] {
                assert!(said(PolicyKind::Identity, effect, "kms:*", Some(key)).is_err(), "{key}");
                assert!(said(PolicyKind::Key, effect, "kms:*", Some(key)).is_err(), "{key}");
            }
        }
        assert_eq!(said(PolicyKind::Key, "Allow", "kms:GenerateDataKey*", None), Ok(()));
        assert!(said(PolicyKind::Key, "Allow", "s3:GetObject", None).is_err(), "of no effect on a key");
        assert!(said(PolicyKind::Resource, "Deny", "kms:Decrypt", None).is_err(), "of no effect in a bucket");
    }

    #[test]
    fn lists_have_each_name_once() {
        for list in [
            S3_ACTIONS,
            IAM_ACTIONS,
            STS_ACTIONS,
            AWS_KEYS,
            S3_KEYS,
            IAM_KEYS,
            STS_KEYS,
            SAML_KEYS,
            KMS_ACTIONS,
            KMS_KEYS,
            OTHER_SERVICES,
        ] {
            assert!(list.is_sorted(), "{list:?}");
            assert!(list.windows(2).all(|pair| pair[0] != pair[1]), "{list:?}");
        }
    }
}
