//! Translations between index records and the shapes of S3's requests and answers.

use std::collections::BTreeMap;

use atoll_iam::Identities;
use http::HeaderMap;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use s3s::dto::{ChecksumType, ETag, Metadata, Owner, StorageClass, Timestamp};
use s3s::{S3Result, s3_error};

use super::Service;
use crate::clock::{epoch_text, system_time};
use crate::digest::Algorithm;
use crate::record::{Checksums, EntryHead};

/// Bytes of user metadata that an object may carry, names and values together.
const METADATA_BYTES_MAX: usize = 2_048;

pub(super) fn timestamp(unix_ms: u64) -> Timestamp {
    Timestamp::from(system_time(unix_ms))
}

pub(super) fn etag(value: &str) -> ETag {
    ETag::Strong(value.to_owned())
}

/// An account, as S3 shows owners.
pub(super) fn owner(identities: &Identities, canonical_id: &str) -> Owner {
    let account = identities.account_by_canonical_id(canonical_id);
    let name = account.map_or_else(|| canonical_id.to_owned(), |account| account.name.clone());
    Owner { display_name: Some(name), id: Some(canonical_id.to_owned()) }
}

impl Service {
    /// One account, as S3 shows owners.
    pub(super) fn owner(&self, canonical_id: &str) -> Owner {
        owner(&self.directory.identities(), canonical_id)
    }
}

/// The storage class that a write gives its object; `None` for the usual one. The gate has looked at its
/// name.
pub(super) fn wanted_class(headers: &HeaderMap) -> Option<String> {
    let class = headers.get("x-amz-storage-class").and_then(|value| value.to_str().ok())?;
    (class != StorageClass::STANDARD).then(|| class.to_owned())
}

/// The storage class that listings show.
pub(super) fn class_name(stored: Option<&String>) -> String {
    stored.cloned().unwrap_or_else(|| StorageClass::STANDARD.to_owned())
}

pub(super) fn size(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// User metadata as stored; refuses too much of it.
pub(super) fn checked_metadata(metadata: Option<Metadata>) -> S3Result<BTreeMap<String, String>> {
    let metadata: BTreeMap<String, String> = metadata.unwrap_or_default().into_iter().collect();
    let bytes: usize = metadata.iter().map(|(name, value)| name.len() + value.len()).sum();
    if bytes > METADATA_BYTES_MAX {
        return Err(s3_error!(
            MetadataTooLarge,
            "Your metadata headers have {bytes} bytes and exceed the maximum of {METADATA_BYTES_MAX}"
        ));
    }
    Ok(metadata)
}

/// User metadata for an answer; none stays none.
pub(super) fn metadata(stored: &BTreeMap<String, String>) -> Option<Metadata> {
    (!stored.is_empty()).then(|| stored.clone().into_iter().collect())
}

pub(super) fn checksum_type(is_composite: bool) -> ChecksumType {
    let name = if is_composite { ChecksumType::COMPOSITE } else { ChecksumType::FULL_OBJECT };
    ChecksumType::from_static(name)
}

pub(super) fn entry_checksum_type(head: &EntryHead) -> Option<ChecksumType> {
    (!head.checksums.is_empty()).then(|| checksum_type(head.checksum_is_composite))
}

/// One checksum for an answer.
pub(super) fn checksum(checksums: &Checksums, algorithm: Algorithm) -> Option<String> {
    checksums.get(algorithm.name()).cloned()
}

/// Fills the five checksum fields that many of S3's shapes have.
macro_rules! set_checksums {
    ($target:expr, $checksums:expr) => {{
        let (target, checksums) = (&mut $target, &$checksums);
        target.checksum_crc32 = $crate::ops::answers::checksum(checksums, Algorithm::Crc32);
        target.checksum_crc32c = $crate::ops::answers::checksum(checksums, Algorithm::Crc32c);
        target.checksum_crc64nvme = $crate::ops::answers::checksum(checksums, Algorithm::Crc64Nvme);
        target.checksum_sha1 = $crate::ops::answers::checksum(checksums, Algorithm::Sha1);
        target.checksum_sha256 = $crate::ops::answers::checksum(checksums, Algorithm::Sha256);
    }};
}
pub(super) use set_checksums;

/// Collects the content headers that several requests share.
macro_rules! content_headers {
    ($input:expr) => {
        $crate::record::ContentHeaders {
            content_type: $input.content_type.take(),
            cache_control: $input.cache_control.take(),
            content_disposition: $input.content_disposition.take(),
            content_encoding: $crate::ops::answers::content_encoding($input.content_encoding.take()),
            content_language: $input.content_language.take(),
            expires: $input.expires.take().map($crate::ops::answers::unix_seconds),
        }
    };
}
pub(super) use content_headers;

/// `aws-chunked` describes the transfer of the request, not the object.
pub(super) fn content_encoding(value: Option<String>) -> Option<String> {
    let kept: Vec<String> = value?
        .split(',')
        .map(|coding| coding.trim().to_owned())
        .filter(|coding| !coding.is_empty() && !coding.eq_ignore_ascii_case("aws-chunked"))
        .collect();
    (!kept.is_empty()).then(|| kept.join(", "))
}

/// Returns whole seconds since the Unix epoch; an unknown time becomes the epoch.
pub(super) fn unix_seconds(time: Timestamp) -> i64 {
    epoch_text(time).split('.').next().and_then(|seconds| seconds.parse().ok()).unwrap_or(0)
}

/// Characters that [`url_encode`] escapes.
const URL_ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~').remove(b'/');

/// S3's `encoding-type=url`: everything but unreserved characters and slashes is escaped.
pub(crate) fn url_encode(text: &str) -> String {
    utf8_percent_encode(text, URL_ENCODED).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::unix_ms_of;

    #[test]
    fn aws_chunked_is_not_stored() {
        assert_eq!(content_encoding(Some("aws-chunked".into())), None);
        assert_eq!(content_encoding(Some("gzip, aws-chunked".into())), Some("gzip".into()));
    }

    #[test]
    fn url_encoding_keeps_slashes() {
        assert_eq!(url_encode("a/b c+é"), "a/b%20c%2B%C3%A9");
    }

    #[test]
    fn metadata_is_bounded() {
        let metadata = |bytes: usize| Some(Metadata::from_iter([("k".to_owned(), "v".repeat(bytes - 1))]));
        assert!(checked_metadata(metadata(2_048)).is_ok());
        assert!(checked_metadata(metadata(2_049)).is_err());
    }

    #[test]
    fn seconds_come_back() {
        assert_eq!(unix_seconds(timestamp(1_700_000_000_999)), 1_700_000_000);
        for time_ms in [0, 1_700_000_000_999, 1_700_000_000_050, 1_700_000_000_000] {
            assert_eq!(unix_ms_of(timestamp(time_ms)), time_ms);
        }
    }
}
