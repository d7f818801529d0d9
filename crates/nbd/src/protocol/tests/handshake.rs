//! One test per option, and the limits of negotiation.

use atoll_exports::{OpenError, OpenErrorKind};

use super::*;
use crate::protocol::{CloseReason, ConfigError, OpenPurpose, ProtocolError};

const FLAGS_PLAIN: u16 = 0b1001_0110_1101 | (1 << 11);
const ACK: u32 = 1;
const UNSUP: u32 = 0x8000_0001;
const POLICY: u32 = 0x8000_0002;
const INVALID: u32 = 0x8000_0003;
const UNKNOWN: u32 = 0x8000_0006;
const TOO_BIG: u32 = 0x8000_0009;

fn session() -> NbdSession {
    greeted(SessionConfig::default())
}

fn export_info(flags: u16) -> Vec<u8> {
    [&[0, 0][..], &(1u64 << 20).to_be_bytes(), &flags.to_be_bytes()].concat()
}

/// Minimum 1, preferred 4096, maximum 32 MiB.
const BLOCK_SIZE_INFO: &[u8] = &[0, 3, 0, 0, 0, 1, 0, 0, 0x10, 0, 2, 0, 0, 0];

fn open_action(name: &str, purpose: OpenPurpose) -> Vec<Action> {
    vec![Action::OpenExport { name: name.into(), purpose }]
}

fn refused(kind: OpenErrorKind) -> Result<ExportInfo, OpenError> {
    Err(OpenError { kind, message: "no".into() })
}

fn closed(reason: impl Into<CloseReason>) -> Vec<Action> {
    vec![Action::Close { reason: reason.into() }]
}

/// The type and message of the only reply.
fn error_reply(actions: Vec<Action>, to: u32) -> u32 {
    let bytes = sent(actions);
    let kind = u32::from_be_bytes(bytes[12..16].try_into().unwrap());
    assert_eq!(bytes, option_reply(to, kind, &bytes[20..]));
    assert!(std::str::from_utf8(&bytes[20..]).is_ok_and(|message| !message.is_empty()));
    kind
}

#[test]
fn the_greeting_comes_first_and_client_flags_are_checked() {
    let mut session = NbdSession::new(SessionConfig::default());
    assert_eq!(session.needed_bytes(), 4);
    assert_eq!(sent(drain(&mut session)), GREETING);
    assert_eq!(feed(&mut session, &client_flags(7)), closed(ProtocolError::UnknownClientFlags(7)));
    assert!(session.is_closed() && session.is_saturated());
}

#[test]
fn go_describes_the_export_and_begins_transmission() {
    let mut session = session();
    assert_eq!(feed(&mut session, &option(7, &go_data("disk", &[1, 3]))), open_action("disk", OpenPurpose::Serve));
    assert!(session.is_saturated());
    session.export_opened(Ok(DISK));
    let expected = [
        option_reply(7, 3, &export_info(FLAGS_PLAIN)),
        option_reply(7, 3, b"\x00\x01disk"),
        option_reply(7, 3, BLOCK_SIZE_INFO),
        option_reply(7, ACK, &[]),
    ];
    assert_eq!(sent(drain(&mut session)), expected.concat());
    assert!(!session.is_saturated());
    // Transmission has begun: DISC is understood.
    assert_eq!(feed(&mut session, &request(0, 2, 0, 0, 0)), closed(CloseReason::Disconnected));
}

#[test]
fn info_describes_and_continues() {
    let mut session = session();
    assert_eq!(feed(&mut session, &option(6, &go_data("", &[]))), open_action("", OpenPurpose::Inspect));
    session.export_opened(Ok(ExportInfo { read_only: true, multi_conn: false, ..DISK }));
    let expected =
        [option_reply(6, 3, &export_info(0b1111)), option_reply(6, 3, BLOCK_SIZE_INFO), option_reply(6, ACK, &[])];
    assert_eq!(sent(drain(&mut session)), expected.concat());
    assert_eq!(sent(feed(&mut session, &option(8, &[]))), option_reply(8, ACK, &[]));
}

#[test]
fn refused_exports_keep_the_negotiation_going() {
    let mut session = session();
    for (kind, reply) in [
        (OpenErrorKind::Unknown, UNKNOWN),
        (OpenErrorKind::NotAllowed, POLICY),
        (OpenErrorKind::InUse, POLICY),
        (OpenErrorKind::Unavailable, POLICY),
        (OpenErrorKind::Changed, POLICY),
    ] {
        feed(&mut session, &option(7, &go_data("disk", &[])));
        session.export_opened(refused(kind));
        assert_eq!(sent(drain(&mut session)), option_reply(7, reply, b"no"));
    }
}

