//! Results of policies for a question, each side by itself.

use crate::caller::Caller;
use crate::caller_identity::CallerKind;
use crate::context::Context;
use crate::policy::Policy;
use crate::principal::Closeness;
use crate::reason::{Grant, PolicySource, StatementRef};
use crate::statement::Statement;

/// Values that every statement is compared with.
pub(crate) struct Asked<'a> {
    pub(crate) context: Context<'a>,
    pub(crate) action: &'a str,
    pub(crate) resource: &'a str,
}

impl Asked<'_> {
    fn is_met(&self, statement: &Statement) -> bool {
        statement.has_action(self.action)
            && statement.has_resource(&self.context, self.resource)
            && statement.conditions_hold(&self.context)
    }
}

/// Owner of a policy, with a name that is copied only for the reason of the decision.
#[derive(Clone, Copy)]
pub(crate) enum Source<'a> {
    Identity(&'a str),
    Session(&'a str),
    Bucket,
    Trust,
    Key,
}

/// A statement that is about the question.
#[derive(Clone, Copy)]
pub(crate) struct Found<'a> {
    source: Source<'a>,
    statement: &'a Statement,
}

impl Found<'_> {
    pub(crate) fn named(&self) -> StatementRef {
        let policy = match self.source {
            Source::Identity(name) => PolicySource::Identity(name.to_owned()),
            Source::Session(name) => PolicySource::Session(name.to_owned()),
            Source::Bucket => PolicySource::Bucket,
            Source::Trust => PolicySource::Trust,
            Source::Key => PolicySource::Key,
        };
        StatementRef { policy, number: self.statement.number, sid: self.statement.sid.clone() }
    }
}

/// Grants, as [`Grant`].
#[derive(Clone, Copy)]
pub(crate) enum Allowing<'a> {
    Root,
    Statement(Found<'a>),
    Acl,
}

impl Allowing<'_> {
    pub(crate) fn named(&self) -> Grant {
        match self {
            Allowing::Root => Grant::Root,
            Allowing::Statement(found) => Grant::Statement(found.named()),
            Allowing::Acl => Grant::Acl,
        }
    }
}

/// Result of the caller's own policies; none denies.
pub(crate) struct Own<'a> {
    /// Before it is narrowed.
    pub(crate) allow: Option<Allowing<'a>>,
    /// A session policy that does not allow it.
    pub(crate) session_gap: Option<&'a str>,
    /// The policy of the access key, if it does not allow it. It is among the session policies, too.
    pub(crate) key_gap: Option<&'a str>,
}

/// Fails with the statement that denies.
pub(crate) fn own_side<'a>(caller: &'a Caller, asked: &Asked<'_>) -> Result<Own<'a>, Found<'a>> {
    let allow = matches!(caller.kind, CallerKind::Root).then_some(Allowing::Root);
    let mut own = Own { allow, session_gap: None, key_gap: None };
    for (name, policy) in &caller.policies {
        if let Some(found) = own_policy(policy, Source::Identity(name), own.allow.is_some(), asked)? {
            own.allow = Some(Allowing::Statement(found));
        }
    }
    for (name, policy) in &caller.session_policies {
        if own_policy(policy, Source::Session(name), false, asked)?.is_none() {
            own.session_gap.get_or_insert(name);
        }
    }
    if let Some((name, policy)) = &caller.key_policy
        && own_policy(policy, Source::Session(name), false, asked)?.is_none()
    {
        own.key_gap = Some(name);
        own.session_gap.get_or_insert(name);
    }
    Ok(own)
}

/// The first Allow, unless something else allows it already. Fails with the first Deny.
fn own_policy<'a>(
    policy: &'a Policy,
    source: Source<'a>,
    is_allowed: bool,
    asked: &Asked<'_>,
) -> Result<Option<Found<'a>>, Found<'a>> {
    let mut allow = None;
    for statement in &policy.statements {
        let is_of_interest = statement.is_deny || !(is_allowed || allow.is_some());
        if is_of_interest && asked.is_met(statement) {
            let found = Found { source, statement };
            if statement.is_deny {
                return Err(found);
            }
            allow = Some(found);
        }
    }
    Ok(allow)
}

/// Result of the policy of a bucket, role or key for the caller.
#[derive(Default)]
pub(crate) struct OfResource<'a> {
    pub(crate) deny: Option<Found<'a>>,
    /// The closest.
    pub(crate) allow: Option<(Closeness, Found<'a>)>,
}

pub(crate) fn resource_policy<'a>(
    policy: &'a Policy,
    source: Source<'static>,
    asked: &Asked<'_>,
) -> OfResource<'a> {
    let principal = asked.context.principal;
    let mut of_resource = OfResource::default();
    for statement in &policy.statements {
        // Policies of other kinds name nobody, so they say nothing here.
        let Some(principals) = &statement.principals else { continue };
        let found = Found { source, statement };
        if statement.is_deny {
            if principals.are_denied(principal) && asked.is_met(statement) {
                return OfResource { deny: Some(found), ..of_resource };
            }
            continue;
        }
        let Some(closeness) = principals.allowed(principal) else { continue };
        let is_closer = of_resource.allow.is_none_or(|(known, _)| closeness > known);
        if is_closer && asked.is_met(statement) {
            of_resource.allow = Some((closeness, found));
        }
    }
    of_resource
}
