//! Opening a connection: `Noise_IK_25519_AESGCM_SHA256` (Noise Protocol Framework, revision 34). The initiator
//! knows whom it wants to reach by its static key; the responder learns the initiator's static key, and the frame
//! mode that it wants, in the first message, checks both against cluster state, and answers with the mode that is
//! right. Each handshake message travels as a 16-bit length (big-endian) and its bytes, after an 8-byte greeting.

use atoll_types::frames::FrameMode;
use bytes::{Buf, BytesMut};
use zeroize::Zeroize;

/// A static X25519 public key: the name of a process in cluster state.
pub type PublicKey = [u8; 32];

/// A static X25519 key pair.
#[derive(Clone)]
pub struct KeyPair {
    pub(crate) private: [u8; 32],
    public: PublicKey,
}

impl KeyPair {
    /// The pair that belongs to 32 random bytes.
    pub fn from_private(private: [u8; 32]) -> Self {
        use snow::resolvers::{CryptoResolver, DefaultResolver};
        let mut curve = DefaultResolver
            .resolve_dh(&snow::params::DHChoice::Curve25519)
            .expect("the default resolver has Curve25519");
        curve.set(&private);
        let public = curve.pubkey().try_into().expect("X25519 public keys have 32 bytes");
        KeyPair { private, public }
    }

    /// The public half.
    pub fn public(&self) -> PublicKey {
        self.public
    }
}

impl Drop for KeyPair {
    fn drop(&mut self) {
        self.private.zeroize();
    }
}

/// Why a handshake failed. The connection must be closed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeError {
    /// The first bytes are not those of this protocol and version.
    #[error(
        "the peer does not speak Atoll's protocol version {PROTOCOL_VERSION}; all processes of a cluster must be of one release"
    )]
    NotAtoll,
    /// A message does not authenticate or is malformed. A wrong or unknown key looks like this too.
    #[error("the handshake does not authenticate: the peer has another key than cluster state says")]
    NotAuthentic,
    /// A message is longer than any handshake message can be.
    #[error("a handshake message of {length} bytes is too long")]
    TooLong {
        /// Its length.
        length: usize,
    },
    /// The peers want different frame modes.
    #[error(
        "the peer wants {theirs} frames, this side wants {ours}; both follow cluster state ('atoll settings \
         ls'), so one of them has not seen its last change yet, or is not of this cluster"
    )]
    ModeMismatch {
        /// Mode that this side wants.
        ours: FrameMode,
        /// Mode that the peer wants.
        theirs: FrameMode,
    },
    /// Bytes arrived before it was the peer's turn to speak.
    #[error("the peer spoke out of turn")]
    OutOfTurn,
}

/// The frame keys that a finished handshake gives, one per direction.
pub struct SessionKeys {
    /// Protects sent frames.
    pub send: [u8; 32],
    /// Protects received frames.
    pub receive: [u8; 32],
}

impl Drop for SessionKeys {
    fn drop(&mut self) {
        self.send.zeroize();
        self.receive.zeroize();
    }
}

/// Results of received bytes.
pub enum HandshakeInput {
    /// More bytes are needed.
    Incomplete,
    /// The responder has the peer's key and the mode that it wants: it must check the key, and
    /// answer or close.
    Asked {
        /// The peer's static key.
        peer: PublicKey,
        /// The frame mode that it wants.
        mode: FrameMode,
    },
    /// The initiator has its answer: frames follow.
    Done {
        /// Their keys.
        keys: SessionKeys,
        /// The peer's static key.
        peer: PublicKey,
    },
}

/// Raised whenever a message changes or a kind is added: a peer of another version is refused.
const PROTOCOL_VERSION: u8 = 11;
const GREETING: &[u8; 8] = &[b'A', b'T', b'O', b'L', b'L', 0, 0, PROTOCOL_VERSION];
const PATTERN: &str = "Noise_IK_25519_AESGCM_SHA256";
/// Longest handshake message accepted, in bytes.
pub const HANDSHAKE_BYTES_MAX: usize = 512;

/// One side of a handshake.
pub struct Handshake {
    noise: snow::HandshakeState,
    side: Side,
}

enum Side {
    Initiator {
        wanted: FrameMode,
    },
    Responder,
    /// A responder whose peer waits for its answer.
    Asked {
        wanted: FrameMode,
    },
}

fn mode_byte(mode: FrameMode) -> u8 {
    match mode {
        FrameMode::Secure => 1,
        FrameMode::Crc => 2,
        FrameMode::Secure128 => 3,
    }
}

