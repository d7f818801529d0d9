//! AssumeRoleWithWebIdentity: by the bearer of a token of an issuer that the account of the role trusts. The
//! request is not signed.

use atoll_credentials::{Claims, IdentityToken, SKEW_SECONDS, TokenError};
use atoll_iam::arn::{oidc_provider_arn, parse_role_arn};
use atoll_iam::{Policy, PolicyKind, TrustPrincipal, provider_id, trusts};
use atoll_types::identities::{OidcProviderRecord, RoleRecord};

use super::issuers::NoKeys;
use super::role_session::{BegunBy, RoleSession};
use crate::clock::unix_ms;
use crate::query_api::error::QueryError;
use crate::query_api::{Done, QueryRequest};

const ACTION: &str = "sts:AssumeRoleWithWebIdentity";

pub(super) async fn perform(request: &QueryRequest<'_>) -> Done {
    request.observe(|observed| observed.set_action(ACTION.to_owned()));
    let mut parameters = request.form.parameters.clone();
    let asked = RoleSession::take(&mut parameters)?;
    let token = parameters.required("WebIdentityToken")?;
    parameters.finish()?;
    let token = IdentityToken::parse(&token).map_err(not_valid)?;
    // As they were heard of last: strangers must not make the gateway ask cluster state.
    let identities = request.gateway.service.directory.identities();
    let account = parse_role_arn(&asked.role_arn).map(|(account, ..)| account).unwrap_or_default();
    let provider = identities.oidc_provider(account, &token.issuer).ok_or_else(|| no_provider(&token.issuer))?;
    let claims = verified(request, provider, &token).await?;
    let audience = claims.audience(&provider.client_ids).ok_or_else(|| no_provider(&token.issuer))?;
    // Who may not assume a role does not learn whether it is there.
    let role = asked.role(&identities).ok_or_else(denied)?;
    check(request, &role.record, provider, &claims, audience, &asked.name)?;
    let answer = asked.begin(request, &identities, &role.record, BegunBy::default()).await?;
    Ok(answer
        .text("SubjectFromWebIdentityToken", &claims.sub)
        .text("Audience", audience)
        .text("Provider", oidc_provider_arn(&provider.account, &provider.url)))
}

fn no_provider(issuer: &str) -> QueryError {
    QueryError::InvalidIdentityToken(format!("No OpenIDConnect provider found in your account for {issuer}"))
}

fn not_valid(error: TokenError) -> QueryError {
    match error {
        TokenError::Expired => QueryError::ExpiredIdentityToken,
        TokenError::Invalid(text) => {
            QueryError::InvalidIdentityToken(format!("The web identity token cannot be validated: {text}"))
        }
    }
}

fn denied() -> QueryError {
    QueryError::denied(format!("Not authorized to perform {ACTION}"))
}

/// Returns the claims of a token, if the issuer has signed it.
async fn verified(
    request: &QueryRequest<'_>,
    provider: &OidcProviderRecord,
    token: &IdentityToken<'_>,
) -> Result<Claims, QueryError> {
    // Providers are found whatever the case of their letters, and issuers differ by it.
    if token.issuer.trim_end_matches('/') != provider.url.trim_end_matches('/') {
        return Err(no_provider(&token.issuer));
    }
    let keys = request.gateway.issuers.keys(&provider.url, token.key_id()).await;
    let keys = keys.map_err(|NoKeys| QueryError::IdpCommunication)?;
    let key = keys.find(token.key_id()).ok_or_else(|| {
        QueryError::InvalidIdentityToken("The issuer of the web identity token does not have its key".into())
    })?;
    token.verify(key, &provider.client_ids, SKEW_SECONDS, unix_ms()).map_err(not_valid)
}

/// Makes sure that the role trusts who bears the token.
fn check(
    request: &QueryRequest<'_>,
    role: &RoleRecord,
    provider: &OidcProviderRecord,
    claims: &Claims,
    audience: &str,
    session_name: &str,
) -> Result<(), QueryError> {
    let id = provider_id(&provider.url);
    let conditions = request
        .conditions(&role.account)
        .with("sts:rolesessionname", [session_name])
        .with(&format!("{id}:aud"), [audience])
        .with(&format!("{id}:sub"), [&claims.sub])
        .with(&format!("{id}:azp"), &claims.azp)
        .with_resource_tags(&role.tags);
    let Ok(policy) = Policy::parse(&role.trust_policy, PolicyKind::Trust) else {
        tracing::warn!(role = role.name, "denied: the trust policy cannot be read");
        return Err(denied());
    };
    let provider_arn = oidc_provider_arn(&provider.account, &provider.url);
    let principal = TrustPrincipal::Federated { provider_arn: &provider_arn };
    let policy = policy.bound(&role.trust_principals);
    let decision = trusts(&policy, principal, ACTION, &conditions);
    if decision.is_allowed {
        return Ok(());
    }
    tracing::debug!(provider_arn, subject = claims.sub, role = role.name, reason = %decision.reason, "denied");
    Err(denied())
}
