//! One test per command, in both kinds of replies, and the limits of transmission.

use bytes::Bytes;

use super::*;
use crate::protocol::{
    CloseReason, ErrorCode, Outcome, ProtocolError, Request, RequestId, RequestKind, StatusExtent,
};

const EPERM: u32 = 1;
const EINVAL: u32 = 22;
const ENOSPC: u32 = 28;
const EOVERFLOW: u32 = 75;
const ENOTSUP: u32 = 95;

fn simple() -> NbdSession {
    transmitting(SessionConfig::default(), DISK, false, false)
}

fn structured() -> NbdSession {
    transmitting(SessionConfig::default(), DISK, true, true)
}

fn simple_reply(error: u32, cookie: u64) -> Vec<u8> {
    [&[0x67, 0x44, 0x66, 0x98][..], &error.to_be_bytes(), &cookie.to_be_bytes()].concat()
}

fn chunk(kind: u16, cookie: u64, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0x66, 0x8e, 0x33, 0xef, 0, 1];
    bytes.put_u16(kind);
    bytes.put_u64(cookie);
    bytes.put_u32(payload.len() as u32);
    bytes.put_slice(payload);
    bytes
}

/// The only request that follows from `bytes`.
fn requested(session: &mut NbdSession, bytes: &[u8]) -> Request {
    let mut actions = feed(session, bytes);
    match (actions.pop(), actions.is_empty()) {
        (Some(Action::Request(request)), true) => request,
        (other, _) => panic!("not one request: {other:?} after {actions:?}"),
    }
}

/// The error with which `bytes` are refused, the same in both kinds of replies. The stream must be in
/// sync afterwards.
fn refusal(export: ExportInfo, bytes: &[u8]) -> u32 {
    let config = SessionConfig::default();
    let mut session = transmitting(config.clone(), export, false, false);
    let reply = sent(feed(&mut session, bytes));
    let error = u32::from_be_bytes(reply[4..8].try_into().unwrap());
    assert_eq!(reply, simple_reply(error, 7));
    assert_eq!(requested(&mut session, &request(0, 3, 1, 0, 0)).kind, RequestKind::Flush);

    let mut session = transmitting(config, export, true, true);
    let reply = sent(feed(&mut session, bytes));
    let message = &reply[26..];
    assert!(!message.is_empty());
    let length = (message.len() as u16).to_be_bytes();
    assert_eq!(reply, chunk(0x8001, 7, &[&error.to_be_bytes()[..], &length, message].concat()));
    assert_eq!(requested(&mut session, &request(0, 3, 1, 0, 0)).kind, RequestKind::Flush);
    error
}

#[test]
fn read() {
    let wire = request(0, 0, 7, 4096, 4);
    let data = Bytes::from_static(b"data");
    let mut session = simple();
    let Request { id, cookie, kind } = requested(&mut session, &wire);
    assert_eq!((cookie, kind), (7, RequestKind::Read { offset: 4096, length: 4 }));
    session.reply(id, Outcome::Data(data.clone()));
    let actions = drain(&mut session);
    assert_eq!(actions, [Action::Send(simple_reply(0, 7).into()), Action::Send(data.clone())]);
    let Action::Send(last) = &actions[1] else { panic!() };
    assert_eq!(last.as_ptr(), data.as_ptr(), "no copy");

    let mut session = structured();
    let id = requested(&mut session, &wire).id;
    session.reply(id, Outcome::Data(data));
    assert_eq!(sent(drain(&mut session)), chunk(1, 7, b"\0\0\0\0\0\0\x10\0data"));
    // DF is satisfied by every reply.
    assert!(matches!(requested(&mut session, &request(4, 0, 7, 0, 4)).kind, RequestKind::Read { .. }));
    assert_eq!(sent(feed(&mut session, &request(0, 0, 7, 0, 0))), chunk(0, 7, &[]), "an empty read");
}

