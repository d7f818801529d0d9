//! Choices of a bucket's owner, as its record has them: versioning, object lock, public access, encryption.

use serde::{Deserialize, Serialize};

/// Versioning of a bucket's objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BucketVersioning {
    /// Raised by every change of versioning and of object lock: no write goes by an older record.
    pub generation: u64,
    /// Otherwise suspended: older versions stay, and each key gets at most one more, the null version.
    pub is_enabled: bool,
}

/// Kinds of public access that a bucket's owner forbade, by S3's names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublicAccessBlock {
    /// No public ACL is accepted.
    pub block_public_acls: bool,
    /// Public ACLs have no effect.
    pub ignore_public_acls: bool,
    /// No public policy is accepted.
    pub block_public_policy: bool,
    /// A public policy gives no rights to the public.
    pub restrict_public_buckets: bool,
}

/// Default retention of new versions in a bucket with object lock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BucketObjectLock {
    /// How long versions are retained whose request does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_retention: Option<DefaultRetention>,
}

/// How long new versions are retained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DefaultRetention {
    /// Mode of the retention.
    pub mode: RetentionMode,
    /// For how long.
    pub period: RetentionPeriod,
}

/// Mode of a version's retention: the users that may end it early.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RetentionMode {
    /// Requests that say that they bypass it.
    Governance,
    /// No user may end it early.
    Compliance,
}

/// A period as the owner gave it; a year has 365 days.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RetentionPeriod {
    /// Days.
    Days(u32),
    /// Years.
    Years(u32),
}

impl RetentionPeriod {
    /// Its length in milliseconds.
    pub fn length_ms(self) -> u64 {
        let days = match self {
            RetentionPeriod::Days(days) => u64::from(days),
            RetentionPeriod::Years(years) => u64::from(years) * 365,
        };
        days * 24 * 60 * 60 * 1_000
    }
}

/// Encryption of objects whose request does not choose one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BucketEncryption {
    /// The key of the key service; `None` for its own choice.
    pub key_name: Option<String>,
    /// True for SSE-KMS to clients, false for SSE-S3.
    pub is_kms: bool,
    /// True if S3 Bucket Keys were requested. Atoll's keys always are such.
    #[serde(default)]
    pub bucket_key_enabled: bool,
}
