//! Person who has logged in: a name for logs, and groups with roles.

use atoll_credentials::Claims;
use atoll_types::login_oidc::{OIDC_USER_PREFIX, OidcIdentity, OidcRecord};
use serde_json::Value;

const NAME_CHARACTERS_MAX: usize = 64;

/// A person whom the provider has named.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Person {
    /// With the prefix that no operator's name has.
    pub user: String,
    pub identity: OidcIdentity,
}

impl Person {
    /// Returns the bearer of these claims, or the reason why there is none.
    pub fn of(claims: &Claims, record: &OidcRecord) -> Result<Person, String> {
        let claim = &record.name_claim;
        let name = match &claim[..] {
            "sub" => Some(&claims.sub[..]),
            claim => claims.others.get(claim).and_then(Value::as_str),
        };
        let name = name.filter(|name| !name.is_empty());
        let name = name.ok_or_else(|| format!("the token has no text in '{claim}' (--name-claim)"))?;
        if claim == "email" && claims.others.get("email_verified").is_some_and(|is| *is != Value::Bool(true)) {
            return Err("the provider has not verified the user's mail address".into());
        }
        let groups = claims.others.get(&record.groups_claim);
        let groups: Vec<&str> = match groups {
            Some(Value::String(group)) => vec![group],
            Some(Value::Array(groups)) => groups.iter().filter_map(Value::as_str).collect(),
            _ => return Err(format!("the token has no groups in '{}' (--groups-claim)", record.groups_claim)),
        };
        let groups = record.known_groups(groups);
        Ok(Person {
            user: format!("{OIDC_USER_PREFIX}{}", fit(name)),
            identity: OidcIdentity { subject: claims.sub.clone(), groups },
        })
    }
}

/// Names are in logs and in headers.
fn fit(name: &str) -> String {
    let is_fit = |c: char| c.is_ascii_alphanumeric() || "-_.@+".contains(c);
    name.chars().take(NAME_CHARACTERS_MAX).map(|c| if is_fit(c) { c } else { '_' }).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use atoll_types::operators::OperatorRole;
    use serde_json::json;

    use super::*;

    fn person(name_claim: &str, mut claims: Value) -> Result<Person, String> {
        let record = OidcRecord {
            id: "a".into(),
            name_claim: name_claim.into(),
            groups_claim: "groups".into(),
            roles: BTreeMap::from([("disks".to_owned(), OperatorRole::Storage.into())]),
            ..OidcRecord::default()
        };
        for (name, value) in [("sub", json!("7")), ("aud", json!("atoll")), ("iat", json!(1))] {
            claims[name] = value;
        }
        Person::of(&serde_json::from_value(claims).unwrap(), &record)
    }

    #[test]
    fn groups_without_roles_are_not_kept() {
        let found = person("name", json!({"name": "ann", "groups": ["disks", "all", 7, null]})).unwrap();
        assert_eq!((&found.user[..], &found.identity.subject[..]), ("oidc:ann", "7"));
        assert_eq!(found.identity.groups.into_iter().collect::<Vec<_>>(), ["disks"]);
        let one = person("sub", json!({"groups": "disks"})).unwrap();
        assert_eq!((&one.user[..], one.identity.groups.len()), ("oidc:7", 1));
        assert!(person("name", json!({"name": "ann", "groups": ["all"]})).unwrap().identity.groups.is_empty());
        for wrong in [json!({"name": "ann"}), json!({"groups": ["disks"]}), json!({"name": 7, "groups": []})] {
            assert!(person("name", wrong.clone()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn names_fit_into_logs_and_are_no_operators() {
        let named = |name: &str| person("name", json!({"name": name, "groups": []})).unwrap().user;
        assert_eq!(named("a:b\r\nc d\u{e9}"), "oidc:a_b__c_d_");
        assert_eq!(named(&"x".repeat(500)).len(), "oidc:".len() + NAME_CHARACTERS_MAX);
        let unverified = json!({"email": "ann@example.org", "email_verified": false, "groups": []});
        assert!(person("email", unverified).is_err());
        assert!(person("email", json!({"email": "ann@example.org", "groups": []})).is_ok());
    }
}
