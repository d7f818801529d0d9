//! Frames: a 16-byte header in the clear, a control segment, and perhaps a payload.
//!
//! ```text
//! control length u32 | payload length u32 | flags u32 | zero u32
//! control segment    | check (16 bytes, or 4 in crc mode)
//! payload            | check (only if there is a payload, and not if the receiver opens it)
//! ```
//!
//! In the `secure` modes the checks are AES-GCM tags. The control segment is encrypted with the
//! header as associated data; a payload is encrypted too, unless its flag says that the client has
//! sealed it already: then it is the associated data of an empty message, so it is authenticated
//! but not encrypted a second time. A sealed payload that the receiver opens itself travels as it is,
//! without a check: the seals, which the receiver has from the control segment, are its check. The
//! nonces count: frame `n` uses `2n` for control and `2n + 1` for payload, under a key of its own per
//! direction, so a replayed, dropped or reordered frame does not authenticate. In `crc` mode the
//! checks are CRC-32C. Nothing that has a check is given out before it was verified, and the lengths
//! are bounded before anything is buffered for them.
//!
//! The sender decides when a key has been used enough, and says so in the header of the last frame
//! under it. The nonces count on.

use std::collections::VecDeque;

use atoll_buffers::Received;
use atoll_codec::crc32c;
use atoll_types::frames::FrameMode;
use atoll_types::limits::{CONTROL_BYTES_MAX, PAYLOAD_BYTES_MAX};
use bytes::{Buf, Bytes, BytesMut};

use crate::frame_key::FrameKey;
use crate::invariants;

/// Length of a frame's header in bytes.
pub const FRAME_HEADER_BYTES: usize = 16;
const TAG_BYTES: usize = 16;
const CRC_BYTES: usize = 4;
const FLAG_PAYLOAD_SEALED: u32 = 1;
const FLAG_LAST_OF_KEY: u32 = 2;
/// Only with [`FLAG_PAYLOAD_SEALED`].
const FLAG_PAYLOAD_UNCHECKED: u32 = 4;
/// Most bytes that are sent under one key...
const KEY_BYTES_MAX: u64 = 1 << 32;
/// ... where each frame counts as this many bytes more, so that frames are bounded, too.
const KEY_BYTES_PER_FRAME: u64 = KEY_BYTES_MAX >> 20;
/// A payload up to this size is copied next to its neighbours rather than sent as a piece of its
/// own: the copy costs less than one more I/O vector and buffer handle.
const COPY_BYTES_MAX: usize = 16 << 10;
/// A payload from this size on is received into a buffer of its own, from which a device can take it.
const LONG_PAYLOAD_BYTES: usize = 32 << 10;

/// Why received bytes are not a frame. The connection must be closed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// A length is over its limit.
    #[error("a frame's {segment} segment of {length} bytes is over the limit of {limit}")]
    TooLong {
        /// Which segment.
        segment: &'static str,
        /// The length in the header.
        length: usize,
        /// The limit.
        limit: usize,
    },
    /// Unknown flags or a non-zero reserved field.
    #[error("a frame's header has unknown flags {flags:#x}")]
    UnknownFlags {
        /// The flags and reserved bits.
        flags: u64,
    },
    /// A check does not fit.
    #[error("frame {number}: the check of the {segment} segment does not fit; bytes were damaged or forged")]
    BadCheck {
        /// Which frame of the connection.
        number: u64,
        /// Which segment.
        segment: &'static str,
    },
    /// The counter of frames is used up; a new connection starts a new one.
    #[error("the connection has used up its nonces")]
    NoncesExhausted,
}

enum Protection {
    Secure(Box<FrameKey>),
    Crc,
}

impl Protection {
    fn new(mode: FrameMode, secret: &[u8; 32]) -> Self {
        FrameKey::new(mode, secret).map_or(Protection::Crc, |key| Protection::Secure(Box::new(key)))
    }

