//! Whatever the peer sends, and however it is cut: no panic, bounded memory, equal results.

use bytes::Bytes;
use proptest::prelude::*;

use super::host::*;
use crate::protocol::pdu::*;
use crate::protocol::*;

/// Answers the requests of a queue.
fn answer(host: &mut Host, reads: u8) {
    for (id, kind) in std::mem::take(&mut host.io) {
        let response = match kind {
            IoKind::Read(range) => Response::data(Bytes::from(vec![reads; range.length as usize])),
            IoKind::CompareAndWrite { write, .. } => {
                host.complete(write, Response::of(Status::Success));
                Response::of(Status::Success)
            }
            _ => Response::of(Status::Success),
        };
        host.complete(id, response);
    }
    for (id, ..) in std::mem::take(&mut host.admin) {
        host.complete(id, Response::data(Bytes::from(vec![0; 16])));
    }
}

/// A PDU that is nearly right: a host's PDU with some bytes changed.
fn nearly_right() -> impl Strategy<Value = Vec<u8>> {
    let io = (any::<u8>(), 0u16..4, 0u64..3000, 1u32..600, 0u8..4, any::<bool>(), any::<u32>(), 0u8..20);
    let command = io.prop_map(|(opcode, id, first, blocks, fuse, in_capsule, dword, odd)| {
        let opcode = if odd > 0 { opcode % 10 } else { opcode };
        let mut command = Command::io(opcode, id, first, blocks).fuse(fuse);
        if odd == 1 {
            command = command.dword(12, dword);
        }
        if odd == 2 || opcode == nvm::DATASET_MANAGEMENT {
            command = command.dword(10, dword & 7).dword(11, 4);
        }
        match in_capsule {
            true => command.in_capsule(&vec![3; (blocks as usize * 512).min(32 << 10)]),
            false => command.transfer(blocks as usize * 512),
        }
    });
    let data = (0u16..4, 0u16..4, prop_oneof![Just(0u32), 0u32..9000], 0usize..5000, any::<bool>());
    let change = proptest::collection::vec((0usize..90, any::<u8>()), 0..2);
    let host = || Host::new(QueueConfig::default());
    let pdu = prop_oneof![
        4 => command.prop_map(move |command| host().capsule(&command)),
        2 => data.prop_map(move |(id, tag, offset, bytes, is_last)| {
            host().data(id, tag, offset, &vec![1; bytes], is_last)
        }),
        1 => Just(initialize(0)),
    ];
    (pdu, change).prop_map(|(mut pdu, changes)| {
        for (at, value) in changes {
            if at < pdu.len() {
                pdu[at] = value;
            }
        }
        pdu
    })
}

