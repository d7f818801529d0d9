//! Tokens with which programs call the admin API.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::operators::{OperatorRecord, OperatorRole, OperatorRoles};

/// Rights of a token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TokenScope {
    /// Those of operators with these roles.
    Roles(OperatorRoles),
    /// These calls, by their `operationId`, with all of their fields.
    Calls(BTreeSet<String>),
}

impl std::fmt::Display for TokenScope {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            TokenScope::Roles(roles) => write!(f, "{roles}"),
            TokenScope::Calls(calls) => {
                write!(f, "calls {}", calls.iter().map(String::as_str).collect::<Vec<_>>().join(","))
            }
        }
    }
}

/// The operator who has made a token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenMaker {
    /// The name.
    pub name: String,
    /// [`OperatorRecord::created_unix_ms`]: another operator who gets the name later is none.
    pub created_unix_ms: u64,
}

/// A token for the admin API. The key of the record is named by the SHA-256 of the token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApiTokenRecord {
    /// [`crate::records::RECORD_FORMAT`].
    pub format: u32,
    /// Its name.
    pub name: String,
    /// Its rights.
    pub scope: TokenScope,
    /// The operator of the console who has made it, if one has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub maker: Option<TokenMaker>,
    /// Unix time of creation, in milliseconds.
    pub created_unix_ms: u64,
    /// It is worthless from then on: Unix time, in milliseconds.
    pub expires_unix_ms: u64,
    /// Unix time of the last use, to within a minute, in milliseconds; 0: never.
    #[serde(default)]
    pub used_unix_ms: u64,
    /// Address of the last use.
    #[serde(default)]
    pub used_address: String,
}

impl ApiTokenRecord {
    /// Returns true if the token is valid: it has not expired, and its maker may still make such a token.
    pub fn is_live(&self, maker: Option<&OperatorRecord>, now_unix_ms: u64) -> bool {
        let may = |operator: &OperatorRecord, made: &TokenMaker| {
            let is_admin = operator.role.has(OperatorRole::Admin);
            let is_enough = is_admin || operator.role.has(OperatorRole::Security) && !self.is_of_admins();
            operator.created_unix_ms == made.created_unix_ms && is_enough
        };
        let has_maker = self.maker.as_ref().is_none_or(|made| maker.is_some_and(|operator| may(operator, made)));
        now_unix_ms < self.expires_unix_ms && has_maker
    }

    /// Returns whether it may do all that admins may.
    pub fn is_of_admins(&self) -> bool {
        matches!(&self.scope, TokenScope::Roles(roles) if roles.has(OperatorRole::Admin))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_ends_by_its_time_and_with_its_maker() {
        let operator = |role: OperatorRole| OperatorRecord {
            format: 1,
            role: role.into(),
            salt: String::new(),
            password_argon2id: String::new(),
            created_unix_ms: 5,
            password_unix_ms: None,
            generation: 0,
            totp: None,
        };
        let token = ApiTokenRecord {
            format: 1,
            name: "ci".into(),
            scope: TokenScope::Roles(OperatorRole::Storage.into()),
            maker: Some(TokenMaker { name: "ann".into(), created_unix_ms: 5 }),
            created_unix_ms: 10,
            expires_unix_ms: 20,
            used_unix_ms: 0,
            used_address: String::new(),
        };
        let (security, admin) = (operator(OperatorRole::Security), operator(OperatorRole::Admin));
        assert!(token.is_live(Some(&security), 19) && token.is_live(Some(&admin), 19));
        assert!(!token.is_live(Some(&security), 20), "expired");
        assert!(!token.is_live(None, 19), "its maker is gone");
        assert!(!token.is_live(Some(&operator(OperatorRole::Storage)), 19), "its maker makes no tokens any more");
        assert!(
            !token.is_live(Some(&OperatorRecord { created_unix_ms: 6, ..security.clone() }), 19),
            "another one"
        );
        let of_admins = ApiTokenRecord { scope: TokenScope::Roles(OperatorRole::Admin.into()), ..token.clone() };
        assert!(!of_admins.is_live(Some(&security), 19) && of_admins.is_live(Some(&admin), 19));
        assert!(ApiTokenRecord { maker: None, ..token }.is_live(None, 19), "made on a host");
    }

    #[test]
    fn scopes_are_written_by_their_kind() {
        let calls = TokenScope::Calls(BTreeSet::from(["listPools".to_owned()]));
        let roles =
            TokenScope::Roles(OperatorRoles::new([OperatorRole::Storage, OperatorRole::ReadOnly]).unwrap());
        for (scope, json, told) in [
            (calls, r#"{"calls":["listPools"]}"#, "calls listPools"),
            (roles, r#"{"roles":["read-only","storage"]}"#, "read-only,storage"),
        ] {
            assert_eq!((serde_json::to_string(&scope).unwrap(), scope.to_string()), (json.into(), told.into()));
            assert_eq!(serde_json::from_str::<TokenScope>(json).unwrap(), scope);
        }
    }
}
