//! Object lock: a bucket's default retention, and the locks of single versions.

use atoll_types::coordination::{lapse_unix_ms, later_unix_ms};
use atoll_types::records::{BucketObjectLock, BucketRecord, DefaultRetention, RetentionMode, RetentionPeriod};
use s3s::dto::{
    DefaultRetention as DefaultRetentionAnswer, GetObjectLegalHoldInput, GetObjectLegalHoldOutput,
    GetObjectLockConfigurationInput, GetObjectLockConfigurationOutput, GetObjectRetentionInput,
    GetObjectRetentionOutput, ObjectLockConfiguration, ObjectLockEnabled, ObjectLockLegalHold,
    ObjectLockLegalHoldStatus, ObjectLockMode, ObjectLockRetention, ObjectLockRetentionMode, ObjectLockRule,
    PutObjectLegalHoldInput, PutObjectLegalHoldOutput, PutObjectLockConfigurationInput,
    PutObjectLockConfigurationOutput, PutObjectRetentionInput, PutObjectRetentionOutput, Timestamp,
};
use s3s::{S3Error, S3Request, S3Response, S3Result, s3_error};

use super::Service;
use super::answers::timestamp;
use crate::access::Asking;
use crate::clock::{unix_ms, unix_ms_of};
use crate::error::custom_error;
use crate::index::Index;
use crate::object_lock::{ObjectLock, Retention, legal_hold_name, mode_name};
use crate::record::EntryHead;

/// Longest default retention: a hundred years.
const DAYS_MAX: i32 = 36_500;
const YEARS_MAX: i32 = 100;
/// Begin of the last year that timestamps can have.
pub(super) const YEAR_9999_MS: u64 = 253_370_764_800_000;

fn malformed() -> S3Error {
    s3_error!(
        MalformedXML,
        "The XML you provided was not well-formed or did not validate against our published schema"
    )
}

fn no_lock_in_bucket() -> S3Error {
    s3_error!(InvalidRequest, "Bucket is missing Object Lock Configuration")
}

pub(super) fn locked() -> S3Error {
    s3_error!(AccessDenied, "Access Denied because object protected by object lock.")
}

fn parse_mode(mode: &str) -> Option<RetentionMode> {
    match mode {
        ObjectLockMode::GOVERNANCE => Some(RetentionMode::Governance),
        ObjectLockMode::COMPLIANCE => Some(RetentionMode::Compliance),
        _ => None,
    }
}

fn parse_legal_hold(status: &str) -> Option<bool> {
    match status {
        ObjectLockLegalHoldStatus::ON => Some(true),
        ObjectLockLegalHoldStatus::OFF => Some(false),
        _ => None,
    }
}

fn check_future(until_ms: u64) -> S3Result<()> {
    match until_ms > unix_ms() {
        true if until_ms < YEAR_9999_MS => Ok(()),
        true => Err(s3_error!(InvalidArgument, "The retain until date must be before the year 9999")),
        false => Err(s3_error!(InvalidArgument, "The retain until date must be in the future!")),
    }
}

/// The lock that a request for a new version wants.
macro_rules! lock_headers {
    ($service:expr, $input:expr, $index:expr) => {{
        let lock = $crate::ops::object_lock::lock_of_headers(
            $input.object_lock_mode.take(),
            $input.object_lock_retain_until_date.take(),
            $input.object_lock_legal_hold_status.take(),
        )?;
        if !lock.is_none() {
            $service.check_has_lock($index).await?;
        }
        lock
    }};
}
pub(super) use lock_headers;

/// Fills the three lock fields that answers about a version have.
macro_rules! set_lock {
    ($output:expr, $lock:expr) => {{
        let lock: &$crate::object_lock::ObjectLock = $lock;
        $output.object_lock_mode = lock.retention.map(|retention| {
            s3s::dto::ObjectLockMode::from_static($crate::object_lock::mode_name(retention.mode))
        });
        $output.object_lock_retain_until_date =
            lock.retention.map(|retention| $crate::ops::answers::timestamp(retention.until_ms));
        $output.object_lock_legal_hold_status = lock.legal_hold.map(|is_on| {
            s3s::dto::ObjectLockLegalHoldStatus::from_static($crate::object_lock::legal_hold_name(is_on))
        });
    }};
}
pub(super) use set_lock;

