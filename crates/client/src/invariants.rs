//! Invariants of the router, a sentence and a check each. Messages of OSDs and cluster state are never asserted.
//! docs/internals/invariants-osd.md lists them.

use atoll_types::OsdId;

/// Sequences of requests ascend, so that an id names one request of the session.
pub(crate) fn sequences_ascend(newest_outstanding: Option<u64>, next: u64) {
    assert!(
        newest_outstanding.is_none_or(|newest| newest < next),
        "request {next} follows {newest_outstanding:?}"
    );
}

/// A request has one attempt outstanding: it waits for the answer of one OSD or for the time to try again, not
/// for both.
pub(crate) fn one_attempt_is_outstanding(sequence: u64, sent_to: Option<OsdId>, retry_at_ms: Option<u64>) {
    assert!(
        sent_to.is_none() || retry_at_ms.is_none(),
        "request {sequence} waits for {sent_to:?} and will be sent again at {retry_at_ms:?} ms"
    );
}

/// A request goes to an OSD that is connected.
pub(crate) fn target_is_connected(is_connected: bool, osd: OsdId) {
    assert!(is_connected, "a request goes to {osd}, which is not connected");
}

/// An answer ends a request only if it comes from the OSD that the request was sent to last.
pub(crate) fn answer_is_of_the_last_attempt(sequence: u64, sent_to: Option<OsdId>, from: OsdId) {
    assert!(sent_to == Some(from), "request {sequence} was sent to {sent_to:?}, and {from} has answered");
}

/// `answered_below` is no higher than any outstanding request, and never decreases.
pub(crate) fn answered_below_is_right(before: u64, now: u64, oldest_outstanding: u64) {
    assert!(
        before <= now && now <= oldest_outstanding,
        "answered below {now}, before {before}, with request {oldest_outstanding} outstanding"
    );
}

/// A request is completed once.
pub(crate) fn completed_once(sequence: u64, was_outstanding: bool) {
    assert!(was_outstanding, "request {sequence} is completed, and is not outstanding");
}

/// A connection is there or being made, not both.
pub(crate) fn connected_or_connecting(osd: OsdId, is_connecting: bool) {
    assert!(!is_connecting, "{osd} is connected and being connected to");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_holds_passes() {
        sequences_ascend(None, 1);
        sequences_ascend(Some(1), 2);
        one_attempt_is_outstanding(1, Some(OsdId(0)), None);
        one_attempt_is_outstanding(1, None, Some(5));
        target_is_connected(true, OsdId(0));
        answer_is_of_the_last_attempt(1, Some(OsdId(0)), OsdId(0));
        answered_below_is_right(1, 2, 2);
        completed_once(1, true);
        connected_or_connecting(OsdId(0), false);
    }

    #[test]
    #[should_panic(expected = "request 3 follows Some(3)")]
    fn a_sequence_that_comes_twice_is_noticed() {
        sequences_ascend(Some(3), 3);
    }

    #[test]
    #[should_panic(expected = "will be sent again")]
    fn two_attempts_are_noticed() {
        one_attempt_is_outstanding(1, Some(OsdId(0)), Some(5));
    }

    #[test]
    #[should_panic(expected = "osd.4, which is not connected")]
    fn sending_without_a_connection_is_noticed() {
        target_is_connected(false, OsdId(4));
    }

    #[test]
    #[should_panic(expected = "osd.1 has answered")]
    fn an_answer_of_another_osd_is_noticed() {
        answer_is_of_the_last_attempt(1, Some(OsdId(0)), OsdId(1));
    }

    #[test]
    #[should_panic(expected = "answered below 5")]
    fn forgetting_an_outstanding_request_is_noticed() {
        answered_below_is_right(1, 5, 4);
    }

    #[test]
    #[should_panic(expected = "answered below 2, before 3")]
    fn going_back_is_noticed() {
        answered_below_is_right(3, 2, 4);
    }

    #[test]
    #[should_panic(expected = "is not outstanding")]
    fn completing_twice_is_noticed() {
        completed_once(1, false);
    }

    #[test]
    #[should_panic(expected = "is connected and being connected to")]
    fn a_second_connection_is_noticed() {
        connected_or_connecting(OsdId(0), true);
    }
}
