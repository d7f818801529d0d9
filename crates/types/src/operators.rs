//! Operators of the console, their roles, and the settings of sessions.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::login_oidc::OidcIdentity;

/// Role of an operator. The table of calls (`openapi.json` of the console) says which of these may make a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum OperatorRole {
    /// Look at everything but secrets.
    #[serde(rename = "read-only")]
    ReadOnly,
    /// Run pools, OSDs, hosts, and images without reading them.
    #[serde(rename = "storage")]
    Storage,
    /// Manage accounts, users, policies and access keys of S3.
    #[serde(rename = "s3-accounts")]
    S3Accounts,
    /// Manage operators, sessions, tokens, keys and the protection of data.
    #[serde(rename = "security")]
    Security,
    /// All of it.
    #[serde(rename = "admin")]
    Admin,
}

impl OperatorRole {
    /// All of them.
    pub const ALL: [OperatorRole; 5] = [
        OperatorRole::ReadOnly,
        OperatorRole::Storage,
        OperatorRole::S3Accounts,
        OperatorRole::Security,
        OperatorRole::Admin,
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            OperatorRole::ReadOnly => "read-only",
            OperatorRole::Storage => "storage",
            OperatorRole::S3Accounts => "s3-accounts",
            OperatorRole::Security => "security",
            OperatorRole::Admin => "admin",
        }
    }

    /// The role of this name.
    pub fn find(name: &str) -> Option<OperatorRole> {
        OperatorRole::ALL.into_iter().find(|role| role.name() == name)
    }
}

/// The roles of an operator: at least one. In a record, one role is a text and several are a list, so that a record of
/// an earlier release reads the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "OneOrMore", into = "OneOrMore")]
pub struct OperatorRoles(BTreeSet<OperatorRole>);

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum OneOrMore {
    One(OperatorRole),
    More(BTreeSet<OperatorRole>),
}

impl TryFrom<OneOrMore> for OperatorRoles {
    type Error = &'static str;

    fn try_from(read: OneOrMore) -> Result<Self, Self::Error> {
        match read {
            OneOrMore::One(role) => Ok(role.into()),
            OneOrMore::More(roles) => OperatorRoles::new(roles).ok_or("an operator has a role"),
        }
    }
}

impl From<OperatorRoles> for OneOrMore {
    fn from(roles: OperatorRoles) -> Self {
        match roles.0.iter().next() {
            Some(only) if roles.0.len() == 1 => OneOrMore::One(*only),
            _ => OneOrMore::More(roles.0),
        }
    }
}

impl From<OperatorRole> for OperatorRoles {
    fn from(role: OperatorRole) -> Self {
        OperatorRoles(BTreeSet::from([role]))
    }
}

impl OperatorRoles {
    /// These roles; none if there is none.
    pub fn new(roles: impl IntoIterator<Item = OperatorRole>) -> Option<Self> {
        let roles: BTreeSet<OperatorRole> = roles.into_iter().collect();
        (!roles.is_empty()).then_some(OperatorRoles(roles))
    }

    /// Returns whether a role is among them.
    pub fn has(&self, role: OperatorRole) -> bool {
        self.0.contains(&role)
    }

    /// All of them, in their order.
    pub fn iter(&self) -> impl Iterator<Item = OperatorRole> {
        self.0.iter().copied()
    }

    /// Their names.
    pub fn names(&self) -> Vec<&'static str> {
        self.iter().map(OperatorRole::name).collect()
    }
}

impl std::fmt::Display for OperatorRoles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.names().join(","))
    }
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// A user that may log in to the console.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperatorRecord {
    /// [`crate::records::RECORD_FORMAT`].
    pub format: u32,
    /// Roles of the operator.
    pub role: OperatorRoles,
    /// Salt of the password's derivation, 16 random bytes in hexadecimal.
    pub salt: String,
    /// Argon2id (RFC 9106; 19 MiB, 2 passes, 1 lane) of the password: 32 bytes in hexadecimal.
    pub password_argon2id: String,
    /// Unix time of creation, in milliseconds.
    pub created_unix_ms: u64,
    /// Unix time when the password was set, in milliseconds; `None`: at the creation, or by an earlier release.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password_unix_ms: Option<u64>,
    /// Raised to end all sessions of the operator.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub generation: u64,
    /// The second factor, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub totp: Option<TotpRecord>,
}

/// One-time passwords of an operator (RFC 6238).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TotpRecord {
    /// Id of the secret, in whose context it is wrapped.
    pub id: String,
    /// The secret, wrapped by the key service.
    pub wrapped_secret: String,
    /// A log-in needs a code. Until then the secret is only offered.
    pub is_confirmed: bool,
    /// No code of this step or an earlier one counts any more.
    pub last_step: u64,
    /// Digests of the recovery codes that are left.
    pub recovery_sha256: Vec<String>,
    /// Wrong codes since the last right one.
    pub wrong: u32,
    /// Unix time of the last wrong one, in milliseconds.
    pub wrong_unix_ms: u64,
    /// Unix time when the secret was made, in milliseconds; 0: by an earlier release.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub enrolled_unix_ms: u64,
}

