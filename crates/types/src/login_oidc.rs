//! The OpenID Connect provider for log-ins to the console.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::operators::OperatorRoles;

/// Begins the names of people whom the provider has named. No operator's name has a colon.
pub const OIDC_USER_PREFIX: &str = "oidc:";
/// Largest allowed difference of clocks, in seconds.
pub const OIDC_SKEW_SECONDS_MAX: u64 = 300;
/// Allowed difference of clocks if none is given, in seconds.
pub const OIDC_SKEW_SECONDS_DEFAULT: u64 = 60;

/// The provider, and the roles of its groups.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OidcRecord {
    /// [`crate::records::RECORD_FORMAT`].
    pub format: u32,
    /// Random, and another one after each change. Sessions end with it.
    pub id: String,
    /// The provider, as it calls itself.
    pub issuer: String,
    /// Name of the console at the provider.
    pub client_id: String,
    /// The client's secret; `None`: a public client.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<WrappedClientSecret>,
    /// Requested scopes, separated by spaces.
    pub scopes: String,
    /// The claim with the name of the user.
    pub name_claim: String,
    /// The claim with the groups of the user.
    pub groups_claim: String,
    /// Roles by group. A user without one of these groups cannot log in.
    pub roles: BTreeMap<String, OperatorRoles>,
    /// Consoles that the provider may return browsers to: `https://HOST:PORT`.
    pub console_urls: BTreeSet<String>,
    /// Allowed difference of clocks, in seconds.
    pub skew_seconds: u64,
    /// Certificates of the authorities of the provider, as PEM; empty: those of the system.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub authorities_pem: String,
    /// Unix time of the last change, in milliseconds.
    pub changed_unix_ms: u64,
}

/// The secret of a client: sealed by a key of its own, which the key service wraps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WrappedClientSecret {
    /// Id of the secret, in whose context its key is wrapped.
    pub id: String,
    /// The key, wrapped by the key service.
    pub wrapped_key: String,
    /// The secret and its tag, sealed by AES-256-GCM: hexadecimal.
    pub sealed: String,
    /// Unix time when it was set, in milliseconds.
    pub set_unix_ms: u64,
}

/// Identity of a person at the provider.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OidcIdentity {
    /// The provider's id of that person.
    pub subject: String,
    /// Those of the person's groups that had roles at the log-in.
    pub groups: BTreeSet<String>,
}

impl OidcRecord {
    /// State that a session depends on.
    pub fn stamp(&self) -> String {
        format!("{OIDC_USER_PREFIX}{}", self.id)
    }

    /// Those of these groups that have roles.
    pub fn known_groups<'a>(&self, groups: impl IntoIterator<Item = &'a str>) -> BTreeSet<String> {
        groups.into_iter().filter(|group| self.roles.contains_key(*group)).map(str::to_owned).collect()
    }

    /// Returns the roles of these groups; `None` if none of them has a role.
    pub fn roles_of(&self, groups: &BTreeSet<String>) -> Option<OperatorRoles> {
        let roles = groups.iter().filter_map(|group| self.roles.get(group));
        OperatorRoles::new(roles.flat_map(OperatorRoles::iter))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operators::OperatorRole;

    #[test]
    fn groups_have_the_roles_of_the_mapping_and_no_others() {
        let two = OperatorRoles::new([OperatorRole::Storage, OperatorRole::ReadOnly]).unwrap();
        let roles =
            BTreeMap::from([("disks".to_owned(), two), ("eyes".to_owned(), OperatorRole::ReadOnly.into())]);
        let record = OidcRecord {
            id: "a".into(),
            name_claim: "name".into(),
            groups_claim: "groups".into(),
            roles,
            ..OidcRecord::default()
        };
        let known = record.known_groups(["disks", "eyes", "Disks", "disks ", "admin", "*", ""]);
        assert_eq!(known.iter().collect::<Vec<_>>(), ["disks", "eyes"]);
        assert_eq!(record.roles_of(&known).unwrap().names(), ["read-only", "storage"]);
        assert_eq!(record.roles_of(&record.known_groups(["admin", "DISKS"])), None);
    }
}
