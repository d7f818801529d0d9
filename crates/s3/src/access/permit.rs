//! An operation's knowledge of its caller, and the questions that it asks the policy engine itself because only
//! the operation has the object, or the body.

use std::collections::BTreeMap;
use std::sync::Arc;

use atoll_iam::{AclSide, Caller, Decision, Question, ResourceSide, decide};
use atoll_types::access::{AclPermission, ObjectOwnership};
use http::{Extensions, HeaderMap, Uri};
use s3s::{S3Error, S3Result, s3_error};

use super::conditions::NamedKey;
use super::{AclNeed, LIST_BUCKET, RequestConditions, Rule, Target};
use crate::arrival::Arrival;
use crate::authentication::Authentication;
use crate::bucket::{Bucket, BucketPolicy};
use crate::clock::unix_ms;
use crate::object_lock::ObjectLock;
use crate::record::EntryHead;

/// The canonical id of unsigned callers, as in S3.
const ANONYMOUS: &str = "65a011a29cdf8ec533ec3d1ccaae921c";
/// Condition keys that need the object.
const EXISTING_TAGS: &str = "s3:existingobjecttag/";
/// Condition keys that need the body, where it says how to lock an object.
const LOCK: &str = "s3:object-lock-";

/// The condition key that needs the body of a CreateBucket.
const LOCATION: &str = "s3:locationconstraint";

pub(crate) fn access_denied() -> S3Error {
    s3_error!(AccessDenied, "Access Denied")
}

/// Travels with each admitted request, as one of its extensions.
#[derive(Clone, Debug, Default)]
pub(crate) struct Permit {
    /// `None` for a request without a signature.
    pub caller: Option<Arc<Caller>>,
    /// How it is signed.
    pub authentication: Authentication,
    /// Its operation, by its name in S3's API.
    pub operation: &'static str,
    /// Rules that are allowed only if the object that the operation finds allows them, or the body.
    pub pending: Vec<Rule>,
    /// The key for SSE-KMS that its headers name.
    pub named_key: Option<NamedKey>,
    /// The gateway's region.
    pub region: String,
}

impl Permit {
    /// Names the caller's account as the owner of its new objects.
    pub(crate) fn canonical_id(&self) -> &str {
        self.caller.as_ref().map_or(ANONYMOUS, |caller| &caller.account.canonical_id)
    }
}

/// A request as the policy engine sees it.
#[derive(Clone, Copy)]
pub(crate) struct Asking<'a> {
    pub permit: &'a Permit,
    headers: &'a HeaderMap,
    uri: &'a Uri,
    arrival: Option<Arrival>,
    /// Tags that the body of the request sets.
    body_tags: Option<&'a BTreeMap<String, String>>,
    /// The lock that it sets.
    body_lock: Option<&'a ObjectLock>,
    /// Where it wants a bucket to be.
    location: Option<&'a str>,
}

/// Subject of a question.
#[derive(Clone, Copy)]
pub(crate) struct Asked<'a> {
    pub bucket: &'a Bucket,
    /// `None` for the bucket itself.
    pub key: Option<&'a str>,
    /// The version that is named, if one is.
    pub version_id: Option<&'a str>,
    /// The object that is there, if it was found.
    pub object: Option<&'a EntryHead>,
    /// See [`RequestConditions::prefix`].
    pub prefix: Option<&'a str>,
}

impl<'a> Asked<'a> {
    pub(crate) fn bucket(bucket: &'a Bucket) -> Self {
        Asked { bucket, key: None, version_id: None, object: None, prefix: None }
    }

    pub(crate) fn key(bucket: &'a Bucket, key: &'a str, version_id: Option<&'a str>) -> Self {
        Asked { key: Some(key), version_id, ..Asked::bucket(bucket) }
    }

    /// Returns true if the decision depends on the object, which the question does not have yet.
    fn depends_on_object(&self, rule: Rule, caller: Option<&Caller>) -> bool {
        rule.target == Target::Object && (self.bucket.counts_acls() || self.policies_use(EXISTING_TAGS, caller))
    }

    /// Returns true if a relevant policy uses condition keys that begin so.
    fn policies_use(&self, keys: &str, caller: Option<&Caller>) -> bool {
        let of_caller = || {
            caller.is_some_and(|caller| caller.all_policies().any(|(_, policy)| policy.uses_condition_key(keys)))
        };
        self.bucket.policy().is_some_and(|policy| policy.uses_condition_key(keys)) || of_caller()
    }

