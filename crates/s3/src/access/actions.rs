//! Questions of each operation to the policy engine: the action, its resource, and the permission of an ACL that
//! allows it. Source: "Actions, resources, and condition keys for Amazon S3" and "Access control list (ACL)
//! overview" of the S3 documentation.

use atoll_types::access::AclPermission;
use http::HeaderMap;

/// Resource of an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// No bucket: the caller's own account.
    Account,
    /// The entries of the body; the operation asks for each.
    Entries,
    /// A bucket that the request makes.
    NewBucket,
    /// A bucket.
    Bucket,
    /// A key: a present object does not affect the decision.
    Key,
    /// An object that is there, whose owner, ACL and tags count.
    Object,
}

/// The ACL that counts for an action, and the permission that it has to grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AclNeed {
    /// No ACL allows it.
    None,
    /// That of the bucket.
    Bucket(AclPermission),
    /// That of the object.
    Object(AclPermission),
}

/// Question of one operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rule {
    /// Without a version id.
    pub action: &'static str,
    /// With one.
    pub version_action: &'static str,
    pub target: Target,
    pub acl: AclNeed,
}

impl Rule {
    /// Returns true if it makes or removes a bucket, or changes its configuration.
    pub(crate) fn is_change_of_bucket(&self) -> bool {
        let is_read = ["s3:Get", "s3:List"].iter().any(|prefix| self.action.starts_with(prefix));
        matches!(self.target, Target::NewBucket | Target::Bucket) && !is_read
    }
}

const fn rule(action: &'static str, target: Target, acl: AclNeed) -> Rule {
    Rule { action, version_action: action, target, acl }
}

const fn bucket(action: &'static str) -> Rule {
    rule(action, Target::Bucket, AclNeed::None)
}

const fn of_version(action: &'static str, version_action: &'static str, target: Target, acl: AclNeed) -> Rule {
    Rule { action, version_action, target, acl }
}

const READ_BUCKET: AclNeed = AclNeed::Bucket(AclPermission::Read);
const WRITE_BUCKET: AclNeed = AclNeed::Bucket(AclPermission::Write);
const READ_OBJECT: AclNeed = AclNeed::Object(AclPermission::Read);

pub(crate) const GET_OBJECT: Rule = of_version("s3:GetObject", "s3:GetObjectVersion", Target::Object, READ_OBJECT);
pub(crate) const LIST_BUCKET: Rule = rule("s3:ListBucket", Target::Bucket, READ_BUCKET);
const PUT_OBJECT: Rule = rule("s3:PutObject", Target::Key, WRITE_BUCKET);
pub(crate) const DELETE_OBJECT: Rule =
    of_version("s3:DeleteObject", "s3:DeleteObjectVersion", Target::Key, WRITE_BUCKET);
const PUT_OBJECT_ACL: Rule = of_version(
    "s3:PutObjectAcl",
    "s3:PutObjectVersionAcl",
    Target::Object,
    AclNeed::Object(AclPermission::WriteAcp),
);
const GET_OBJECT_ACL: Rule = of_version(
    "s3:GetObjectAcl",
    "s3:GetObjectVersionAcl",
    Target::Object,
    AclNeed::Object(AclPermission::ReadAcp),
);
pub(crate) const BYPASS_GOVERNANCE: Rule = rule("s3:BypassGovernanceRetention", Target::Key, AclNeed::None);
const GET_ATTRIBUTES: Rule =
    of_version("s3:GetObjectAttributes", "s3:GetObjectVersionAttributes", Target::Object, READ_OBJECT);

pub(crate) const GET_TAGGING: Rule =
    of_version("s3:GetObjectTagging", "s3:GetObjectVersionTagging", Target::Object, AclNeed::None);
pub(crate) const GET_RETENTION: Rule = rule("s3:GetObjectRetention", Target::Object, AclNeed::None);
pub(crate) const GET_LEGAL_HOLD: Rule = rule("s3:GetObjectLegalHold", Target::Object, AclNeed::None);
/// Question for tags of a new version.
pub(crate) const SET_TAGS: Rule = rule("s3:PutObjectTagging", Target::Key, WRITE_BUCKET);

