//! Exchanges with a host that does as the specification says, and with hosts that do not.

use proptest::prelude::*;

use super::messages::read;
use super::*;

const HOST: &str = "nqn.h";
const SUBSYSTEM: &str = "nqn.s";
const TRANSACTION: u16 = 0x0506;

fn secret(hash: Option<HashFunction>) -> DhchapSecret {
    let bytes = (0..hash.map_or(32, HashFunction::output_bytes) as u8).collect::<Vec<u8>>();
    DhchapSecret::from_bytes(hash, bytes.into()).unwrap()
}

fn secrets(is_mutual: bool) -> HostSecrets {
    let controller = is_mutual.then(|| secret(None));
    HostSecrets { host: secret(Some(HashFunction::Sha256)), controller }
}

fn authentication(is_mutual: bool) -> Authentication {
    Authentication::new(secrets(is_mutual), HOST.into(), SUBSYSTEM.into())
}

/// AUTH_Negotiate with these hash functions and groups.
fn negotiate(hashes: &[u8], groups: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; 8 + 64];
    bytes[4..6].copy_from_slice(&TRANSACTION.to_le_bytes());
    bytes[7] = 1;
    bytes[8] = 1;
    (bytes[10], bytes[11]) = (hashes.len() as u8, groups.len() as u8);
    bytes[12..12 + hashes.len()].copy_from_slice(hashes);
    bytes[42..42 + groups.len()].copy_from_slice(groups);
    bytes
}

/// A host in the middle of an exchange.
struct Host {
    hash: HashFunction,
    challenge: Vec<u8>,
    sequence: u32,
    session_key: Option<Vec<u8>>,
    public_value: Vec<u8>,
}

const OWN_CHALLENGE: u8 = 0x33;

impl Host {
    /// Reads DH-HMAC-CHAP_Challenge.
    fn challenged(message: &[u8]) -> Self {
        assert_eq!(message[..4], [1, 1, 0, 0]);
        let hash = HashFunction::from_id(message[8]).unwrap();
        let length = usize::from(message[6]);
        assert_eq!(length, hash.output_bytes());
        let public_bytes = usize::from(u16::from_le_bytes([message[10], message[11]]));
        assert_eq!(message.len(), 16 + length + public_bytes);
        let key = DhKey::generate(DhGroup::from_id(message[9]).unwrap());
        Host {
            hash,
            challenge: message[16..16 + length].to_vec(),
            sequence: u32::from_le_bytes(message[12..16].try_into().unwrap()),
            session_key: key.as_ref().map(|key| key.agree(&message[16 + length..]).unwrap().to_vec()),
            public_value: key.as_ref().map(DhKey::public_value).unwrap_or_default(),
        }
    }

    fn prove(&self, prover: Prover, key: &[u8], challenge: &[u8], sequence: u32) -> Vec<u8> {
        let augmented = self.session_key.as_ref().map(|key| augmented(self.hash, key, challenge));
        let challenge = augmented.as_ref().map_or(challenge, AsRef::as_ref);
        let (hash, transaction, host, subsystem) = (self.hash, TRANSACTION, HOST, SUBSYSTEM);
        Proof { hash, key, challenge, sequence, transaction, host, subsystem }.response(prover).as_ref().to_vec()
    }

    /// DH-HMAC-CHAP_Reply with a secret.
    fn reply(&self, secret: &DhchapSecret, is_mutual: bool) -> Vec<u8> {
        let response = self.prove(Prover::Host, &secret.key_of(HOST), &self.challenge, self.sequence);
        let mut bytes = vec![1, 2, 0, 0];
        bytes.extend(TRANSACTION.to_le_bytes());
        bytes.extend([self.hash.output_bytes() as u8, 0, u8::from(is_mutual), 0]);
        bytes.extend((self.public_value.len() as u16).to_le_bytes());
        bytes.extend(7_u32.to_le_bytes());
        bytes.extend(response);
        bytes.extend(vec![OWN_CHALLENGE; self.hash.output_bytes()]);
        bytes.extend(&self.public_value);
        bytes
    }

    /// Returns the proof that Success1 must contain.
    fn expected(&self, secret: &DhchapSecret) -> Vec<u8> {
        let challenge = vec![OWN_CHALLENGE; self.hash.output_bytes()];
        self.prove(Prover::Controller, &secret.key_of(SUBSYSTEM), &challenge, 7)
    }
}

fn success2() -> Vec<u8> {
    let mut bytes = vec![1, 4, 0, 0];
    bytes.extend(TRANSACTION.to_le_bytes());
    bytes.resize(16, 0);
    bytes
}

