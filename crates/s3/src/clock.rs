//! Wall-clock time as records carry it.

use std::time::{Duration, SystemTime};

use s3s::dto::{Timestamp, TimestampFormat};

/// Milliseconds since the Unix epoch.
pub(crate) fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// The time that `unix_ms` milliseconds after the Unix epoch is.
pub(crate) fn system_time(unix_ms: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_millis(unix_ms)
}

/// Returns milliseconds since the Unix epoch; an earlier time becomes the epoch.
pub(crate) fn unix_ms_of(time: Timestamp) -> u64 {
    let text = epoch_text(time);
    let (seconds, fraction) = text.split_once('.').unwrap_or((&text, ""));
    let digits: String = fraction.chars().chain("000".chars()).take(3).collect();
    let seconds: u64 = seconds.parse().unwrap_or(0);
    seconds.saturating_mul(1_000).saturating_add(digits.parse().unwrap_or(0))
}

/// Seconds since the Unix epoch, perhaps with a fraction.
pub(crate) fn epoch_text(time: Timestamp) -> String {
    let mut text = Vec::new();
    match time.format(TimestampFormat::EpochSeconds, &mut text) {
        Ok(()) => String::from_utf8_lossy(&text).into_owned(),
        Err(_) => String::new(),
    }
}