impl Handshake {
    /// Starts as the side that connects. `ephemeral` must be 32 fresh random bytes. Returns the
    /// bytes to send first.
    pub fn initiate(local: &KeyPair, remote: &PublicKey, mode: FrameMode, ephemeral: [u8; 32]) -> (Self, Vec<u8>) {
        let mut noise = builder(local, &ephemeral)
            .remote_public_key(remote)
            .and_then(snow::Builder::build_initiator)
            .expect("the pattern and key lengths are fixed");
        let mut first = GREETING.to_vec();
        append_message(&mut noise, mode, &mut first);
        (Handshake { noise, side: Side::Initiator { wanted: mode } }, first)
    }

    /// Starts as the side that was connected to. `ephemeral` must be 32 fresh random bytes.
    pub fn respond(local: &KeyPair, ephemeral: [u8; 32]) -> Self {
        let noise = builder(local, &ephemeral).build_responder().expect("the pattern and key lengths are fixed");
        Handshake { noise, side: Side::Responder }
    }

    /// The responder's answer to a peer whose key it has accepted: the bytes to send, and the keys of the frames
    /// that follow if the peer wants the mode that is right. Otherwise the bytes inform the peer of the right
    /// mode, and the connection must be closed after them.
    pub fn answer(&mut self, right: FrameMode) -> (Vec<u8>, Result<SessionKeys, HandshakeError>) {
        let mut reply = Vec::new();
        let Side::Asked { wanted } = self.side else { return (reply, Err(HandshakeError::OutOfTurn)) };
        append_message(&mut self.noise, right, &mut reply);
        if wanted != right {
            return (reply, Err(HandshakeError::ModeMismatch { ours: right, theirs: wanted }));
        }
        let (initiator_key, responder_key) = self.noise.dangerously_get_raw_split();
        (reply, Ok(SessionKeys { send: responder_key, receive: initiator_key }))
    }

    /// Takes the peer's message out of `received` once it is there whole.
    pub fn receive(&mut self, received: &mut BytesMut) -> Result<HandshakeInput, HandshakeError> {
        let greeting_bytes = match self.side {
            Side::Initiator { .. } => 0,
            Side::Responder => GREETING.len(),
            Side::Asked { .. } => return Err(HandshakeError::OutOfTurn),
        };
        let greeting_seen = received.len().min(greeting_bytes);
        if received[..greeting_seen] != GREETING[..greeting_seen] {
            return Err(HandshakeError::NotAtoll);
        }
        let Some(length_bytes) = received.get(greeting_bytes..greeting_bytes + 2) else {
            return Ok(HandshakeInput::Incomplete);
        };
        let length = usize::from(u16::from_be_bytes([length_bytes[0], length_bytes[1]]));
        if length > HANDSHAKE_BYTES_MAX {
            return Err(HandshakeError::TooLong { length });
        }
        if received.len() < greeting_bytes + 2 + length {
            return Ok(HandshakeInput::Incomplete);
        }
        received.advance(greeting_bytes + 2);
        let message = received.split_to(length);
        self.finish(&message)
    }

    fn finish(&mut self, message: &[u8]) -> Result<HandshakeInput, HandshakeError> {
        let mut payload = [0; HANDSHAKE_BYTES_MAX];
        let payload_bytes =
            self.noise.read_message(message, &mut payload).map_err(|_| HandshakeError::NotAuthentic)?;
        let theirs = match payload[..payload_bytes] {
            [1] => FrameMode::Secure,
            [2] => FrameMode::Crc,
            [3] => FrameMode::Secure128,
            _ => return Err(HandshakeError::NotAtoll),
        };
        let peer = self.noise.get_remote_static().expect("IK sends both static keys in the first message");
        let peer = peer.try_into().expect("X25519 public keys have 32 bytes");
        let Side::Initiator { wanted } = self.side else {
            self.side = Side::Asked { wanted: theirs };
            return Ok(HandshakeInput::Asked { peer, mode: theirs });
        };
        if theirs != wanted {
            return Err(HandshakeError::ModeMismatch { ours: wanted, theirs });
        }
        let (initiator_key, responder_key) = self.noise.dangerously_get_raw_split();
        Ok(HandshakeInput::Done { keys: SessionKeys { send: initiator_key, receive: responder_key }, peer })
    }
}

fn builder<'a>(local: &'a KeyPair, ephemeral: &'a [u8; 32]) -> snow::Builder<'a> {
    // snow calls a caller's ephemeral key "for testing only" because it must be fresh and random;
    // ours is: the shell draws it from the operating system for each handshake.
    snow::Builder::new(PATTERN.parse().expect("the pattern's name is valid"))
        .local_private_key(&local.private)
        .and_then(|builder| builder.prologue(GREETING))
        .map(|builder| builder.fixed_ephemeral_key_for_testing_only(ephemeral))
        .expect("each builder value is set once")
}

