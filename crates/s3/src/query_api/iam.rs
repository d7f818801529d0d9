//! The actions of IAM.

use std::sync::{Mutex, PoisonError};

use atoll_audit::DocumentChange;
use atoll_credentials::new_access_key;
use atoll_iam::operations::{
    Context, IamError, NewAccessKey, Operation, Outcome, Parameters, PolicyChange, RANDOM_BYTES, Subject,
    policy_changes,
};
use atoll_iam::{Decision, Identities, Question, Reason, SessionPrincipal, decide};
use atoll_keys::random_bytes;
use atoll_types::identities::LastUsedRecord;

use super::error::QueryError;
use super::{Api, Done, QueryRequest};
use crate::clock::unix_ms;
use crate::observed::Observed;
use crate::users::{CallerError, Signer};

/// One action with its context.
struct Action<'a> {
    request: &'a QueryRequest<'a>,
    signer: &'a Signer,
    operation: &'static Operation,
    now_ms: u64,
    random: [u8; RANDOM_BYTES],
    new_access_key: Option<NewAccessKey>,
    last_used: Option<LastUsedRecord>,
    /// Changes of policies by the last attempt.
    policy_changes: Mutex<Vec<PolicyChange>>,
}

/// Carries out an action for the signer of the request.
pub(super) async fn perform(request: &QueryRequest<'_>) -> Done {
    let operation = Operation::find(&request.form.action);
    // A request that is refused says what it was to do, too.
    if let Ok(operation) = operation {
        request.observe(|observed| observed.set_action(format!("iam:{}", operation.name)));
    }
    let signer = request.authenticate(Api::Iam).await?;
    let operation = operation?;
    if operation.is_of_operators {
        return Err(IamError::InvalidAction(request.form.action.clone()).into());
    }
    let directory = &request.gateway.service.directory;
    let mut action = Action {
        request,
        signer: &signer,
        operation,
        now_ms: unix_ms(),
        random: random_bytes(),
        new_access_key: None,
        last_used: None,
        policy_changes: Mutex::default(),
    };
    if is_session_of_user(&signer) {
        action.note_subject(&directory.identities());
        return Err(QueryError::denied(
            "Cannot call IAM with the credentials of GetSessionToken: use the access key, or a role",
        ));
    }
    let identities = directory.current_identities().await?;
    // Before anything is asked on behalf of the caller.
    action.with_context(&identities, |context| action.authorise(context).map(drop))?;
    if operation.is_change {
        request.observe(Observed::note_allowed_change);
    }
    let parameters = &request.form.parameters;
    if operation.needs_access_key() {
        action.new_access_key = Some(new_access_key(&*request.gateway.service.keys).await?);
    }
    let asked_key = operation.asks_last_use(parameters).filter(|key| identities.access_key(key).is_some());
    if let Some(access_key) = asked_key {
        action.last_used = directory.last_used(access_key).await?;
    }
    if !operation.is_change {
        return Ok(action.run(&identities)?.answer);
    }
    let answer = directory.change_identities(&|identities| action.run(identities)).await?;
    action.note_policies();
    action.log(&identities);
    Ok(answer)
}

/// Returns true if a user with longer credentials calls with those of GetSessionToken.
fn is_session_of_user(signer: &Signer) -> bool {
    match signer {
        Signer::AccessKey(_) => false,
        Signer::Session(session) => !matches!(session.principal, SessionPrincipal::Role { .. }),
    }
}

