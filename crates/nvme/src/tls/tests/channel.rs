//! Both ends of a channel in one process.

use bytes::{Bytes, BytesMut};

use super::*;
use crate::tls::channel::POLICY;
use crate::tls::{TlsChannel, TlsError};

/// Two ends, and the bytes between them.
struct Pair {
    host: TlsChannel,
    target: TlsChannel,
}

impl Pair {
    fn new(host: &TlsPsk, target: &TlsPsk) -> Self {
        Self::with_policy(host, target, POLICY)
    }

    fn with_policy(host: &TlsPsk, target: &TlsPsk, policy: &str) -> Self {
        Pair { host: TlsChannel::of_host(host, policy).unwrap(), target: TlsChannel::new(target).unwrap() }
    }

    /// Carries records back and forth until there are none.
    fn exchange(&mut self) -> Result<(), TlsError> {
        if self.host.is_handshaking() {
            self.host.receive(&mut BytesMut::new())?;
        }
        loop {
            let mut to_target = BytesMut::from(self.host.take_records()?);
            let mut to_host = BytesMut::from(self.target.take_records()?);
            if to_target.is_empty() && to_host.is_empty() {
                return Ok(());
            }
            self.target.receive(&mut to_target)?;
            self.host.receive(&mut to_host)?;
        }
    }
}

fn connected(hash: HashFunction) -> Pair {
    let psk = random_psk(hash);
    let mut pair = Pair::new(&psk, &psk);
    pair.exchange().unwrap();
    assert!(!pair.host.is_handshaking() && !pair.target.is_handshaking());
    pair
}

#[test]
fn bytes_go_both_ways() {
    for hash in [HashFunction::Sha256, HashFunction::Sha384] {
        let mut pair = connected(hash);
        let sent: Vec<u8> = (0..300_000).map(|index| (index % 251) as u8).collect();
        pair.host.send(Bytes::copy_from_slice(&sent));
        pair.target.send(Bytes::from_static(b"head"));
        pair.target.send(Bytes::copy_from_slice(&sent));
        pair.exchange().unwrap();
        assert!(pair.target.opened()[..] == sent[..]);
        assert!(pair.host.opened()[..] == [b"head", &sent[..]].concat());
    }
}

#[test]
fn a_host_that_begins_with_another_group_is_asked_for_one() {
    for hash in [HashFunction::Sha256, HashFunction::Sha384] {
        let psk = random_psk(hash);
        let mut pair = Pair::with_policy(&psk, &psk, "CloudFront-TLS-1-3-2025-no-pq");
        pair.exchange().unwrap();
        pair.host.send(Bytes::from_static(b"after X25519 was refused"));
        pair.exchange().unwrap();
        assert_eq!(pair.target.opened()[..], *b"after X25519 was refused");
    }
}

#[test]
fn records_may_come_in_pieces() {
    let mut pair = connected(HashFunction::Sha256);
    pair.host.send(Bytes::from(vec![7; 40_000]));
    for byte in pair.host.take_records().unwrap() {
        pair.target.receive(&mut BytesMut::from(&[byte][..])).unwrap();
    }
    assert_eq!(pair.target.opened()[..], vec![7; 40_000]);
}

#[test]
fn another_key_opens_nothing() {
    let mut pair = Pair::new(&random_psk(HashFunction::Sha256), &random_psk(HashFunction::Sha256));
    assert!(pair.exchange().is_err() && pair.target.is_handshaking());
    assert!(pair.target.opened().is_empty());
}

#[test]
fn a_key_of_another_hash_function_opens_nothing() {
    let mut pair = Pair::new(&random_psk(HashFunction::Sha384), &random_psk(HashFunction::Sha256));
    assert!(pair.exchange().is_err() && pair.target.is_handshaking());
}

#[test]
fn a_changed_record_ends_the_channel() {
    let mut pair = connected(HashFunction::Sha256);
    pair.host.send(Bytes::from_static(b"first"));
    let first = pair.host.take_records().unwrap();
    pair.host.send(Bytes::from_static(b"second"));
    let second = pair.host.take_records().unwrap();
    let mut changed = BytesMut::from(&second[..]);
    changed[8] ^= 1;
    pair.target.receive(&mut BytesMut::from(&first[..])).unwrap();
    assert!(pair.target.receive(&mut changed).is_err());
    assert_eq!(pair.target.opened()[..], *b"first", "what was sent before is there");
    assert!(pair.target.receive(&mut BytesMut::from(&second[..])).is_err(), "and nothing after it");
}

#[test]
fn a_record_that_was_taken_is_not_taken_again() {
    let mut pair = connected(HashFunction::Sha384);
    pair.host.send(Bytes::from_static(b"once"));
    let record = pair.host.take_records().unwrap();
    pair.target.receive(&mut BytesMut::from(&record[..])).unwrap();
    assert!(pair.target.receive(&mut BytesMut::from(&record[..])).is_err());
    assert_eq!(pair.target.opened()[..], *b"once");
}

#[test]
fn a_key_that_is_used_up_seals_nothing() {
    let mut pair = connected(HashFunction::Sha256);
    pair.target.set_records_left(3);
    for bytes in [16 << 10, 16 << 10, 1] {
        pair.target.send(Bytes::from(vec![7; bytes]));
        assert!(!pair.target.take_records().unwrap().is_empty());
    }
    pair.target.send(Bytes::from_static(b"more"));
    assert!(matches!(pair.target.take_records(), Err(TlsError::KeyUsedUp)));
}

#[test]
fn an_orderly_end_is_seen() {
    let mut pair = connected(HashFunction::Sha256);
    pair.host.send(Bytes::from_static(b"last"));
    let mut records = BytesMut::from(pair.host.close().unwrap());
    records.extend_from_slice(b"what follows is dropped");
    pair.target.receive(&mut records).unwrap();
    assert!(pair.target.has_peer_closed() && records.is_empty());
    assert_eq!(pair.target.opened()[..], *b"last");
    pair.target.receive(&mut BytesMut::from(&b"more"[..])).unwrap();
}
