//! An observer who has recorded a handshake and later gets the static keys of both sides: it follows the pattern by
//! hand, and lacks the one secret that only the ephemeral keys give.

#![allow(clippy::unwrap_used)]

use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::hmac::{HMAC_SHA256, Key, sign};
use snow::params::{CipherChoice, DHChoice};
use snow::resolvers::{CryptoResolver, DefaultResolver};

use atoll_types::frames::FrameMode;
use atoll_wire::{Handshake, HandshakeInput, KeyPair};
use bytes::BytesMut;

const PATTERN: &str = "Noise_IK_25519_AESGCM_SHA256";
const GREETING_BYTES: usize = 8;

type Secret = [u8; 32];

/// The secret of a private and a public key.
fn shared(private: &Secret, public: &[u8]) -> Secret {
    let mut curve = DefaultResolver.resolve_dh(&DHChoice::Curve25519).unwrap();
    curve.set(private);
    let mut secret = [0; 32];
    curve.dh(public, &mut secret).unwrap();
    secret
}

fn hmac(key: &[u8], parts: &[&[u8]]) -> Secret {
    sign(&Key::new(HMAC_SHA256, key), &parts.concat()).as_ref().try_into().unwrap()
}

/// Two outputs of Noise's HKDF.
fn derive(chaining: &Secret, input: &[u8]) -> (Secret, Secret) {
    let between = hmac(chaining, &[input]);
    let first = hmac(&between, &[&[1]]);
    (first, hmac(&between, &[&first, &[2]]))
}

/// The symmetric state of the handshake.
struct Observer {
    chaining: Secret,
    hash: Secret,
    key: Secret,
}

impl Observer {
    fn new(greeting: &[u8], responder: &[u8]) -> Self {
        let mut name = [0; 32];
        name[..PATTERN.len()].copy_from_slice(PATTERN.as_bytes());
        let mut observer = Observer { chaining: name, hash: name, key: [0; 32] };
        observer.mix_hash(greeting);
        observer.mix_hash(responder);
        observer
    }

    fn mix_hash(&mut self, bytes: &[u8]) {
        self.hash = digest(&SHA256, &[&self.hash, bytes].concat()).as_ref().try_into().unwrap();
    }

    fn mix_key(&mut self, secret: &Secret) {
        (self.chaining, self.key) = derive(&self.chaining, secret);
    }

    /// Opens a part that was sealed with the first nonce of the present key.
    fn open(&mut self, sealed: &[u8]) -> Option<Vec<u8>> {
        let mut cipher = DefaultResolver.resolve_cipher(&CipherChoice::AESGCM).unwrap();
        cipher.set(&self.key);
        let mut opened = vec![0; sealed.len()];
        let length = cipher.decrypt(0, &self.hash, sealed, &mut opened).ok()?;
        opened.truncate(length);
        self.mix_hash(sealed);
        Some(opened)
    }
}

/// The payload of the second message, and the keys of the frames.
#[derive(Debug, PartialEq)]
struct Opened {
    payload: Vec<u8>,
    send: Secret,
    receive: Secret,
}

/// Both messages, and the keys that the observer has got since.
struct Recorded<'a> {
    greeting: &'a [u8],
    first: &'a [u8],
    reply: &'a [u8],
    /// Private and public.
    initiator: (Secret, Secret),
    responder: (Secret, Secret),
}

/// Returns the observer's findings, if it takes this for the secret of the ephemeral keys: the payload of the first
/// message, and the payload of the second with the keys of the frames.
fn observe(recorded: &Recorded<'_>, of_ephemerals: &Secret) -> (Option<Vec<u8>>, Option<Opened>) {
    let Recorded { greeting, first, reply, initiator, responder } = recorded;
    let mut observer = Observer::new(greeting, &responder.1);
    let (ephemeral, rest) = first.split_at(32);
    observer.mix_hash(ephemeral);
    observer.mix_key(&shared(&responder.0, ephemeral));
    let (sealed_static, payload) = rest.split_at(48);
    let Some(opened) = observer.open(sealed_static) else { return (None, None) };
    assert_eq!(opened, initiator.1);
    observer.mix_key(&shared(&initiator.0, &responder.1));
    let Some(first_payload) = observer.open(payload) else { return (None, None) };

    let (ephemeral, payload) = reply.split_at(32);
    observer.mix_hash(ephemeral);
    observer.mix_key(of_ephemerals);
    observer.mix_key(&shared(&initiator.0, ephemeral));
    let reply_payload = observer.open(payload);
    let (send, receive) = derive(&observer.chaining, &[]);
    (Some(first_payload), reply_payload.map(|payload| Opened { payload, send, receive }))
}

#[test]
fn recorded_frames_stay_secret_when_both_static_keys_are_known() {
    let (private, private_of_responder) = ([1; 32], [2; 32]);
    let (initiator, responder) = (KeyPair::from_private(private), KeyPair::from_private(private_of_responder));
    let (ephemeral, ephemeral_of_responder) = ([3; 32], [4; 32]);
    let (mut left, first) = Handshake::initiate(&initiator, &responder.public(), FrameMode::Secure, ephemeral);
    let mut right = Handshake::respond(&responder, ephemeral_of_responder);
    assert!(matches!(right.receive(&mut BytesMut::from(&first[..])), Ok(HandshakeInput::Asked { .. })));
    let (reply, right_keys) = right.answer(FrameMode::Secure);
    let right_keys = right_keys.unwrap();
    assert!(matches!(left.receive(&mut BytesMut::from(&reply[..])), Ok(HandshakeInput::Done { .. })));

    // Behind the greeting and the lengths.
    let recorded = Recorded {
        greeting: &first[..GREETING_BYTES],
        first: &first[GREETING_BYTES + 2..],
        reply: &reply[2..],
        initiator: (private, initiator.public()),
        responder: (private_of_responder, responder.public()),
    };
    let (public, public_of_responder) = (&recorded.first[..32], &recorded.reply[..32]);
    // The observer is right: with an ephemeral key it has everything.
    let of_ephemerals = shared(&ephemeral, public_of_responder);
    assert_eq!(of_ephemerals, shared(&ephemeral_of_responder, public));
    let (first_payload, opened) = observe(&recorded, &of_ephemerals);
    assert_eq!(first_payload, Some(vec![1]));
    assert_eq!(opened, Some(Opened { payload: vec![1], send: right_keys.receive, receive: right_keys.send }));

    // Without one it opens the first message, which has the frame mode and no more, and nothing else: no secret that
    // it can make is that of the ephemeral keys.
    let guesses = [
        shared(&private_of_responder, public),
        shared(&private, public),
        shared(&private, public_of_responder),
        shared(&private_of_responder, public_of_responder),
        shared(&private, &responder.public()),
        [0; 32],
    ];
    for guess in guesses {
        let (first_payload, opened) = observe(&recorded, &guess);
        assert_eq!(first_payload, Some(vec![1]));
        assert!(opened.is_none());
    }
}