#[test]
fn write_splits_the_payload_off() {
    for (flags, fua) in [(0, false), (1, true)] {
        let mut session = simple();
        let mut buffer = BytesMut::from(&[&request(flags, 1, 7, 8, 4)[..], b"data"].concat()[..]);
        let payload = buffer[28..].as_ptr();
        session.receive(&mut buffer);
        let Some(Action::Request(Request { id, kind, .. })) = session.next_action() else { panic!() };
        assert_eq!(kind, RequestKind::Write { offset: 8, data: Bytes::from_static(b"data"), fua });
        let RequestKind::Write { data, .. } = kind else { panic!() };
        assert_eq!(data.as_ptr(), payload, "no copy");
        session.reply(id, Outcome::Done);
        assert_eq!(sent(drain(&mut session)), simple_reply(0, 7));
    }
    let mut session = structured();
    let id = requested(&mut session, &[&request(0, 1, 7, 8, 4)[..], b"data"].concat()).id;
    session.reply(id, Outcome::Done);
    assert_eq!(sent(drain(&mut session)), chunk(0, 7, &[]));
}

#[test]
fn flush_trim_and_write_zeroes() {
    let mut session = simple();
    let mut kind = |flags, command, offset, length| {
        let Request { id, kind, .. } = requested(&mut session, &request(flags, command, 7, offset, length));
        session.reply(id, Outcome::Done);
        assert_eq!(sent(drain(&mut session)), simple_reply(0, 7));
        kind
    };
    assert_eq!(kind(0, 3, 0, 0), RequestKind::Flush);
    assert_eq!(kind(1, 3, 0, 0), RequestKind::Flush, "FUA is allowed everywhere");
    assert_eq!(kind(1, 4, 512, 1024), RequestKind::Trim { offset: 512, length: 1024, fua: true });
    let zeroes = |fua, no_hole| RequestKind::WriteZeroes { offset: 0, length: 1 << 20, fua, no_hole, fast: false };
    assert_eq!(kind(0, 6, 0, 1 << 20), zeroes(false, false));
    assert_eq!(kind(1, 6, 0, 1 << 20), zeroes(true, false));
    assert_eq!(kind(2, 6, 0, 1 << 20), zeroes(false, true));
}

#[test]
fn fast_zero_depends_on_the_export() {
    let wire = request(16, 6, 7, 0, 4096);
    assert_eq!(refusal(DISK, &wire), ENOTSUP);
    let mut session = transmitting(SessionConfig::default(), ExportInfo { fast_zero: true, ..DISK }, false, false);
    let Request { id, kind, .. } = requested(&mut session, &wire);
    let expected = RequestKind::WriteZeroes { offset: 0, length: 4096, fua: false, no_hole: false, fast: true };
    assert_eq!(kind, expected);
    session.reply(id, Outcome::Failed { code: ErrorCode::NotSupported, message: String::new() });
    assert_eq!(sent(drain(&mut session)), simple_reply(ENOTSUP, 7));
}

#[test]
fn block_status() {
    let mut session = structured();
    let extent = |length, is_hole, is_zero| StatusExtent { length, is_hole, is_zero };
    let extents = vec![
        extent(4096, false, false),
        extent(4096, true, true),
        extent(4096, true, true),
        extent(512, false, true),
        extent(u64::MAX, false, false),
        extent(1, true, true),
    ];
    let Request { id, kind, .. } = requested(&mut session, &request(0, 7, 7, 0, 16384));
    assert_eq!(kind, RequestKind::BlockStatus { offset: 0, length: 16384, one_extent: false });
    session.reply(id, Outcome::Extents(extents.clone()));
    let expected: Vec<u8> =
        [1u32, 4096, 0, 8192, 3, 512, 2, 3584, 0].iter().flat_map(|n| n.to_be_bytes()).collect();
    assert_eq!(sent(drain(&mut session)), chunk(5, 7, &expected));

    let Request { id, kind, .. } = requested(&mut session, &request(8, 7, 7, 4096, 4097));
    assert_eq!(kind, RequestKind::BlockStatus { offset: 4096, length: 4097, one_extent: true });
    session.reply(id, Outcome::Extents(extents[1..].to_vec()));
    let expected: Vec<u8> = [1u32, 4097, 3].iter().flat_map(|n| n.to_be_bytes()).collect();
    assert_eq!(sent(drain(&mut session)), chunk(5, 7, &expected));
}

