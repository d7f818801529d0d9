//! The identity of a signer: its account, its kind and its names, as conditions and principals of policies see them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// An account as decisions see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    /// Twelve digits.
    pub id: String,
    /// Names it in ACLs and as the owner of buckets.
    pub canonical_id: String,
    /// For people.
    pub name: String,
}

/// Kind of a signer within its account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallerKind {
    /// The account itself: everything of its own is allowed.
    Root,
    /// A user.
    User {
        /// Its name.
        name: String,
        /// Begins and ends with a slash.
        path: String,
        /// `AIDA...`.
        id: String,
    },
    /// A session of a role.
    Session {
        /// The role's name.
        role: String,
        /// The role's path.
        path: String,
        /// `AROA...`.
        role_id: String,
        /// Chosen by the caller that assumed the role.
        session_name: String,
    },
}

/// The signer of a request, without its policies.
#[derive(Clone, Debug)]
pub struct CallerIdentity {
    /// The account that it belongs to.
    pub account: Arc<Account>,
    /// Its kind within the account.
    pub kind: CallerKind,
    /// When the session began, in milliseconds since the Unix epoch; `None` for keys for long.
    pub session_issued_unix_ms: Option<u64>,
    /// Tags of the user or role, for `aws:PrincipalTag/...`.
    pub tags: BTreeMap<String, String>,
}

struct Arn<'a>(&'a CallerIdentity);

impl fmt::Display for Arn<'_> {
    fn fmt(&self, text: &mut fmt::Formatter<'_>) -> fmt::Result {
        let account = &self.0.account.id;
        match &self.0.kind {
            CallerKind::Root => write!(text, "arn:aws:iam::{account}:root"),
            CallerKind::User { name, path, .. } => write!(text, "arn:aws:iam::{account}:user{path}{name}"),
            CallerKind::Session { role, session_name, .. } => {
                write!(text, "arn:aws:sts::{account}:assumed-role/{role}/{session_name}")
            }
        }
    }
}

impl CallerIdentity {
    /// Its ARN, as `aws:PrincipalArn`-like policies and GetCallerIdentity show it: of a session the
    /// `assumed-role` ARN.
    pub fn arn(&self) -> String {
        self.display_arn().to_string()
    }

    /// The same, to be written somewhere.
    pub fn display_arn(&self) -> impl fmt::Display {
        Arn(self)
    }

    /// `aws:PrincipalArn`: of a session the role's ARN, otherwise [`CallerIdentity::arn`].
    pub fn principal_arn(&self) -> String {
        match &self.kind {
            CallerKind::Session { role, path, .. } => format!("arn:aws:iam::{}:role{path}{role}", self.account.id),
            _ => self.arn(),
        }
    }

    /// `aws:userid`.
    pub fn user_id(&self) -> String {
        match &self.kind {
            CallerKind::Root => self.account.id.clone(),
            CallerKind::User { id, .. } => id.clone(),
            CallerKind::Session { role_id, session_name, .. } => format!("{role_id}:{session_name}"),
        }
    }

    /// `aws:username`, of users only.
    pub fn user_name(&self) -> Option<&str> {
        match &self.kind {
            CallerKind::User { name, .. } => Some(name),
            _ => None,
        }
    }
}

/// Principal that wants to assume a role.
#[derive(Clone, Copy, Debug)]
pub enum TrustPrincipal<'a> {
    /// The signer of the request.
    Caller(&'a CallerIdentity),
    /// The bearer of a token of this provider.
    Federated {
        /// The ARN of the provider.
        provider_arn: &'a str,
    },
}
