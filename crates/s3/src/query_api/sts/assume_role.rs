//! AssumeRole: by the signer of the request.

use atoll_iam::{AssumeQuestion, Caller, CallerKind, Policy, PolicyKind, Question, decide_assume_role};
use atoll_types::identities::RoleRecord;

use super::key_policy;
use super::role_session::{BegunBy, RoleSession};
use crate::query_api::conditions::QueryConditions;
use crate::query_api::error::QueryError;
use crate::query_api::iam::sentence;
use crate::query_api::{Done, QueryRequest};
use crate::users::Signer;

const ACTION: &str = "sts:AssumeRole";

pub(super) async fn perform(request: &QueryRequest<'_>, signer: &Signer) -> Done {
    let mut parameters = request.form.parameters.clone();
    let asked = RoleSession::take(&mut parameters)?;
    let external_id = parameters.take("ExternalId");
    parameters.finish()?;
    let identities = request.gateway.service.directory.current_identities().await?;
    let caller = signer.caller(&identities)?;
    let role = asked.role(&identities).map(|role| &role.record);
    let account = role.map_or(caller.account.id.as_str(), |role| role.account.as_str());
    let mut conditions = request.conditions(account).with("sts:rolesessionname", [&asked.name]);
    if let Some(id) = external_id {
        conditions = conditions.with("sts:externalid", [id]);
    }
    let Some(role) = role else {
        return Err(denied(&caller, &asked.role_arn, &conditions));
    };
    let conditions = conditions.with_resource_tags(&role.tags);
    check(&caller, role, &asked.role_arn, &conditions)?;
    let is_chained = matches!(caller.kind, CallerKind::Session { .. });
    let begun_by = BegunBy { is_chained, key_policy: key_policy(signer, &identities) };
    asked.begin(request, &identities, role, begun_by).await
}

/// Both the role and the caller must be allowed.
fn check(
    caller: &Caller,
    role: &RoleRecord,
    role_arn: &str,
    conditions: &QueryConditions<'_>,
) -> Result<(), QueryError> {
    let Ok(trust_policy) = Policy::parse(&role.trust_policy, PolicyKind::Trust) else {
        tracing::warn!(role = role_arn, "denied: the trust policy cannot be read");
        return Err(denied(caller, role_arn, conditions));
    };
    let trust_policy = trust_policy.bound(&role.trust_principals);
    let decision = decide_assume_role(&AssumeQuestion {
        caller,
        role_account: &role.account,
        role_arn,
        trust_policy: &trust_policy,
        action: ACTION,
        conditions,
    });
    if decision.is_allowed {
        return Ok(());
    }
    tracing::debug!(caller = caller.arn(), role = role_arn, reason = %decision.reason, "denied");
    Err(denied(caller, role_arn, conditions))
}

/// Returns a denial without a reason, which would disclose if the role exists.
fn denied(caller: &Caller, role_arn: &str, conditions: &QueryConditions<'_>) -> QueryError {
    let question =
        Question { caller: Some(caller), action: ACTION, resource: role_arn, resource_side: None, conditions };
    QueryError::denied(sentence(&question))
}