    fn check_bytes(&self) -> usize {
        match self {
            Protection::Secure(_) => TAG_BYTES,
            Protection::Crc => CRC_BYTES,
        }
    }

    fn known_flags(&self) -> u32 {
        match self {
            Protection::Secure(_) => FLAG_PAYLOAD_SEALED | FLAG_PAYLOAD_UNCHECKED | FLAG_LAST_OF_KEY,
            Protection::Crc => FLAG_PAYLOAD_SEALED | FLAG_PAYLOAD_UNCHECKED,
        }
    }

    fn advance(&mut self) {
        if let Protection::Secure(key) = self {
            key.advance();
        }
    }
}

/// The number in the nonce of a segment: 0 is control, 1 the payload.
fn nonce(frame_number: u64, segment: u64) -> u64 {
    2 * frame_number + segment
}

const FRAME_NUMBER_MAX: u64 = 1 << 62;

/// Bytes waiting to be sent on one connection. Small pieces are gathered into one buffer.
#[derive(Default)]
pub struct SendQueue {
    chunks: VecDeque<Bytes>,
    tail: BytesMut,
    length_bytes: usize,
}

impl SendQueue {
    /// Appends a copy of `bytes`.
    pub fn push_copy(&mut self, bytes: &[u8]) {
        self.length_bytes += bytes.len();
        self.tail.extend_from_slice(bytes);
    }

    /// Appends `bytes`, without a copy when they are many.
    pub fn push(&mut self, bytes: Bytes) {
        if bytes.len() <= COPY_BYTES_MAX {
            self.push_copy(&bytes);
        } else {
            self.length_bytes += bytes.len();
            self.seal_tail();
            self.chunks.push_back(bytes);
        }
    }

    fn seal_tail(&mut self) {
        if !self.tail.is_empty() {
            self.chunks.push_back(self.tail.split().freeze());
        }
    }

    /// Bytes waiting.
    pub fn len(&self) -> usize {
        self.length_bytes
    }

    /// Returns true if the queue is empty.
    pub fn is_empty(&self) -> bool {
        self.length_bytes == 0
    }

    /// Takes everything that waits, in order.
    pub fn take(&mut self) -> VecDeque<Bytes> {
        self.seal_tail();
        if cfg!(debug_assertions) {
            invariants::queue_counts_its_bytes(self.length_bytes, self.chunks.iter().map(Bytes::len).sum());
        }
        self.length_bytes = 0;
        std::mem::take(&mut self.chunks)
    }
}

/// Makes the frames of one direction of one connection.
pub struct FrameEncoder {
    protection: Protection,
    next_frame: u64,
    /// Bytes sent under the key, payloads without a check too, and some for each frame.
    key_use: u64,
}

impl FrameEncoder {
    /// Frames of a mode, with the handshake's key for this direction.
    pub fn new(mode: FrameMode, secret: &[u8; 32]) -> Self {
        FrameEncoder { protection: Protection::new(mode, secret), next_frame: 0, key_use: 0 }
    }

    /// Makes the next frame the last one under its key.
    pub fn rekey(&mut self) {
        self.key_use = KEY_BYTES_MAX;
    }

