//! Queues of hosts that must prove themselves.

use super::host::*;
use crate::protocol::*;

const SEND: u8 = 5;
const RECEIVE: u8 = 6;
const AUTHENTICATION_REQUIRED: u16 = 0x191;

/// Returns Authentication Send or Receive of `bytes` bytes.
fn authentication(kind: u8, id: u16, bytes: u32) -> Command {
    let mut command = Command::new(0x7F, id).dword(1, kind.into()).dword(11, bytes);
    command.sqe[41..44].copy_from_slice(&[1, 1, 0xE9]);
    command
}

/// A queue that is connected, and whose host must prove itself.
fn unproved(queue_id: u16) -> Host {
    let mut host = Host::new(QueueConfig::default());
    host.send(&initialize(0));
    host.take();
    host.command(&Command::connect(0, queue_id, 0xFFFF));
    host.session.require_authentication(7);
    host.act();
    let response = host.response();
    assert_eq!((response.status(), response.result()), (0, 7 | 1 << 17));
    assert!(!host.session.is_connected());
    host
}

#[test]
fn nothing_is_served_before_and_everything_after() {
    for namespace in [None, Some(NAMESPACE)] {
        let mut host = unproved(u16::from(namespace.is_some()));
        let identify = Command::new(admin::IDENTIFY, 1).dword(10, 1).transfer(4096);
        let read = Command::io(nvm::READ, 2, 0, 1).transfer(512);
        for command in [&identify, &read] {
            host.command(command);
            assert_eq!(host.response().status(), AUTHENTICATION_REQUIRED);
        }
        host.command(&authentication(SEND, 3, 8).in_capsule(&[9; 8]));
        let (id, message) = host.messages.pop().unwrap();
        assert_eq!(message[..], [9; 8]);
        host.complete(id, Response::of(Status::Success));
        assert_eq!(host.response().status(), 0);
        host.command(&authentication(RECEIVE, 4, 64).transfer(64));
        let (id, length_bytes) = host.fetches.pop().unwrap();
        assert_eq!(length_bytes, 64);
        host.session.authenticated(namespace);
        host.complete(id, Response::data(vec![1; 64].into()));
        assert_eq!(host.take()[0].data, [1; 64]);
        assert!(host.session.is_connected() && host.admin.is_empty() && host.io.is_empty());
        host.command(if namespace.is_some() { &read } else { &identify });
        assert_eq!((host.admin.len(), host.io.len()), if namespace.is_some() { (0, 1) } else { (1, 0) });
    }
}

#[test]
fn messages_may_come_when_they_are_asked_for() {
    let mut host = unproved(0);
    host.command(&authentication(SEND, 3, 100).transfer(100));
    let ready = host.response();
    assert_eq!(ready.kind, pdu::pdu_type::R2T);
    let tag = u16::from_le_bytes([ready.fields[2], ready.fields[3]]);
    let data = host.data(3, tag, 0, &[7; 100], true);
    host.send(&data);
    assert_eq!(host.messages.pop().unwrap().1[..], [7; 100]);
}

#[test]
fn commands_outside_authentication_are_refused() {
    let mut host = unproved(0);
    let mut other = authentication(SEND, 1, 8).in_capsule(&[9; 8]);
    other.sqe[43] = 0xEA;
    let long = authentication(SEND, 2, 9).in_capsule(&[9; 8]);
    let huge = authentication(RECEIVE, 3, 8192).transfer(8192);
    let connect = Command::connect(4, 0, 0xFFFF);
    for (command, status) in [(other, 0x002), (long, 0x00F), (huge, 0x002), (connect, AUTHENTICATION_REQUIRED)] {
        host.command(&command);
        assert_eq!(host.response().status(), status);
    }
    assert!(host.messages.is_empty() && host.fetches.is_empty());
}

#[test]
fn a_host_that_fails_is_answered_and_then_cut_off() {
    let mut host = unproved(0);
    host.command(&authentication(RECEIVE, 4, 16).transfer(16));
    let (id, _) = host.fetches.pop().unwrap();
    host.session.complete(id, Response::data(vec![1; 16].into()));
    let reason = CloseReason::NotAuthenticated(authentication::Failure::Authentication);
    host.session.give_up(reason.clone());
    host.act();
    assert_eq!(host.take()[0].data, [1; 16]);
    assert_eq!(host.closed, Some(reason));
}