/// The lock that the headers of a request want for a new version.
pub(super) fn lock_of_headers(
    mode: Option<ObjectLockMode>,
    until: Option<Timestamp>,
    legal_hold: Option<ObjectLockLegalHoldStatus>,
) -> S3Result<ObjectLock> {
    let invalid = |name: &str| s3_error!(InvalidArgument, "Unknown value of {name}");
    let retention = match (mode, until) {
        (None, None) => None,
        (Some(mode), Some(until)) => {
            let mode = parse_mode(mode.as_str()).ok_or_else(|| invalid("x-amz-object-lock-mode"))?;
            let until_ms = unix_ms_of(until);
            check_future(until_ms)?;
            Some(Retention { mode, until_ms })
        }
        _ => {
            return Err(s3_error!(
                InvalidArgument,
                "x-amz-object-lock-retain-until-date and x-amz-object-lock-mode must both be supplied"
            ));
        }
    };
    let parse = |status: ObjectLockLegalHoldStatus| {
        parse_legal_hold(status.as_str()).ok_or_else(|| invalid("x-amz-object-lock-legal-hold"))
    };
    let lock = ObjectLock { retention, legal_hold: legal_hold.map(parse).transpose()? };
    Ok(lock)
}

/// The default retention that a configuration asks for.
fn default_retention(configuration: &ObjectLockConfiguration) -> S3Result<Option<DefaultRetention>> {
    let enabled = configuration.object_lock_enabled.as_ref().map(ObjectLockEnabled::as_str);
    if enabled != Some(ObjectLockEnabled::ENABLED) {
        return Err(malformed());
    }
    let Some(rule) = &configuration.rule else { return Ok(None) };
    let default = rule.default_retention.as_ref().ok_or_else(malformed)?;
    let mode = default.mode.as_ref().and_then(|mode| parse_mode(mode.as_str())).ok_or_else(malformed)?;
    let checked = |count: i32, max: i32| {
        let error = || {
            custom_error(
                "InvalidRetentionPeriod",
                http::StatusCode::BAD_REQUEST,
                format!("Default retention must be 1 to {DAYS_MAX} days, or 1 to {YEARS_MAX} years"),
            )
        };
        u32::try_from(count).ok().filter(|_| (1..=max).contains(&count)).ok_or_else(error)
    };
    let period = match (default.days, default.years) {
        (Some(days), None) => RetentionPeriod::Days(checked(days, DAYS_MAX)?),
        (None, Some(years)) => RetentionPeriod::Years(checked(years, YEARS_MAX)?),
        _ => return Err(malformed()),
    };
    Ok(Some(DefaultRetention { mode, period }))
}

impl Service {
    /// Refuses locks in a bucket that has none. It may have got them since its record was read.
    pub(super) async fn check_has_lock(&self, index: &Index) -> S3Result<()> {
        let record = &index.bucket.record;
        match record.object_lock.is_some() || self.buckets.fresh(&record.name).await?.object_lock.is_some() {
            true => Ok(()),
            false => Err(no_lock_in_bucket()),
        }
    }

    pub(super) async fn put_object_lock_configuration(
        &self,
        request: S3Request<PutObjectLockConfigurationInput>,
    ) -> S3Result<S3Response<PutObjectLockConfigurationOutput>> {
        let input = request.input;
        let configuration = input.object_lock_configuration.ok_or_else(malformed)?;
        let default_retention = default_retention(&configuration)?;
        let change = |record: &mut BucketRecord| {
            if !record.versioning.is_some_and(|versioning| versioning.is_enabled) {
                return Err(s3_error!(
                    InvalidBucketState,
                    "Versioning must be 'Enabled' on the bucket to apply a Object Lock configuration"
                ));
            }
            record.object_lock = Some(BucketObjectLock { default_retention });
            Ok(())
        };
        self.change_versioning(&input.bucket, change).await?;
        Ok(S3Response::new(PutObjectLockConfigurationOutput::default()))
    }

    pub(super) async fn get_object_lock_configuration(
        &self,
        request: S3Request<GetObjectLockConfigurationInput>,
    ) -> S3Result<S3Response<GetObjectLockConfigurationOutput>> {
        let bucket = self.buckets.get(&request.input.bucket).await?;
        let Some(lock) = &bucket.record.object_lock else {
            return Err(custom_error(
                "ObjectLockConfigurationNotFoundError",
                http::StatusCode::NOT_FOUND,
                "Object Lock configuration does not exist for this bucket",
            ));
        };
        let rule = lock.default_retention.map(|default| {
            let (days, years) = match default.period {
                RetentionPeriod::Days(days) => (i32::try_from(days).ok(), None),
                RetentionPeriod::Years(years) => (None, i32::try_from(years).ok()),
            };
            let mode = Some(ObjectLockRetentionMode::from_static(mode_name(default.mode)));
            ObjectLockRule { default_retention: Some(DefaultRetentionAnswer { days, mode, years }) }
        });
        let enabled = ObjectLockEnabled::from_static(ObjectLockEnabled::ENABLED);
        let configuration = ObjectLockConfiguration { object_lock_enabled: Some(enabled), rule };
        Ok(S3Response::new(GetObjectLockConfigurationOutput { object_lock_configuration: Some(configuration) }))
    }

    /// Returns the time by which retention lapses.
    pub(super) fn lapse_unix_ms(&self) -> u64 {
        lapse_unix_ms(unix_ms(), self.directory.cluster_unix_ms())
    }

