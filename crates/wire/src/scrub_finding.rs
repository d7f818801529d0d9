//! Result of a member's examination of its copy of an object.

use atoll_codec::{CodecError, Reader, Writer};
use atoll_types::Version;

/// Properties of the whole object, which each of its shards stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ShardOf {
    /// Size of the whole object, in bytes.
    pub object_bytes: u64,
    /// Bytes of data per seal; 0 without seals.
    pub seal_unit_bytes: u32,
    /// Length of a seal.
    pub seal_bytes: u16,
}

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
        /// Digest of everything that healthy copies have in common.
        digest: u64,
        /// Blocks that are damaged or cannot be read; only a deep scrub finds them.
        bad_block_count: u32,
        /// The whole object of the shard, in an erasure-coded PG.
        shard_of: Option<ShardOf>,
    },
    /// The device's data about the object is invalid.
    Unreadable,
    /// The copy could not be examined now.
    Busy,
}

impl ScrubFinding {
    pub(crate) fn encode(&self, writer: &mut Writer) {
        match self {
            ScrubFinding::Absent => writer.u8(0),
            ScrubFinding::Present { version, size_bytes, digest, bad_block_count, shard_of } => {
                writer.u8(1);
                version.encode(writer);
                writer.u64(*size_bytes);
                writer.u64(*digest);
                writer.u32(*bad_block_count);
                writer.u8(u8::from(shard_of.is_some()));
                if let Some(ShardOf { object_bytes, seal_unit_bytes, seal_bytes }) = shard_of {
                    writer.u64(*object_bytes);
                    writer.u32(*seal_unit_bytes);
                    writer.u16(*seal_bytes);
                }
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
                shard_of: match reader.u8("is a shard")? {
                    0 => None,
                    _ => Some(ShardOf {
                        object_bytes: reader.u64("object size")?,
                        seal_unit_bytes: reader.u32("seal unit")?,
                        seal_bytes: reader.u16("seal length")?,
                    }),
                },
            },
            2 => ScrubFinding::Unreadable,
            3 => ScrubFinding::Busy,
            value => return Err(CodecError::Invalid { what: "scrub finding", value: u64::from(value) }),
        })
    }
}