#[test]
fn block_status_has_a_bounded_answer() {
    let mut session = structured();
    let id = requested(&mut session, &request(0, 7, 7, 0, 1 << 20)).id;
    let extents = (0..100_000).map(|n| StatusExtent { length: 1, is_hole: n % 2 == 0, is_zero: false }).collect();
    session.reply(id, Outcome::Extents(extents));
    assert_eq!(sent(drain(&mut session)).len(), 20 + 4 + 8 * 16_384);
}

#[test]
fn block_status_needs_the_context_of_this_export() {
    let wire = request(0, 7, 7, 0, 4096);
    let mut session = transmitting(SessionConfig::default(), DISK, true, false);
    assert_eq!(sent(feed(&mut session, &wire))[20..24], EINVAL.to_be_bytes());
    // Chosen for another export.
    let mut session = greeted(SessionConfig::default());
    feed(&mut session, &option(8, &[]));
    feed(&mut session, &option(10, &meta_data("other", &["base:allocation"])));
    session.export_opened(Ok(DISK));
    feed(&mut session, &option(7, &go_data("disk", &[])));
    session.export_opened(Ok(DISK));
    drain(&mut session);
    assert_eq!(sent(feed(&mut session, &wire))[20..24], EINVAL.to_be_bytes());
}

#[test]
fn requests_that_cannot_be_carried_out_are_refused() {
    let write =
        |flags, offset, length: u32| [request(flags, 1, 7, offset, length), vec![0xaa; length as usize]].concat();
    let end = 1 << 20;
    assert_eq!(refusal(DISK, &request(0, 0, 7, end - 1, 2)), EINVAL, "READ beyond the end");
    assert_eq!(refusal(DISK, &request(0, 0, 7, u64::MAX, 2)), EINVAL, "READ that overflows");
    assert_eq!(refusal(DISK, &request(0, 0, 7, 0, (32 << 20) + 1)), EINVAL, "READ too long");
    assert_eq!(refusal(DISK, &write(0, end - 1, 2)), ENOSPC, "WRITE beyond the end");
    assert_eq!(refusal(DISK, &write(0, u64::MAX, 200_000)), ENOSPC, "WRITE that overflows");
    assert_eq!(refusal(DISK, &write(0, end + 1, 0)), ENOSPC, "empty WRITE beyond the end");
    assert_eq!(refusal(DISK, &request(0, 6, 7, end, 1)), ENOSPC, "WRITE_ZEROES beyond the end");
    assert_eq!(refusal(DISK, &request(0, 4, 7, end, 1)), EINVAL, "TRIM beyond the end");
    assert_eq!(refusal(DISK, &request(0, 7, 7, end, 1)), EINVAL, "BLOCK_STATUS beyond the end");
    assert_eq!(refusal(DISK, &request(0, 7, 7, 0, 0)), EINVAL, "empty BLOCK_STATUS");
    assert_eq!(refusal(DISK, &request(0, 3, 7, 0, 1)), EINVAL, "FLUSH with a length");
    assert_eq!(refusal(DISK, &request(0, 5, 7, 0, 4096)), EINVAL, "CACHE");
    assert_eq!(refusal(DISK, &request(0, 99, 7, 0, 4096)), EINVAL, "unknown command");
    assert_eq!(refusal(DISK, &request(2, 0, 7, 0, 1)), EINVAL, "READ with NO_HOLE");
    assert_eq!(refusal(DISK, &request(0x8000, 0, 7, 0, 1)), EINVAL, "unknown flag");
    assert_eq!(refusal(DISK, &write(8, 0, 3)), EINVAL, "WRITE with REQ_ONE");
    let read_only = ExportInfo { read_only: true, ..DISK };
    assert_eq!(refusal(read_only, &write(0, 0, 100)), EPERM);
    assert_eq!(refusal(read_only, &request(0, 4, 7, 0, 1)), EPERM);
    assert_eq!(refusal(read_only, &request(0, 6, 7, 0, 1)), EPERM);
    // DF needs structured replies.
    assert_eq!(sent(feed(&mut simple(), &request(4, 0, 7, 0, 1))), simple_reply(EINVAL, 7));
}

