//! Sessions: the content of temporary credentials, and the callers that they make.

use std::sync::Arc;

use atoll_types::identities::RoleRecord;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::compiled::compiled;
use super::{Entry, Identities, root};
use crate::caller::Caller;
use crate::caller_identity::{Account, CallerIdentity, CallerKind};
use crate::policy_kind::PolicyKind;

/// Content of a session token. Its issuer seals it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Session {
    /// The temporary access key that it belongs to.
    pub access_key: String,
    /// Id of the account that acts.
    pub account: String,
    /// Principal of the session.
    pub principal: SessionPrincipal,
    /// Documents of policies that narrow it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub policies: Vec<String>,
    /// ARNs of managed policies that narrow it: together with the documents, or alone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub policy_arns: Vec<String>,
    /// The policy of the service account that began it, which narrows it, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_policy: Option<String>,
    /// When it began, in milliseconds since the Unix epoch; 0 if who gave it out did not say yet.
    #[serde(default)]
    pub issued_unix_ms: u64,
    /// When it ends, in milliseconds since the Unix epoch.
    pub expires_unix_ms: u64,
}

/// Principal of a session. Ids are compared, so that sessions end with their principal, even if another gets its
/// name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SessionPrincipal {
    /// The account itself.
    Root,
    /// A user.
    User {
        /// Its name when the session began.
        name: String,
        /// Its id.
        id: String,
    },
    /// A role.
    Role {
        /// Its name.
        name: String,
        /// Its id.
        id: String,
        /// Chosen by the caller that assumed it.
        session_name: String,
    },
}

impl Identities {
    /// Returns the caller of a session; `None` if its account, user or role is gone. The opener of the token
    /// checks its end.
    pub fn session_caller(&self, session: &Session) -> Option<Caller> {
        let account = self.account_by_id(&session.account)?;
        let mut caller = match &session.principal {
            SessionPrincipal::Root => root(account, &session.access_key),
            SessionPrincipal::User { name, id } => {
                let named = self.user(&session.account, name).filter(|user| user.record.id == *id);
                // It may have been renamed.
                let mut others = self.users(&session.account);
                let user = named.or_else(|| others.find(|user| user.record.id == *id))?;
                self.user_caller(account, user, &session.access_key)
            }
            SessionPrincipal::Role { name, id, session_name } => {
                let role = self.role(&session.account, name).filter(|role| role.record.id == *id)?;
                self.role_caller(account, role, session_name, &session.access_key)
            }
        };
        caller.identity.session_issued_unix_ms = Some(session.issued_unix_ms);
        if !session.policies.is_empty() || !session.policy_arns.is_empty() {
            let document = self.session_policy(session).unwrap_or_default();
            caller.session_policies.push(("session policy".into(), compiled(&document, PolicyKind::Session)));
        }
        if let Some(document) = &session.key_policy {
            let name = "policy of the access key that began the session".to_owned();
            caller.key_policy = Some((name, compiled(document, PolicyKind::Session)));
        }
        Some(caller)
    }

    fn role_caller(
        &self,
        account: Arc<Account>,
        role: &Entry<RoleRecord>,
        session_name: &str,
        access_key: &str,
    ) -> Caller {
        let mut policies = role.inline.clone();
        policies.extend(self.managed(&account.id, &role.record.policies));
        let RoleRecord { name, path, id, tags, .. } = role.record.clone();
        let kind = CallerKind::Session { role: name, path, role_id: id, session_name: session_name.into() };
        Caller {
            identity: CallerIdentity { account, kind, session_issued_unix_ms: None, tags },
            access_key: access_key.into(),
            policies,
            session_policies: Vec::new(),
            key_policy: None,
        }
    }

    /// Returns the union of the policies of a session: an action that one of them allows is allowed. `None` if one
    /// is gone or cannot be read.
    fn session_policy(&self, session: &Session) -> Option<String> {
        let managed = session.policy_arns.iter().map(|arn| self.managed_document(&session.account, arn));
        let documents: Vec<&str> =
            session.policies.iter().map(|own| Some(own.as_str())).chain(managed).collect::<Option<_>>()?;
        let mut all = Vec::new();
        for document in documents {
            let mut document: Value = serde_json::from_str(document).ok()?;
            match document.get_mut("Statement")?.take() {
                Value::Array(statements) => all.extend(statements),
                statement => all.push(statement),
            }
        }
        // One statement's id may be another's, too.
        for statement in &mut all {
            statement.as_object_mut()?.remove("Sid");
        }
        Some(serde_json::json!({ "Version": "2012-10-17", "Statement": all }).to_string())
    }
}