    fn acl(&self, need: AclNeed) -> Option<AclSide<'a>> {
        let access = self.bucket.record.access.as_ref().filter(|_| self.bucket.counts_acls())?;
        match need {
            AclNeed::None => None,
            AclNeed::Bucket(needed) => {
                Some(AclSide { owner: &self.bucket.record.owner, acl: access.acl.as_ref(), needed })
            }
            AclNeed::Object(needed) => {
                let object = self.object?;
                Some(AclSide { owner: self.owner_of(object), acl: object.acl.as_ref(), needed })
            }
        }
    }

    fn owner_of(&self, object: &'a EntryHead) -> &'a str {
        object.owner.as_deref().unwrap_or(&self.bucket.record.owner)
    }
}

impl<'a> Asking<'a> {
    /// Returns the context of an admitted request.
    pub(crate) fn of(headers: &'a HeaderMap, uri: &'a Uri, extensions: &'a Extensions) -> S3Result<Self> {
        let permit = extensions.get::<Permit>();
        let permit = permit.ok_or_else(|| s3_error!(InternalError, "The request has not been authorised"))?;
        Ok(Asking::new(permit, headers, uri, extensions.get::<Arrival>().copied()))
    }

    pub(crate) fn new(permit: &'a Permit, headers: &'a HeaderMap, uri: &'a Uri, arrival: Option<Arrival>) -> Self {
        Asking { permit, headers, uri, arrival, body_tags: None, body_lock: None, location: None }
    }

    /// With other questions left open.
    pub(crate) fn with_permit(self, permit: &'a Permit) -> Self {
        Asking { permit, ..self }
    }

    /// With the tags that the body of the request sets.
    pub(crate) fn with_tags(self, tags: &'a BTreeMap<String, String>) -> Self {
        Asking { body_tags: Some(tags), ..self }
    }

    /// With the lock that the body of the request sets.
    pub(crate) fn with_lock(self, lock: &'a ObjectLock) -> Self {
        Asking { body_lock: Some(lock), ..self }
    }

    /// With the place where the body of the request wants a bucket to be.
    pub(crate) fn with_location(self, location: Option<&'a str>) -> Self {
        Asking { location, ..self }
    }

