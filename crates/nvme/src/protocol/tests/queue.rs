//! Queues: initialization, connect, reads and writes, and their errors.

use bytes::Bytes;

use super::host::*;
use crate::protocol::pdu::{FatalError, pdu_flag, pdu_type};
use crate::protocol::*;

fn terminated(host: &mut Host) -> u32 {
    let last = host.take().pop().unwrap();
    assert_eq!(last.kind, pdu_type::C2H_TERM_REQ);
    assert!(matches!(host.closed, Some(CloseReason::Violated(_))), "{:?}", host.closed);
    last.field_u32(0) & 0xFFFF
}

#[test]
fn a_request_for_another_format_is_refused() {
    for (at, value, status) in [(8, 1, 6), (10, 32, 1), (11, 4, 1), (2, 24, 1), (4, 129, 1), (0, 1, 2), (0, 77, 1)]
    {
        let mut host = Host::new(QueueConfig::default());
        let mut pdu = initialize(0);
        pdu[at] = value;
        host.send(&pdu);
        assert_eq!(terminated(&mut host), status, "byte {at} is {value}");
    }
}

#[test]
fn nothing_but_connect_comes_first() {
    let mut host = Host::new(QueueConfig::default());
    let command = host.capsule(&Command::connect(0, 0, 0xFFFF));
    host.send(&command);
    assert_eq!(terminated(&mut host), 2, "a command before the initialization");

    let mut host = Host::new(QueueConfig::default());
    host.send(&initialize(0));
    host.take();
    host.command(&Command::new(admin::KEEP_ALIVE, 3));
    assert_eq!(host.response().status(), 0x0C);
    assert_eq!(host.closed, Some(CloseReason::ConnectRefused(Status::CommandSequence)));
}

#[test]
fn connects_with_wrong_parameters_name_them() {
    type Change = fn(&mut Command);
    let changes: [(Change, u16, u64); 6] = [
        (|command| command.sqe[40] = 1, 0x180, 0),
        (|command| command.sqe[44..46].fill(0), 0x182, 44),
        (|command| command.sqe[45] = 1, 0x182, 44),
        (|command| command.sqe[46] = 0x10, 0x182, 46),
        (|command| command.capsule[256..512].fill(b'n'), 0x182, 0x1_0100),
        (|command| command.capsule[512] = 0, 0x182, 0x1_0200),
    ];
    for (change, status, parameter) in changes {
        let mut host = Host::new(QueueConfig::default());
        host.send(&initialize(0));
        host.take();
        let mut command = Command::connect(1, 0, 0xFFFF);
        change(&mut command);
        host.command(&command);
        let response = host.response();
        assert_eq!((response.status(), response.result()), (status, parameter));
        assert!(host.closed.is_some() && host.connects.is_empty());
    }
}

#[test]
fn a_connect_is_refused_by_the_shell() {
    let mut host = Host::new(QueueConfig::default());
    host.send(&initialize(0));
    host.take();
    host.command(&Command::connect(1, 0, 0xFFFF));
    let request = &host.connects[0];
    assert_eq!((request.queue_id, request.entries, request.keep_alive_ms), (0, 32, 5000));
    assert_eq!((&request.subsystem[..], &request.host[..]), (SUBSYSTEM, HOST));
    assert!(host.session.is_saturated(), "nothing is read until that is decided");
    host.session.connected(Err(ConnectRefusal::new(Status::ConnectInvalidHost)));
    host.act();
    assert_eq!(host.response().status(), 0x184);
    assert_eq!(host.closed, Some(CloseReason::ConnectRefused(Status::ConnectInvalidHost)));
}

