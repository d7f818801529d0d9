//! Wall-clock time as records carry it.

use std::time::{Duration, SystemTime};

use atoll_types::limits::CLOCK_DIFFERENCE_MS_MAX;
use s3s::dto::{Timestamp, TimestampFormat};

/// Milliseconds since the Unix epoch.
pub(crate) fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Returns the time by which retention lapses. A gateway whose clock is ahead uses the cluster's time: retained
/// objects do not go because a clock was moved.
pub(crate) fn lapse_unix_ms(own_unix_ms: u64, cluster_unix_ms: Option<u64>) -> u64 {
    match cluster_unix_ms {
        Some(cluster) if own_unix_ms > cluster.saturating_add(CLOCK_DIFFERENCE_MS_MAX) => cluster,
        _ => own_unix_ms,
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_is_ahead_lets_nothing_lapse() {
        assert_eq!(lapse_unix_ms(1_000_000, None), 1_000_000);
        assert_eq!(lapse_unix_ms(1_000_000, Some(950_000)), 1_000_000, "as clocks differ");
        assert_eq!(lapse_unix_ms(1_000_000, Some(939_999)), 939_999);
        assert_eq!(lapse_unix_ms(u64::MAX, Some(1)), 1);
        assert_eq!(lapse_unix_ms(1_000, Some(1_000_000)), 1_000, "one that is behind waits longer by itself");
    }
}