impl OperatorRecord {
    /// Returns whether a log-in needs a code.
    pub fn has_second_factor(&self) -> bool {
        self.totp.as_ref().is_some_and(|totp| totp.is_confirmed)
    }

    /// State that a session depends on: it ends with another role, password or generation. It is no secret.
    pub fn stamp(&self) -> String {
        format!("{}/{}", self.proof(), self.generation)
    }

    /// State that changes with the role, with the password, and when the operator is made again. It is no secret.
    pub fn proof(&self) -> String {
        let Self { role, salt, created_unix_ms, .. } = self;
        // Each password has a salt of its own.
        format!("{role}/{salt}/{created_unix_ms}")
    }
}

/// A session of an operator. The key of the record is named by the SHA-256 of its token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionRecord {
    /// [`crate::records::RECORD_FORMAT`].
    pub format: u32,
    /// The operator.
    pub user: String,
    /// [`OperatorRecord::stamp`] of the operator when the session began, or that of the provider's record.
    pub stamp: String,
    /// Token in the header of calls with changes.
    pub csrf_token: String,
    /// The host at whose console it began.
    pub host: String,
    /// Address of the log-in.
    pub address: String,
    /// Unix time of the log-in, in milliseconds.
    pub created_unix_ms: u64,
    /// Unix time of the last use, to within a minute or a quarter of the idle limit, in milliseconds.
    pub used_unix_ms: u64,
    /// It ends then, whatever it does: Unix time, in milliseconds.
    pub expires_unix_ms: u64,
    /// Identity at the OpenID Connect provider; `None`: an operator with a password.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oidc: Option<OidcIdentity>,
}

/// Settings of log-ins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LoginSettingsRecord {
    /// [`crate::records::RECORD_FORMAT`].
    pub format: u32,
    /// Idle seconds after which a session ends.
    pub session_idle_seconds: u64,
    /// Seconds after which a session ends in any case.
    pub session_seconds: u64,
    /// Longest lifetime of a token for the admin API, in days.
    pub api_token_days_max: u64,
    /// Operators with one of these roles need a second factor.
    pub totp_required_roles: BTreeSet<OperatorRole>,
    /// Operators log in with passwords.
    pub local_login: bool,
}

/// No token lasts for longer than a year.
pub const API_TOKEN_DAYS_MAX: u64 = 366;

/// The shortest time of a session that makes sense.
pub const SESSION_SECONDS_MIN: u64 = 60;
/// Longest lifetime of a session; no operator works for longer without a break.
pub const SESSION_SECONDS_MAX: u64 = 7 * 24 * 3_600;

impl Default for LoginSettingsRecord {
    fn default() -> Self {
        LoginSettingsRecord {
            format: crate::records::RECORD_FORMAT,
            session_idle_seconds: 30 * 60,
            session_seconds: 8 * 3_600,
            api_token_days_max: 90,
            totp_required_roles: BTreeSet::new(),
            local_login: true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_role_is_written_as_earlier_releases_do() {
        let json = |roles: &OperatorRoles| serde_json::to_string(roles).unwrap();
        assert_eq!(json(&OperatorRole::ReadOnly.into()), r#""read-only""#);
        let two = OperatorRoles::new([OperatorRole::Security, OperatorRole::Storage]).unwrap();
        assert_eq!(json(&two), r#"["storage","security"]"#);
        for text in [r#""admin""#, r#"["storage","s3-accounts"]"#] {
            let read: OperatorRoles = serde_json::from_str(text).unwrap();
            assert_eq!(json(&read), text);
        }
        for wrong in ["[]", r#""root""#, r#"["admin","root"]"#, "null"] {
            assert!(serde_json::from_str::<OperatorRoles>(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_stamp_changes_with_all_that_a_session_depends_on() {
        let old = r#"{"format":1,"role":"admin","salt":"ab","password_argon2id":"cd","created_unix_ms":7}"#;
        let record: OperatorRecord = serde_json::from_str(old).unwrap();
        assert_eq!(serde_json::to_string(&record).unwrap(), old);
        let other = [
            OperatorRecord { role: OperatorRole::Storage.into(), ..record.clone() },
            OperatorRecord { salt: "ac".into(), ..record.clone() },
            OperatorRecord { created_unix_ms: 8, ..record.clone() },
            OperatorRecord { generation: 1, ..record.clone() },
        ];
        assert!(other.iter().all(|other| other.stamp() != record.stamp()));
    }
}
