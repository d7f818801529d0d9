//! Whatever the peer sends, and however it is cut: no panic, bounded actions, equal results.

use std::collections::VecDeque;

use atoll_exports::{OpenError, OpenErrorKind};
use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::protocol::constants::{EXPORTS_LISTED_MAX, OPTION_DATA_BYTES_MAX};
use crate::protocol::{Outcome, Request, RequestKind, StatusExtent};

/// A shell that answers at once or, to have several requests in flight, late and in reverse.
struct Shell {
    session: NbdSession,
    buffer: BytesMut,
    late: bool,
    waiting: VecDeque<Request>,
    sent: Vec<u8>,
    requests: Vec<RequestKind>,
    closed: Option<String>,
}

impl Shell {
    fn new(config: SessionConfig, late: bool) -> Self {
        Shell {
            session: NbdSession::new(config),
            buffer: BytesMut::new(),
            late,
            waiting: VecDeque::new(),
            sent: Vec::new(),
            requests: Vec::new(),
            closed: None,
        }
    }

    fn feed(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
        loop {
            self.session.receive(&mut self.buffer);
            self.act();
            if self.session.is_closed() || self.session.needed_bytes() > 0 {
                return;
            }
            self.answer_all();
        }
    }

    fn act(&mut self) {
        while let Some(action) = self.session.next_action() {
            assert!(self.closed.is_none(), "{action:?} after the end");
            match action {
                Action::Send(bytes) => {
                    assert!(bytes.len() <= EXPORTS_LISTED_MAX * 64, "a send of {} bytes", bytes.len());
                    self.sent.extend_from_slice(&bytes);
                }
                Action::Request(request) => {
                    check(&request.kind);
                    self.requests.push(request.kind.clone());
                    self.waiting.push_back(request);
                    if !self.late {
                        self.answer_all();
                    }
                }
                Action::OpenExport { name, .. } => {
                    assert!(name.len() <= 4096);
                    let unknown = OpenError { kind: OpenErrorKind::Unknown, message: "none such".into() };
                    self.session.export_opened(if name == "disk" { Ok(DISK) } else { Err(unknown) });
                }
                Action::ListExports => self.session.exports_listed(vec!["disk".into()]),
                Action::StartTls => unreachable!("TLS is not offered"),
                Action::Close { reason } => self.closed = Some(reason.to_string()),
            }
        }
    }

    fn answer_all(&mut self) {
        while let Some(Request { id, kind, .. }) = self.waiting.pop_back() {
            let outcome = match kind {
                RequestKind::Read { offset: 13, .. } => {
                    Outcome::Failed { code: crate::protocol::ErrorCode::Io, message: "thirteen".into() }
                }
                RequestKind::Read { offset, length } => {
                    Outcome::Data(Bytes::from(vec![offset as u8; length as usize]))
                }
                RequestKind::BlockStatus { length, .. } => Outcome::Extents(vec![
                    StatusExtent { length: 1, is_hole: false, is_zero: false },
                    StatusExtent { length: length.into(), is_hole: true, is_zero: true },
                ]),
                _ => Outcome::Done,
            };
            self.session.reply(id, outcome);
        }
        self.act();
    }
}

/// Everything that a shell may rely on.
fn check(kind: &RequestKind) {
    let (offset, length) = match kind {
        RequestKind::Flush => return,
        RequestKind::Write { offset, data, .. } => (*offset, data.len() as u64),
        RequestKind::Read { offset, length }
        | RequestKind::Trim { offset, length, .. }
        | RequestKind::WriteZeroes { offset, length, .. }
        | RequestKind::BlockStatus { offset, length, .. } => (*offset, u64::from(*length)),
    };
    assert!(length > 0 && offset + length <= DISK.size_bytes, "{kind:?}");
}

/// Bytes that get past the first checks often enough to reach the depths.
fn message() -> impl Strategy<Value = Vec<u8>> {
    let name = prop_oneof![3 => Just("disk"), 1 => Just("nope"), 1 => Just("")];
    let queries =
        proptest::collection::vec(prop_oneof![Just("base:allocation"), Just("base:"), Just("x:y")], 0..3);
    let small = prop_oneof![4 => 0u32..5000, 1 => any::<u32>()];
    let near = prop_oneof![4 => 0u64..2000, 1 => (1u64 << 20) - 3000..(1 << 20) + 10, 1 => any::<u64>()];
    let flags = prop_oneof![4 => Just(0u16), 2 => 0u16..32, 1 => any::<u16>()];
    prop_oneof![
        2 => Just(option(8, &[])),
        1 => Just(option(3, &[])),
        2 => (0u32..13, proptest::collection::vec(any::<u8>(), 0..40)).prop_map(|(number, data)| option(number, &data)),
        2 => (6u32..8, name.clone(), proptest::collection::vec(0u16..5, 0..4))
            .prop_map(|(number, name, infos)| option(number, &go_data(name, &infos))),
        2 => (9u32..11, name, queries).prop_map(|(number, name, queries)| option(number, &meta_data(name, &queries))),
        6 => (flags, 0u16..9, any::<u64>(), near, small).prop_map(|(flags, command, cookie, offset, length)| {
            let payload = if command == 1 { length.min(8000) as usize } else { 0 };
            [request(flags, command, cookie, offset, length), vec![7; payload]].concat()
        }),
        1 => proptest::collection::vec(any::<u8>(), 0..60),
    ]
}

