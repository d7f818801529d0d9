//! Condition keys and their values at the time of a decision.

use std::borrow::Cow;

use crate::caller_identity::{CallerIdentity, CallerKind, TrustPrincipal};
use crate::condition_values::ConditionValues;

/// A condition key, with where its values come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    /// In lower case up to the first slash.
    pub(crate) name: String,
    pub(crate) source: KeySource,
}

/// Where the values of a key come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeySource {
    UserName,
    UserId,
    PrincipalArn,
    PrincipalAccount,
    PrincipalType,
    PrincipalIsService,
    FederatedProvider,
    PrincipalTag,
    MultiFactorAuth,
    TokenIssueTime,
    Request,
}

const PRINCIPAL_TAG: &str = "aws:principaltag/";

impl Key {
    pub(crate) fn new(name: &str) -> Key {
        let (lowered, kept) = name.split_at(name.find('/').unwrap_or(name.len()));
        let name = lowered.to_ascii_lowercase() + kept;
        let source = match name.as_str() {
            "aws:username" => KeySource::UserName,
            "aws:userid" => KeySource::UserId,
            "aws:principalarn" => KeySource::PrincipalArn,
            "aws:principalaccount" => KeySource::PrincipalAccount,
            "aws:principaltype" => KeySource::PrincipalType,
            "aws:principalisawsservice" => KeySource::PrincipalIsService,
            "aws:federatedprovider" => KeySource::FederatedProvider,
            "aws:multifactorauthpresent" => KeySource::MultiFactorAuth,
            "aws:tokenissuetime" => KeySource::TokenIssueTime,
            name if name.starts_with(PRINCIPAL_TAG) => KeySource::PrincipalTag,
            _ => KeySource::Request,
        };
        Key { name, source }
    }
}

/// The caller, and the keys of the request.
pub(crate) struct Context<'a> {
    /// `None` for a request without a signature.
    pub(crate) principal: Option<TrustPrincipal<'a>>,
    pub(crate) conditions: &'a dyn ConditionValues,
}

impl<'a> Context<'a> {
    pub(crate) fn of_caller(
        caller: Option<&'a CallerIdentity>,
        conditions: &'a dyn ConditionValues,
    ) -> Context<'a> {
        Context { principal: caller.map(TrustPrincipal::Caller), conditions }
    }

    /// Hands the values of a key to the function; none if the key is missing.
    pub(crate) fn with_values<T>(&self, key: &Key, use_values: impl FnOnce(&[Cow<'_, str>]) -> T) -> T {
        if key.source == KeySource::Request {
            return use_values(&self.conditions.values(&key.name));
        }
        match self.value_of_principal(key) {
            Some(value) => use_values(&[value]),
            None => use_values(&[]),
        }
    }

    fn value_of_principal(&self, key: &Key) -> Option<Cow<'a, str>> {
        let caller = match self.principal {
            Some(TrustPrincipal::Caller(caller)) => caller,
            Some(TrustPrincipal::Federated { provider_arn }) => {
                return (key.source == KeySource::FederatedProvider).then(|| provider_arn.into());
            }
            None => {
                // Who does not sign has no id: a condition that names one would let everybody in.
                return (key.source == KeySource::PrincipalType).then(|| "Anonymous".into());
            }
        };
        match key.source {
            KeySource::UserName => caller.user_name().map(Cow::from),
            KeySource::UserId => Some(caller.user_id().into()),
            KeySource::PrincipalArn => Some(caller.principal_arn().into()),
            KeySource::PrincipalAccount => Some(caller.account.id.as_str().into()),
            KeySource::PrincipalType => Some(principal_type(caller).into()),
            KeySource::PrincipalIsService => Some("false".into()),
            KeySource::PrincipalTag => caller.tags.get(&key.name[PRINCIPAL_TAG.len()..]).map(|tag| tag.into()),
            // As with AWS it is absent where somebody signs with a key for long, and there is no second factor here, so
            // that there is never an age either.
            KeySource::MultiFactorAuth => caller.session_issued_unix_ms.map(|_| "false".into()),
            KeySource::TokenIssueTime => {
                caller.session_issued_unix_ms.map(|issued_ms| (issued_ms / 1_000).to_string().into())
            }
            KeySource::FederatedProvider | KeySource::Request => None,
        }
    }
}

fn principal_type(caller: &CallerIdentity) -> &'static str {
    match caller.kind {
        CallerKind::Root => "Account",
        CallerKind::User { .. } => "User",
        CallerKind::Session { .. } => "AssumedRole",
    }
}
