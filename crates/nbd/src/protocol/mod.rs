//! The server's side of the NBD protocol, without I/O: bytes and events in, actions out.
//!
//! The source is the document `doc/proto.md` of the NetworkBlockDevice/nbd project; doc comments name its
//! sections. It speaks fixed newstyle negotiation, structured replies, the metadata context `base:allocation`, and
//! STARTTLS. Extended headers are refused. TLS itself is the shell's: see [`Action::StartTls`].
//!
//! A shell owns the socket and the image and drives one [`NbdSession`] per connection:
//!
//! ```text
//! loop {
//!     session.receive(&mut buffer);
//!     while let Some(action) = session.next_action() { carry it out }
//!     if session.is_saturated() { wait for an event: a finished request, an opened export }
//!     else if session.needed_bytes() > 0 { wait for that many bytes, or for an event }
//! }
//! ```
//!
//! The shell passes back-pressure on: as long as its socket is full, it should neither drain actions nor call
//! [`NbdSession::receive`], which then stops by itself.

pub mod constants;
mod handshake;
mod options;
mod replies;
mod session;
mod transmission;
mod types;

#[cfg(test)]
mod tests;

pub use session::NbdSession;
pub use types::{
    Action, CloseReason, ConfigError, ErrorCode, ExportInfo, OpenPurpose, Outcome, ProtocolError, Request,
    RequestId, RequestKind, SessionConfig, StatusExtent, TlsPolicy,
};

use bytes::BytesMut;

/// How far a phase got with the caller's buffer.
enum Progress {
    /// A message, or a part of a payload that is thrown away, was taken out of the buffer.
    Consumed,
    /// Nothing was taken: the next message needs this many bytes in the buffer.
    Needs(usize),
}

/// `message`, cut to the longest string that the protocol allows, at a character boundary.
fn message_bytes(message: &str) -> &[u8] {
    let mut end = message.len().min(constants::STRING_BYTES_MAX);
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    &message.as_bytes()[..end]
}

/// The first `N` bytes after `at`. The caller has checked that they are there.
fn array_at<const N: usize>(buffer: &BytesMut, at: usize) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(&buffer[at..at + N]);
    array
}