/// Headers whose requests need further rights beside those of the operation.
const EXTRA: [(&str, Rule); 8] = [
    (BYPASS, BYPASS_GOVERNANCE),
    ("x-amz-tagging", SET_TAGS),
    ("x-amz-object-lock-mode", rule("s3:PutObjectRetention", Target::Key, AclNeed::None)),
    ("x-amz-object-lock-legal-hold", rule("s3:PutObjectLegalHold", Target::Key, AclNeed::None)),
    ("x-amz-acl", rule("s3:PutBucketAcl", Target::NewBucket, AclNeed::None)),
    ("x-amz-object-ownership", rule("s3:PutBucketOwnershipControls", Target::NewBucket, AclNeed::None)),
    (
        "x-amz-bucket-object-lock-enabled",
        rule("s3:PutBucketObjectLockConfiguration", Target::NewBucket, AclNeed::None),
    ),
    // A bucket with locks has versions.
    ("x-amz-bucket-object-lock-enabled", rule("s3:PutBucketVersioning", Target::NewBucket, AclNeed::None)),
];
const BYPASS: &str = "x-amz-bypass-governance-retention";

/// Returns true if conditions of a write or a deletion disclose properties of the present object: a caller without
/// the right to read could find its ETag, its size or its age by them. Every writer learns that it exists.
fn reads_by_conditions(operation: &str, headers: &HeaderMap) -> bool {
    let has = |name: &str| headers.contains_key(name);
    match operation {
        "CompleteMultipartUpload" | "CopyObject" | "PostObject" | "PutObject" => has("if-match"),
        "DeleteObject" => {
            headers.get("if-match").is_some_and(|value| value.as_bytes().trim_ascii() != b"*")
                || has("x-amz-if-match-size")
                || has("x-amz-if-match-last-modified-time")
        }
        _ => false,
    }
}

/// Returns true if a header requests something. DeleteObjects asks for each of its keys.
fn asks(operation: &str, headers: &HeaderMap, name: &str) -> bool {
    let is_refusal = |value: &http::HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"false");
    match name {
        BYPASS if operation == "DeleteObjects" => false,
        BYPASS => headers.get_all(name).iter().any(|value| !is_refusal(value)),
        _ => headers.contains_key(name),
    }
}

/// Returns the rules for requests in headers beside the operation.
pub(crate) fn extra_rules(operation: &str, headers: &HeaderMap) -> Vec<Rule> {
    let is_creation = operation == "CreateBucket";
    // Of objects, only ACLs that let others in need a right of their own, which the operation asks for.
    let of_headers = EXTRA.iter().filter(|(name, rule)| {
        asks(operation, headers, name) && (rule.target == Target::NewBucket) == is_creation
    });
    let mut rules: Vec<Rule> = of_headers.map(|(_, rule)| *rule).collect();
    if is_creation && headers.keys().any(|name| name.as_str().starts_with("x-amz-grant-")) {
        rules.push(rule("s3:PutBucketAcl", Target::NewBucket, AclNeed::None));
    }
    if operation == "GetObjectAttributes" {
        rules.push(GET_ATTRIBUTES);
    }
    if reads_by_conditions(operation, headers) {
        rules.push(GET_OBJECT);
    }
    rules
}

/// The rule of an operation, by its name in S3's API. `None` for operations that the gateway does not
/// have.
pub(crate) fn rule_of(operation: &str) -> Option<Rule> {
    of_objects(operation).or_else(|| of_buckets(operation))
}

fn of_objects(operation: &str) -> Option<Rule> {
    use Target::{Key, Object};
    Some(match operation {
        "AbortMultipartUpload" => rule("s3:AbortMultipartUpload", Key, WRITE_BUCKET),
        "CompleteMultipartUpload"
        | "CopyObject"
        | "CreateMultipartUpload"
        | "PostObject"
        | "PutObject"
        | "UploadPart"
        | "UploadPartCopy" => PUT_OBJECT,
        "DeleteObject" => DELETE_OBJECT,
        "DeleteObjectTagging" => {
            of_version("s3:DeleteObjectTagging", "s3:DeleteObjectVersionTagging", Object, AclNeed::None)
        }
        "GetObject" | "HeadObject" | "GetObjectAttributes" => GET_OBJECT,
        "GetObjectAcl" => GET_OBJECT_ACL,
        "GetObjectLegalHold" => GET_LEGAL_HOLD,
        "GetObjectRetention" => GET_RETENTION,
        "GetObjectTagging" => GET_TAGGING,
        "ListParts" => rule("s3:ListMultipartUploadParts", Key, AclNeed::None),
        "PutObjectAcl" => PUT_OBJECT_ACL,
        "PutObjectLegalHold" => rule("s3:PutObjectLegalHold", Object, AclNeed::None),
        "PutObjectRetention" => rule("s3:PutObjectRetention", Object, AclNeed::None),
        "PutObjectTagging" => {
            of_version("s3:PutObjectTagging", "s3:PutObjectVersionTagging", Object, AclNeed::None)
        }
        _ => return None,
    })
}