#[test]
fn export_name_answers_without_a_header() {
    for (flags, padding) in [(3, 0), (1, 124), (0, 124)] {
        let mut session = NbdSession::new(SessionConfig::default());
        feed(&mut session, &client_flags(flags));
        assert_eq!(feed(&mut session, &option(1, b"disk")), open_action("disk", OpenPurpose::Serve));
        session.export_opened(Ok(DISK));
        let mut expected = export_info(FLAGS_PLAIN).split_off(2);
        expected.resize(10 + padding, 0);
        assert_eq!(sent(drain(&mut session)), expected);
    }
}

#[test]
fn export_name_cannot_fail_politely() {
    let mut refusing = session();
    feed(&mut refusing, &option(1, b"disk"));
    refusing.export_opened(refused(OpenErrorKind::Unknown));
    let error = OpenError { kind: OpenErrorKind::Unknown, message: "no".into() };
    assert_eq!(drain(&mut refusing), closed(CloseReason::ExportRefused(error)));
    for name in [&[0xff][..], &[b'a'; 4097]] {
        assert_eq!(feed(&mut session(), &option(1, name)), closed(ProtocolError::ExportName(4096)));
    }
}

#[test]
fn abort_is_acknowledged() {
    let actions = feed(&mut session(), &option(2, &[]));
    let expected =
        [Action::Send(option_reply(2, ACK, &[]).into()), Action::Close { reason: CloseReason::Aborted }];
    assert_eq!(actions, expected);
}

#[test]
fn list_names_the_exports() {
    let mut session = session();
    assert_eq!(feed(&mut session, &option(3, &[])), [Action::ListExports]);
    session.exports_listed(vec!["a".into(), "été".into()]);
    let expected =
        [option_reply(3, 2, b"\0\0\0\x01a"), option_reply(3, 2, &string("été")), option_reply(3, ACK, &[])];
    assert_eq!(sent(drain(&mut session)), expected.concat());
    assert_eq!(error_reply(feed(&mut session, &option(3, b"x")), 3), INVALID);
    feed(&mut session, &option(3, &[]));
    session.exports_listed(vec![String::new(); 10_001]);
    assert_eq!(error_reply(drain(&mut session), 3), TOO_BIG);
}

#[test]
fn structured_replies_change_the_flags() {
    let mut session = session();
    assert_eq!(error_reply(feed(&mut session, &option(8, b"x")), 8), INVALID);
    assert_eq!(sent(feed(&mut session, &option(8, &[]))), option_reply(8, ACK, &[]));
    feed(&mut session, &option(1, b"disk"));
    session.export_opened(Ok(DISK));
    assert_eq!(sent(drain(&mut session))[8..10], (FLAGS_PLAIN | 1 << 7).to_be_bytes());
}

#[test]
fn unsupported_options_are_refused() {
    let mut session = session();
    for (number, data) in [(11, &b""[..]), (4, b""), (99, b"data"), (0, b""), (u32::MAX, b"")] {
        assert_eq!(error_reply(feed(&mut session, &option(number, data)), number), UNSUP);
    }
}

#[test]
fn set_meta_context_selects_the_allocation_only() {
    let mut session = session();
    let all = option(10, &meta_data("disk", &["qemu:dirty", "base:allocation", "base:other"]));
    assert_eq!(error_reply(feed(&mut session, &all), 10), INVALID, "needs structured replies");
    feed(&mut session, &option(8, &[]));
    assert_eq!(feed(&mut session, &all), open_action("disk", OpenPurpose::Inspect));
    session.export_opened(Ok(DISK));
    let context = option_reply(10, 4, b"\0\0\0\x01base:allocation");
    assert_eq!(sent(drain(&mut session)), [context, option_reply(10, ACK, &[])].concat());
    for queries in [&[][..], &["base:"], &["qemu:dirty"]] {
        feed(&mut session, &option(10, &meta_data("disk", queries)));
        session.export_opened(Ok(DISK));
        assert_eq!(sent(drain(&mut session)), option_reply(10, ACK, &[]));
    }
    feed(&mut session, &all);
    session.export_opened(refused(OpenErrorKind::Unknown));
    assert_eq!(sent(drain(&mut session)), option_reply(10, UNKNOWN, b"no"));
}

#[test]
fn list_meta_context_knows_the_wildcard() {
    let mut session = session();
    feed(&mut session, &option(8, &[]));
    for queries in [&[][..], &["base:"], &["base:allocation"]] {
        feed(&mut session, &option(9, &meta_data("disk", queries)));
        session.export_opened(Ok(DISK));
        let context = option_reply(9, 4, b"\0\0\0\0base:allocation");
        assert_eq!(sent(drain(&mut session)), [context, option_reply(9, ACK, &[])].concat());
    }
    feed(&mut session, &option(9, &meta_data("disk", &["x:"])));
    session.export_opened(Ok(DISK));
    assert_eq!(sent(drain(&mut session)), option_reply(9, ACK, &[]));
}

