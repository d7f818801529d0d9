//! Who may log in to the console.

use serde::{Deserialize, Serialize};

/// What an operator may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OperatorRole {
    /// Look at everything but secrets.
    ReadOnly,
    /// Change it, too.
    Admin,
}

impl OperatorRole {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            OperatorRole::ReadOnly => "read-only",
            OperatorRole::Admin => "admin",
        }
    }
}

/// Somebody who may log in to the console.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperatorRecord {
    /// [`crate::records::RECORD_FORMAT`].
    pub format: u32,
    /// What the operator may do.
    pub role: OperatorRole,
    /// Of the password's derivation, 16 random bytes in hexadecimal.
    pub salt: String,
    /// What Argon2id (RFC 9106; 19 MiB, 2 passes, 1 lane) makes of the password: 32 bytes in hexadecimal.
    pub password_argon2id: String,
    /// Unix time of creation, in milliseconds.
    pub created_unix_ms: u64,
    /// Unix time when the password was set, in milliseconds; `None`: at the creation, or by an earlier release.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password_unix_ms: Option<u64>,
}