#[test]
fn reads_and_writes_with_and_without_digests() {
    for digest_bits in 0..4 {
        let mut host = Host::connected(digest_bits, Some(NAMESPACE));
        host.command(&Command::io(nvm::READ, 5, 8, 8).transfer(4096));
        let (id, kind) = host.io.pop().unwrap();
        assert_eq!(kind, IoKind::Read(ByteRange { offset: 4096, length: 4096 }));
        let data = Bytes::from(vec![7; 4096]);
        host.complete(id, Response::data(data.clone()));
        let pdus = host.take();
        assert_eq!((pdus.len(), pdus[0].command_id(), &pdus[0].data), (2, 5, &data.to_vec()));
        assert_eq!(pdus[0].flags & 0xC, pdu_flag::LAST_PDU);
        assert_eq!((pdus[1].status(), pdus[1].command_id()), (0, 5));

        host.command(&Command::io(nvm::WRITE, 6, 1, 1).in_capsule(&[9; 512]));
        let (id, kind) = host.io.pop().unwrap();
        assert_eq!(kind, IoKind::Write { offset: 512, data: Bytes::from(vec![9; 512]) });
        host.complete(id, Response::of(Status::Success));
        assert_eq!(host.response().status(), 0);

        host.command(&Command::io(nvm::WRITE, 7, 0, 256).transfer(128 << 10));
        let asked = host.response();
        assert_eq!((asked.kind, asked.command_id(), asked.field_u32(8)), (pdu_type::R2T, 7, 128 << 10));
        let tag = u16::from_le_bytes([asked.fields[2], asked.fields[3]]);
        let first = host.data(7, tag, 0, &[1; 100 << 10], false);
        // Cut anywhere, it is the same.
        host.send(&first[..77]);
        host.send(&first[77..]);
        assert!(host.io.is_empty());
        let second = host.data(7, tag, 100 << 10, &[2; 28 << 10], true);
        host.send(&second);
        let (_, kind) = host.io.pop().unwrap();
        let IoKind::Write { offset: 0, data } = kind else { panic!("{kind:?}") };
        assert!(
            data.len() == 128 << 10 && data[..100 << 10].iter().all(|byte| *byte == 1) && data[100 << 10] == 2
        );
    }
}

#[test]
fn without_flow_control_data_says_success() {
    let mut host = Host::new(QueueConfig::default());
    host.send(&initialize(0));
    host.take();
    let mut connect = Command::connect(0, 1, 7);
    connect.sqe[46] = 4;
    host.command(&connect);
    host.session.connected(Ok((7, Some(NAMESPACE))));
    host.act();
    let response = host.response();
    assert_eq!(response.fields[8..10], [0xFF, 0xFF], "there is no head");
    host.command(&Command::io(nvm::READ, 5, 0, 1).transfer(512));
    let (id, _) = host.io.pop().unwrap();
    host.complete(id, Response::data(Bytes::from(vec![0; 512])));
    let response = host.response();
    assert_eq!((response.kind, response.flags), (pdu_type::C2H_DATA, pdu_flag::LAST_PDU | pdu_flag::SUCCESS));
}

#[test]
fn unsupported_commands_are_refused_by_their_status() {
    let mut host = Host::connected(0, Some(NAMESPACE));
    let blocks = (NAMESPACE.size_bytes / 512) as u32;
    let cases = [
        (Command::io(0x04, 1, 0, 1), 0x01, "Write Uncorrectable"),
        (Command::io(0x0D, 1, 0, 1).transfer(16), 0x01, "Reservation Register"),
        (Command::new(0x7F, 1).dword(1, 5), 0x01, "Authentication Send on an I/O queue"),
        (Command::io(nvm::READ, 1, 0, 1).dword(1, 2).transfer(512), 0x0B, "another namespace"),
        (Command::io(nvm::READ, 1, blocks.into(), 1).transfer(512), 0x80, "behind the end"),
        (Command::io(nvm::READ, 1, u64::MAX, 2).transfer(1024), 0x80, "so far behind that it overflows"),
        (Command::io(nvm::READ, 1, 0, 2).transfer(512), 0x0F, "less room than data"),
        (Command::io(nvm::WRITE, 1, 0, 2).in_capsule(&[0; 512]), 0x0F, "less data than blocks"),
        (Command::io(nvm::WRITE, 1, 0, 1).dword(12, 1 << 20).transfer(512), 0x02, "a directive"),
        (Command::io(nvm::READ, 1, 0, 1).dword(12, 1 << 29).transfer(512), 0x02, "protection information"),
        (Command::io(nvm::READ, 1, 0, 1).in_capsule(&[0; 512]), 0x11, "data for the host in a capsule"),
        (Command::io(nvm::READ, 1, 0, 1).fuse(1).transfer(512), 0x02, "a fused read"),
        (
            Command::io(nvm::DATASET_MANAGEMENT, 1, 0, 1).dword(10, 0).dword(11, 8).transfer(16),
            0x02,
            "an attribute",
        ),
    ];
    for (command, status, what) in cases {
        host.command(&command);
        assert_eq!(host.response().status(), status, "{what}");
        assert!(host.io.is_empty() && host.closed.is_none(), "{what}");
    }
    let mut shifted = Command::io(nvm::WRITE, 1, 0, 1).in_capsule(&[0; 512]);
    shifted.sqe[24] = 1;
    host.command(&shifted);
    assert_eq!(host.response().status(), 0x16, "an offset into the capsule");
}

