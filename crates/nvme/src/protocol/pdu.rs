//! PDUs of NVMe/TCP: reading those of a host, writing those of a controller (NVMe/TCP Transport Specification 1.0,
//! section 3.6).

use atoll_codec::crc32c;
use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::command::{Completion, SQE_BYTES, SubmissionEntry};

/// The common header.
pub const COMMON_HEADER_BYTES: usize = 8;
/// Header of the data PDUs, of R2T, of a response capsule and of a termination.
pub const SHORT_HEADER_BYTES: usize = 24;
/// Header of a command capsule.
pub const COMMAND_HEADER_BYTES: usize = COMMON_HEADER_BYTES + SQE_BYTES;
/// An initialization request or response.
pub const INITIALIZE_BYTES: usize = 128;
/// A header or data digest.
pub const DIGEST_BYTES: usize = 4;
/// Most bytes of the wrong header in a termination request.
pub const TERMINATE_BYTES_MAX: usize = SHORT_HEADER_BYTES + 128;
/// The header and its digest may be followed by padding; the offset of data is one byte.
const DATA_OFFSET_MAX: usize = 255;

/// PDU types.
pub mod pdu_type {
    #![allow(missing_docs, reason = "named as in the specification")]
    pub const IC_REQ: u8 = 0x00;
    pub const IC_RESP: u8 = 0x01;
    pub const H2C_TERM_REQ: u8 = 0x02;
    pub const C2H_TERM_REQ: u8 = 0x03;
    pub const CAPSULE_CMD: u8 = 0x04;
    pub const CAPSULE_RESP: u8 = 0x05;
    pub const H2C_DATA: u8 = 0x06;
    pub const C2H_DATA: u8 = 0x07;
    pub const R2T: u8 = 0x09;
}

/// Flags of the common header.
pub mod pdu_flag {
    #![allow(missing_docs, reason = "named as in the specification")]
    pub const HDGSTF: u8 = 1 << 0;
    pub const DDGSTF: u8 = 1 << 1;
    pub const LAST_PDU: u8 = 1 << 2;
    pub const SUCCESS: u8 = 1 << 3;
}

/// Which digests both ends have agreed on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Digests {
    /// True for digests of headers.
    pub header: bool,
    /// True for digests of data.
    pub data: bool,
}

impl Digests {
    /// As the field DGST has them.
    pub fn bits(self) -> u8 {
        u8::from(self.header) | u8::from(self.data) << 1
    }

    /// A field DGST, if no unknown bit is set.
    pub fn from_bits(bits: u8) -> Option<Self> {
        (bits & !3 == 0).then_some(Digests { header: bits & 1 != 0, data: bits & 2 != 0 })
    }
}

/// Why a connection is ended, as a termination request says it (figure "Fatal Error Status").
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FatalError {
    /// A field of the header has a value that cannot be, at this byte.
    #[error("the PDU header has an invalid field at byte {0}")]
    InvalidHeaderField(u32),
    /// A PDU that may not come now.
    #[error("a PDU came out of sequence")]
    Sequence,
    /// The header's digest is wrong.
    #[error("the header digest {found:#010x} is wrong, {expected:#010x} fits")]
    HeaderDigest {
        /// In the PDU.
        found: u32,
        /// Digest of the header as it arrived.
        expected: u32,
    },
    /// Data beyond the requested range.
    #[error("data of a transfer is out of its range")]
    DataOutOfRange,
    /// More than may be sent at once.
    #[error("more data came than is allowed in one PDU, or more commands than the queue has entries")]
    DataLimit,
    /// A parameter that this controller does not support, at this byte.
    #[error("the PDU header requests an unsupported feature at byte {0}")]
    UnsupportedParameter(u32),
}

impl FatalError {
    /// The codes FES and FEI.
    pub fn codes(self) -> (u16, u32) {
        match self {
            FatalError::InvalidHeaderField(at) => (1, at),
            FatalError::Sequence => (2, 0),
            FatalError::HeaderDigest { expected, .. } => (3, expected),
            FatalError::DataOutOfRange => (4, 0),
            FatalError::DataLimit => (5, 0),
            FatalError::UnsupportedParameter(at) => (6, at),
        }
    }
}

/// Requests of a host when it connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InitializeRequest {
    /// Version of the format.
    pub format: u16,
    /// Data in PDUs for the host begins at multiples of this many bytes.
    pub data_alignment_bytes: usize,
    /// Wanted digests, as they came.
    pub digest_bits: u8,
    /// How many R2T for one command may be outstanding.
    pub r2t_max: u64,
}

