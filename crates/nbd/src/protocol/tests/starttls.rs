//! STARTTLS: when it is offered, the state that it resets, and that nothing from before it counts after it.

use proptest::prelude::*;

use super::*;
use crate::protocol::{CloseReason, ProtocolError, TlsPolicy};

const ACK: u32 = 1;
const POLICY: u32 = 0x8000_0002;
const INVALID: u32 = 0x8000_0003;
const TLS_REQD: u32 = 0x8000_0005;
const STARTTLS: u32 = 5;

fn session(tls: TlsPolicy) -> NbdSession {
    greeted(SessionConfig { tls, ..SessionConfig::default() })
}

fn secured(tls: TlsPolicy) -> NbdSession {
    let mut session = session(tls);
    assert_eq!(feed(&mut session, &option(STARTTLS, &[])), begun());
    session
}

fn begun() -> Vec<Action> {
    vec![Action::Send(option_reply(STARTTLS, ACK, &[]).into()), Action::StartTls]
}

/// The type of the only reply, which must have a message.
fn refusal(actions: Vec<Action>) -> u32 {
    let bytes = sent(actions);
    assert!(bytes.len() > 20, "no message");
    u32::from_be_bytes(bytes[12..16].try_into().unwrap())
}

#[test]
fn starttls_is_refused_where_there_is_none() {
    let mut session = session(TlsPolicy::Unavailable);
    assert_eq!(refusal(feed(&mut session, &option(STARTTLS, &[]))), POLICY);
    assert_eq!(sent(feed(&mut session, &option(8, &[]))), option_reply(8, ACK, &[]));
}

#[test]
fn starttls_takes_no_data_and_comes_once() {
    for tls in [TlsPolicy::Offered, TlsPolicy::Required] {
        let mut session = session(tls);
        assert_eq!(refusal(feed(&mut session, &option(STARTTLS, b"x"))), INVALID);
        assert_eq!(feed(&mut session, &option(STARTTLS, &[])), begun());
        assert_eq!(session.needed_bytes(), 16);
        assert_eq!(refusal(feed(&mut session, &option(STARTTLS, &[]))), INVALID);
        assert_eq!(sent(feed(&mut session, &option(8, &[]))), option_reply(8, ACK, &[]));
    }
}

#[test]
fn starttls_needs_fixed_newstyle() {
    let mut session = NbdSession::new(SessionConfig { tls: TlsPolicy::Offered, ..SessionConfig::default() });
    feed(&mut session, &client_flags(0));
    assert_eq!(refusal(feed(&mut session, &option(STARTTLS, &[]))), POLICY);
}

#[test]
fn options_negotiated_before_tls_are_forgotten() {
    let context = option(10, &meta_data("disk", &["base:allocation"]));
    let mut session = session(TlsPolicy::Offered);
    feed(&mut session, &option(8, &[]));
    feed(&mut session, &context);
    session.export_opened(Ok(DISK));
    drain(&mut session);
    assert_eq!(feed(&mut session, &option(STARTTLS, &[])), begun());
    // Structured replies have to be asked for again, and so have contexts.
    assert_eq!(refusal(feed(&mut session, &context)), INVALID);
    feed(&mut session, &option(8, &[]));
    feed(&mut session, &option(7, &go_data("disk", &[])));
    session.export_opened(Ok(DISK));
    drain(&mut session);
    let status = sent(feed(&mut session, &request(0, 7, 9, 0, 4096)));
    assert_eq!(status[6..8], [0x80, 0x01], "BLOCK_STATUS without a context is an error: {status:?}");
}

#[test]
fn client_flags_and_the_count_of_options_outlive_the_change() {
    let mut session = session(TlsPolicy::Offered);
    for _ in 0..62 {
        feed(&mut session, &option(99, &[]));
    }
    feed(&mut session, &option(STARTTLS, &[]));
    feed(&mut session, &option(99, &[]));
    let closed = Action::Close { reason: ProtocolError::TooManyOptions(64).into() };
    assert_eq!(feed(&mut session, &option(99, &[])), [closed]);
    // NO_ZEROES was among the flags, so there is no padding.
    let mut session = secured(TlsPolicy::Offered);
    feed(&mut session, &option(1, b"disk"));
    session.export_opened(Ok(DISK));
    assert_eq!(sent(drain(&mut session)).len(), 10);
}

#[test]
fn offered_tls_leaves_plain_clients_alone() {
    let mut session = session(TlsPolicy::Offered);
    let actions = feed(&mut session, &option(7, &go_data("disk", &[])));
    assert!(matches!(actions[..], [Action::OpenExport { .. }]));
}

