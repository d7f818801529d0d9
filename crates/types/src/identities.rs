//! Identities that sign S3 requests, as records of cluster state: accounts, users, groups, roles, managed
//! policies, OIDC providers and access keys. Policies are kept as the JSON that was given.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

/// The format of an access key that belongs to a user, or to an account other than the first. Earlier
/// releases give every key all rights, so they must not read such a record.
pub const ACCESS_KEY_FORMAT_OF_ACCOUNTS: u32 = 3;

/// The account of the access key that `atoll up` makes, and of keys without an account.
pub const FIRST_ACCOUNT: &str = "100000000000";

/// An account owns buckets. Its root keys may do everything with them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccountRecord {
    /// [`crate::records::RECORD_FORMAT`].
    pub format: u32,
    /// Twelve digits; stands in ARNs.
    pub id: String,
    /// Names the account in ACLs and as the owner of buckets. That of the first account is its first
    /// access key, which buckets of earlier releases name as their owner.
    pub canonical_id: String,
    /// For people; unique.
    pub name: String,
    /// Grants of ACLs may name it; unique.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub email: Option<String>,
    /// Unix time of creation, in milliseconds.
    pub created_unix_ms: u64,
}

/// Policies of a user, group or role.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachedPolicies {
    /// Policies of its own: documents by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub inline: BTreeMap<String, String>,
    /// ARNs of managed policies.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub managed: BTreeSet<String>,
}

/// A user of an account.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserRecord {
    /// [`crate::records::RECORD_FORMAT`].
    pub format: u32,
    /// Id of its account.
    pub account: String,
    /// Unique in the account, whatever the case of its letters.
    pub name: String,
    /// Begins and ends with a slash.
    pub path: String,
    /// `AIDA` and 17 characters; never given out again.
    pub id: String,
    /// Its policies beside those of its groups.
    #[serde(default)]
    pub policies: AttachedPolicies,
    /// Names of its groups.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub groups: BTreeSet<String>,
    /// Tags, for `aws:PrincipalTag`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tags: BTreeMap<String, String>,
    /// Unix time of creation, in milliseconds.
    pub created_unix_ms: u64,
}

/// A group of users of an account.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupRecord {
    /// [`crate::records::RECORD_FORMAT`].
    pub format: u32,
    /// Id of its account.
    pub account: String,
    /// Unique in the account, whatever the case of its letters.
    pub name: String,
    /// Begins and ends with a slash.
    pub path: String,
    /// `AGPA` and 17 characters.
    pub id: String,
    /// Policies for its users.
    #[serde(default)]
    pub policies: AttachedPolicies,
    /// Unix time of creation, in milliseconds.
    pub created_unix_ms: u64,
}

/// A role: rights of the principals that assume it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoleRecord {
    /// [`crate::records::RECORD_FORMAT`].
    pub format: u32,
    /// Id of its account.
    pub account: String,
    /// Unique in the account, whatever the case of its letters.
    pub name: String,
    /// Begins and ends with a slash.
    pub path: String,
    /// `AROA` and 17 characters.
    pub id: String,
    /// For people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// The policy that names the principals that may assume it.
    pub trust_policy: String,
    /// The ids of the users and roles that it names, as in [`crate::access::BucketAccess`].
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub trust_principals: BTreeMap<String, String>,
    /// Longest session, in seconds.
    pub session_seconds_max: u32,
    /// Policies for its sessions.
    #[serde(default)]
    pub policies: AttachedPolicies,
    /// Tags.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tags: BTreeMap<String, String>,
    /// Unix time of creation, in milliseconds.
    pub created_unix_ms: u64,
}

/// A policy that can be attached to users, groups and roles of its account.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManagedPolicyRecord {
    /// [`crate::records::RECORD_FORMAT`].
    pub format: u32,
    /// Id of its account.
    pub account: String,
    /// Unique in the account, whatever the case of its letters.
    pub name: String,
    /// Begins and ends with a slash.
    pub path: String,
    /// `ANPA` and 17 characters.
    pub id: String,
    /// For people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// Its versions by number; five at most.
    pub versions: BTreeMap<u32, PolicyVersion>,
    /// The version that counts.
    pub default_version: u32,
    /// Number of the next version.
    pub next_version: u32,
    /// Tags.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tags: BTreeMap<String, String>,
    /// Unix time of creation, in milliseconds.
    pub created_unix_ms: u64,
}

