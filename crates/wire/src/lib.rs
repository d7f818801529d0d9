//! How Atoll processes talk: the messages between clients and OSDs and among OSDs, the frames that
//! carry them (`secure`, `secure-128` or `crc`), and the Noise handshake that opens a connection.
//!
//! Sans-IO: bytes in, bytes out. This crate sees no socket, no thread, no clock and no random
//! source; the handshake is handed its ephemeral key. docs/reference/protocol.md describes every byte.

mod frame;
mod frame_key;
mod handshake;
mod invariants;
mod link;
mod messages;
mod scrub_finding;
mod signatures;

pub use frame::{FRAME_HEADER_BYTES, Frame, FrameDecoder, FrameEncoder, FrameError, PayloadSeal, SendQueue};
pub use handshake::{
    HANDSHAKE_BYTES_MAX, Handshake, HandshakeError, HandshakeInput, KeyPair, PublicKey, SessionKeys,
};
pub use link::{Link, LinkError, LinkInput};
pub use messages::Message;
pub use scrub_finding::{ScrubFinding, ShardOf};
pub use signatures::{SIGNATURE_BYTES, verify_signature};
