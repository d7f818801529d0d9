//! Decisions, in the order of AWS: an explicit Deny first, then limits, then grants.

use crate::acl;
use crate::caller::Caller;
use crate::caller_identity::{CallerKind, TrustPrincipal};
use crate::condition_values::ConditionValues;
use crate::context::Context;
use crate::evaluate::{Allowing, Asked, Found, OfResource, Own, Source, own_side, resource_policy};
use crate::policy::Policy;
use crate::principal::Closeness;
use crate::question::{Question, ResourceSide};
use crate::reason::{Decision, Grant, Reason};

/// Actions that the root of the bucket owner's account may do under any bucket policy, so that no owner is locked
/// out.
const ACTIONS_ON_BUCKET_POLICY: [&str; 3] = ["s3:GetBucketPolicy", "s3:PutBucketPolicy", "s3:DeleteBucketPolicy"];

/// Decides a question.
pub fn decide(question: &Question<'_>) -> Decision {
    let context = Context::of_caller(question.caller.map(|caller| &caller.identity), question.conditions);
    let asked = Asked { context, action: question.action, resource: question.resource };
    let own = match question.caller.map(|caller| own_side(caller, &asked)).transpose() {
        Ok(own) => own,
        Err(deny) => return Decision::denied(Reason::ExplicitDeny(deny.named())),
    };
    match (question.resource_side, question.caller, own) {
        (None, _, None) | (None, None, _) => Decision::denied(Reason::NothingAllows),
        (None, Some(_), Some(own)) => within_account(own, None, None),
        (Some(side), Some(caller), Some(own)) => decide_for_caller(&side, caller, own, &asked),
        (Some(side), _, _) => decide_for_anonymous(&side, &asked),
    }
}

fn decide_for_caller(side: &ResourceSide<'_>, caller: &Caller, own: Own<'_>, asked: &Asked<'_>) -> Decision {
    let found = bucket_policy(side, asked);
    let canonical_id = caller.account.canonical_id.as_str();
    if let Some(deny) = found.deny {
        let is_bucket_root = matches!(caller.kind, CallerKind::Root) && canonical_id == side.bucket_owner;
        let is_spared = ACTIONS_ON_BUCKET_POLICY.iter().any(|action| action.eq_ignore_ascii_case(asked.action));
        if !(is_bucket_root && is_spared) {
            return Decision::denied(Reason::ExplicitDeny(deny.named()));
        }
        return match own.session_gap {
            None => Decision::allowed(Reason::RootKeepsBucketPolicy),
            Some(name) => Decision::denied(Reason::SessionPolicyDoesNotAllow(name.to_owned())),
        };
    }
    let (allow, uncounted) = what_counts(side, Some(caller), found.allow);
    if canonical_id == side.object_owner.unwrap_or(side.bucket_owner) {
        let ignore_public = side.public_access_block.ignore_public_acls;
        let is_for_everybody = side.acl.is_some_and(|acl| acl::allows_everybody(&acl, ignore_public));
        let own = Own { allow: own.allow.or(is_for_everybody.then_some(Allowing::Acl)), ..own };
        return within_account(own, allow, uncounted);
    }
    let (offer, uncounted) = with_acl(side, Some(caller), allow, uncounted);
    across_accounts(own, offer, uncounted)
}

fn decide_for_anonymous(side: &ResourceSide<'_>, asked: &Asked<'_>) -> Decision {
    let found = bucket_policy(side, asked);
    if let Some(deny) = found.deny {
        return Decision::denied(Reason::ExplicitDeny(deny.named()));
    }
    let (allow, uncounted) = what_counts(side, None, found.allow);
    match with_acl(side, None, allow, uncounted) {
        (Some(offer), _) => Decision::allowed(Reason::Allowed(offer.named())),
        (None, uncounted) => Decision::denied(uncounted.unwrap_or(Reason::NothingAllows)),
    }
}

fn bucket_policy<'a>(side: &ResourceSide<'a>, asked: &Asked<'_>) -> OfResource<'a> {
    side.policy.map(|policy| resource_policy(policy, Source::Bucket, asked)).unwrap_or_default()
}

type Close<'a> = (Closeness, Found<'a>);

