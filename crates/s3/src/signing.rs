//! Common parts of all signatures of version 4.

use aws_lc_rs::hmac;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use s3s::dto::{Timestamp, TimestampFormat};

/// Form of a time in signatures: 20261124T080910Z.
const SIGNING_TIME: &str = "%Y%m%dT%H%M%SZ";

/// Scope of a key of version 4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scope<'a> {
    /// YYYYMMDD.
    pub date: &'a str,
    pub region: &'a str,
    pub service: &'a str,
}

/// The key that signs within a scope.
pub(crate) fn signing_key(secret: &str, scope: &Scope<'_>) -> hmac::Key {
    let first = hmac::Key::new(hmac::HMAC_SHA256, format!("AWS4{secret}").as_bytes());
    [scope.date, scope.region, scope.service, "aws4_request"]
        .iter()
        .fold(first, |key, text| hmac::Key::new(hmac::HMAC_SHA256, hmac::sign(&key, text.as_bytes()).as_ref()))
}

/// Returns true if a text has the form of `20261124T080910Z`.
pub(crate) fn is_signing_time(text: &str) -> bool {
    let is_right = |(at, byte): (usize, u8)| match at {
        8 => byte == b'T',
        15 => byte == b'Z',
        _ => byte.is_ascii_digit(),
    };
    text.len() == "20261124T080910Z".len() && text.bytes().enumerate().all(is_right)
}

/// A time as signatures have it.
pub(crate) fn signing_time(time: &Timestamp) -> Option<String> {
    let mut text = Vec::new();
    time.format(TimestampFormat::DateTime, &mut text).ok()?;
    // From 2026-11-24T08:09:10.000Z to 20261124T080910Z.
    text.retain(|byte| byte.is_ascii_digit() || *byte == b'T');
    text.truncate("20261124T080910".len());
    text.push(b'Z');
    String::from_utf8(text).ok()
}

/// Milliseconds since the Unix epoch, as signatures have it.
pub(crate) fn signing_time_of(unix_ms: u64) -> String {
    let time = i64::try_from(unix_ms).ok().and_then(|unix_ms| jiff::Timestamp::from_millisecond(unix_ms).ok());
    time.map_or_else(String::new, |time| time.strftime(SIGNING_TIME).to_string())
}

/// Milliseconds since the Unix epoch of a time as signatures have it.
pub(crate) fn unix_ms_of(text: &str) -> Option<u64> {
    if !is_signing_time(text) {
        return None;
    }
    let time = DateTime::strptime(SIGNING_TIME, text).ok()?.to_zoned(TimeZone::UTC).ok()?;
    u64::try_from(time.timestamp().as_millisecond()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_one_form() {
        assert_eq!(signing_time_of(1_700_000_000_999), "20231114T221320Z");
        assert!(is_signing_time("20231114T221320Z"));
        assert_eq!(unix_ms_of("20231114T221320Z"), Some(1_700_000_000_000));
        assert_eq!(unix_ms_of("20231314T221320Z"), None);
        for wrong in ["", "20231114", "2023-11-14T22:13Z", "20231114T221320+", "20231114t221320z"] {
            assert!(!is_signing_time(wrong), "{wrong}");
        }
    }
}