fn append_message(noise: &mut snow::HandshakeState, mode: FrameMode, output: &mut Vec<u8>) {
    let mut message = [0; HANDSHAKE_BYTES_MAX];
    let length = noise.write_message(&[mode_byte(mode)], &mut message).expect("it is this side's turn");
    output.extend_from_slice(&(length as u16).to_be_bytes());
    output.extend_from_slice(&message[..length]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(seed: u8) -> KeyPair {
        KeyPair::from_private([seed; 32])
    }

    fn run(
        wanted: FrameMode,
        right: FrameMode,
        expected: PublicKey,
        responder: &KeyPair,
    ) -> Result<(SessionKeys, SessionKeys), HandshakeError> {
        let (mut left, first) = Handshake::initiate(&pair(1), &expected, wanted, [3; 32]);
        let mut right_side = Handshake::respond(responder, [4; 32]);
        let mut received = BytesMut::from(&first[..]);
        let HandshakeInput::Asked { peer, mode } = right_side.receive(&mut received)? else {
            panic!("the first message is whole");
        };
        assert_eq!((peer, mode), (pair(1).public(), wanted));
        let (reply, right_keys) = right_side.answer(right);
        let mut received = BytesMut::from(&reply[..]);
        // The initiator learns what was wrong from the answer.
        let HandshakeInput::Done { keys: left_keys, peer } = left.receive(&mut received)? else {
            panic!("the second message is whole");
        };
        assert_eq!(peer, responder.public());
        Ok((left_keys, right_keys?))
    }

    #[test]
    fn both_sides_get_the_same_keys() {
        let responder = pair(2);
        let (left, right) = run(FrameMode::Secure, FrameMode::Secure, responder.public(), &responder).unwrap();
        assert_eq!((left.send, left.receive), (right.receive, right.send));
        assert_ne!(left.send, left.receive);
    }

    #[test]
    fn a_wrong_responder_key_or_mode_is_refused() {
        let responder = pair(2);
        let wrong = run(FrameMode::Secure, FrameMode::Secure, pair(9).public(), &responder);
        assert_eq!(wrong.err(), Some(HandshakeError::NotAuthentic));
        let error = run(FrameMode::Secure, FrameMode::Secure128, responder.public(), &responder).err().unwrap();
        assert_eq!(error, HandshakeError::ModeMismatch { ours: FrameMode::Secure, theirs: FrameMode::Secure128 });
        let text = error.to_string();
        assert!(text.contains("secure-128") && text.contains("settings"), "{text}");
    }

    #[test]
    fn the_responder_refuses_another_mode_itself() {
        let responder = pair(2);
        let (_, first) = Handshake::initiate(&pair(1), &responder.public(), FrameMode::Crc, [3; 32]);
        let mut right = Handshake::respond(&responder, [4; 32]);
        assert!(matches!(right.answer(FrameMode::Crc).1, Err(HandshakeError::OutOfTurn)), "nobody has asked");
        let mut received = BytesMut::from(&first[..]);
        assert!(matches!(right.receive(&mut received), Ok(HandshakeInput::Asked { .. })));
        assert!(matches!(right.receive(&mut received), Err(HandshakeError::OutOfTurn)));
        let refused = HandshakeError::ModeMismatch { ours: FrameMode::Secure, theirs: FrameMode::Crc };
        assert_eq!(right.answer(FrameMode::Secure).1.err(), Some(refused));
    }

    #[test]
    fn a_peer_of_another_version_is_refused() {
        let responder = pair(2);
        let (_, mut first) = Handshake::initiate(&pair(1), &responder.public(), FrameMode::Secure, [3; 32]);
        first[GREETING.len() - 1] -= 1;
        let refused = Handshake::respond(&responder, [4; 32]).receive(&mut BytesMut::from(&first[..]));
        let Err(error) = refused else { panic!("it speaks version 10") };
        assert_eq!(error, HandshakeError::NotAtoll);
        assert!(error.to_string().contains("version 11"), "{error}");
    }

    #[test]
    fn fragments_and_garbage() {
        let responder = pair(2);
        let (_, first) = Handshake::initiate(&pair(1), &responder.public(), FrameMode::Secure, [3; 32]);
        for cut in 0..first.len() {
            let mut right = Handshake::respond(&responder, [4; 32]);
            let mut received = BytesMut::from(&first[..cut]);
            assert!(matches!(right.receive(&mut received), Ok(HandshakeInput::Incomplete)));
            received.extend_from_slice(&first[cut..]);
            assert!(matches!(right.receive(&mut received), Ok(HandshakeInput::Asked { .. })));
        }
        for position in 0..first.len() {
            let mut flipped = BytesMut::from(&first[..]);
            flipped[position] ^= 0x10;
            let mut right = Handshake::respond(&responder, [4; 32]);
            assert!(!matches!(right.receive(&mut flipped), Ok(HandshakeInput::Asked { .. })), "{position}");
        }
    }
}