/// Returns an authentication whose host has the challenge.
fn challenged(is_mutual: bool, hashes: &[u8], groups: &[u8]) -> (Authentication, Host) {
    let mut authentication = authentication(is_mutual);
    authentication.take(&negotiate(hashes, groups));
    let host = Host::challenged(&authentication.fetch().unwrap());
    assert_eq!(authentication.progress(), Progress::UnderWay);
    (authentication, host)
}

/// Returns the failure that the host gets.
fn told(authentication: &mut Authentication) -> Failure {
    assert_eq!(authentication.progress(), Progress::UnderWay, "it has yet to be told");
    let message = authentication.fetch().unwrap();
    let Progress::Failed(failure) = authentication.progress() else { panic!("it goes on") };
    assert_eq!((&message[..2], message[6], message[7]), (&[0, 0xF1][..], 1, failure as u8));
    failure
}

#[test]
fn responses_are_those_of_another_implementation() {
    // Computed with hmac and hashlib of Python.
    let vectors = [
        (HashFunction::Sha256, "23ce53caa6571cf697d454af6e12a323", "7e5547c7dccb356382ae1c596f8444d6"),
        (HashFunction::Sha384, "679db481a1e39418faa410088cf189cb", "c1b5036c34c539eb251c1aa0875f9602"),
        (HashFunction::Sha512, "499783a8e49bb6c4e84df31e8d718856", "e943fd0d277b4f0f2cdce6a568c2fac6"),
    ];
    for (hash, of_host, of_controller) in vectors {
        let key = secret(Some(hash)).key_of(HOST);
        let challenge = vec![0x11; hash.output_bytes()];
        let augmented = augmented(hash, &[0x22; 256], &challenge);
        let proof = |challenge| Proof {
            hash,
            key: &key,
            challenge,
            sequence: 0x0102_0304,
            transaction: TRANSACTION,
            host: HOST,
            subsystem: SUBSYSTEM,
        };
        let hex = |tag: aws_lc_rs::hmac::Tag| -> String {
            tag.as_ref()[..16].iter().map(|byte| format!("{byte:02x}")).collect()
        };
        assert_eq!(hex(proof(&challenge).response(Prover::Host)), of_host);
        assert_eq!(hex(proof(augmented.as_ref()).response(Prover::Controller)), of_controller);
    }
}

#[test]
fn a_host_that_has_the_secret_proves_itself() {
    for hashes in [&[1_u8][..], &[2], &[3], &[1, 2, 3]] {
        for groups in [&[0_u8][..], &[1], &[3], &[0, 1, 2, 3, 4, 5]] {
            for is_mutual in [false, true] {
                let (mut authentication, host) = challenged(is_mutual, hashes, groups);
                assert_eq!(host.hash as u8, *hashes.iter().max().unwrap(), "the strongest is taken");
                assert_eq!(host.public_value.is_empty(), groups == [0]);
                authentication.take(&host.reply(&secrets(false).host, is_mutual));
                let message = authentication.fetch().unwrap();
                assert_eq!((&message[..2], message[8]), (&[1, 3][..], u8::from(is_mutual)));
                if is_mutual {
                    assert_eq!(message[16..], host.expected(&secrets(true).controller.unwrap()));
                    assert_eq!(authentication.progress(), Progress::UnderWay);
                    authentication.take(&success2());
                }
                assert_eq!(authentication.progress(), Progress::Done);
            }
        }
    }
}

#[test]
fn a_host_with_another_secret_does_not() {
    for other in [secret(None), DhchapSecret::random(Some(HashFunction::Sha256))] {
        let (mut authentication, host) = challenged(false, &[1], &[0]);
        authentication.take(&host.reply(&other, false));
        assert_eq!(told(&mut authentication), Failure::Authentication);
        // It gets no second try.
        authentication.take(&host.reply(&secrets(false).host, false));
        assert_eq!(told(&mut authentication), Failure::IncorrectMessage);
    }
}

#[test]
fn a_controller_without_a_secret_cannot_prove_itself() {
    let (mut authentication, host) = challenged(false, &[1], &[0]);
    authentication.take(&host.reply(&secrets(false).host, true));
    assert_eq!(told(&mut authentication), Failure::Authentication);
}