fn of_buckets(operation: &str) -> Option<Rule> {
    Some(match operation {
        "CreateBucket" => rule("s3:CreateBucket", Target::NewBucket, AclNeed::None),
        "DeleteBucket" => bucket("s3:DeleteBucket"),
        "DeleteBucketCors" | "PutBucketCors" => bucket("s3:PutBucketCORS"),
        "DeleteBucketEncryption" | "PutBucketEncryption" => bucket("s3:PutEncryptionConfiguration"),
        "DeleteBucketLifecycle" => bucket("s3:PutLifecycleConfiguration"),
        "DeleteBucketOwnershipControls" | "PutBucketOwnershipControls" => bucket("s3:PutBucketOwnershipControls"),
        "DeleteBucketPolicy" => bucket("s3:DeleteBucketPolicy"),
        "DeleteBucketTagging" | "PutBucketTagging" => bucket("s3:PutBucketTagging"),
        "DeleteBucketWebsite" => bucket("s3:DeleteBucketWebsite"),
        "DeleteObjects" => rule("s3:DeleteObject", Target::Entries, AclNeed::None),
        "DeletePublicAccessBlock" | "PutPublicAccessBlock" => bucket("s3:PutBucketPublicAccessBlock"),
        "GetBucketAccelerateConfiguration" => bucket("s3:GetAccelerateConfiguration"),
        "GetBucketAcl" => rule("s3:GetBucketAcl", Target::Bucket, AclNeed::Bucket(AclPermission::ReadAcp)),
        "GetBucketCors" => bucket("s3:GetBucketCORS"),
        "GetBucketEncryption" => bucket("s3:GetEncryptionConfiguration"),
        "GetBucketLifecycleConfiguration" => bucket("s3:GetLifecycleConfiguration"),
        "GetBucketLocation" => bucket("s3:GetBucketLocation"),
        "GetBucketLogging" => bucket("s3:GetBucketLogging"),
        "GetBucketNotificationConfiguration" => bucket("s3:GetBucketNotification"),
        "GetBucketOwnershipControls" => bucket("s3:GetBucketOwnershipControls"),
        "GetBucketPolicy" => bucket("s3:GetBucketPolicy"),
        "GetBucketPolicyStatus" => bucket("s3:GetBucketPolicyStatus"),
        "GetBucketReplication" => bucket("s3:GetReplicationConfiguration"),
        "GetBucketRequestPayment" => bucket("s3:GetBucketRequestPayment"),
        "GetBucketTagging" => bucket("s3:GetBucketTagging"),
        "GetBucketVersioning" => bucket("s3:GetBucketVersioning"),
        "GetBucketWebsite" => bucket("s3:GetBucketWebsite"),
        "GetObjectLockConfiguration" => bucket("s3:GetBucketObjectLockConfiguration"),
        "GetPublicAccessBlock" => bucket("s3:GetBucketPublicAccessBlock"),
        "HeadBucket" | "ListObjects" | "ListObjectsV2" => LIST_BUCKET,
        "ListBuckets" => rule("s3:ListAllMyBuckets", Target::Account, AclNeed::None),
        "ListMultipartUploads" => rule("s3:ListBucketMultipartUploads", Target::Bucket, READ_BUCKET),
        "ListObjectVersions" => rule("s3:ListBucketVersions", Target::Bucket, READ_BUCKET),
        "PutBucketAcl" => rule("s3:PutBucketAcl", Target::Bucket, AclNeed::Bucket(AclPermission::WriteAcp)),
        "PutBucketPolicy" => bucket("s3:PutBucketPolicy"),
        "PutBucketRequestPayment" => bucket("s3:PutBucketRequestPayment"),
        "PutBucketVersioning" => bucket("s3:PutBucketVersioning"),
        "PutObjectLockConfiguration" => bucket("s3:PutBucketObjectLockConfiguration"),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::known_requests::KNOWN;

    #[test]
    fn every_operation_has_a_rule() {
        for known in KNOWN {
            assert!(rule_of(known.operation).is_some(), "{}", known.operation);
        }
        assert!(rule_of("SelectObjectContent").is_none());
    }

    /// By the names of operations, which the rule does not look at.
    #[test]
    fn changes_of_buckets_are_told_from_requests_of_objects() {
        const OF_OBJECTS: [&str; 7] = [
            "PutObject",
            "PutObjectAcl",
            "PutObjectLegalHold",
            "PutObjectRetention",
            "PutObjectTagging",
            "DeleteObject",
            "DeleteObjectTagging",
        ];
        for known in KNOWN {
            let name = known.operation;
            let is_change = ["Create", "Put", "Delete"].iter().any(|prefix| name.starts_with(prefix))
                && !OF_OBJECTS.contains(&name)
                && !["DeleteObjects", "CreateMultipartUpload"].contains(&name);
            assert_eq!(rule_of(name).unwrap().is_change_of_bucket(), is_change, "{name}");
        }
    }
}
