//! ARNs of an account's resources.

/// The ARN of a managed policy, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyArn<'a> {
    /// Id of its account, or `aws`.
    pub account: &'a str,
    /// Begins and ends with a slash.
    pub path: &'a str,
    /// Its name.
    pub name: &'a str,
}

/// Takes the ARN of a managed policy apart.
pub fn parse_policy_arn(arn: &str) -> Option<PolicyArn<'_>> {
    let (account, resource) = arn.strip_prefix("arn:aws:iam::")?.split_once(':')?;
    let (path, name) = split_resource(resource, "policy")?;
    Some(PolicyArn { account, path, name })
}

/// Account, path and name of a role's ARN.
pub fn parse_role_arn(arn: &str) -> Option<(&str, &str, &str)> {
    let (account, resource) = arn.strip_prefix("arn:aws:iam::")?.split_once(':')?;
    let (path, name) = split_resource(resource, "role")?;
    Some((account, path, name))
}

/// Account and id of the ARN of an issuer of OpenID Connect tokens.
pub fn parse_oidc_provider_arn(arn: &str) -> Option<(&str, &str)> {
    let (account, resource) = arn.strip_prefix("arn:aws:iam::")?.split_once(':')?;
    let id = resource.strip_prefix("oidc-provider/")?;
    (!id.is_empty()).then_some((account, id))
}

/// Path and name of `kind/path/name`.
fn split_resource<'a>(resource: &'a str, kind: &str) -> Option<(&'a str, &'a str)> {
    let rest = resource.strip_prefix(kind)?;
    let slash = rest.rfind('/')?;
    let (path, name) = rest.split_at(slash + 1);
    (path.starts_with('/') && !name.is_empty()).then_some((path, name))
}

/// The ARN of a user, group, role or policy of an account. `path` begins and ends with a slash.
pub fn entity_arn(account: &str, kind: &str, path: &str, name: &str) -> String {
    format!("arn:aws:iam::{account}:{kind}{path}{name}")
}

/// The ARN of a key of the key service.
pub fn kms_key_arn(region: &str, account: &str, name: &str) -> String {
    format!("arn:aws:kms:{region}:{account}:key/{name}")
}

/// Account and name of the ARN of a key, or of an alias, which is another word for it here.
pub fn parse_kms_key_arn(arn: &str) -> Option<(&str, &str)> {
    let (_region, rest) = arn.strip_prefix("arn:aws:kms:")?.split_once(':')?;
    let (account, resource) = rest.split_once(':')?;
    let name = resource.strip_prefix("key/").or_else(|| resource.strip_prefix("alias/"))?;
    (!name.is_empty()).then_some((account, name))
}

/// The ARN of an issuer of OpenID Connect tokens.
pub fn oidc_provider_arn(account: &str, url: &str) -> String {
    format!("arn:aws:iam::{account}:oidc-provider/{}", crate::identities::provider_id(url))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arns_come_apart() {
        let parsed = parse_policy_arn("arn:aws:iam::1:policy/team/a/Read").unwrap();
        assert_eq!(parsed, PolicyArn { account: "1", path: "/team/a/", name: "Read" });
        assert_eq!(parse_policy_arn("arn:aws:iam::aws:policy/X").unwrap().path, "/");
        assert_eq!(parse_role_arn("arn:aws:iam::1:role/R"), Some(("1", "/", "R")));
        assert_eq!(parse_role_arn(&entity_arn("1", "role", "/p/", "R")), Some(("1", "/p/", "R")));
        let arn = oidc_provider_arn("1", "https://issuer.example/x");
        assert_eq!(parse_oidc_provider_arn(&arn), Some(("1", "issuer.example/x")));
        let key = kms_key_arn("us-east-1", "1", "project-x");
        assert_eq!(parse_kms_key_arn(&key), Some(("1", "project-x")));
        assert_eq!(parse_kms_key_arn("arn:aws:kms:eu-west-1:2:alias/a"), Some(("2", "a")));
        for wrong in ["project-x", "alias/a", "arn:aws:kms:r:1:key/", "arn:aws:kms:r:1", "arn:aws:s3:::b"] {
            assert_eq!(parse_kms_key_arn(wrong), None, "{wrong}");
        }
        for wrong in
            ["", "arn:aws:iam::1:policy", "arn:aws:iam::1:policy/", "arn:aws:iam::1:policyX/a", "arn:aws:s3:::b"]
        {
            assert_eq!(parse_policy_arn(wrong), None, "{wrong}");
        }
    }
}