/// One version of a managed policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyVersion {
    /// JSON.
    pub document: String,
    /// Unix time of creation, in milliseconds.
    pub created_unix_ms: u64,
}

/// An issuer of OpenID Connect tokens, with which roles can be assumed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OidcProviderRecord {
    /// [`crate::records::RECORD_FORMAT`].
    pub format: u32,
    /// Id of its account.
    pub account: String,
    /// The issuer: an `https` or, for tests on loopback, `http` URL.
    pub url: String,
    /// Audiences whose tokens are taken.
    #[serde(default)]
    pub client_ids: BTreeSet<String>,
    /// SHA-1 of certificates of the issuer, in hexadecimal; stored and returned, not checked.
    #[serde(default)]
    pub thumbprints: Vec<String>,
    /// Unix time of creation, in milliseconds.
    pub created_unix_ms: u64,
}

/// A pair of keys with which requests are signed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccessKeyRecord {
    /// [`crate::records::RECORD_FORMAT`], or [`ACCESS_KEY_FORMAT_OF_ACCOUNTS`] if it has an account.
    pub format: u32,
    /// The public half of the credentials.
    pub access_key: String,
    /// The secret half, wrapped by the key-management service.
    pub wrapped_secret_key: String,
    /// For people.
    pub display_name: String,
    /// Unix time of creation, in milliseconds.
    pub created_unix_ms: u64,
    /// Id of its account; `None` for the first one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
    /// The user whose key it is; `None` for the account's root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Requests signed with it are refused.
    #[serde(default, skip_serializing_if = "is_false")]
    pub is_disabled: bool,
    /// The policy of a service account: the key has the rights that both its owner and this policy allow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
}

fn is_false(flag: &bool) -> bool {
    !flag
}

impl AccessKeyRecord {
    /// Id of its account.
    pub fn account(&self) -> &str {
        self.account.as_deref().unwrap_or(FIRST_ACCOUNT)
    }

    /// Returns true if it has all rights in the first account, or would have if it were not disabled: all keys of
    /// earlier releases do.
    pub fn is_of_first_root(&self) -> bool {
        self.account() == FIRST_ACCOUNT && self.user.is_none() && self.policy.is_none()
    }
}

/// Owner of a key of the key service, and its users for SSE-KMS. A key without such a record is every account's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KmsKeyRecord {
    /// [`crate::records::RECORD_FORMAT`].
    pub format: u32,
    /// Its name in the key service.
    pub name: String,
    /// Id of the account that it belongs to.
    pub account: String,
    /// The key policy; without one the users of the account may use it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// The ids of the users and roles that the policy names, as in [`crate::access::BucketAccess`].
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub policy_principals: BTreeMap<String, String>,
}

/// When an access key was last used, as gateways note it from time to time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastUsedRecord {
    /// [`crate::records::RECORD_FORMAT`].
    pub format: u32,
    /// Unix time of the use, in milliseconds.
    pub used_unix_ms: u64,
    /// The service that the request was signed for: `s3`, `iam` or `sts`.
    pub service: String,
    /// The region that the request was signed for.
    pub region: String,
}

/// The key under which temporary credentials are made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StsKeyRecord {
    /// [`crate::records::RECORD_FORMAT`].
    pub format: u32,
    /// The key, wrapped by the key-management service.
    pub wrapped_key: String,
    /// Unix time when it was made, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub made_unix_ms: Option<u64>,
    /// The key before it, for the sessions that began under that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous: Option<PreviousStsKey>,
}

/// A key of temporary credentials that has a successor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PreviousStsKey {
    /// The key, wrapped by the key-management service.
    pub wrapped_key: String,
    /// Unix time of the end of the last session under it, in milliseconds.
    pub until_unix_ms: u64,
}

/// Raised by every change of identities, so that changes follow each other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdentitiesRevision {
    /// [`crate::records::RECORD_FORMAT`].
    pub format: u32,
    /// How many changes there were.
    pub changes: u64,
}