    /// Appends a frame to `queue`. The segments must be within their limits. After an error the
    /// connection must be closed.
    pub fn encode(
        &mut self,
        control: &[u8],
        payload: &Bytes,
        seal: PayloadSeal,
        queue: &mut SendQueue,
    ) -> Result<(), FrameError> {
        invariants::segments_fit(control.len(), payload.len())?;
        if self.next_frame == FRAME_NUMBER_MAX {
            return Err(FrameError::NoncesExhausted);
        }
        let number = self.next_frame;
        self.next_frame += 1;
        let mut header = [0; FRAME_HEADER_BYTES];
        header[..4].copy_from_slice(&(control.len() as u32).to_le_bytes());
        header[4..8].copy_from_slice(&(payload.len() as u32).to_le_bytes());
        self.key_use += KEY_BYTES_PER_FRAME + (control.len() + payload.len()) as u64;
        let is_last_of_key = self.key_use >= KEY_BYTES_MAX && matches!(self.protection, Protection::Secure(_));
        let mut flags = seal.flags();
        if is_last_of_key {
            flags |= FLAG_LAST_OF_KEY;
        }
        header[8..12].copy_from_slice(&flags.to_le_bytes());

        queue.push_copy(&header);
        let control_start = queue.tail.len();
        queue.push_copy(control);
        match &mut self.protection {
            Protection::Secure(key) => {
                let tag = key.seal(nonce(number, 0), &header, &mut queue.tail[control_start..]);
                queue.push_copy(tag.as_ref());
            }
            Protection::Crc => {
                let check = crc32c(&queue.tail[control_start - FRAME_HEADER_BYTES..]);
                queue.push_copy(&check.to_le_bytes());
            }
        }
        if !payload.is_empty() {
            self.append_payload(number, payload, seal, queue);
        }
        if is_last_of_key {
            self.protection.advance();
            self.key_use = 0;
        }
        if let Protection::Secure(_) = self.protection {
            invariants::key_is_within_its_limit(self.key_use, KEY_BYTES_MAX);
        }
        Ok(())
    }

    fn append_payload(&mut self, number: u64, payload: &Bytes, seal: PayloadSeal, queue: &mut SendQueue) {
        match &mut self.protection {
            _ if seal == PayloadSeal::OpenedByReceiver => queue.push(payload.clone()),
            Protection::Secure(key) if seal == PayloadSeal::Sealed => {
                let tag = key.seal(nonce(number, 1), payload, &mut []);
                queue.push(payload.clone());
                queue.push_copy(tag.as_ref());
            }
            Protection::Secure(key) => {
                let start = queue.tail.len();
                queue.push_copy(payload);
                let tag = key.seal(nonce(number, 1), &[], &mut queue.tail[start..]);
                queue.push_copy(tag.as_ref());
            }
            Protection::Crc => {
                queue.push(payload.clone());
                queue.push_copy(&crc32c(payload).to_le_bytes());
            }
        }
    }
}

/// Clients' protection of a payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PayloadSeal {
    /// Nothing: it is encrypted and checked with the frame.
    None,
    /// It is sealed: it is checked with the frame, but not encrypted a second time.
    Sealed,
    /// It is sealed, and the receiver opens it before it believes anything of it: the frame does not check it.
    OpenedByReceiver,
}

impl PayloadSeal {
    fn flags(self) -> u32 {
        match self {
            PayloadSeal::None => 0,
            PayloadSeal::Sealed => FLAG_PAYLOAD_SEALED,
            PayloadSeal::OpenedByReceiver => FLAG_PAYLOAD_SEALED | FLAG_PAYLOAD_UNCHECKED,
        }
    }

    /// `None` if there is no such combination of flags.
    fn of_flags(flags: u32) -> Option<Self> {
        match flags & (FLAG_PAYLOAD_SEALED | FLAG_PAYLOAD_UNCHECKED) {
            0 => Some(PayloadSeal::None),
            FLAG_PAYLOAD_SEALED => Some(PayloadSeal::Sealed),
            FLAG_PAYLOAD_UNCHECKED => None,
            _ => Some(PayloadSeal::OpenedByReceiver),
        }
    }
}

/// A frame whose checks fit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// The control segment in the clear.
    pub control: Bytes,
    /// The payload: in the clear, or as the client sealed it.
    pub payload: Bytes,
    /// Protection of the payload by its client, which decides who detects changes on the way.
    pub seal: PayloadSeal,
}

struct Header {
    bytes: [u8; FRAME_HEADER_BYTES],
    control_bytes: usize,
    payload_bytes: usize,
    seal: PayloadSeal,
    is_last_of_key: bool,
}

impl Header {
    /// Bytes of the payload that have a check.
    fn checked_bytes(&self) -> usize {
        if self.seal == PayloadSeal::OpenedByReceiver { 0 } else { self.payload_bytes }
    }