/// The Allow of the bucket policy if it counts, or else why it does not.
fn what_counts<'a>(
    side: &ResourceSide<'a>,
    caller: Option<&Caller>,
    allow: Option<Close<'a>>,
) -> (Option<Close<'a>>, Option<Reason>) {
    let Some((_, found)) = allow else { return (None, None) };
    if side.object_owner.is_some_and(|owner| owner != side.bucket_owner) {
        return (None, Some(Reason::ObjectOfOtherAccount(found.named())));
    }
    let is_own_account = caller.is_some_and(|caller| caller.account.canonical_id == side.bucket_owner);
    let is_public = side.policy.is_some_and(Policy::is_public);
    if side.public_access_block.restrict_public_buckets && is_public && !is_own_account {
        return (None, Some(Reason::PublicAccessBlocked(Grant::Statement(found.named()))));
    }
    (allow, None)
}

/// Returns the resource owner's grant to other accounts or all users: by policy, or else by ACL.
fn with_acl<'a>(
    side: &ResourceSide<'a>,
    caller: Option<&Caller>,
    allow: Option<Close<'a>>,
    uncounted: Option<Reason>,
) -> (Option<Allowing<'a>>, Option<Reason>) {
    if let Some((_, found)) = allow {
        return (Some(Allowing::Statement(found)), None);
    }
    let Some(acl) = &side.acl else { return (None, uncounted) };
    let ignore_public = side.public_access_block.ignore_public_acls;
    if acl::allows(acl, caller, ignore_public) {
        return (Some(Allowing::Acl), None);
    }
    let is_blocked = ignore_public && acl::allows(acl, caller, false);
    (None, uncounted.or(is_blocked.then_some(Reason::PublicAccessBlocked(Grant::Acl))))
}

/// Either side is enough, but an Allow to the whole account only hands on to the caller's own policies.
fn within_account(own: Own<'_>, allow: Option<Close<'_>>, uncounted: Option<Reason>) -> Decision {
    let named = match allow {
        // A grant to the session itself is not narrowed by the policies that the session began with. The policy of
        // the access key narrows it: who holds the key chooses the name of the session.
        Some((Closeness::Session, found)) => {
            return match own.key_gap {
                None => Decision::allowed(Reason::Allowed(Grant::Statement(found.named()))),
                Some(name) => Decision::denied(Reason::SessionPolicyDoesNotAllow(name.to_owned())),
            };
        }
        Some((Closeness::Identity, found)) => Some(Allowing::Statement(found)),
        Some((Closeness::Account, _)) | None => None,
    };
    match (own.allow.or(named), own.session_gap, allow) {
        (Some(allowing), None, _) => Decision::allowed(Reason::Allowed(allowing.named())),
        (Some(_), Some(name), _) => Decision::denied(Reason::SessionPolicyDoesNotAllow(name.to_owned())),
        (None, _, Some((_, found))) => Decision::denied(Reason::OnlyAccountNamed(found.named())),
        (None, _, None) => Decision::denied(uncounted.unwrap_or(Reason::NothingAllows)),
    }
}

/// Both sides are needed.
fn across_accounts(own: Own<'_>, offer: Option<Allowing<'_>>, uncounted: Option<Reason>) -> Decision {
    let reason = match (own.allow, own.session_gap, offer) {
        (Some(allowing), None, Some(offer)) => {
            let reason = Reason::AllowedAcrossAccounts { own: allowing.named(), resource: offer.named() };
            return Decision::allowed(reason);
        }
        (Some(_), Some(name), _) => Reason::SessionPolicyDoesNotAllow(name.to_owned()),
        (Some(allowing), None, None) => {
            uncounted.unwrap_or_else(|| Reason::OtherSideDoesNotAllow(allowing.named()))
        }
        (None, _, Some(offer)) => Reason::OwnSideDoesNotAllow(offer.named()),
        (None, _, None) => uncounted.unwrap_or(Reason::NothingAllows),
    };
    Decision::denied(reason)
}