fn check_bounds(host: &Host) {
    assert!(host.session.commands_in_flight() <= 32);
    // Never more is buffered than one PDU.
    assert!(host.closed.is_some() || host.buffer.len() + host.session.needed_bytes() <= (1 << 20) + 600);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: fuzz_cases(), ..ProptestConfig::default() })]

    #[test]
    fn noise_ends_a_connection_at_most(noise in proptest::collection::vec(any::<u8>(), 0..600), with_init: bool) {
        let mut host = Host::new(QueueConfig::default());
        if with_init {
            host.send(&initialize(0));
        }
        host.send(&noise);
        check_bounds(&host);
    }

    #[test]
    fn pdus_that_are_nearly_right(pdus in proptest::collection::vec(nearly_right(), 1..20), late: bool) {
        let mut host = Host::connected(0, Some(NAMESPACE));
        for pdu in pdus {
            if host.closed.is_some() {
                break;
            }
            host.send(&pdu);
            check_bounds(&host);
            if !late {
                answer(&mut host, 1);
            }
        }
        answer(&mut host, 1);
    }

    #[test]
    fn admin_commands_of_any_kind(sqes in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 64), 1..12)) {
        let mut controller = Controller::new(
            ControllerConfig {
                controller_id: 1,
                subsystem: SUBSYSTEM.into(),
                serial: "1".into(),
                firmware: "1".into(),
                host: HOST.into(),
                host_id: [0; 16],
                keep_alive_ms: 0,
                queues: QueueConfig::default(),
                subject: Subject::Namespace { namespace: NAMESPACE, id: [1; 16] },
            },
            0,
        );
        let enable = Command::new(0x7F, 0).dword(11, 0x14).dword(12, 0x46_0001);
        controller.execute(CommandId(0), &SubmissionEntry::read(&enable.sqe));
        for mut sqe in sqes {
            // Mostly opcodes that there are, and few bits where many are refused.
            sqe[0] &= 0x1F;
            sqe[40] &= 0x0F;
            sqe[41] &= 0x01;
            let response = controller.execute(CommandId(1), &SubmissionEntry::read(&sqe));
            prop_assert!(response.is_none_or(|response| response.data.len() <= 1 << 20));
        }
    }

    #[test]
    fn cuts_change_nothing(
        pdus in proptest::collection::vec(nearly_right(), 1..8),
        cuts in proptest::collection::vec(1usize..3000, 1..50),
    ) {
        let stream: Vec<u8> = pdus.concat();
        let mut whole = Host::connected(0, Some(NAMESPACE));
        whole.send(&stream);
        let mut cut = Host::connected(0, Some(NAMESPACE));
        let mut rest = &stream[..];
        for length in cuts.iter().cycle() {
            let (part, after) = rest.split_at((*length).min(rest.len()));
            if cut.closed.is_some() || part.is_empty() {
                break;
            }
            cut.send(part);
            rest = after;
        }
        prop_assert_eq!(&whole.closed, &cut.closed);
        prop_assert_eq!(&whole.io, &cut.io);
        let (whole, cut) = (whole.take(), cut.take());
        // A termination carries as much of the wrong PDU as was there.
        let is_same = |(a, b): (&Received, &Received)| (a.kind, &a.fields) == (b.kind, &b.fields);
        prop_assert!(whole.len() == cut.len() && whole.iter().zip(&cut).all(is_same));
    }

    #[test]
    fn every_pdu_of_a_host_is_read_as_written(
        digest_bits in 0u8..4,
        id: u16,
        tag: u16,
        offset: u32,
        data in proptest::collection::vec(any::<u8>(), 1..2000),
        is_last: bool,
        damage in proptest::option::of(any::<proptest::sample::Index>()),
    ) {
        let mut host = Host::new(QueueConfig::default());
        host.digests = Digests::from_bits(digest_bits).unwrap();
        let mut pdu = host.data(id, tag, offset, &data, is_last);
        if let Some(at) = damage {
            let at = at.index(pdu.len());
            pdu[at] ^= 0x10;
        }
        let read = read_header(&pdu, host.digests, 8192, 1 << 20);
        let written = HostPdu::Data { command_id: id, transfer_tag: tag, offset, is_last };
        match (read, damage) {
            (Ok(HeaderProgress::Whole(header)), None) => {
                prop_assert_eq!((header.pdu, header.data_bytes, header.total_bytes()), (written, data.len(), pdu.len()));
                let payload = header.take(&mut bytes::BytesMut::from(&pdu[..]));
                prop_assert!(payload.is_sound && payload.data == data);
            }
            (Ok(HeaderProgress::Whole(header)), Some(_)) if header.total_bytes() == pdu.len() => {
                let payload = header.take(&mut bytes::BytesMut::from(&pdu[..]));
                if host.digests.header {
                    prop_assert_eq!(header.pdu, written, "the digest protects the header");
                }
                if host.digests.header && host.digests.data {
                    prop_assert!(!payload.is_sound, "and the other one the data");
                }
            }
            (Ok(HeaderProgress::Needs(_)), None) | (Err(_), None) => prop_assert!(false, "{read:?}"),
            _ => {}
        }
    }
}

/// `ATOLL_FUZZ_RUNS` for long runs.
fn fuzz_cases() -> u32 {
    std::env::var("ATOLL_FUZZ_RUNS").ok().and_then(|runs| runs.parse().ok()).unwrap_or(256)
}