#[test]
fn limits_on_effects_and_alignment_hold() {
    let config = SessionConfig { block_bytes_min: 512, effect_bytes_max: 4096, ..SessionConfig::default() };
    let mut session = transmitting(config, DISK, false, false);
    for (wire, error) in [
        (request(0, 4, 7, 0, 8192), EOVERFLOW),
        (request(0, 4, 7, 0, 100), EINVAL),
        (request(0, 0, 7, 100, 512), EINVAL),
    ] {
        assert_eq!(sent(feed(&mut session, &wire)), simple_reply(error, 7));
    }
    requested(&mut session, &request(0, 4, 7, 512, 4096));
}

#[test]
fn an_oversized_write_is_refused_and_ends_the_session() {
    let length = (32 << 20) + 1;
    let actions = feed(&mut simple(), &request(0, 1, 7, 0, length));
    let reason = ProtocolError::WriteTooLong { length, max: 32 << 20 }.into();
    assert_eq!(actions, [Action::Send(simple_reply(EINVAL, 7).into()), Action::Close { reason }]);
    let reason = ProtocolError::RequestMagic(0).into();
    let mut session = simple();
    session.receive(&mut BytesMut::zeroed(28));
    assert_eq!(drain(&mut session), [Action::Close { reason }]);
}

#[test]
fn a_refused_payload_is_thrown_away_as_it_comes() {
    let mut session = simple();
    let mut buffer = BytesMut::from(&request(0, 1, 7, 1 << 20, 100_000)[..]);
    session.receive(&mut buffer);
    assert_eq!((session.needed_bytes(), drain(&mut session).len()), (65_536, 0), "no reply before the end");
    buffer.put_bytes(1, 99_999);
    session.receive(&mut buffer);
    assert_eq!((session.needed_bytes(), buffer.len()), (1, 0));
    buffer.put_u8(1);
    session.receive(&mut buffer);
    assert_eq!(sent(drain(&mut session)), simple_reply(ENOSPC, 7));
}

#[test]
fn needed_bytes_counts_missing_bytes() {
    let mut session = simple();
    let mut buffer = BytesMut::from(&request(0, 1, 7, 0, 1000)[..20]);
    session.receive(&mut buffer);
    assert_eq!(session.needed_bytes(), 8);
    buffer.extend_from_slice(&request(0, 1, 7, 0, 1000)[20..]);
    session.receive(&mut buffer);
    assert_eq!((session.needed_bytes(), buffer.len()), (1000, 28));
    buffer.put_bytes(0, 1010);
    session.receive(&mut buffer);
    assert_eq!((session.needed_bytes(), buffer.len()), (18, 10));
}

#[test]
fn replies_come_in_any_order_and_cookies_may_repeat() {
    let mut session = simple();
    let ids: Vec<RequestId> =
        (0..3).map(|n| requested(&mut session, &request(0, 0, 7, n, n as u32 + 1)).id).collect();
    assert_eq!(session.requests_in_flight(), 3);
    for n in [2, 0, 1] {
        session.reply(ids[n], Outcome::Data(vec![n as u8; n + 1].into()));
        assert_eq!(sent(drain(&mut session)), [simple_reply(0, 7), vec![n as u8; n + 1]].concat());
    }
    assert_eq!(session.requests_in_flight(), 0);
}

#[test]
fn failures_carry_their_message_in_structured_replies() {
    let mut session = structured();
    let id = requested(&mut session, &request(0, 0, 7, 0, 1)).id;
    session.reply(id, Outcome::Failed { code: ErrorCode::Io, message: "osd 3 is gone".into() });
    assert_eq!(sent(drain(&mut session)), chunk(0x8001, 7, b"\0\0\0\x05\0\x0dosd 3 is gone"));
    let id = requested(&mut session, &request(0, 0, 7, 0, 1)).id;
    session.reply(id, Outcome::Failed { code: ErrorCode::Io, message: "é".repeat(3000) + "x" });
    assert_eq!(sent(drain(&mut session)).len(), 26 + 4096);
    let id = requested(&mut session, &request(0, 0, 7, 0, 1)).id;
    session.reply(id, Outcome::Failed { code: ErrorCode::Io, message: "x".to_owned() + &"é".repeat(3000) });
    assert_eq!(sent(drain(&mut session)).len(), 26 + 4095, "cut between characters");
}

