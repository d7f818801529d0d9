//! Decisions.

use crate::caller::Caller;
use crate::policy::Policy;
use crate::question::{ConditionValues, Question};
use crate::reason::Decision;

/// Decides a question.
pub fn decide(_question: &Question<'_>) -> Decision {
    todo!()
}

/// Who wants to assume a role.
#[derive(Clone, Copy, Debug)]
pub enum TrustPrincipal<'a> {
    /// Who signed the request.
    Caller(&'a Caller),
    /// Who shows a token of this provider.
    Federated {
        /// The ARN of the provider.
        provider_arn: &'a str,
    },
}

/// Whether the trust policy of a role lets somebody assume it. For callers, [`decide_assume_role`] looks at
/// their own policies, too.
pub fn trusts(
    _policy: &Policy,
    _principal: TrustPrincipal<'_>,
    _action: &str,
    _conditions: &dyn ConditionValues,
) -> Decision {
    todo!()
}

/// May this caller assume that role?
#[derive(Clone, Copy)]
pub struct AssumeQuestion<'a> {
    /// Who signed the request.
    pub caller: &'a Caller,
    /// Id of the account that the role belongs to.
    pub role_account: &'a str,
    /// The role.
    pub role_arn: &'a str,
    /// The role's trust policy.
    pub trust_policy: &'a Policy,
    /// Such as `sts:AssumeRole`.
    pub action: &'a str,
    /// Keys of the request.
    pub conditions: &'a dyn ConditionValues,
}

/// Decides by both the trust policy and the caller's own policies.
pub fn decide_assume_role(_question: &AssumeQuestion<'_>) -> Decision {
    todo!()
}