/// Mostly plausible conversations; some are noise from the start.
fn conversation() -> impl Strategy<Value = Vec<u8>> {
    let go = prop_oneof![
        3 => Just([option(8, &[]), option(10, &meta_data("disk", &["base:allocation"])),
            option(7, &go_data("disk", &[3]))].concat()),
        1 => Just(option(1, b"disk")),
        1 => Just(Vec::new()),
    ];
    prop_oneof![
        9 => (0u32..5, go, proptest::collection::vec(message(), 0..30))
            .prop_map(|(flags, go, messages)| [client_flags(flags), go, messages.concat()].concat()),
        1 => proptest::collection::vec(any::<u8>(), 0..300),
    ]
}

/// With one request in flight the order of replies is fixed, so results can be compared.
fn config(requests_in_flight_max: usize) -> SessionConfig {
    SessionConfig { requests_in_flight_max, payload_in_flight_bytes_max: 6000, ..SessionConfig::default() }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_in_any_pieces_are_survived(
        bytes in conversation(),
        cuts in proptest::collection::vec(1usize..200, 1..50),
        late in any::<bool>(),
    ) {
        let limit = if late { 4 } else { 1 };
        let mut shell = Shell::new(config(limit), late);
        // The server speaks first, even to a client that never says a word.
        shell.feed(&[]);
        let mut rest = &bytes[..];
        for &cut in cuts.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (piece, after) = rest.split_at(cut.min(rest.len()));
            rest = after;
            shell.feed(piece);
            let session = &shell.session;
            prop_assert!(session.requests_in_flight() <= limit);
            // What the shell is asked to hold is bounded too.
            let held = shell.buffer.len() + session.needed_bytes();
            prop_assert!(session.is_closed() || held <= OPTION_DATA_BYTES_MAX.max(32 << 20) + 28);
        }
        if !late {
            let mut whole = Shell::new(config(limit), false);
            whole.feed(&bytes);
            prop_assert_eq!(&whole.sent, &shell.sent);
            prop_assert_eq!(&whole.requests, &shell.requests);
            prop_assert_eq!(&whole.closed, &shell.closed);
        }
    }
}

/// A conversation with every option and every command, good and bad.
fn full_conversation() -> Vec<u8> {
    [
        client_flags(3),
        option(5, &[]),
        option(99, b"whatever"),
        option(8, &[]),
        option(3, &[]),
        option(9, &meta_data("disk", &[])),
        option(10, &meta_data("disk", &["base:allocation"])),
        option(7, &go_data("nope", &[3])),
        option(6, &go_data("disk", &[1, 3])),
        option(7, &go_data("disk", &[3])),
        request(0, 0, 1, 100, 50),
        [request(1, 1, 2, 10, 5), b"hello".to_vec()].concat(),
        [request(0, 1, 3, 1 << 20, 5), b"hello".to_vec()].concat(),
        request(0, 3, 4, 0, 0),
        request(0, 4, 5, 0, 4096),
        request(0, 5, 6, 0, 4096),
        request(2, 6, 7, 0, 4096),
        request(16, 6, 8, 0, 4096),
        request(0, 7, 9, 0, 4096),
        request(8, 7, 10, 0, 4096),
        request(0, 0, 11, 13, 1),
        request(0, 2, 12, 0, 0),
    ]
    .concat()
}

impl Shell {
    fn fed(config: &SessionConfig, pieces: &[&[u8]]) -> Self {
        let mut shell = Shell::new(config.clone(), false);
        pieces.iter().for_each(|piece| shell.feed(piece));
        shell
    }

    /// All that can be seen of the session. The bytes are sorted where replies may overtake each other.
    fn result(&self, sorted: bool) -> (Vec<u8>, &[RequestKind], Option<&str>) {
        let mut sent = self.sent.clone();
        if sorted {
            sent.sort_unstable();
        }
        (sent, &self.requests, self.closed.as_deref())
    }
}

#[test]
fn a_conversation_may_be_cut_anywhere() {
    let bytes = full_conversation();
    for (config, sorted) in [(config(1), false), (SessionConfig::default(), true)] {
        let whole = Shell::fed(&config, &[&bytes]);
        assert_eq!(whole.requests.len(), 8);
        assert_eq!(whole.closed.as_deref(), Some("the client disconnected"));
        for cut in 0..=bytes.len() {
            let shell = Shell::fed(&config, &[&bytes[..cut], &bytes[cut..]]);
            assert_eq!(shell.result(sorted), whole.result(sorted), "cut at {cut}");
        }
        let single: Vec<&[u8]> = bytes.chunks(1).collect();
        assert_eq!(Shell::fed(&config, &single).result(sorted), whole.result(sorted));
    }
}

#[test]
fn needed_bytes_is_exactly_enough() {
    // A shell that gives only what it is asked for gets through.
    let bytes = full_conversation();
    let whole = Shell::fed(&config(1), &[&bytes]);
    let mut shell = Shell::new(config(1), false);
    let mut rest = &bytes[..];
    while !rest.is_empty() {
        let (piece, after) = rest.split_at(shell.session.needed_bytes());
        rest = after;
        shell.feed(piece);
    }
    assert_eq!(shell.result(false), whole.result(false));
}