#[test]
fn a_namespace_may_be_read_only_or_away() {
    let trim = Command::new(nvm::DATASET_MANAGEMENT, 1).dword(1, 1).dword(11, 4).in_capsule(&[0; 16]);
    let changes =
        [Command::io(nvm::WRITE, 1, 0, 1).in_capsule(&[0; 512]), Command::io(nvm::WRITE_ZEROES, 1, 0, 1), trim];
    let mut host = Host::connected(0, Some(Namespace { is_read_only: true, ..NAMESPACE }));
    for command in &changes {
        host.command(command);
        assert_eq!(host.response().status(), 0x20);
    }
    host.session.set_namespace(Namespace { is_accessible: false, ..NAMESPACE });
    for command in &changes {
        host.command(command);
        assert_eq!(host.response().status(), 0x302);
    }
    host.session.set_namespace(NAMESPACE);
    host.command(&changes[0]);
    assert_eq!(host.io.len(), 1);
    host.session.set_namespace(Namespace { is_gone: true, ..NAMESPACE });
    for command in [Command::io(nvm::WRITE_ZEROES, 2, 0, 1), Command::io(nvm::READ, 3, 0, 1)] {
        host.command(&command);
        assert_eq!(host.response().status(), 0x0B);
    }
}

#[test]
fn trims_are_ranges_and_hints_are_left_alone() {
    let mut host = Host::connected(0, Some(NAMESPACE));
    let mut data = vec![0; 48];
    data[4] = 8;
    data[16 + 4] = 0;
    data[32 + 4] = 1;
    data[32 + 8] = 16;
    let command = Command::new(nvm::DATASET_MANAGEMENT, 1).dword(1, 1).dword(10, 2);
    host.command(&command.clone().dword(11, 4).in_capsule(&data));
    let ranges = vec![ByteRange { offset: 0, length: 4096 }, ByteRange { offset: 8192, length: 512 }];
    assert_eq!(host.io.pop().unwrap().1, IoKind::Trim(ranges), "an empty range is none");
    host.command(
        &Command {
            sqe: {
                let mut sqe = command.sqe;
                sqe[2] = 9;
                sqe
            },
            ..command
        }
        .dword(11, 3)
        .in_capsule(&data),
    );
    assert_eq!(host.response().status(), 0);
    assert!(host.io.is_empty(), "hints are nothing to do");
    data[40 + 7] = 1;
    host.command(
        &Command::new(nvm::DATASET_MANAGEMENT, 2).dword(1, 1).dword(10, 2).dword(11, 4).in_capsule(&data),
    );
    assert_eq!(host.response().status(), 0x80);
}

#[test]
fn trims_may_come_with_room_for_more_ranges() {
    let mut host = Host::connected(0, Some(NAMESPACE));
    let mut data = vec![0xFF; 4096];
    data[..16].fill(0);
    data[4] = 8;
    let command = Command::new(nvm::DATASET_MANAGEMENT, 1).dword(1, 1).dword(11, 4);
    host.command(&command.clone().in_capsule(&data));
    assert_eq!(host.io.pop().unwrap().1, IoKind::Trim(vec![ByteRange { offset: 0, length: 4096 }]));
    host.command(&Command::new(nvm::DATASET_MANAGEMENT, 2).dword(1, 1).dword(11, 4).in_capsule(&[0; 4112]));
    assert_eq!(host.response().status(), 0x0F, "more than there can be");
}

#[test]
fn damaged_data_fails_the_command_and_damaged_headers_the_connection() {
    let mut host = Host::connected(3, Some(NAMESPACE));
    let mut pdu = host.capsule(&Command::io(nvm::WRITE, 1, 0, 1).in_capsule(&[5; 512]));
    pdu[100] ^= 1;
    host.send(&pdu);
    assert_eq!(host.response().status(), 0x22);
    assert!(host.io.is_empty() && host.closed.is_none());

    host.command(&Command::io(nvm::WRITE, 2, 0, 256).transfer(128 << 10));
    let asked = host.response();
    let tag = u16::from_le_bytes([asked.fields[2], asked.fields[3]]);
    let mut pdu = host.data(2, tag, 0, &[1; 128 << 10], true);
    pdu[500] ^= 1;
    host.send(&pdu);
    assert_eq!(host.response().status(), 0x22);

    let mut pdu = host.capsule(&Command::io(nvm::WRITE, 1, 0, 1).in_capsule(&[5; 512]));
    pdu[50] ^= 1;
    host.send(&pdu);
    assert_eq!(terminated(&mut host), 3);
}

