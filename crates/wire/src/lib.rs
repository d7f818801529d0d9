//! How Atoll processes talk: the messages between clients and OSDs and among OSDs, the frames that
//! carry them (`secure`, `secure-128` or `crc`), and the Noise handshake that opens a connection.
//!
//! Sans-IO: bytes in, bytes out. This room sees no socket, no thread, no clock and no random
//! source; the handshake is handed its ephemeral key. docs/protocol.md describes every byte.

mod frame;
mod frame_key;
mod handshake;
mod link;
mod message;
mod message_codec;
mod scrub_finding;

pub use frame::{FRAME_HEADER_BYTES, Frame, FrameDecoder, FrameEncoder, FrameError, SendQueue};
pub use handshake::{
    HANDSHAKE_BYTES_MAX, Handshake, HandshakeError, HandshakeInput, KeyPair, PublicKey, SessionKeys,
};
pub use link::{Link, LinkError, LinkInput};
pub use message::Message;
pub use scrub_finding::{ScrubFinding, ShardOf};
