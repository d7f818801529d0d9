//! Bytes through TLS: all of them, in order, or none from the first that is wrong.

use bytes::Bytes;
use proptest::prelude::*;
use rustls::AlertDescription;

use super::*;

/// Contents in which nothing can be missing or exchanged unnoticed.
fn pattern(length: usize) -> Vec<u8> {
    (0..length as u32).flat_map(|number| number.wrapping_mul(2_654_435_761).to_le_bytes()).take(length).collect()
}

#[test]
fn bytes_pass_in_both_directions() {
    let files = Files::new();
    for version in VERSIONS {
        let mut pair = Pair::established(&files, version);
        for length in [1, 28, 4096 + 28, (16 << 10) - 1, 16 << 10, (4 << 20) + 28] {
            let content = pattern(length);
            pair.client.writer().write_all(&content).unwrap();
            pair.exchange().unwrap();
            assert_eq!(pair.server.opened().split(), content);
            for part in content.chunks(1 << 20) {
                pair.server.send(Bytes::copy_from_slice(part));
            }
            pair.at_client.clear();
            pair.exchange().unwrap();
            assert!(pair.at_client == content, "{length} bytes");
        }
    }
}

#[test]
fn a_reply_and_its_header_share_a_record() {
    let mut pair = Pair::established(&Files::new(), &rustls::version::TLS13);
    let lengths = |records: &[u8]| {
        let mut rest = records;
        let mut lengths = Vec::new();
        while let [23, 3, 3, high, low, after @ ..] = rest {
            let length = usize::from(u16::from_be_bytes([*high, *low]));
            lengths.push(length);
            rest = &after[length..];
        }
        assert!(rest.is_empty());
        lengths
    };
    pair.server.send(Bytes::from(vec![1; 28]));
    pair.server.send(Bytes::from(vec![2; 4096]));
    // One byte says what the record is, and 16 are the tag.
    assert_eq!(lengths(&pair.server.take_records().unwrap()), [28 + 4096 + 17]);
    pair.server.send(Bytes::from(vec![3; 100_000]));
    let long = lengths(&pair.server.take_records().unwrap());
    // The library takes 64 KiB at a time.
    assert_eq!(long.iter().map(|length| length - 17).sum::<usize>(), 100_000);
    assert!(long.len() <= 8, "{long:?}");
    assert!(pair.server.take_records().unwrap().is_empty());
}

#[test]
fn no_tickets_are_given() {
    let files = Files::new();
    let mut pair = Pair::new(&files.identity(false), &files.authority, &rustls::version::TLS13, None);
    pair.exchange().unwrap();
    assert_eq!(pair.client.tls13_tickets_received(), 0);
}

#[test]
fn a_client_that_renews_its_keys_is_followed() {
    let mut pair = Pair::established(&Files::new(), &rustls::version::TLS13);
    for number in 0..100u8 {
        pair.client.refresh_traffic_keys().unwrap();
        pair.client.writer().write_all(&[number; 100]).unwrap();
        pair.exchange().unwrap();
        assert_eq!(pair.server.opened().split(), &[number; 100][..]);
        pair.server.send(Bytes::from(vec![number; 50]));
        pair.exchange().unwrap();
    }
    assert_eq!(pair.at_client.len(), 5000);
}

#[test]
fn an_orderly_end_is_separated_from_earlier_data() {
    for version in VERSIONS {
        let mut pair = Pair::established(&Files::new(), version);
        pair.client.writer().write_all(b"last").unwrap();
        pair.client.send_close_notify();
        pair.exchange().unwrap();
        assert!(pair.server.has_peer_closed());
        assert_eq!(pair.server.opened().split(), b"last"[..]);
        pair.records.extend_from_slice(b"whatever comes then");
        pair.exchange().unwrap();
        assert!(pair.server.opened().is_empty() && pair.records.is_empty());
    }
}

#[test]
fn the_server_says_when_it_ends() {
    let mut pair = Pair::established(&Files::new(), &rustls::version::TLS13);
    pair.server.send(Bytes::from_static(b"bye"));
    let records = pair.server.close().unwrap();
    pair.client_reads(&records).unwrap();
    assert_eq!(pair.at_client, b"bye");
    assert!(pair.client.process_new_packets().unwrap().peer_has_closed());
}

#[test]
fn plain_options_instead_of_a_handshake_are_an_error() {
    let files = Files::new();
    let mut server = TlsChannel::new(files.identity(false).config().unwrap()).unwrap();
    let mut records = BytesMut::from(&b"IHAVEOPT\0\0\0\x07\0\0\0\x0a\0\0\0\x04disk\0\0"[..]);
    assert!(matches!(server.receive(&mut records), Err(ChannelError::Peer(_))));
    assert!(server.opened().is_empty() && server.is_handshaking());
    // The alert that tells the client: fatal, and in the clear.
    assert_eq!(server.close().unwrap()[..1], [21]);
}

