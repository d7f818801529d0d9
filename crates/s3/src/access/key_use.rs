//! Rights to use keys of the key service for SSE-KMS. Source: "Using server-side encryption with AWS KMS keys" of
//! the S3 documentation, and "AWS KMS condition keys".

use std::borrow::Cow;

use atoll_iam::arn::kms_key_arn;
use atoll_iam::{ConditionValues, Identities, KeyQuestion, decide_key};
use atoll_keys::DEFAULT_KEY;
use s3s::{S3Result, s3_error};

use super::{Asked, Asking, RequestConditions, access_denied};
use crate::bucket::Bucket;
use crate::encryption::Encryption;

/// Use of a key by an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyUse {
    /// Seals something new: PutObject, an upload by form, CreateMultipartUpload, the target of a copy.
    GenerateDataKey,
    /// Opens sealed data, or adds to it: GetObject, the source of a copy, UploadPart and UploadPartCopy, and
    /// checksums of HeadObject, GetObjectAttributes and CompleteMultipartUpload.
    Decrypt,
}

impl KeyUse {
    fn action(self) -> &'static str {
        match self {
            KeyUse::GenerateDataKey => "kms:GenerateDataKey",
            KeyUse::Decrypt => "kms:Decrypt",
        }
    }
}

/// An object that is sealed or opened for a caller.
#[derive(Clone, Copy)]
pub(crate) struct SealedFor<'a> {
    pub asking: &'a Asking<'a>,
    pub bucket: &'a Bucket,
    pub key: &'a str,
}

/// Condition keys of a use of a key: those of the request, and KMS's own.
struct KeyConditions<'a> {
    request: RequestConditions<'a>,
    sealed: SealedFor<'a>,
    region: &'a str,
    owner: &'a str,
    encryption: &'a Encryption,
}

const OBJECT_ARN: &str = "aws:s3:arn";

impl KeyConditions<'_> {
    /// The encryption context as S3 would give it to KMS: with the ARN of the object, or of its bucket if S3 Bucket Keys
    /// are on.
    fn context(&self) -> Vec<(Cow<'_, str>, Cow<'_, str>)> {
        let Encryption::Kms { context, bucket_key_enabled, .. } = self.encryption else { return Vec::new() };
        let mut pairs: Vec<(Cow<'_, str>, Cow<'_, str>)> =
            context.iter().map(|(name, value)| (name.as_str().into(), value.as_str().into())).collect();
        if !context.contains_key(OBJECT_ARN) {
            let bucket = &self.sealed.bucket.record.name;
            let arn = match bucket_key_enabled {
                true => format!("arn:aws:s3:::{bucket}"),
                false => format!("arn:aws:s3:::{bucket}/{}", self.sealed.key),
            };
            pairs.push((OBJECT_ARN.into(), arn.into()));
        }
        pairs
    }

    fn of_kms(&self, name: &str) -> Vec<Cow<'_, str>> {
        match name {
            "viaservice" => vec![format!("s3.{}.amazonaws.com", self.region).into()],
            "calleraccount" => {
                let caller = self.sealed.asking.caller();
                caller.map(|caller| caller.account.id.as_str().into()).into_iter().collect()
            }
            "encryptioncontextkeys" => self.context().into_iter().map(|(name, _)| name).collect(),
            _ => match name.strip_prefix("encryptioncontext:") {
                Some(wanted) => {
                    let pairs = self.context().into_iter();
                    pairs.filter(|(name, _)| name.eq_ignore_ascii_case(wanted)).map(|(_, value)| value).collect()
                }
                None => Vec::new(),
            },
        }
    }
}

impl ConditionValues for KeyConditions<'_> {
    fn values(&self, key: &str) -> Vec<Cow<'_, str>> {
        match key.split_once(':') {
            Some(("kms", name)) => self.of_kms(name),
            Some(("aws", "resourceaccount")) => vec![self.owner.into()],
            // S3 asks on behalf of who has signed.
            Some(("aws", "viaawsservice")) => vec!["true".into()],
            Some(("aws", _)) => self.request.values(key),
            _ => Vec::new(),
        }
    }
}

impl SealedFor<'_> {
    /// May who asks use the key that seals the object so? Only SSE-KMS has keys with rights of their own.
    pub(crate) fn check(
        &self,
        key_use: KeyUse,
        encryption: &Encryption,
        identities: &Identities,
        region: &str,
    ) -> S3Result<()> {
        let Encryption::Kms { key_name, .. } = encryption else { return Ok(()) };
        let name = key_name.as_deref().unwrap_or(DEFAULT_KEY);
        let entry = identities.kms_key(name);
        let caller = self.asking.caller();
        let owner = entry.map(|entry| entry.record.account.as_str());
        // A key without an owner is each account's.
        let of_caller = caller.map(|caller| caller.account.id.as_str());
        let account = owner.or(of_caller).or(self.bucket.owner_account.as_deref()).unwrap_or_default();
        let arn = kms_key_arn(region, account, name);
        let request = self.asking.conditions(Some(&Asked::key(self.bucket, self.key, None)));
        let conditions = KeyConditions { request, sealed: *self, region, owner: account, encryption };
        let question = KeyQuestion {
            caller,
            action: key_use.action(),
            key_arn: &arn,
            owner,
            policy: entry.and_then(|entry| entry.policy.as_deref()),
            conditions: &conditions,
        };
        let decision = decide_key(&question);
        if decision.is_allowed {
            return Ok(());
        }
        let action = question.action;
        let Some(who) = caller.map(|caller| caller.arn()) else {
            tracing::debug!(action, key = arn, reason = %decision.reason, "denied");
            return Err(access_denied());
        };
        tracing::debug!(caller = who, action, key = arn, reason = %decision.reason, "denied");
        Err(s3_error!(AccessDenied, "User: {who} is not authorized to perform: {action} on resource: {arn}"))
    }
}
