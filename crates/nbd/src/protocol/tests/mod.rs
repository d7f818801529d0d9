//! Tests of the session through its public face, byte by byte.

mod handshake;
mod properties;
mod starttls;
mod transmission;

use bytes::{BufMut, BytesMut};

use super::constants::{MAGIC_OPTION, MAGIC_REQUEST};
use super::{Action, ExportInfo, NbdSession, SessionConfig};

const GREETING: &[u8] = b"NBDMAGICIHAVEOPT\x00\x03";
const DISK: ExportInfo = ExportInfo { size_bytes: 1 << 20, read_only: false, multi_conn: true, fast_zero: false };

fn client_flags(flags: u32) -> Vec<u8> {
    flags.to_be_bytes().to_vec()
}

fn option(option: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.put_u64(MAGIC_OPTION);
    bytes.put_u32(option);
    bytes.put_u32(data.len() as u32);
    bytes.put_slice(data);
    bytes
}

fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u32).to_be_bytes(), text.as_bytes()].concat()
}

fn go_data(name: &str, infos: &[u16]) -> Vec<u8> {
    let mut bytes = string(name);
    bytes.put_u16(infos.len() as u16);
    infos.iter().for_each(|&info| bytes.put_u16(info));
    bytes
}

fn meta_data(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut bytes = string(name);
    bytes.put_u32(queries.len() as u32);
    queries.iter().for_each(|query| bytes.extend(string(query)));
    bytes
}

fn option_reply(option: u32, kind: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0x00, 0x03, 0xe8, 0x89, 0x04, 0x55, 0x65, 0xa9];
    bytes.put_u32(option);
    bytes.put_u32(kind);
    bytes.put_u32(data.len() as u32);
    bytes.put_slice(data);
    bytes
}

fn request(flags: u16, command: u16, cookie: u64, offset: u64, length: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.put_u32(MAGIC_REQUEST);
    bytes.put_u16(flags);
    bytes.put_u16(command);
    bytes.put_u64(cookie);
    bytes.put_u64(offset);
    bytes.put_u32(length);
    bytes
}

fn drain(session: &mut NbdSession) -> Vec<Action> {
    std::iter::from_fn(|| session.next_action()).collect()
}

/// Feeds whole messages and returns the resulting actions.
fn feed(session: &mut NbdSession, bytes: &[u8]) -> Vec<Action> {
    let mut buffer = BytesMut::from(bytes);
    session.receive(&mut buffer);
    assert!(buffer.is_empty(), "{} bytes were left", buffer.len());
    drain(session)
}

/// The bytes of actions that only send.
fn sent(actions: Vec<Action>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for action in actions {
        match action {
            Action::Send(part) => bytes.extend_from_slice(&part),
            other => panic!("not a send: {other:?}"),
        }
    }
    bytes
}

/// A session whose greeting is over.
fn greeted(config: SessionConfig) -> NbdSession {
    let mut session = NbdSession::new(config);
    assert_eq!(sent(feed(&mut session, &client_flags(3))), GREETING);
    session
}

/// A session in transmission.
fn transmitting(config: SessionConfig, export: ExportInfo, structured: bool, context: bool) -> NbdSession {
    let mut session = greeted(config);
    if structured {
        feed(&mut session, &option(8, &[]));
    }
    if context {
        feed(&mut session, &option(10, &meta_data("disk", &["base:allocation"])));
        session.export_opened(Ok(export));
        drain(&mut session);
    }
    feed(&mut session, &option(7, &go_data("disk", &[3])));
    session.export_opened(Ok(export));
    drain(&mut session);
    session
}