#[test]
fn disc_waits_for_the_requests_in_flight() {
    let mut session = simple();
    let ids: Vec<RequestId> = (0..2).map(|n| requested(&mut session, &request(0, 3, n, 0, 0)).id).collect();
    let mut buffer = BytesMut::from(&[request(0, 2, 9, 0, 0), request(0, 3, 9, 0, 0)].concat()[..]);
    session.receive(&mut buffer);
    assert_eq!((drain(&mut session), buffer.len()), (vec![], 28), "nothing is read after DISC");
    session.reply(ids[1], Outcome::Done);
    assert_eq!(sent(drain(&mut session)), simple_reply(0, 1));
    session.reply(ids[0], Outcome::Done);
    let close = Action::Close { reason: CloseReason::Disconnected };
    assert_eq!(drain(&mut session), [Action::Send(simple_reply(0, 0).into()), close]);
}

#[test]
fn outcomes_after_a_violation_are_dropped() {
    let mut session = simple();
    let id = requested(&mut session, &request(0, 3, 7, 0, 0)).id;
    session.receive(&mut BytesMut::zeroed(28));
    drain(&mut session);
    session.reply(id, Outcome::Done);
    assert_eq!((drain(&mut session), session.requests_in_flight()), (vec![], 0));
}

#[test]
fn requests_and_payload_in_flight_are_bounded() {
    let config =
        SessionConfig { requests_in_flight_max: 2, payload_in_flight_bytes_max: 8192, ..Default::default() };
    let mut session = transmitting(config, DISK, false, false);
    let mut buffer = BytesMut::from(&request(0, 3, 7, 0, 0).repeat(3)[..]);
    session.receive(&mut buffer);
    assert_eq!((buffer.len(), session.is_saturated(), session.needed_bytes()), (28, true, 0));
    let Some(Action::Request(Request { id, .. })) = session.next_action() else { panic!() };
    session.reply(id, Outcome::Done);
    assert!(!session.is_saturated());
    session.receive(&mut buffer);
    assert!(buffer.is_empty() && session.is_saturated());

    let config = SessionConfig { payload_in_flight_bytes_max: 8192, ..Default::default() };
    let mut session = transmitting(config, DISK, false, false);
    requested(&mut session, &request(0, 0, 7, 0, 8191));
    assert!(!session.is_saturated());
    let id = requested(&mut session, &request(0, 0, 7, 0, 100_000)).id;
    assert!(session.is_saturated());
    session.reply(id, Outcome::Data(vec![0; 100_000].into()));
    assert!(!session.is_saturated());
}

#[test]
fn undrained_refusals_stop_the_session() {
    let mut session = simple();
    let mut buffer = BytesMut::from(&request(0, 99, 7, 0, 0).repeat(5000)[..]);
    session.receive(&mut buffer);
    assert_eq!((buffer.len(), session.needed_bytes()), (28 * (5000 - 1024), 0));
    assert!(session.is_saturated());
    assert_eq!(drain(&mut session).len(), 1024);
    assert!(!session.is_saturated());
}

#[test]
#[should_panic(expected = "is not in flight")]
fn a_second_reply_is_a_bug() {
    let mut session = simple();
    let id = requested(&mut session, &request(0, 3, 7, 0, 0)).id;
    session.reply(id, Outcome::Done);
    session.reply(id, Outcome::Done);
}

#[test]
#[should_panic(expected = "data of another length")]
fn data_of_another_length_is_a_bug() {
    let mut session = simple();
    let id = requested(&mut session, &request(0, 0, 7, 0, 2)).id;
    session.reply(id, Outcome::Data(Bytes::from_static(b"x")));
}
