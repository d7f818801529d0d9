//! Compare-and-write.

use bytes::Bytes;

use super::host::*;
use crate::protocol::*;

fn halves(compare: u16, write: u16) -> [Command; 2] {
    [
        Command::io(nvm::COMPARE, compare, 8, 1).fuse(1).in_capsule(&[1; 512]),
        Command::io(nvm::WRITE, write, 8, 1).fuse(2).in_capsule(&[2; 512]),
    ]
}

fn statuses(host: &mut Host) -> Vec<(u16, u16)> {
    host.take().iter().map(|pdu| (pdu.command_id(), pdu.status())).collect()
}

#[test]
fn two_commands_become_one() {
    let mut host = Host::connected(0, Some(NAMESPACE));
    for half in halves(1, 2) {
        host.command(&half);
    }
    let (id, kind) = host.io.pop().unwrap();
    let IoKind::CompareAndWrite { offset: 4096, expected, data, write } = kind else { panic!("{kind:?}") };
    assert_eq!((expected, data), (Bytes::from(vec![1; 512]), Bytes::from(vec![2; 512])));
    host.complete(id, Response::of(Status::CompareFailure));
    host.complete(write, Response::of(Status::FailedFused));
    assert_eq!(statuses(&mut host), [(1, 0x285), (2, 0x09)]);
}

#[test]
fn data_may_come_in_any_order() {
    for first in [0, 1] {
        let mut host = Host::connected(0, Some(NAMESPACE));
        let [compare, write] = halves(1, 2);
        let over_transport = |mut command: Command| {
            command.capsule.clear();
            command.sqe[39] = 0x5A;
            command
        };
        host.command(&over_transport(compare));
        host.command(&over_transport(write));
        let asked = host.take();
        let tag = |at: usize| u16::from_le_bytes([asked[at].fields[2], asked[at].fields[3]]);
        let data = |host: &Host, at: usize| host.data(at as u16 + 1, tag(at), 0, &[at as u8; 512], true);
        let pdu = data(&host, first);
        host.send(&pdu);
        assert!(host.io.is_empty());
        let pdu = data(&host, 1 - first);
        host.send(&pdu);
        let (_, kind) = host.io.pop().unwrap();
        assert!(
            matches!(kind, IoKind::CompareAndWrite { expected, data, .. } if expected[0] == 0 && data[0] == 1)
        );
    }
}

#[test]
fn halves_without_the_other_are_not_done() {
    let mut host = Host::connected(0, Some(NAMESPACE));
    let [compare, write] = halves(1, 2);
    host.command(&write);
    assert_eq!(statuses(&mut host), [(2, 0x0A)], "a second without a first");
    host.command(&compare);
    host.command(&Command::io(nvm::FLUSH, 3, 0, 1));
    assert_eq!(statuses(&mut host), [(1, 0x0A)], "a first with something else behind it");
    assert!(matches!(host.io.pop().unwrap().1, IoKind::Flush));

    host.command(&compare);
    host.command(&Command::io(nvm::WRITE, 2, 9, 1).fuse(2).in_capsule(&[2; 512]));
    assert_eq!(statuses(&mut host), [(1, 0x09), (2, 0x02)], "another range");
    let large = Command::io(nvm::COMPARE, 1, 7, 2).fuse(1).in_capsule(&[1; 1024]);
    host.command(&large);
    host.command(&Command::io(nvm::WRITE, 2, 7, 2).fuse(2).in_capsule(&[2; 1024]));
    assert_eq!(statuses(&mut host), [(1, 0x14), (2, 0x09)], "more than is atomic");
    assert!(host.io.is_empty() && host.session.commands_in_flight() == 1);
}

#[test]
fn damage_of_one_half_fails_both() {
    for damaged in [0, 1] {
        let mut host = Host::connected(2, Some(NAMESPACE));
        for (at, half) in halves(1, 2).iter().enumerate() {
            let mut pdu = host.capsule(half);
            if at == damaged {
                pdu[200] ^= 1;
            }
            host.send(&pdu);
        }
        let expected = if damaged == 0 { [(1, 0x22), (2, 0x09)] } else { [(1, 0x09), (2, 0x22)] };
        assert_eq!(statuses(&mut host), expected);
        assert_eq!(host.session.commands_in_flight(), 0);
    }
}