/// Returns if the trust policy of a role, by itself, lets a principal assume it. That suffices for bearers of a
/// token, but not for callers: [`decide_assume_role`] checks their own policies, too. A user or session whose
/// account is all that the policy names gets [`Reason::AccountTrusted`], and must not assume the role unless its
/// own policies allow it.
pub fn trusts(
    policy: &Policy,
    principal: TrustPrincipal<'_>,
    action: &str,
    conditions: &dyn ConditionValues,
) -> Decision {
    let context = Context { principal: Some(principal), conditions };
    let found = resource_policy(policy, Source::Trust, &Asked { context, action, resource: "" });
    match (found.deny, found.allow) {
        (Some(deny), _) => Decision::denied(Reason::ExplicitDeny(deny.named())),
        (None, Some((Closeness::Account, found))) => Decision::allowed(Reason::AccountTrusted(found.named())),
        (None, Some((_, found))) => Decision::allowed(Reason::Allowed(Grant::Statement(found.named()))),
        (None, None) => Decision::denied(Reason::NothingAllows),
    }
}

/// May this caller assume that role?
#[derive(Clone, Copy)]
pub struct AssumeQuestion<'a> {
    /// The signer of the request.
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

/// Decides by both the trust policy and the caller's own policies. The trust policy always has to allow it; the
/// caller's have to if it is of another account, or if the trust policy names only the account.
pub fn decide_assume_role(question: &AssumeQuestion<'_>) -> Decision {
    let context = Context::of_caller(Some(&question.caller.identity), question.conditions);
    let asked = Asked { context, action: question.action, resource: question.role_arn };
    let is_same_account = question.caller.account.id == question.role_account;
    decide_by_both(&asked, question.caller, is_same_account, question.trust_policy, Source::Trust)
}

/// By a policy that always has to allow, and the caller's own policies.
fn decide_by_both(
    asked: &Asked<'_>,
    caller: &Caller,
    is_same_account: bool,
    policy: &Policy,
    source: Source<'static>,
) -> Decision {
    let own = match own_side(caller, asked) {
        Ok(own) => own,
        Err(deny) => return Decision::denied(Reason::ExplicitDeny(deny.named())),
    };
    let found = resource_policy(policy, source, asked);
    if let Some(deny) = found.deny {
        return Decision::denied(Reason::ExplicitDeny(deny.named()));
    }
    if !is_same_account {
        let offer = found.allow.map(|(_, found)| Allowing::Statement(found));
        return across_accounts(own, offer, None);
    }
    match (found.allow, own.allow) {
        (Some(_), _) => within_account(own, found.allow, None),
        (None, Some(allowing)) => Decision::denied(Reason::OtherSideDoesNotAllow(allowing.named())),
        (None, None) => Decision::denied(Reason::NothingAllows),
    }
}

/// May this caller use that key of the key service?
#[derive(Clone, Copy)]
pub struct KeyQuestion<'a> {
    /// `None` for a request without a signature.
    pub caller: Option<&'a Caller>,
    /// Such as `kms:Decrypt`.
    pub action: &'a str,
    /// The key's ARN.
    pub key_arn: &'a str,
    /// Id of the account that the key belongs to; `None` for one that is every account's.
    pub owner: Option<&'a str>,
    /// The key policy.
    pub policy: Option<&'a Policy>,
    /// Keys of the request.
    pub conditions: &'a dyn ConditionValues,
}

/// Decides about a use of a key. A key policy always has to allow it; the caller's own policies have to if the caller is
/// of another account, or if the key policy names only the account. Without a key policy all who are of the key's
/// account may use it, or all if it has none, unless something denies it.
pub fn decide_key(question: &KeyQuestion<'_>) -> Decision {
    let KeyQuestion { caller, action, key_arn, owner, policy, conditions } = *question;
    let asked = Asked {
        context: Context::of_caller(caller.map(|caller| &caller.identity), conditions),
        action,
        resource: key_arn,
    };
    let Some(caller) = caller else {
        return match (owner, policy) {
            (None, None) => Decision::allowed(Reason::KeyWithoutPolicy),
            _ => Decision::denied(Reason::KeyNeedsSignature),
        };
    };
    let is_same_account = owner.is_none_or(|owner| owner == caller.account.id);
    if let Some(policy) = policy {
        return decide_by_both(&asked, caller, is_same_account, policy, Source::Key);
    }
    match own_side(caller, &asked) {
        Err(deny) => Decision::denied(Reason::ExplicitDeny(deny.named())),
        Ok(_) if is_same_account => Decision::allowed(Reason::KeyWithoutPolicy),
        Ok(own) => across_accounts(own, None, None),
    }
}