#[test]
fn unrequested_data_ends_the_connection() {
    type Wrong = fn(&Host, u16) -> Vec<u8>;
    let wrong: [(Wrong, u32); 8] = [
        (|host, tag| host.data(7, tag + 1, 0, &[0; 1024], true), 1),
        (|host, tag| host.data(8, tag, 0, &[0; 1024], true), 1),
        (|host, tag| host.data(7, tag, 512, &[0; 512], true), 4),
        (|host, tag| host.data(7, tag, 0, &[0; 2048], true), 4),
        (|host, tag| host.data(7, tag, 0, &[0; 1024], false), 1),
        (|host, tag| host.data(7, tag, 0, &[0; 512], true), 1),
        (|host, tag| host.data(7, tag, 0, &[], false), 4),
        (|host, tag| host.data(7, tag, 0, &[0; (1 << 20) + 1024], true), 5),
    ];
    for (wrong, status) in wrong {
        let mut host = Host::connected(0, Some(NAMESPACE));
        host.command(&Command::io(nvm::WRITE, 7, 0, 2).transfer(1024));
        let asked = host.response();
        let tag = u16::from_le_bytes([asked.fields[2], asked.fields[3]]);
        let pdu = wrong(&host, tag);
        host.send(&pdu);
        assert_eq!(terminated(&mut host), status);
        assert!(host.io.is_empty());
    }
}

#[test]
fn data_is_asked_for_as_there_is_room() {
    let config = QueueConfig { granted_bytes_max: 1 << 20, ..QueueConfig::default() };
    let mut host = Host::connected(0, Some(NAMESPACE));
    host.session = {
        let mut fresh = Host::new(config);
        fresh.send(&initialize(0));
        fresh.command(&Command::connect(0, 1, 7));
        fresh.session.connected(Ok((7, Some(NAMESPACE))));
        fresh.act();
        fresh.session
    };
    for id in 0..3 {
        host.command(&Command::io(nvm::WRITE, id, 0, 1200).transfer(1200 * 512));
    }
    let asked = host.response();
    let tag = u16::from_le_bytes([asked.fields[2], asked.fields[3]]);
    let pdu = host.data(0, tag, 0, &[0; 1200 * 512], true);
    host.send(&pdu);
    assert_eq!((host.io.len(), host.response().command_id()), (1, 1), "the next may come");
}

/// A host is asked to send only as much as there is memory for, for any other user of the memory.
#[test]
fn data_is_asked_for_as_the_shell_has_room() {
    let mut host = Host::without_room(QueueConfig::default());
    host.send(&initialize(0));
    host.command(&Command::connect(0, 1, 7));
    host.session.connected(Ok((7, Some(NAMESPACE))));
    host.act();
    host.take();
    host.command(&Command::io(nvm::WRITE, 0, 0, 128).transfer(128 * 512));
    host.command(&Command::io(nvm::WRITE, 1, 0, 8).transfer(8 * 512));
    assert!(host.take().is_empty(), "nothing is asked for");
    assert_eq!(host.session.needed_room_bytes(), 128 * 512);
    host.session.add_room(100 * 512);
    host.act();
    assert!(host.take().is_empty() && host.session.needed_room_bytes() == 28 * 512, "in their order");
    host.session.add_room(28 * 512);
    host.act();
    assert_eq!(host.response().command_id(), 0);
    assert_eq!(host.session.needed_room_bytes(), 8 * 512);
    host.session.add_room(8 * 512);
    host.act();
    assert_eq!(host.response().command_id(), 1);
    assert_eq!(host.session.needed_room_bytes(), 0);
}

#[test]
fn commands_beyond_the_queue_and_ids_in_use() {
    let mut host = Host::connected(0, Some(NAMESPACE));
    host.command(&Command::io(nvm::FLUSH, 0, 0, 1));
    host.command(&Command::io(nvm::FLUSH, 0, 0, 1));
    assert_eq!(host.response().status(), 0x03);
    for id in 1..32 {
        host.command(&Command::io(nvm::FLUSH, id, 0, 1));
    }
    assert!(host.closed.is_none() && host.session.commands_in_flight() == 32);
    host.command(&Command::io(nvm::FLUSH, 32, 0, 1));
    assert_eq!(host.closed, Some(CloseReason::Violated(FatalError::DataLimit)));
    for (id, _) in std::mem::take(&mut host.io) {
        host.complete(id, Response::of(Status::Success));
    }
}

#[test]
fn a_host_may_end_the_connection() {
    let mut host = Host::connected(3, None);
    let mut pdu = vec![pdu_type::H2C_TERM_REQ, 0, 24, 0, 32, 0, 0, 0, 2, 0, 5, 0, 0, 0];
    pdu.resize(32, 0);
    host.send(&pdu);
    assert_eq!(host.closed, Some(CloseReason::Terminated { status: 2, information: 5 }));
    assert!(host.take().is_empty(), "there is no answer to that");
}
