use atoll_types::{ObjectName, Touched};

use super::*;

fn empty() -> Duplicates {
    Duplicates::new(512 << 10)
}

fn of_log(log: &[LogEntry], head: Version) -> Duplicates {
    let mut duplicates = empty();
    duplicates.catch_up(log, head);
    duplicates
}

fn request(session: u64, sequence: u64) -> RequestId {
    RequestId { session, sequence }
}

fn version(epoch: u64, sequence: u64) -> Version {
    Version { epoch: Epoch(epoch), sequence }
}

fn entry(version: Version, request: Option<RequestId>) -> LogEntry {
    let object = ObjectName::new("object").unwrap();
    LogEntry { version, request, object, touched: Touched::default(), committed_sequence: 0, pre_image: None }
}

fn is_done(duplicates: &Duplicates, request: RequestId) -> bool {
    matches!(duplicates.find(request), Known::Outcome(Ok(())))
}

/// The count of bytes is correct.
fn check(duplicates: &Duplicates) {
    let outcomes = || duplicates.sessions.values().flat_map(|session| &session.outcomes);
    let bytes: usize = outcomes().map(Outcome::bytes).sum();
    assert_eq!(duplicates.bytes, bytes + duplicates.sessions.len() * SESSION_BYTES);
    assert_eq!(duplicates.outcome_count, outcomes().count());
    assert!(duplicates.bytes <= duplicates.bytes_max);
    assert!(duplicates.ages.len() <= 2 * (duplicates.outcome_count + duplicates.sessions.len()) + 64);
    assert!(duplicates.known_after.sequence <= duplicates.head.sequence);
}

#[test]
fn what_the_client_has_the_answers_to_is_forgotten_whoever_leads() {
    let mut duplicates = empty();
    for sequence in 1..100_000 {
        duplicates.note_answered(1, sequence - 1);
        duplicates.follow(&entry(version(1, sequence), Some(request(1, sequence))));
    }
    check(&duplicates);
    assert_eq!(duplicates.outcome_count, 2);
    assert!(matches!(duplicates.find(request(1, 5)), Known::Stale));
    assert!(duplicates.know_all_after(Version::default()), "no outcome was dropped that a client may ask for");
}

#[test]
fn sessions_are_bounded_and_what_was_forgotten_is_known_to_be() {
    let mut duplicates = empty();
    for session in 1..=20_000 {
        duplicates.follow(&entry(version(1, session), Some(request(session, 1))));
    }
    check(&duplicates);
    assert!(matches!(duplicates.find(request(1, 1)), Known::Nothing));
    assert!(is_done(&duplicates, request(20_000, 1)));
    assert!(!duplicates.know_all_after(version(1, 0)), "a copy of the first would be done again");
    assert!(duplicates.know_all_after(version(1, 19_999)));
    // Whatever is not found was never done, as far as it is said to be known.
    for session in 1..=20_000 {
        let may_be_done = duplicates.know_all_after(version(1, session - 1));
        assert!(!may_be_done || is_done(&duplicates, request(session, 1)), "{session}");
    }
}

#[test]
fn a_request_that_is_never_answered_does_not_fill_the_memory() {
    let mut duplicates = empty();
    for sequence in 1..100_000 {
        duplicates.follow(&entry(version(1, sequence), Some(request(1, sequence))));
    }
    check(&duplicates);
    assert!(duplicates.outcome_count > 4_000);
    assert!(matches!(duplicates.find(request(1, 1)), Known::Nothing));
    assert!(!duplicates.know_all_after(version(1, 0)));
}

#[test]
fn texts_of_refusals_count() {
    let mut duplicates = empty();
    for sequence in 1..1_000 {
        duplicates.refuse(request(1, sequence), Refusal::Invalid { detail: "x".repeat(4_096) }, version(1, 0));
    }
    check(&duplicates);
    assert!(duplicates.outcome_count < 128);
}

#[test]
fn with_a_session_goes_what_its_client_has_the_answers_to() {
    let mut duplicates = empty();
    // The higher request was done first.
    duplicates.follow(&entry(version(1, 1), Some(request(1, 9))));
    duplicates.follow(&entry(version(1, 2), Some(request(1, 8))));
    duplicates.note_answered(1, 9);
    duplicates.refuse(request(1, 9), Refusal::NoSuchObject, version(1, 1));
    check(&duplicates);
    for session in 2..10_000 {
        duplicates.follow(&entry(version(1, session + 1), Some(request(session, 1))));
    }
    assert!(matches!(duplicates.find(request(1, 8)), Known::Nothing));
    assert!(!duplicates.know_all_after(version(1, 1)), "a late copy of request 8 would be done again");
}

#[test]
fn a_log_tells_what_was_done_since_it_begins() {
    let log: Vec<LogEntry> =
        (7..=9).map(|sequence| entry(version(3, sequence), Some(request(1, sequence)))).collect();
    let duplicates = of_log(&log, version(3, 9));
    check(&duplicates);
    assert!((7..=9).all(|sequence| is_done(&duplicates, request(1, sequence))));
    assert!(duplicates.know_all_after(version(3, 6)) && !duplicates.know_all_after(version(3, 5)));
    assert!(of_log(&[], Version::default()).know_all_after(Version::default()));
    assert!(!of_log(&[], version(3, 9)).know_all_after(version(3, 8)));
}

#[test]
fn what_is_cut_off_the_history_was_never_done() {
    let mut duplicates = empty();
    for sequence in 1..=5 {
        duplicates.follow(&entry(version(1, sequence), Some(request(1, sequence))));
    }
    duplicates.refuse(request(2, 1), Refusal::NoSuchObject, version(1, 5));
    duplicates.cut(version(1, 3));
    check(&duplicates);
    assert!(is_done(&duplicates, request(1, 3)));
    assert!(matches!(duplicates.find(request(1, 4)), Known::Nothing));
    assert!(matches!(duplicates.find(request(2, 1)), Known::Outcome(Err(_))), "refused stays refused");
    // Another primary goes on.
    duplicates.follow(&entry(version(2, 4), Some(request(1, 5))));
    assert!(is_done(&duplicates, request(1, 5)));
    assert!(duplicates.know_all_after(Version::default()));
    check(&duplicates);
}

#[test]
fn what_a_copy_has_missed_is_not_known() {
    let mut duplicates = empty();
    duplicates.follow(&entry(version(1, 1), Some(request(1, 1))));
    duplicates.follow(&entry(version(4, 7), Some(request(1, 7))));
    check(&duplicates);
    assert!(matches!(duplicates.find(request(1, 1)), Known::Nothing));
    assert!(!duplicates.know_all_after(version(1, 1)) && duplicates.know_all_after(version(4, 6)));
    // A split has no request.
    duplicates.follow(&entry(version(4, 8), None));
    assert_eq!(duplicates.head(), version(4, 8));
}