    /// Returns the time from which a bucket's default retention counts.
    pub(super) fn retained_from_unix_ms(&self) -> u64 {
        later_unix_ms(unix_ms(), self.directory.cluster_unix_ms())
    }

    pub(super) async fn put_object_retention(
        &self,
        request: S3Request<PutObjectRetentionInput>,
    ) -> S3Result<S3Response<PutObjectRetentionOutput>> {
        let asking = Asking::of(&request.headers, &request.uri, &request.extensions)?;
        let input = request.input;
        let index = self.note(&input.bucket, self.index(&input.bucket).await)?;
        self.check_has_lock(&index).await?;
        let wanted = match input.retention {
            None | Some(ObjectLockRetention { mode: None, retain_until_date: None }) => None,
            Some(ObjectLockRetention { mode: Some(mode), retain_until_date: Some(until) }) => {
                let mode = parse_mode(mode.as_str()).ok_or_else(malformed)?;
                let until_ms = unix_ms_of(until);
                check_future(until_ms)?;
                Some(Retention { mode, until_ms })
            }
            Some(_) => return Err(malformed()),
        };
        let lock = ObjectLock { retention: wanted, legal_hold: None };
        let asking = asking.with_lock(&lock);
        let bypasses = input.bypass_governance_retention.unwrap_or(false);
        let set = |head: &mut EntryHead| {
            if !head.lock.allows_retention(wanted, self.lapse_unix_ms(), bypasses) {
                return Err(locked());
            }
            head.lock.retention = wanted;
            Ok(())
        };
        self.change_head(&asking, &index, &input.key, input.version_id.as_deref(), set).await?;
        Ok(S3Response::new(PutObjectRetentionOutput::default()))
    }

    pub(super) async fn get_object_retention(
        &self,
        request: S3Request<GetObjectRetentionInput>,
    ) -> S3Result<S3Response<GetObjectRetentionOutput>> {
        let asking = Asking::of(&request.headers, &request.uri, &request.extensions)?;
        let input = request.input;
        let index = self.note(&input.bucket, self.index(&input.bucket).await)?;
        self.check_has_lock(&index).await?;
        let head = self.object_for(&asking, &index, &input.key, input.version_id.as_deref()).await?.head;
        let retention = head.lock.retention.ok_or_else(no_lock_of_object)?;
        Ok(S3Response::new(GetObjectRetentionOutput {
            retention: Some(ObjectLockRetention {
                mode: Some(ObjectLockRetentionMode::from_static(mode_name(retention.mode))),
                retain_until_date: Some(timestamp(retention.until_ms)),
            }),
        }))
    }

    pub(super) async fn put_object_legal_hold(
        &self,
        request: S3Request<PutObjectLegalHoldInput>,
    ) -> S3Result<S3Response<PutObjectLegalHoldOutput>> {
        let asking = Asking::of(&request.headers, &request.uri, &request.extensions)?;
        let input = request.input;
        let index = self.note(&input.bucket, self.index(&input.bucket).await)?;
        self.check_has_lock(&index).await?;
        let status = input.legal_hold.and_then(|hold| hold.status);
        let is_on = status.and_then(|status| parse_legal_hold(status.as_str())).ok_or_else(malformed)?;
        let lock = ObjectLock { retention: None, legal_hold: Some(is_on) };
        let asking = asking.with_lock(&lock);
        let set = |head: &mut EntryHead| {
            head.lock.legal_hold = Some(is_on);
            Ok(())
        };
        self.change_head(&asking, &index, &input.key, input.version_id.as_deref(), set).await?;
        Ok(S3Response::new(PutObjectLegalHoldOutput::default()))
    }

    pub(super) async fn get_object_legal_hold(
        &self,
        request: S3Request<GetObjectLegalHoldInput>,
    ) -> S3Result<S3Response<GetObjectLegalHoldOutput>> {
        let asking = Asking::of(&request.headers, &request.uri, &request.extensions)?;
        let input = request.input;
        let index = self.note(&input.bucket, self.index(&input.bucket).await)?;
        self.check_has_lock(&index).await?;
        let head = self.object_for(&asking, &index, &input.key, input.version_id.as_deref()).await?.head;
        let is_on = head.lock.legal_hold.ok_or_else(no_lock_of_object)?;
        let status = Some(ObjectLockLegalHoldStatus::from_static(legal_hold_name(is_on)));
        Ok(S3Response::new(GetObjectLegalHoldOutput { legal_hold: Some(ObjectLockLegalHold { status }) }))
    }
}

fn no_lock_of_object() -> S3Error {
    custom_error(
        "NoSuchObjectLockConfiguration",
        http::StatusCode::NOT_FOUND,
        "The specified object does not have an ObjectLock configuration",
    )
}