#[test]
fn a_host_that_does_not_believe_the_controller_ends_it() {
    let (mut authentication, host) = challenged(true, &[1], &[0]);
    authentication.take(&host.reply(&secrets(false).host, true));
    authentication.fetch().unwrap();
    let mut failure2 = vec![0, 0xF0, 0, 0];
    failure2.extend(TRANSACTION.to_le_bytes());
    failure2.extend([1, 1]);
    authentication.take(&failure2);
    assert_eq!(authentication.progress(), Progress::Failed(Failure::Authentication));
    assert_eq!(authentication.fetch(), None);
}

#[test]
fn failed_negotiations_are_reported() {
    let mut secure = negotiate(&[1], &[0]);
    secure[6] = 1;
    let mut unknown = negotiate(&[1], &[0]);
    unknown[8] = 2;
    let mut short = negotiate(&[1], &[0]);
    short.pop();
    let mut long = negotiate(&[1], &[0]);
    long[10] = 31;
    for (message, failure) in [
        (secure, Failure::SecureChannelMismatch),
        (unknown, Failure::ProtocolNotUsable),
        (negotiate(&[4], &[0]), Failure::HashNotUsable),
        (negotiate(&[1], &[4, 5]), Failure::GroupNotUsable),
        (short, Failure::IncorrectPayload),
        (long, Failure::IncorrectPayload),
        (success2(), Failure::IncorrectMessage),
        (vec![1, 1, 0, 0, 0, 0, 0, 0], Failure::IncorrectMessage),
        (vec![], Failure::IncorrectPayload),
    ] {
        let mut authentication = authentication(false);
        authentication.take(&message);
        assert_eq!(told(&mut authentication), failure);
    }
}

#[test]
fn messages_out_of_turn_end_it() {
    let (mut authentication, host) = challenged(true, &[1], &[0]);
    let mut reply = host.reply(&secrets(false).host, true);
    reply[4] ^= 1;
    authentication.take(&reply);
    assert_eq!(told(&mut authentication), Failure::IncorrectPayload, "another transaction");

    let (mut authentication, _) = challenged(true, &[1], &[0]);
    authentication.take(&success2());
    assert_eq!(told(&mut authentication), Failure::IncorrectMessage);

    let mut authentication = self::authentication(true);
    authentication.take(&negotiate(&[1], &[0]));
    authentication.take(&negotiate(&[1], &[0]));
    assert_eq!(told(&mut authentication), Failure::IncorrectMessage, "the challenge was not fetched");
}

#[test]
fn a_public_value_must_fit_the_group() {
    let (mut authentication, mut host) = challenged(false, &[1], &[1]);
    host.public_value = vec![0; 256];
    authentication.take(&host.reply(&secrets(false).host, false));
    assert_eq!(told(&mut authentication), Failure::IncorrectPayload);
    let (mut authentication, mut host) = challenged(false, &[1], &[0]);
    host.public_value = vec![9; 256];
    authentication.take(&host.reply(&secrets(false).host, false));
    assert_eq!(told(&mut authentication), Failure::IncorrectPayload);
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(mut bytes in prop::collection::vec(any::<u8>(), 0..300), kind in 0_u8..2, id in 0_u8..5) {
        if let Some(head) = bytes.get_mut(..4) {
            head.copy_from_slice(&[kind, id, 0, 0]);
        }
        drop(read(&bytes));
    }

    #[test]
    fn no_message_but_the_right_one_lets_a_host_in(
        messages in prop::collection::vec((prop::collection::vec(any::<u8>(), 0..120), 0_u8..2, 0_u8..6), 1..6),
        flipped in any::<prop::sample::Index>(),
        bit in 0_u32..8,
    ) {
        let mut authentication = self::authentication(true);
        for (mut bytes, kind, id) in messages {
            if let Some(head) = bytes.get_mut(..4) {
                head.copy_from_slice(&[kind, id, 0, 0]);
            }
            authentication.take(&bytes);
            drop(authentication.fetch());
            prop_assert_ne!(authentication.progress(), Progress::Done);
        }
        let (mut authentication, host) = challenged(false, &[3], &[0]);
        let mut reply = host.reply(&secrets(false).host, false);
        // Behind the response is the challenge for the controller, which does not count here.
        let at = flipped.index(16 + host.hash.output_bytes());
        reply[at] ^= 1 << bit;
        authentication.take(&reply);
        drop(authentication.fetch());
        // Reserved bytes and a number that has no meaning without a challenge.
        let means_nothing = matches!(at, 7 | 9 | 12..16) || at == 8 && bit != 0;
        prop_assert_eq!(authentication.progress() == Progress::Done, means_nothing);
    }
}
