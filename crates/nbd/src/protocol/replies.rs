//! Encoding of the replies to requests (sections "Simple reply message", "Structured reply chunk message").

use bytes::{BufMut, Bytes, BytesMut};

use super::constants::{
    CONTEXT_BASE_ALLOCATION_ID, DESCRIPTORS_MAX, MAGIC_SIMPLE_REPLY, MAGIC_STRUCTURED_REPLY, REPLY_FLAG_DONE,
    chunk, state,
};
use super::{ErrorCode, StatusExtent, message_bytes};

/// The reply to a request that succeeded and returns nothing.
pub(super) fn success(structured: bool, cookie: u64) -> Bytes {
    if structured { chunk_header(cookie, chunk::NONE, 0, 0).freeze() } else { simple_reply(cookie, 0) }
}

/// The reply to a request that failed. A simple reply has no place for the message.
pub(super) fn failure(structured: bool, cookie: u64, code: ErrorCode, message: &str) -> Bytes {
    if !structured {
        return simple_reply(cookie, code as u32);
    }
    let message = message_bytes(message);
    let payload = 6 + message.len();
    let mut bytes = chunk_header(cookie, chunk::ERROR, payload as u32, payload);
    bytes.put_u32(code as u32);
    bytes.put_u16(message.len() as u16);
    bytes.put_slice(message);
    bytes.freeze()
}

/// Returns the header of a READ's data: always one chunk, so DF needs nothing special.
pub(super) fn data_header(structured: bool, cookie: u64, offset: u64, length: u32) -> Bytes {
    if !structured {
        return simple_reply(cookie, 0);
    }
    let mut bytes = chunk_header(cookie, chunk::OFFSET_DATA, 8 + length, 8);
    bytes.put_u64(offset);
    bytes.freeze()
}

/// Section "Simple reply message".
fn simple_reply(cookie: u64, error: u32) -> Bytes {
    let mut bytes = BytesMut::with_capacity(16);
    bytes.put_u32(MAGIC_SIMPLE_REPLY);
    bytes.put_u32(error);
    bytes.put_u64(cookie);
    bytes.freeze()
}

/// Section "Structured reply chunk message": the header of an only chunk, with room for `room` more bytes.
fn chunk_header(cookie: u64, kind: u16, payload_bytes: u32, room: usize) -> BytesMut {
    let mut bytes = BytesMut::with_capacity(20 + room);
    bytes.put_u32(MAGIC_STRUCTURED_REPLY);
    bytes.put_u16(REPLY_FLAG_DONE);
    bytes.put_u16(kind);
    bytes.put_u64(cookie);
    bytes.put_u32(payload_bytes);
    bytes
}

/// Section "Structured reply types", NBD_REPLY_TYPE_BLOCK_STATUS. Neighbours of equal status become one.
pub(super) fn status(cookie: u64, length: u32, one: bool, extents: &[StatusExtent]) -> Bytes {
    let descriptors_max = if one { 1 } else { DESCRIPTORS_MAX };
    let mut descriptors: Vec<(u32, u32)> = Vec::new();
    let mut remaining = length;
    for extent in extents {
        assert!(extent.length > 0, "bug in the shell: an empty extent");
        let status = if extent.is_hole { state::HOLE } else { 0 } | if extent.is_zero { state::ZERO } else { 0 };
        let here = u32::try_from(extent.length).unwrap_or(u32::MAX).min(remaining);
        if here == 0 {
            break;
        }
        let is_full = descriptors.len() == descriptors_max;
        match descriptors.last_mut() {
            Some((bytes, last)) if *last == status => *bytes += here,
            _ if is_full => break,
            _ => descriptors.push((here, status)),
        }
        remaining -= here;
    }
    assert!(!descriptors.is_empty(), "bug in the shell: no extents");
    let payload = 4 + 8 * descriptors.len();
    let mut bytes = chunk_header(cookie, chunk::BLOCK_STATUS, payload as u32, payload);
    bytes.put_u32(CONTEXT_BASE_ALLOCATION_ID);
    for (length, status) in descriptors {
        bytes.put_u32(length);
        bytes.put_u32(status);
    }
    bytes.freeze()
}