#[test]
fn required_tls_is_demanded_of_every_option() {
    let mut session = session(TlsPolicy::Required);
    let meta = meta_data("disk", &["base:allocation"]);
    let options = [
        (3, vec![]),
        (3, b"malformed".to_vec()),
        (6, go_data("disk", &[])),
        (7, go_data("disk", &[3])),
        (8, vec![]),
        (9, meta.clone()),
        (10, meta),
        (11, vec![]),
        (99, b"?".to_vec()),
    ];
    for (number, data) in options {
        let reply = sent(feed(&mut session, &option(number, &data)));
        let message = String::from_utf8(reply[20..].to_vec()).unwrap();
        assert_eq!(reply, option_reply(number, TLS_REQD, message.as_bytes()));
        assert!(message.contains("requires TLS") && message.contains("nbds://"), "{message}");
    }
    assert_eq!(feed(&mut session, &option(STARTTLS, &[])), begun());
    assert!(matches!(feed(&mut session, &option(7, &go_data("disk", &[])))[..], [Action::OpenExport { .. }]));
}

#[test]
fn required_tls_lets_clients_leave_and_cuts_off_unanswerable_ones() {
    let mut leaving = session(TlsPolicy::Required);
    let expected =
        [Action::Send(option_reply(2, ACK, &[]).into()), Action::Close { reason: CloseReason::Aborted }];
    assert_eq!(feed(&mut leaving, &option(2, &[])), expected);
    let mut old = session(TlsPolicy::Required);
    let closed = Action::Close { reason: ProtocolError::TlsRequired.into() };
    assert_eq!(feed(&mut old, &option(1, b"disk")), [closed]);
    assert!(matches!(
        feed(&mut secured(TlsPolicy::Required), &option(1, b"disk"))[..],
        [Action::OpenExport { .. }]
    ));
}

#[test]
fn nothing_that_came_with_starttls_is_taken_for_encrypted() {
    let injected = [option(8, &[]), option(7, &go_data("disk", &[3]))].concat();
    for tls in [TlsPolicy::Offered, TlsPolicy::Required] {
        for length in 1..=injected.len() {
            let mut buffer = BytesMut::from(&[option(STARTTLS, &[]), injected[..length].to_vec()].concat()[..]);
            let mut session = session(tls);
            session.receive(&mut buffer);
            let closed = Action::Close { reason: ProtocolError::BytesBeforeTls(length).into() };
            // Not even the acknowledgement goes out.
            assert_eq!(drain(&mut session), [closed], "{length} bytes");
            session.receive(&mut buffer);
            assert_eq!(drain(&mut session), []);
        }
    }
}

/// Options, some of which ask for TLS.
fn options() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let one = prop_oneof![
        2 => Just(option(STARTTLS, &[])),
        1 => Just(option(STARTTLS, b"x")),
        2 => Just(option(7, &go_data("disk", &[3]))),
        1 => Just(option(1, b"disk")),
        1 => Just(option(3, &[])),
        1 => Just(option(8, &[])),
        1 => Just(option(10, &meta_data("disk", &["base:allocation"]))),
        1 => (0u32..13, proptest::collection::vec(any::<u8>(), 0..20)).prop_map(|(number, data)| option(number, &data)),
        1 => proptest::collection::vec(any::<u8>(), 0..40),
    ];
    proptest::collection::vec(one, 0..20)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    /// In any order and split of options: where TLS is required, nothing is opened, listed or disclosed before it,
    /// and when it begins no earlier byte is left.
    #[test]
    fn required_tls_comes_before_everything(options in options(), cuts in proptest::collection::vec(1usize..60, 1..20)) {
        let bytes = options.concat();
        let mut session = session(TlsPolicy::Required);
        let (mut buffer, mut rest, mut is_secured) = (BytesMut::new(), &bytes[..], false);
        for &cut in cuts.iter().cycle() {
            if rest.is_empty() || session.is_saturated() {
                break;
            }
            let (piece, after) = rest.split_at(cut.min(rest.len()));
            rest = after;
            buffer.extend_from_slice(piece);
            session.receive(&mut buffer);
            for action in drain(&mut session) {
                match action {
                    Action::Send(reply) if !is_secured => {
                        let kind = u32::from_be_bytes(reply[12..16].try_into().unwrap());
                        prop_assert!(reply[..8] == 0x3_e889_0455_65a9u64.to_be_bytes());
                        prop_assert!(kind != 2 && kind != 3 && kind != 4, "told before TLS: {}", kind);
                    }
                    Action::StartTls => {
                        prop_assert!(!is_secured && buffer.is_empty());
                        is_secured = true;
                    }
                    Action::OpenExport { .. } | Action::ListExports => prop_assert!(is_secured),
                    Action::Request(_) => prop_assert!(false, "no export was opened"),
                    Action::Send(_) | Action::Close { .. } => {}
                }
            }
        }
    }
}
