//! Invariants of this crate, a sentence and a check each. They are about this side's actions; data from a peer is
//! never asserted, wrong bytes from it are errors. docs/internals/invariants-osd.md lists them.

use atoll_types::limits::{CONTROL_BYTES_MAX, PAYLOAD_BYTES_MAX};

use crate::frame::FrameError;

/// Segments of a frame are within their limits before anything is made of them, so that the peer takes it.
pub(crate) fn segments_fit(control_bytes: usize, payload_bytes: usize) -> Result<(), FrameError> {
    for (segment, length, limit) in
        [("control", control_bytes, CONTROL_BYTES_MAX), ("payload", payload_bytes, PAYLOAD_BYTES_MAX)]
    {
        if length > limit {
            return Err(FrameError::TooLong { segment, length, limit });
        }
    }
    Ok(())
}

/// The nonces under which a direction seals or opens ascend, so that none comes twice.
pub(crate) fn nonces_ascend(last: Option<u64>, next: u64) {
    assert!(last.is_none_or(|last| last < next), "nonce {next} comes after {last:?}");
}

/// A key gets its successor with the frame that reaches its limit: none is sent under it beyond that.
pub(crate) fn key_is_within_its_limit(used_bytes: u64, limit_bytes: u64) {
    assert!(used_bytes < limit_bytes, "a key was used for {used_bytes} bytes, {limit_bytes} are its limit");
}

/// A frame is given out when the checks of all its segments that have one have fitted.
pub(crate) fn frame_was_checked(checked_segments: u8, checked_payload_bytes: usize) {
    let segments = 1 + u8::from(checked_payload_bytes > 0);
    assert!(checked_segments == segments, "{checked_segments} of {segments} segments of a frame were checked");
}

/// Nothing is taken from a connection behind an error: later bytes have no defined meaning.
pub(crate) fn nothing_follows_an_error(has_failed: bool) {
    assert!(!has_failed, "a connection was read on after an error");
}

/// A link opens once, so that keys of a handshake begin to count at 0 once.
pub(crate) fn a_link_opens_once(is_open: bool) {
    assert!(!is_open, "a link was opened twice");
}

/// A send queue knows how many bytes wait in it.
pub(crate) fn queue_counts_its_bytes(counted_bytes: usize, held_bytes: usize) {
    assert!(counted_bytes == held_bytes, "{held_bytes} bytes wait, {counted_bytes} are counted");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_holds_passes() {
        nonces_ascend(None, 0);
        nonces_ascend(Some(0), 1);
        key_is_within_its_limit(9, 10);
        frame_was_checked(1, 0);
        frame_was_checked(2, 5);
        nothing_follows_an_error(false);
        a_link_opens_once(false);
        queue_counts_its_bytes(3, 3);
        assert_eq!(segments_fit(CONTROL_BYTES_MAX, PAYLOAD_BYTES_MAX), Ok(()));
    }

    #[test]
    fn segments_over_their_limits_are_errors() {
        assert!(matches!(
            segments_fit(CONTROL_BYTES_MAX + 1, 0),
            Err(FrameError::TooLong { segment: "control", .. })
        ));
        assert!(matches!(
            segments_fit(0, PAYLOAD_BYTES_MAX + 1),
            Err(FrameError::TooLong { segment: "payload", .. })
        ));
    }

    #[test]
    #[should_panic(expected = "nonce 7 comes after Some(7)")]
    fn a_nonce_that_comes_twice_is_noticed() {
        nonces_ascend(Some(7), 7);
    }

    #[test]
    #[should_panic(expected = "a key was used for 10 bytes")]
    fn a_key_that_is_used_too_long_is_noticed() {
        key_is_within_its_limit(10, 10);
    }

    #[test]
    #[should_panic(expected = "1 of 2 segments")]
    fn an_unchecked_payload_is_noticed() {
        frame_was_checked(1, 5);
    }

    #[test]
    #[should_panic(expected = "read on after an error")]
    fn reading_on_is_noticed() {
        nothing_follows_an_error(true);
    }

    #[test]
    #[should_panic(expected = "opened twice")]
    fn opening_twice_is_noticed() {
        a_link_opens_once(true);
    }

    #[test]
    #[should_panic(expected = "4 bytes wait, 3 are counted")]
    fn a_wrong_count_is_noticed() {
        queue_counts_its_bytes(3, 4);
    }
}