/// A PDU of a host, without its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostPdu {
    /// The first one.
    Initialize(InitializeRequest),
    /// The host ends the connection: FES and FEI.
    Terminate {
        /// Why.
        status: u16,
        /// Position of the error, or its value.
        information: u32,
    },
    /// A command.
    Command(SubmissionEntry),
    /// Data that an R2T has asked for.
    Data {
        /// Id of the command.
        command_id: u16,
        /// Tag of the R2T.
        transfer_tag: u16,
        /// Where it begins in the command's data.
        offset: u32,
        /// The last PDU that answers the R2T.
        is_last: bool,
    },
}

/// A header that was read and checked, and where in the buffer the rest of its PDU is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostHeader {
    /// The PDU.
    pub pdu: HostPdu,
    /// Where the data begins, if there is any.
    data_offset: usize,
    /// Length of the data in bytes.
    pub data_bytes: usize,
    has_data_digest: bool,
    total_bytes: usize,
}

/// How far reading a header has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderProgress {
    /// This many bytes must be there.
    Needs(usize),
    /// It is there.
    Whole(HostHeader),
}

/// Reads the header of the PDU at the front of `buffer`. `data_bytes_max` bounds data in a command capsule, and in a
/// data PDU.
pub fn read_header(
    buffer: &[u8],
    digests: Digests,
    command_data_bytes_max: usize,
    data_bytes_max: usize,
) -> Result<HeaderProgress, FatalError> {
    use FatalError::InvalidHeaderField;
    if buffer.len() < COMMON_HEADER_BYTES {
        return Ok(HeaderProgress::Needs(COMMON_HEADER_BYTES));
    }
    let (kind, flags, header_bytes, data_offset) = (buffer[0], buffer[1], usize::from(buffer[2]), buffer[3]);
    let total_bytes = u32_at(buffer, 4) as usize;
    let (expected_header_bytes, known_flags, limit_bytes) = match kind {
        pdu_type::IC_REQ => (INITIALIZE_BYTES, 0, 0),
        pdu_type::H2C_TERM_REQ => (SHORT_HEADER_BYTES, 0, TERMINATE_BYTES_MAX - SHORT_HEADER_BYTES),
        pdu_type::CAPSULE_CMD => {
            (COMMAND_HEADER_BYTES, pdu_flag::HDGSTF | pdu_flag::DDGSTF, command_data_bytes_max)
        }
        pdu_type::H2C_DATA => {
            (SHORT_HEADER_BYTES, pdu_flag::HDGSTF | pdu_flag::DDGSTF | pdu_flag::LAST_PDU, data_bytes_max)
        }
        pdu_type::IC_RESP
        | pdu_type::C2H_TERM_REQ
        | pdu_type::CAPSULE_RESP
        | pdu_type::C2H_DATA
        | pdu_type::R2T => return Err(FatalError::Sequence),
        _ => return Err(InvalidHeaderField(0)),
    };
    if flags & !known_flags != 0 {
        return Err(InvalidHeaderField(1));
    }
    if header_bytes != expected_header_bytes {
        return Err(InvalidHeaderField(2));
    }
    let is_digested = digests.header && known_flags & pdu_flag::HDGSTF != 0;
    if (flags & pdu_flag::HDGSTF != 0) != is_digested {
        return Err(InvalidHeaderField(1));
    }
    let header_end = header_bytes + if is_digested { DIGEST_BYTES } else { 0 };
    if total_bytes < header_end {
        return Err(InvalidHeaderField(4));
    }
    if total_bytes - header_end > limit_bytes + DATA_OFFSET_MAX + DIGEST_BYTES {
        return Err(FatalError::DataLimit);
    }
    if buffer.len() < header_end {
        return Ok(HeaderProgress::Needs(header_end));
    }
    if is_digested {
        let (found, expected) = (u32_at(buffer, header_bytes), crc32c(&buffer[..header_bytes]));
        if found != expected {
            return Err(FatalError::HeaderDigest { found, expected });
        }
    }
    let header = Layout { flags, header_end, data_offset: data_offset.into(), total_bytes, digests };
    let pdu = read_fields(kind, flags, buffer);
    let layout = match kind {
        pdu_type::IC_REQ if total_bytes != header_end => return Err(InvalidHeaderField(4)),
        pdu_type::IC_REQ | pdu_type::H2C_TERM_REQ => (header_end, total_bytes - header_end, false),
        _ => header.data()?,
    };
    let (data_offset, data_bytes, has_data_digest) = layout;
    if data_bytes > limit_bytes {
        return Err(FatalError::DataLimit);
    }
    if kind == pdu_type::H2C_DATA && u32_at(buffer, 16) as usize != data_bytes {
        return Err(InvalidHeaderField(16));
    }
    Ok(HeaderProgress::Whole(HostHeader { pdu, data_offset, data_bytes, has_data_digest, total_bytes }))
}