#[test]
fn malformed_options_are_invalid() {
    let whole_go = go_data("disk", &[1, 3]);
    let whole_meta = meta_data("disk", &["base:allocation"]);
    let mut session = greeted(SessionConfig { options_max: 1000, ..SessionConfig::default() });
    feed(&mut session, &option(8, &[]));
    for (number, whole) in [(6, &whole_go), (7, &whole_go), (9, &whole_meta), (10, &whole_meta)] {
        for end in 0..whole.len() {
            assert_eq!(error_reply(feed(&mut session, &option(number, &whole[..end])), number), INVALID);
        }
        let longer = [whole, &b"x"[..]].concat();
        assert_eq!(error_reply(feed(&mut session, &option(number, &longer)), number), INVALID);
    }
    for name in ["a\0b", "\0"] {
        assert_eq!(error_reply(feed(&mut session, &option(7, &go_data(name, &[]))), 7), INVALID);
    }
    let long = "n".repeat(4097);
    assert_eq!(error_reply(feed(&mut session, &option(7, &go_data(&long, &[]))), 7), TOO_BIG);
    let queries = [&string("disk")[..], &u32::MAX.to_be_bytes()].concat();
    assert_eq!(error_reply(feed(&mut session, &option(10, &queries)), 10), INVALID);
}

#[test]
fn haggling_is_bounded() {
    let mut session = session();
    for _ in 0..64 {
        feed(&mut session, &option(99, &[]));
    }
    assert_eq!(feed(&mut session, &option(99, &[])), closed(ProtocolError::TooManyOptions(64)));
}

#[test]
fn oversized_options_and_wrong_magics_end_the_session_at_the_header() {
    let header = |length: u32| [&b"IHAVEOPT\0\0\0\x07"[..], &length.to_be_bytes()].concat();
    let mut buffer = BytesMut::from(&header(65_537)[..]);
    let mut strict = session();
    strict.receive(&mut buffer);
    let error = ProtocolError::OptionTooLong { option: 7, length: 65_537, max: 65_536 };
    assert_eq!(drain(&mut strict), closed(error));
    let mut patient = session();
    patient.receive(&mut BytesMut::from(&header(65_536)[..]));
    assert_eq!(patient.needed_bytes(), 65_536);
    let mut other = session();
    other.receive(&mut BytesMut::from(&[b'x'; 16][..]));
    assert_eq!(drain(&mut other), closed(ProtocolError::OptionMagic(0x7878_7878_7878_7878)));
}

#[test]
fn a_larger_minimum_block_has_to_be_negotiated() {
    let config = SessionConfig { block_bytes_min: 512, ..SessionConfig::default() };
    let mut session = greeted(config.clone());
    let replies = sent(feed(&mut session, &option(7, &go_data("disk", &[]))));
    let block_size = option_reply(7, 3, &[0, 3, 0, 0, 2, 0, 0, 0, 0x10, 0, 2, 0, 0, 0]);
    assert_eq!(replies[..block_size.len()], block_size);
    assert_eq!(replies[block_size.len()..][12..16], 0x8000_0008u32.to_be_bytes());
    assert_eq!(feed(&mut session, &option(7, &go_data("disk", &[3]))), open_action("disk", OpenPurpose::Serve));
    let old = feed(&mut greeted(config), &option(1, b"disk"));
    assert_eq!(old, closed(ProtocolError::BlockSizeRequired(512)));
}

#[test]
fn configurations_are_checked() {
    let default = SessionConfig::default();
    assert_eq!(default.check(), Ok(()));
    let with = |change: fn(&mut SessionConfig)| {
        let mut config = default.clone();
        change(&mut config);
        config.check()
    };
    assert_eq!(with(|c| c.block_bytes_min = 3), Err(ConfigError::MinimumBlock(3)));
    assert_eq!(with(|c| c.block_bytes_min = 1 << 17), Err(ConfigError::MinimumBlock(1 << 17)));
    assert_eq!(with(|c| c.block_bytes_preferred = 256), Err(ConfigError::PreferredBlock(256)));
    assert_eq!(with(|c| c.payload_bytes_max = 0), Err(ConfigError::MaximumLength(0)));
    assert_eq!(with(|c| c.payload_bytes_max = u32::MAX), Err(ConfigError::MaximumLength(u32::MAX)));
    assert_eq!(with(|c| c.requests_in_flight_max = 0), Err(ConfigError::ZeroLimit));
}

#[test]
#[should_panic(expected = "no export was asked for")]
fn an_export_that_was_not_asked_for_is_a_bug() {
    session().export_opened(Ok(DISK));
}
