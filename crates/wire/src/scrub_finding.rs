//! What a member finds when it examines its copy of an object.

use atoll_base::{CodecError, Reader, Version, Writer};

/// A member's copy of an object, as a scrub found it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScrubFinding {
    /// There is no such object.
    Absent,
    /// There is.
    Present {
        /// Version of its last change.
        version: Version,
        /// Its size.
        size_bytes: u64,
        /// Of everything that healthy copies have in common.
        digest: u64,
        /// Blocks that are damaged or cannot be read; only a deep scrub finds them.
        bad_block_count: u32,
    },
    /// What the device says about the object makes no sense.
    Unreadable,
    /// The copy could not be examined now.
    Busy,
}

impl ScrubFinding {
    pub(crate) fn encode(&self, writer: &mut Writer) {
        match self {
            ScrubFinding::Absent => writer.u8(0),
            ScrubFinding::Present { version, size_bytes, digest, bad_block_count } => {
                writer.u8(1);
                version.encode(writer);
                writer.u64(*size_bytes);
                writer.u64(*digest);
                writer.u32(*bad_block_count);
            }
            ScrubFinding::Unreadable => writer.u8(2),
            ScrubFinding::Busy => writer.u8(3),
        }
    }

    pub(crate) fn decode(reader: &mut Reader) -> Result<Self, CodecError> {
        Ok(match reader.u8("scrub finding")? {
            0 => ScrubFinding::Absent,
            1 => ScrubFinding::Present {
                version: Version::decode(reader)?,
                size_bytes: reader.u64("size")?,
                digest: reader.u64("digest")?,
                bad_block_count: reader.u32("bad blocks")?,
            },
            2 => ScrubFinding::Unreadable,
            3 => ScrubFinding::Busy,
            value => return Err(CodecError::Invalid { what: "scrub finding", value: u64::from(value) }),
        })
    }
}