struct Layout {
    flags: u8,
    header_end: usize,
    data_offset: usize,
    total_bytes: usize,
    digests: Digests,
}

impl Layout {
    /// Where data begins, its length, and whether a digest follows.
    fn data(&self) -> Result<(usize, usize, bool), FatalError> {
        let is_digested = self.flags & pdu_flag::DDGSTF != 0;
        if self.total_bytes == self.header_end {
            return if is_digested {
                Err(FatalError::InvalidHeaderField(1))
            } else {
                Ok((self.header_end, 0, false))
            };
        }
        if is_digested != self.digests.data {
            return Err(FatalError::InvalidHeaderField(1));
        }
        if self.data_offset < self.header_end || !self.data_offset.is_multiple_of(4) {
            return Err(FatalError::InvalidHeaderField(3));
        }
        let end = self.data_offset + if is_digested { DIGEST_BYTES } else { 0 };
        match self.total_bytes.checked_sub(end) {
            Some(0) | None => Err(FatalError::InvalidHeaderField(4)),
            Some(data_bytes) => Ok((self.data_offset, data_bytes, is_digested)),
        }
    }
}

fn read_fields(kind: u8, flags: u8, buffer: &[u8]) -> HostPdu {
    match kind {
        pdu_type::IC_REQ => HostPdu::Initialize(InitializeRequest {
            format: u16_at(buffer, 8),
            data_alignment_bytes: (usize::from(buffer[10]) + 1) * 4,
            digest_bits: buffer[11],
            r2t_max: u64::from(u32_at(buffer, 12)) + 1,
        }),
        pdu_type::H2C_TERM_REQ => {
            HostPdu::Terminate { status: u16_at(buffer, 8), information: u32_at(buffer, 10) }
        }
        pdu_type::CAPSULE_CMD => HostPdu::Command(SubmissionEntry::read(&buffer[COMMON_HEADER_BYTES..])),
        _ => HostPdu::Data {
            command_id: u16_at(buffer, 8),
            transfer_tag: u16_at(buffer, 10),
            offset: u32_at(buffer, 12),
            is_last: flags & pdu_flag::LAST_PDU != 0,
        },
    }
}

/// Data of a PDU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Payload {
    /// The data.
    pub data: Bytes,
    /// True if its digest matches, or there is none.
    pub is_sound: bool,
}

impl HostHeader {
    /// Length of the whole PDU in bytes.
    pub fn total_bytes(&self) -> usize {
        self.total_bytes
    }

    /// Takes the whole PDU, which must be there, off the front of the buffer. The data is not copied.
    pub fn take(&self, buffer: &mut BytesMut) -> Payload {
        assert!(buffer.len() >= self.total_bytes, "a PDU is taken when all of it has arrived");
        let mut pdu = buffer.split_to(self.total_bytes);
        if self.data_bytes == 0 {
            return Payload { data: Bytes::new(), is_sound: true };
        }
        pdu.advance(self.data_offset);
        let digest = self.has_data_digest.then(|| u32_at(&pdu, self.data_bytes));
        let data = pdu.split_to(self.data_bytes).freeze();
        let is_sound = digest.is_none_or(|digest| digest == crc32c(&data));
        Payload { data, is_sound }
    }
}

/// Writes the PDUs of a controller, as one host wants them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PduWriter {
    /// Negotiated digests.
    pub digests: Digests,
    /// Where data for the host may begin.
    pub data_alignment_bytes: usize,
}

impl PduWriter {
    /// The answer to an initialization. It never has a digest.
    pub fn initialize_response(&self, data_bytes_max: u32) -> Bytes {
        let mut pdu = BytesMut::with_capacity(INITIALIZE_BYTES);
        put_common(&mut pdu, pdu_type::IC_RESP, 0, INITIALIZE_BYTES, 0, INITIALIZE_BYTES);
        pdu.put_u16_le(0);
        pdu.put_u8(0);
        pdu.put_u8(self.digests.bits());
        pdu.put_u32_le(data_bytes_max);
        pdu.resize(INITIALIZE_BYTES, 0);
        pdu.freeze()
    }

    /// A response capsule.
    pub fn response(&self, completion: &Completion) -> Bytes {
        let mut pdu = BytesMut::with_capacity(SHORT_HEADER_BYTES + DIGEST_BYTES);
        self.put_response(&mut pdu, completion);
        pdu.freeze()
    }

    fn put_response(&self, pdu: &mut BytesMut, completion: &Completion) {
        self.put_header(pdu, pdu_type::CAPSULE_RESP, 0, None, |pdu| completion.write(pdu));
    }

