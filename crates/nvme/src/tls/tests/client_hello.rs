//! The fields read of a host's first message, and messages that are refused.

use bytes::BytesMut;
use proptest::prelude::*;

use super::*;
use crate::tls::channel::POLICY;
use crate::tls::client_hello::HELLO_BYTES_MAX;
use crate::tls::{ClientHello, HelloError, Identity, TlsChannel, read_client_hello};

/// The first record of a host.
fn hello_of(psk: &TlsPsk) -> Vec<u8> {
    let mut host = TlsChannel::of_host(psk, POLICY).unwrap();
    host.receive(&mut BytesMut::new()).unwrap();
    host.take_records().unwrap().to_vec()
}

fn read(records: &[u8]) -> ClientHello {
    read_client_hello(records).unwrap().expect("the message is whole")
}

/// The same message in records of `bytes` bytes.
fn in_records_of(hello: &[u8], bytes: usize) -> Vec<u8> {
    let records = hello[5..].chunks(bytes).map(|part| {
        let length = (part.len() as u16).to_be_bytes();
        [&[22, 3, 1][..], &length, part].concat()
    });
    records.collect::<Vec<_>>().concat()
}

/// Returns the first key that a message offers, if its binder matches a key.
fn proved(hello: &ClientHello, key: &TlsKey) -> Option<TlsPsk> {
    let offer = &hello.offers[0];
    TlsPsk::of_offer(key, &Identity::parse(&offer.identity)?, &offer.binder, &hello.bound)
}

#[test]
fn a_host_proves_its_key() {
    for hash in [HashFunction::Sha256, HashFunction::Sha384] {
        let key = TlsKey::random(hash);
        for version in [IdentityVersion::Zero, IdentityVersion::One] {
            for form in LabelForm::ALL {
                let psk = TlsPsk::derive(&key, version, HOST, SUBSYSTEM, form).unwrap();
                let hello = read(&hello_of(&psk));
                assert_eq!((hello.offers.len(), &hello.offers[0].identity[..]), (1, psk.identity.as_bytes()));
                assert_eq!(proved(&hello, &key).unwrap().expose(), psk.expose(), "{version:?} {form:?}");
                assert!(proved(&hello, &TlsKey::random(hash)).is_none(), "another key");
                let mut other = hello.clone();
                other.bound[40] ^= 1;
                assert!(proved(&other, &key).is_none(), "another message");
            }
        }
    }
}

#[test]
fn a_message_may_come_in_pieces() {
    let records = hello_of(&random_psk(HashFunction::Sha256));
    let whole = read(&records);
    for end in 0..records.len() {
        assert_eq!(read_client_hello(&records[..end]), Ok(None), "{end} bytes");
    }
    for bytes in [1, 4, 5, 100] {
        assert_eq!(read(&in_records_of(&records, bytes)), whole, "records of {bytes} bytes");
    }
}

#[test]
fn other_messages_are_none() {
    let good = hello_of(&random_psk(HashFunction::Sha256));
    let changed = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        read_client_hello(&bytes)
    };
    assert_eq!(changed(0, 23), Err(HelloError::OtherMessage), "no record of a handshake");
    assert_eq!(changed(1, 2), Err(HelloError::OtherMessage), "an old version");
    assert_eq!(changed(5, 2), Err(HelloError::OtherMessage), "no ClientHello");
    assert_eq!(changed(6, 1), Err(HelloError::TooLong));
    assert_eq!(read_client_hello(&[22, 3, 1, 0, 0]), Err(HelloError::Malformed), "an empty record");
    assert_eq!(read_client_hello(&[22, 3, 1, 0x40, 1]), Err(HelloError::Malformed), "a record that is too long");
    let more = [&good[..], &[22, 3, 3, 0, 1, 0]].concat();
    assert_eq!(read(&more), read(&good), "what follows in a record of its own is the library's");
    let mut longer = in_records_of(&good, 1 << 14);
    longer.push(0);
    longer[4] += 1;
    assert_eq!(read_client_hello(&longer), Err(HelloError::Malformed), "a second message in the record");
    // A message that says to be long and never ends.
    let endless = in_records_of(&[&[0; 5][..], &[1, 0, 0x3F, 0], &[0; HELLO_BYTES_MAX - 600]].concat(), 1);
    assert_eq!(read_client_hello(&endless), Err(HelloError::TooLong));
}

#[test]
fn a_hello_without_a_key_share_is_an_error() {
    let no_extensions = [&[3, 3][..], &[7; 32], &[0], &[0, 2, 0x13, 1], &[1, 0]].concat();
    let message = [&[1, 0, 0, no_extensions.len() as u8][..], &no_extensions].concat();
    let record = [&[22, 3, 1, 0, message.len() as u8][..], &message].concat();
    assert_eq!(read_client_hello(&record), Err(HelloError::NoKey));
}

proptest! {
    #[test]
    fn whatever_comes_is_read_or_refused(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        end in any::<prop::sample::Index>(),
    ) {
        let key = TlsKey::from_bytes(None, vec![1; 32].into()).unwrap();
        let mut records = hello_of(&psk_of(&key));
        for (at, byte) in changes {
            let at = at.index(records.len());
            records[at] = byte;
        }
        let length = end.index(2 * records.len()).min(records.len());
        if let Ok(Some(hello)) = read_client_hello(&records[..length]) {
            prop_assert!(!hello.offers.is_empty() && hello.bound.len() < records.len());
            proved(&hello, &key);
        }
    }

    #[test]
    fn noise_is_refused(noise in prop::collection::vec(any::<u8>(), 0..600)) {
        let records = [&[22, 3, 1, 1, 0, 1, 0, 0, 0xFC][..], &noise].concat();
        let _ = read_client_hello(&records);
    }
}