#[test]
fn client_certificates_are_demanded_and_verified() {
    let files = Files::new();
    let identity = files.identity(true);
    for version in VERSIONS {
        let own = files.client_pair(&files.authority);
        let mut pair = Pair::new(&identity, &files.authority, version, Some(own));
        pair.exchange().unwrap();
        assert!(!pair.server.is_handshaking());

        let mut pair = Pair::new(&identity, &files.authority, version, None);
        // In TLS 1.3 the client hears of it after it thinks that the handshake is over.
        let Err(rustls::Error::AlertReceived(alert)) = pair.exchange() else { panic!("no certificate, no alert") };
        assert!([AlertDescription::CertificateRequired, AlertDescription::HandshakeFailure].contains(&alert));
        assert!(pair.server.is_handshaking() && pair.server.opened().is_empty());

        let foreign = files.client_pair(&authority());
        let mut pair = Pair::new(&identity, &files.authority, version, Some(foreign));
        assert!(matches!(pair.exchange(), Err(rustls::Error::AlertReceived(_))));
        assert!(pair.server.is_handshaking() && pair.server.opened().is_empty());
    }
}

#[test]
fn a_client_with_another_authority_refuses_the_server() {
    let files = Files::new();
    for version in VERSIONS {
        let mut pair = Pair::new(&files.identity(false), &authority(), version, None);
        let error = pair.exchange().unwrap_err();
        assert!(matches!(error, rustls::Error::InvalidCertificate(_)), "{error:?}");
    }
}

#[test]
fn a_record_that_is_longer_than_any_may_be_is_an_error() {
    let mut pair = Pair::established(&Files::new(), &rustls::version::TLS13);
    pair.records.extend_from_slice(&[23, 3, 3, 0xff, 0xff]);
    pair.records.extend_from_slice(&[0; 0xffff]);
    assert!(matches!(pair.exchange(), Err(rustls::Error::AlertReceived(_))));
    assert!(pair.server.opened().is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn records_may_be_cut_anywhere(lengths in proptest::collection::vec(0usize..40_000, 1..6), cuts in proptest::collection::vec(1usize..9_000, 1..20)) {
        let mut pair = Pair::established(&Files::new(), &rustls::version::TLS13);
        let content: Vec<u8> = lengths.iter().flat_map(|&length| pattern(length)).collect();
        let records = pair.client_seals(&content);
        let (mut rest, mut cuts) = (&records[..], cuts.iter().cycle());
        while !rest.is_empty() {
            let (piece, after) = rest.split_at(rest.len().min(*cuts.next().unwrap()));
            rest = after;
            pair.records.extend_from_slice(piece);
            pair.server.receive(&mut pair.records).unwrap();
            prop_assert!(pair.records.is_empty());
        }
        prop_assert!(pair.server.opened()[..] == content[..]);
    }

    #[test]
    fn a_flipped_bit_ends_the_connection_and_nothing_wrong_comes_out(at in any::<prop::sample::Index>(), bit in 0u32..8, is_13 in any::<bool>()) {
        let mut pair = Pair::established(&Files::new(), VERSIONS[usize::from(is_13)]);
        let content = pattern(40_000);
        let mut records = pair.client_seals(&content);
        let at = at.index(records.len());
        records[at] ^= 1 << bit;
        pair.records.extend_from_slice(&records);
        let received = pair.server.receive(&mut pair.records);
        let opened = pair.server.opened().split();
        prop_assert!(content.starts_with(&opened), "what came out was never sent");
        // A longer length only makes the server wait for bytes that do not come; the version in the header
        // of a record is not looked at by TLS 1.3.
        prop_assert!(received.is_err() || opened.len() < content.len() || is_13);
    }

    #[test]
    fn random_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 1..3000), kind in prop_oneof![Just(None), (20u8..25).prop_map(Some)], is_established in any::<bool>()) {
        let files = Files::new();
        let mut pair = if is_established {
            Pair::established(&files, &rustls::version::TLS13)
        } else {
            Pair::new(&files.identity(false), &files.authority, &rustls::version::TLS13, None)
        };
        if let Some(kind) = kind {
            // A header that fits, so that the inside is looked at.
            pair.records.extend_from_slice(&[kind, 3, 3]);
            pair.records.extend_from_slice(&(bytes.len() as u16).to_be_bytes());
        }
        pair.records.extend_from_slice(&bytes);
        let _ = pair.server.receive(&mut pair.records);
        prop_assert!(pair.server.opened().is_empty());
        prop_assert!(pair.server.close().is_ok());
    }
}