    /// A request for data of a command.
    pub fn ready_to_transfer(&self, command_id: u16, transfer_tag: u16, offset: u32, length: u32) -> Bytes {
        let mut pdu = BytesMut::with_capacity(SHORT_HEADER_BYTES + DIGEST_BYTES);
        self.put_header(&mut pdu, pdu_type::R2T, 0, None, |pdu| {
            pdu.put_u16_le(command_id);
            pdu.put_u16_le(transfer_tag);
            pdu.put_u32_le(offset);
            pdu.put_u32_le(length);
            pdu.put_u32_le(0);
        });
        pdu.freeze()
    }

    /// All data of a command in one PDU, and the response behind it: the bytes before the data, and those after it.
    /// Without a completion the host takes the data as success.
    pub fn data(&self, command_id: u16, data: &Bytes, completion: Option<&Completion>) -> (Bytes, Bytes) {
        let success = if completion.is_none() { pdu_flag::SUCCESS } else { 0 };
        let mut before = BytesMut::with_capacity(SHORT_HEADER_BYTES + DIGEST_BYTES + self.data_alignment_bytes);
        self.put_header(&mut before, pdu_type::C2H_DATA, pdu_flag::LAST_PDU | success, Some(data.len()), |pdu| {
            pdu.put_u16_le(command_id);
            pdu.put_u16_le(0);
            pdu.put_u32_le(0);
            pdu.put_u32_le(data.len() as u32);
            pdu.put_u32_le(0);
        });
        let mut after = BytesMut::with_capacity(SHORT_HEADER_BYTES + 2 * DIGEST_BYTES);
        if self.digests.data {
            after.put_u32_le(crc32c(data));
        }
        if let Some(completion) = completion {
            self.put_response(&mut after, completion);
        }
        (before.freeze(), after.freeze())
    }

    /// The end of the connection, with the beginning of the PDU that was wrong. It never has a digest.
    pub fn terminate(error: FatalError, wrong: &[u8]) -> Bytes {
        let wrong = &wrong[..wrong.len().min(TERMINATE_BYTES_MAX - SHORT_HEADER_BYTES)];
        let total_bytes = SHORT_HEADER_BYTES + wrong.len();
        let mut pdu = BytesMut::with_capacity(total_bytes);
        put_common(&mut pdu, pdu_type::C2H_TERM_REQ, 0, SHORT_HEADER_BYTES, 0, total_bytes);
        let (status, information) = error.codes();
        pdu.put_u16_le(status);
        pdu.put_u32_le(information);
        pdu.resize(SHORT_HEADER_BYTES, 0);
        pdu.put_slice(wrong);
        pdu.freeze()
    }

    fn put_header(
        &self,
        pdu: &mut BytesMut,
        kind: u8,
        flags: u8,
        data_bytes: Option<usize>,
        fields: impl FnOnce(&mut BytesMut),
    ) {
        let start = pdu.len();
        let digest_bytes = if self.digests.header { DIGEST_BYTES } else { 0 };
        let header_end = SHORT_HEADER_BYTES + digest_bytes;
        let (data_offset, total_bytes) = match data_bytes {
            None => (0, header_end),
            Some(bytes) => {
                let offset = header_end.next_multiple_of(self.data_alignment_bytes);
                (offset, offset + bytes + if self.digests.data { DIGEST_BYTES } else { 0 })
            }
        };
        let mut flags = flags;
        if self.digests.header {
            flags |= pdu_flag::HDGSTF;
        }
        if data_bytes.is_some() && self.digests.data {
            flags |= pdu_flag::DDGSTF;
        }
        put_common(pdu, kind, flags, SHORT_HEADER_BYTES, data_offset, total_bytes);
        fields(pdu);
        if self.digests.header {
            let digest = crc32c(&pdu[start..]);
            pdu.put_u32_le(digest);
        }
        if data_bytes.is_some() {
            pdu.resize(start + data_offset, 0);
        }
    }
}

fn put_common(
    pdu: &mut BytesMut,
    kind: u8,
    flags: u8,
    header_bytes: usize,
    data_offset: usize,
    total_bytes: usize,
) {
    pdu.put_u8(kind);
    pdu.put_u8(flags);
    pdu.put_u8(header_bytes as u8);
    pdu.put_u8(data_offset as u8);
    pdu.put_u32_le(total_bytes as u32);
}

/// A little-endian integer at a place that the caller has checked to be there.
pub(super) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

/// As [`u16_at`].
pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) | u32::from(u16_at(bytes, at + 2)) << 16
}

/// As [`u16_at`].
pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}