    /// Returns the bytes of the payload and its check, with `check_bytes` for each check.
    fn payload_and_check_bytes(&self, check_bytes: usize) -> usize {
        if self.checked_bytes() == 0 { self.payload_bytes } else { self.payload_bytes + check_bytes }
    }

    fn parse(bytes: &[u8; FRAME_HEADER_BYTES], known_flags: u32) -> Result<Self, FrameError> {
        let field = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("a field has 4 bytes"));
        let (control_bytes, payload_bytes) = (field(0) as usize, field(4) as usize);
        let (flags, reserved) = (field(8), field(12));
        if control_bytes > CONTROL_BYTES_MAX {
            return Err(FrameError::TooLong {
                segment: "control",
                length: control_bytes,
                limit: CONTROL_BYTES_MAX,
            });
        }
        if payload_bytes > PAYLOAD_BYTES_MAX {
            return Err(FrameError::TooLong {
                segment: "payload",
                length: payload_bytes,
                limit: PAYLOAD_BYTES_MAX,
            });
        }
        let seal = PayloadSeal::of_flags(flags).filter(|_| flags & !known_flags == 0 && reserved == 0);
        let Some(seal) = seal else {
            return Err(FrameError::UnknownFlags { flags: u64::from(reserved) << 32 | u64::from(flags) });
        };
        Ok(Header {
            bytes: *bytes,
            control_bytes,
            payload_bytes,
            seal,
            is_last_of_key: flags & FLAG_LAST_OF_KEY != 0,
        })
    }
}

/// A frame whose control segment is there, checked and in the clear.
struct Begun {
    number: u64,
    header: Header,
    control: Bytes,
    /// True if its payload was requested as a long run.
    is_long: bool,
    /// Segments whose checks have fitted.
    checked_segments: u8,
}

/// Takes the frames of one direction of one connection out of received bytes.
pub struct FrameDecoder {
    protection: Protection,
    next_frame: u64,
    begun: Option<Begun>,
    has_failed: bool,
}

impl FrameDecoder {
    /// Frames of a mode, with the handshake's key for this direction.
    pub fn new(mode: FrameMode, secret: &[u8; 32]) -> Self {
        FrameDecoder { protection: Protection::new(mode, secret), next_frame: 0, begun: None, has_failed: false }
    }

    /// Returns the number of bytes beyond those in `received` that the next frame needs, as far as known.
    pub fn missing_bytes(&self, received: &Received) -> usize {
        let check_bytes = self.protection.check_bytes();
        let needed = match (&self.begun, received.first_chunk()) {
            (Some(begun), _) if begun.is_long => 0,
            (Some(begun), _) => begun.header.payload_and_check_bytes(check_bytes),
            (None, Some(header)) => Header::parse(header, self.protection.known_flags())
                .map_or(0, |header| FRAME_HEADER_BYTES + header.control_bytes + check_bytes),
            (None, None) => 0,
        };
        needed.saturating_sub(received.len())
    }

    /// Takes the next frame, or `None` if it is incomplete; its present bytes are taken, too. After an error the
    /// connection must be closed.
    pub fn decode(&mut self, received: &mut Received) -> Result<Option<Frame>, FrameError> {
        invariants::nothing_follows_an_error(self.has_failed);
        let decoded = self.decode_next(received);
        self.has_failed = decoded.is_err();
        decoded
    }

    fn decode_next(&mut self, received: &mut Received) -> Result<Option<Frame>, FrameError> {
        let begun = match self.begun.take() {
            Some(begun) => Some(begun),
            None => self.begin(received)?,
        };
        let Some(mut begun) = begun else { return Ok(None) };
        let payload = match begun.header.payload_bytes {
            0 => Some(Bytes::new()),
            _ => self.take_payload(&mut begun, received)?,
        };
        let Some(payload) = payload else {
            self.begun = Some(begun);
            return Ok(None);
        };
        invariants::frame_was_checked(begun.checked_segments, begun.header.checked_bytes());
        if begun.header.is_last_of_key {
            self.protection.advance();
        }
        Ok(Some(Frame { control: begun.control, payload, seal: begun.header.seal }))
    }