    pub(crate) fn caller(&self) -> Option<&'a Caller> {
        self.permit.caller.as_deref()
    }

    pub(super) fn conditions(&self, asked: Option<&Asked<'a>>) -> RequestConditions<'a> {
        RequestConditions {
            headers: self.headers,
            uri: self.uri,
            arrival: self.arrival,
            authentication: self.permit.authentication,
            region: &self.permit.region,
            operation: self.permit.operation,
            now_ms: unix_ms(),
            resource_account: asked.and_then(|asked| asked.bucket.owner_account.as_deref()),
            existing_tags: asked.and_then(|asked| asked.object).map(|object| &object.tags),
            body_tags: self.body_tags,
            body_lock: self.body_lock,
            version_id: asked.and_then(|asked| asked.version_id),
            location: self.location,
            named_key: self.permit.named_key.as_ref(),
            prefix: asked.and_then(|asked| asked.prefix),
        }
    }

    /// Returns true if the right to make a bucket depends on the body of a CreateBucket.
    pub(crate) fn depends_on_location(&self) -> bool {
        let policies = self.caller().into_iter().flat_map(Caller::all_policies);
        policies.into_iter().any(|(_, policy)| policy.uses_condition_key(LOCATION))
    }

    /// Checks the pending rights to make this bucket.
    pub(crate) fn check_new_bucket(&self, bucket: &str) -> S3Result<()> {
        let resource = format!("arn:aws:s3:::{bucket}");
        self.permit.pending.iter().try_for_each(|rule| self.check_account(rule.action, &resource))
    }

    /// May the caller do this to its own account?
    pub(crate) fn check_account(&self, action: &str, resource: &str) -> S3Result<()> {
        let conditions = self.conditions(None);
        let question =
            Question { caller: self.caller(), action, resource, resource_side: None, conditions: &conditions };
        self.answer(&question, decide(&question))
    }

    fn answer(&self, question: &Question<'_>, decision: Decision) -> S3Result<()> {
        if decision.is_allowed {
            return Ok(());
        }
        let caller = self.caller().map_or_else(|| "nobody".into(), |caller| caller.arn());
        let Question { action, resource, .. } = question;
        tracing::debug!(%caller, action, resource, reason = %decision.reason, "denied");
        Err(access_denied())
    }

    /// May the caller do this?
    pub(crate) fn check(&self, rule: Rule, asked: &Asked<'a>) -> S3Result<()> {
        let record = &asked.bucket.record;
        let resource = match asked.key {
            Some(key) => format!("arn:aws:s3:::{}/{key}", record.name),
            None => format!("arn:aws:s3:::{}", record.name),
        };
        if matches!(asked.bucket.policy, BucketPolicy::Unreadable) && !self.may_mend_policy(rule, asked) {
            // Reading the record has said so, once, as an error.
            tracing::debug!(bucket = record.name, "denied: the bucket's policy cannot be read");
            return Err(access_denied());
        }
        let object = asked.object.filter(|_| asked.bucket.counts_acls() && rule.target == Target::Object);
        let conditions = self.conditions(Some(asked));
        let question = Question {
            caller: self.caller(),
            action: if asked.version_id.is_some() { rule.version_action } else { rule.action },
            resource: &resource,
            resource_side: Some(ResourceSide {
                bucket_owner: &record.owner,
                object_owner: object.map(|object| asked.owner_of(object)),
                policy: asked.bucket.policy(),
                acl: asked.acl(rule.acl),
                public_access_block: record.public_access_block.unwrap_or_default(),
            }),
            conditions: &conditions,
        };
        self.answer(&question, decide(&question))
    }

    /// Returns true if the owner of a bucket replaces or deletes its policy, which may be unreadable.
    fn may_mend_policy(&self, rule: Rule, asked: &Asked<'_>) -> bool {
        let is_about_policy = matches!(rule.action, "s3:PutBucketPolicy" | "s3:DeleteBucketPolicy");
        is_about_policy && self.permit.canonical_id() == asked.bucket.record.owner
    }

    /// The same before the operation has begun: `false` if only the operation can decide, because the decision
    /// depends on the object or on the body.
    pub(crate) fn check_early(&self, rule: Rule, asked: &Asked<'a>) -> S3Result<bool> {
        let depends_on_body = match self.permit.operation {
            "PutObjectTagging" => true,
            "PutObjectLegalHold" | "PutObjectRetention" => asked.policies_use(LOCK, self.caller()),
            _ => false,
        };
        if depends_on_body || asked.depends_on_object(rule, self.caller()) {
            return Ok(false);
        }
        self.check(rule, asked).map(|()| true)
    }

    /// May the caller know whether a key exists? Otherwise a missing key looks like a forbidden one.
    pub(crate) fn may_know(&self, bucket: &'a Bucket, key: &'a str) -> bool {
        self.check(LIST_BUCKET, &Asked { prefix: Some(key), ..Asked::bucket(bucket) }).is_ok()
    }

    /// Asks the questions left to the operation.
    pub(crate) fn check_pending(&self, asked: &Asked<'a>) -> S3Result<()> {
        self.permit.pending.iter().try_for_each(|rule| self.check(*rule, asked))
    }
}

/// Further right for a write that gives rights to others: by the ACL of the bucket a caller that may write may
/// also give the right to read.
pub(crate) const GRANT_TO_OTHERS: Rule = Rule {
    action: "s3:PutObjectAcl",
    version_action: "s3:PutObjectAcl",
    target: Target::Key,
    acl: AclNeed::Bucket(AclPermission::Write),
};

impl Bucket {
    /// Returns true if ACLs count in it.
    pub(crate) fn counts_acls(&self) -> bool {
        self.ownership() != ObjectOwnership::BucketOwnerEnforced
    }

    /// Returns the ownership of its new objects.
    pub(crate) fn ownership(&self) -> ObjectOwnership {
        self.record.access.as_ref().map(|access| access.ownership).unwrap_or_default()
    }

    /// Its policy, if it has one that can be read.
    pub(crate) fn policy(&self) -> Option<&atoll_iam::Policy> {
        match &self.policy {
            BucketPolicy::Set(policy) => Some(policy),
            BucketPolicy::None | BucketPolicy::Unreadable => None,
        }
    }
}
