//! The actions of STS, which give out temporary credentials.

mod assume_role;
mod issuers;
mod role_session;
mod web_identity;

use atoll_credentials::{Credentials, SESSION_SECONDS_MAX};
use atoll_iam::operations::Answer;
use atoll_iam::{CallerKind, Identities, Session, SessionPrincipal};

pub(crate) use issuers::Issuers;

use super::error::QueryError;
use super::{Api, Done, QueryRequest};
use crate::users::Signer;

/// Seconds of a session of GetSessionToken.
const TOKEN_SECONDS: std::ops::RangeInclusive<u32> = 900..=SESSION_SECONDS_MAX;
const TOKEN_SECONDS_DEFAULT: u32 = 43_200;
/// Actions with signed requests.
const SIGNED_ACTIONS: [&str; 3] = ["AssumeRole", "GetCallerIdentity", "GetSessionToken"];
/// Longest session token that is given out: it must fit into the headers of a request.
const TOKEN_CHARS_MAX: usize = 8 << 10;

/// Does an action.
pub(super) async fn perform(request: &QueryRequest<'_>) -> Done {
    // A request that is refused says what it was about, too.
    if let Some(role_arn) = request.form.parameters.clone().take("RoleArn") {
        request.observe(|observed| observed.set_subject(&role_arn));
    }
    if request.form.action == "AssumeRoleWithWebIdentity" {
        return web_identity::perform(request).await;
    }
    if let Some(action) = SIGNED_ACTIONS.into_iter().find(|action| *action == request.form.action) {
        request.observe(|observed| observed.set_action(format!("sts:{action}")));
    }
    let signer = request.authenticate(Api::Sts).await?;
    match request.form.action.as_str() {
        "AssumeRole" => assume_role::perform(request, &signer).await,
        "GetCallerIdentity" => caller_identity(request, &signer).await,
        "GetSessionToken" => session_token(request, &signer).await,
        _ => Err(QueryError::InvalidAction {
            action: request.form.action.clone(),
            version: request.form.version.clone(),
        }),
    }
}

/// Returns the identity of the signer, which needs no right.
async fn caller_identity(request: &QueryRequest<'_>, signer: &Signer) -> Done {
    request.form.parameters.finish()?;
    let identities = request.gateway.service.directory.current_identities().await?;
    let caller = signer.caller(&identities)?;
    let answer = Answer::new()
        .text("Arn", caller.arn())
        .text("UserId", caller.user_id())
        .text("Account", &caller.account.id);
    Ok(answer)
}

/// Temporary credentials of the same user, or of the root of an account.
async fn session_token(request: &QueryRequest<'_>, signer: &Signer) -> Done {
    let mut parameters = request.form.parameters.clone();
    let seconds = parameters.number("DurationSeconds", TOKEN_SECONDS)?.unwrap_or(TOKEN_SECONDS_DEFAULT);
    parameters.finish()?;
    let identities = request.gateway.service.directory.current_identities().await?;
    let identity = signer.caller(&identities)?.identity;
    if matches!(signer, Signer::Session(_)) {
        return Err(QueryError::denied("Cannot call GetSessionToken with session credentials"));
    }
    let principal = match identity.kind {
        CallerKind::Root => SessionPrincipal::Root,
        CallerKind::User { name, id, .. } => SessionPrincipal::User { name, id },
        CallerKind::Session { .. } => return Err(QueryError::InvalidClientTokenId),
    };
    let session = Session {
        // Who issues it gives it one, and its times.
        access_key: String::new(),
        account: identity.account.id.clone(),
        principal,
        policies: Vec::new(),
        policy_arns: Vec::new(),
        key_policy: key_policy(signer, &identities),
        issued_unix_ms: 0,
        expires_unix_ms: 0,
    };
    let credentials = issue(request, session, seconds).await?;
    Ok(Answer::new().fields("Credentials", credentials_fields(&credentials)))
}

/// The policy of the service account that begins a session, or that began the one that begins it.
fn key_policy(signer: &Signer, identities: &Identities) -> Option<String> {
    match signer {
        Signer::Session(session) => session.key_policy.clone(),
        Signer::AccessKey(key) => {
            let document = identities.access_key(key)?.record.policy.clone()?;
            // White space would take up room in the token. What is no JSON denies everything.
            let compact = serde_json::from_str::<serde_json::Value>(&document).map(|json| json.to_string());
            Some(compact.unwrap_or(document))
        }
    }
}

async fn issue(request: &QueryRequest<'_>, session: Session, seconds: u32) -> Result<Credentials, QueryError> {
    let temporary = request.gateway.users.temporary();
    let issued_unix_ms = temporary.begin_unix_ms();
    let expires_unix_ms = issued_unix_ms.saturating_add(u64::from(seconds) * 1_000);
    let credentials = temporary.issue(Session { issued_unix_ms, expires_unix_ms, ..session }).await?;
    match credentials.session_token.len() > TOKEN_CHARS_MAX {
        true => Err(QueryError::PackedPolicyTooLarge),
        false => Ok(credentials),
    }
}

fn credentials_fields(credentials: &Credentials) -> Answer {
    Answer::new()
        .text("AccessKeyId", &credentials.access_key)
        .text("SecretAccessKey", &credentials.secret)
        .text("SessionToken", &credentials.session_token)
        .time("Expiration", credentials.expires_unix_ms)
}