    fn begin(&mut self, received: &mut Received) -> Result<Option<Begun>, FrameError> {
        let Some(header) = received.first_chunk() else { return Ok(None) };
        let header = Header::parse(header, self.protection.known_flags())?;
        let check_bytes = self.protection.check_bytes();
        if received.len() < FRAME_HEADER_BYTES + header.control_bytes + check_bytes {
            return Ok(None);
        }
        if self.next_frame == FRAME_NUMBER_MAX {
            return Err(FrameError::NoncesExhausted);
        }
        let number = self.next_frame;
        self.next_frame += 1;
        received.advance(FRAME_HEADER_BYTES);
        let mut control = received.split_to(header.control_bytes + check_bytes);
        self.open_control(number, &header, &mut control)?;
        control.truncate(header.control_bytes);
        let sealed_bytes = header.payload_and_check_bytes(check_bytes);
        // Memory is given only to a peer that knows the key: the header's check has fit.
        let is_long = header.payload_bytes >= LONG_PAYLOAD_BYTES && received.len() < sealed_bytes;
        if is_long {
            received.expect_long_run(sealed_bytes);
        }
        Ok(Some(Begun { number, header, control: control.freeze(), is_long, checked_segments: 1 }))
    }

    fn take_payload(&mut self, begun: &mut Begun, received: &mut Received) -> Result<Option<Bytes>, FrameError> {
        let payload_bytes = begun.header.payload_bytes;
        let sealed_bytes = begun.header.payload_and_check_bytes(self.protection.check_bytes());
        if begun.is_long {
            let Some(mut buffer) = received.take_long_run() else { return Ok(None) };
            self.open_payload(begun, &mut buffer.as_mut_slice()[..sealed_bytes])?;
            return Ok(Some(buffer.into_bytes(payload_bytes)));
        }
        if received.len() < sealed_bytes {
            return Ok(None);
        }
        let mut sealed = received.split_to(sealed_bytes);
        self.open_payload(begun, &mut sealed)?;
        sealed.truncate(payload_bytes);
        Ok(Some(sealed.freeze()))
    }

    fn open_control(&mut self, number: u64, header: &Header, control: &mut BytesMut) -> Result<(), FrameError> {
        let fits = match &mut self.protection {
            Protection::Secure(key) => key.open(nonce(number, 0), &header.bytes, control),
            Protection::Crc => {
                let (data, check) = control.split_at(header.control_bytes);
                let mut checked = Vec::with_capacity(FRAME_HEADER_BYTES + data.len());
                checked.extend_from_slice(&header.bytes);
                checked.extend_from_slice(data);
                crc32c(&checked).to_le_bytes() == check
            }
        };
        if fits { Ok(()) } else { Err(FrameError::BadCheck { number, segment: "control" }) }
    }

    fn open_payload(&mut self, begun: &mut Begun, sealed: &mut [u8]) -> Result<(), FrameError> {
        if begun.header.checked_bytes() == 0 {
            return Ok(());
        }
        let number = begun.number;
        let (data, check) = sealed.split_at_mut(begun.header.payload_bytes);
        let fits = match &mut self.protection {
            Protection::Secure(key) if begun.header.seal == PayloadSeal::Sealed => {
                key.open(nonce(number, 1), data, check)
            }
            Protection::Secure(key) => key.open(nonce(number, 1), &[], sealed),
            Protection::Crc => crc32c(data).to_le_bytes() == check,
        };
        begun.checked_segments += u8::from(fits);
        if fits { Ok(()) } else { Err(FrameError::BadCheck { number, segment: "payload" }) }
    }
}

#[cfg(test)]
mod tests;
