//! Common parts of all ways to assume a role.

use std::sync::Arc;

use atoll_iam::operations::{Answer, IamError, Parameters, check_document};
use atoll_iam::{Entry, Identities, PolicyKind, Session, SessionPrincipal};
use atoll_types::identities::RoleRecord;

use super::{credentials_fields, issue};
use crate::query_api::error::QueryError;
use crate::query_api::{Done, QueryRequest};

const NAME_CHARS_MIN: usize = 2;
const NAME_CHARS_MAX: usize = 64;
const SECONDS: std::ops::RangeInclusive<u32> = 900..=43_200;
const SECONDS_DEFAULT: u32 = 3_600;
/// Longest policy in a request, with its white space.
const POLICY_CHARS_MAX: usize = 2_048;
const POLICY_ARNS_MAX: usize = 10;

/// Properties of a new session.
pub(super) struct RoleSession {
    pub role_arn: String,
    pub name: String,
    seconds: Option<u32>,
    policy: Option<String>,
    policy_arns: Vec<String>,
}

impl RoleSession {
    /// Takes the parameters that say it.
    pub(super) fn take(parameters: &mut Parameters) -> Result<Self, QueryError> {
        let role_arn = parameters.required("RoleArn")?;
        let name = parameters.name("RoleSessionName", NAME_CHARS_MAX)?;
        if name.len() < NAME_CHARS_MIN {
            let text = format!("A role session name has {NAME_CHARS_MIN} to {NAME_CHARS_MAX} characters");
            return Err(IamError::ValidationError(text).into());
        }
        let seconds = parameters.number("DurationSeconds", SECONDS)?;
        let policy = parameters.take("Policy");
        if let Some(policy) = &policy {
            if policy.chars().count() > POLICY_CHARS_MAX {
                return Err(QueryError::PackedPolicyTooLarge);
            }
            check_document(policy, PolicyKind::Session)?;
        }
        let policy_arns = parameters.texts_in("PolicyArns", "arn")?;
        if policy_arns.len() > POLICY_ARNS_MAX {
            return Err(QueryError::PackedPolicyTooLarge);
        }
        Ok(RoleSession { role_arn, name, seconds, policy, policy_arns })
    }

    /// The role, with the id of its account.
    pub(super) fn role<'a>(&self, identities: &'a Identities) -> Option<&'a Arc<Entry<RoleRecord>>> {
        identities.role_by_arn(&self.role_arn)
    }

    /// The seconds that it lasts: of a chain of roles an hour at most.
    fn seconds(&self, role: &RoleRecord, is_chained: bool) -> Result<u32, QueryError> {
        let seconds = self.seconds.unwrap_or(SECONDS_DEFAULT);
        let wrong = |text: &str| Err(IamError::ValidationError(text.to_owned()).into());
        if is_chained && seconds > SECONDS_DEFAULT {
            return wrong(
                "The requested DurationSeconds exceeds the 1 hour session limit for roles assumed by role chaining.",
            );
        }
        if seconds > role.session_seconds_max {
            return wrong("The requested DurationSeconds exceeds the MaxSessionDuration set for this role.");
        }
        Ok(seconds)
    }

    /// Begins it. That the caller may has been decided.
    pub(super) async fn begin(
        self,
        request: &QueryRequest<'_>,
        identities: &Identities,
        role: &RoleRecord,
        begun_by: BegunBy,
    ) -> Done {
        let seconds = self.seconds(role, begun_by.is_chained)?;
        for arn in &self.policy_arns {
            if identities.managed_document(&role.account, arn).is_none() {
                let text = format!("There is no policy {arn} in the account of the role");
                return Err(IamError::MalformedPolicyDocument(text).into());
            }
        }
        let has_policies = self.policy.is_some() || !self.policy_arns.is_empty();
        let session = Session {
            // Who issues it gives it one, and its times.
            access_key: String::new(),
            account: role.account.clone(),
            principal: SessionPrincipal::Role {
                name: role.name.clone(),
                id: role.id.clone(),
                session_name: self.name.clone(),
            },
            policies: self.policy.into_iter().collect(),
            policy_arns: self.policy_arns,
            key_policy: begun_by.key_policy,
            issued_unix_ms: 0,
            expires_unix_ms: 0,
        };
        let credentials = issue(request, session, seconds).await?;
        let assumed = Answer::new()
            .text("AssumedRoleId", format!("{}:{}", role.id, self.name))
            .text("Arn", format!("arn:aws:sts::{}:assumed-role/{}/{}", role.account, role.name, self.name));
        let percent = credentials.session_token.len() * 100 / super::TOKEN_CHARS_MAX;
        let answer = Answer::new()
            .fields("Credentials", credentials_fields(&credentials))
            .fields("AssumedRoleUser", assumed)
            .optional("PackedPolicySize", has_policies.then_some(percent));
        Ok(answer)
    }
}

/// Properties of a session's creator that the session inherits.
#[derive(Default)]
pub(super) struct BegunBy {
    /// True if that is a session of a role, too.
    pub is_chained: bool,
    pub key_policy: Option<String>,
}