impl Action<'_> {
    fn parameters(&self) -> &Parameters {
        &self.request.form.parameters
    }

    /// Passes the operation's context on the current identities.
    fn with_context<T>(
        &self,
        identities: &Identities,
        use_context: impl FnOnce(&Context<'_>) -> Result<T, IamError>,
    ) -> Result<T, IamError> {
        let gone = || IamError::AccessDenied(CallerError::UnknownKey.to_string());
        let caller = self.signer.caller(identities).map_err(|_| gone())?;
        let account = identities.account(&caller.account.id).cloned().ok_or_else(gone)?;
        use_context(&Context {
            identities,
            account,
            caller: Some(&caller),
            now_ms: self.now_ms,
            random: self.random,
            new_access_key: self.new_access_key.as_ref(),
            last_used: self.last_used.as_ref(),
        })
    }

    /// Decides on the identities that are changed, so that no caller acts by rights just revoked.
    fn run(&self, identities: &Identities) -> Result<Outcome, IamError> {
        let outcome = self.with_context(identities, |context| {
            self.authorise(context)?;
            self.operation.run(context, self.parameters().clone())
        })?;
        let changes = policy_changes(identities, &outcome.changes);
        *self.policy_changes.lock().unwrap_or_else(PoisonError::into_inner) = changes;
        Ok(outcome)
    }

    /// Notes its subject in the audit log.
    fn note_subject(&self, identities: &Identities) {
        // Whoever is gone meanwhile has no rights to anything.
        let _ = self.with_context(identities, |context| {
            let subject = self.operation.subject(context, self.parameters());
            self.request.observe(|observed| observed.set_subject(&subject.arn));
            Ok(())
        });
    }

    /// Notes changes of policies in the audit log.
    fn note_policies(&self) {
        let changes = std::mem::take(&mut *self.policy_changes.lock().unwrap_or_else(PoisonError::into_inner));
        let audited = |change: PolicyChange| {
            DocumentChange::new(change.document, change.before.as_deref(), change.after.as_deref())
        };
        let changes: Vec<DocumentChange> = changes.into_iter().filter_map(audited).collect();
        if !changes.is_empty() {
            self.request.observe(|observed| observed.changes_policies(changes));
        }
    }

    /// Makes sure that the caller may do it.
    fn authorise(&self, context: &Context<'_>) -> Result<Subject, IamError> {
        let subject = self.operation.subject(context, self.parameters());
        self.request.observe(|observed| observed.set_subject(&subject.arn));
        let mut parameters = self.parameters().clone();
        let (tags, removed) = (parameters.tags()?, parameters.texts("TagKeys")?);
        let account = &context.account.record.id;
        let conditions = self.request.conditions(account).with_resource_tags(&subject.tags);
        let conditions = conditions.with_request_tags(&tags, removed);
        let conditions = match &subject.policy_arn {
            Some(arn) => conditions.with("iam:policyarn", [arn]),
            None => conditions,
        };
        for action in self.operation.actions(!tags.is_empty()) {
            for resource in [Some(&subject.arn), subject.renamed_arn.as_ref()].into_iter().flatten() {
                may(&Question {
                    caller: context.caller,
                    action: &action,
                    resource,
                    resource_side: None,
                    conditions: &conditions,
                })?;
            }
        }
        Ok(subject)
    }

    fn log(&self, identities: &Identities) {
        let told = self.with_context(identities, |context| {
            let caller = context.caller.map(|caller| caller.arn()).unwrap_or_default();
            Ok((caller, self.operation.subject(context, self.parameters()).arn))
        });
        if let Ok((caller, subject)) = told {
            tracing::info!(caller, action = self.operation.name, subject, "identities were changed");
        }
    }
}

fn may(question: &Question<'_>) -> Result<(), IamError> {
    let decision = decide(question);
    if decision.is_allowed {
        return Ok(());
    }
    let sentence = sentence(question);
    tracing::debug!(reason = %decision.reason, "denied: {sentence}");
    Err(IamError::AccessDenied(sentence + &reason(question.action, &decision)))
}

/// Returns AWS's sentence for a denied action.
pub(super) fn sentence(question: &Question<'_>) -> String {
    let Question { action, resource, .. } = question;
    let caller = question.caller.map_or_else(|| "anonymous".into(), |caller| caller.arn());
    format!("User: {caller} is not authorized to perform: {action} on resource: {resource}")
}

/// Returns the reason, as far as AWS discloses it.
fn reason(action: &str, decision: &Decision) -> String {
    match &decision.reason {
        Reason::ExplicitDeny(_) => " with an explicit deny in a policy".into(),
        Reason::NothingAllows => format!(" because no identity-based policy allows the {action} action"),
        Reason::SessionPolicyDoesNotAllow(_) => {
            format!(" because no session policy allows the {action} action")
        }
        _ => String::new(),
    }
}
