//! The superblock: who the store is, where its newest checkpoint is and where the log begins.
//! There are two copies; each checkpoint overwrites the older one, so one is always whole.

use atoll_base::{BlockBuffer, CodecError, Reader, Writer, crc32c};
use bytes::Bytes;

use crate::disk::{Device, Disk, read_blocks};
use crate::error::OpenError;
use crate::layout::{Layout, SUPERBLOCK_COPIES};

pub(crate) const FORMAT_VERSION: u32 = 1;
const MAGIC: &[u8; 8] = b"ATOLSTOR";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Superblock {
    pub store_id: [u8; 16],
    /// Raised by every checkpoint; the copy with the higher one is in force.
    pub generation: u64,
    pub device_bytes: u64,
    pub wal_bytes: u64,
    /// Metadata slot of the checkpoint and the number of its chunks.
    pub slot: u8,
    pub chunk_count: u64,
    /// Raised at every opening; log records of other incarnations are not replayed.
    pub incarnation: u64,
    /// Ring position (in blocks) and number of the first record to replay.
    pub wal_position: u64,
    pub wal_sequence: u64,
}

/// What one of the two places holds.
#[derive(Debug, PartialEq, Eq)]
enum Copy {
    Whole(Superblock),
    OtherVersion(u32),
    Nothing,
}

impl Superblock {
    pub fn encode(&self) -> BlockBuffer {
        let mut writer = Writer::default();
        writer.raw(MAGIC);
        writer.u32(FORMAT_VERSION);
        writer.raw(&self.store_id);
        writer.u64(self.generation);
        writer.u64(self.device_bytes);
        writer.u64(self.wal_bytes);
        writer.u8(self.slot);
        writer.u64(self.chunk_count);
        writer.u64(self.incarnation);
        writer.u64(self.wal_position);
        writer.u64(self.wal_sequence);
        let check = crc32c(writer.as_slice());
        writer.u32(check);
        BlockBuffer::from_bytes(&writer.finish())
    }

    fn decode(bytes: Bytes) -> Result<Copy, CodecError> {
        let mut reader = Reader::new(bytes.clone());
        if reader.raw(MAGIC.len(), "magic")? != MAGIC[..] {
            return Ok(Copy::Nothing);
        }
        let version = reader.u32("format version")?;
        if version != FORMAT_VERSION {
            return Ok(Copy::OtherVersion(version));
        }
        let superblock = Self::decode_fields(&mut reader)?;
        let checked_bytes = bytes.len() - reader.remaining();
        let check = reader.u32("check")?;
        Ok(if crc32c(&bytes[..checked_bytes]) == check { Copy::Whole(superblock) } else { Copy::Nothing })
    }

    fn decode_fields(reader: &mut Reader) -> Result<Self, CodecError> {
        Ok(Superblock {
            store_id: reader.raw(16, "store id")?[..].try_into().expect("16 bytes were read"),
            generation: reader.u64("generation")?,
            device_bytes: reader.u64("device size")?,
            wal_bytes: reader.u64("WAL size")?,
            slot: reader.u8("slot")?,
            chunk_count: reader.u64("chunk count")?,
            incarnation: reader.u64("incarnation")?,
            wal_position: reader.u64("WAL position")?,
            wal_sequence: reader.u64("WAL sequence")?,
        })
    }

    /// Block where this generation is written.
    pub fn block(&self) -> u64 {
        self.generation % SUPERBLOCK_COPIES
    }

    /// Reads both copies and picks the newest whole one.
    pub fn load(disk: &mut dyn Disk) -> Result<Self, OpenError> {
        let mut newest: Option<Superblock> = None;
        let mut newer_version = None;
        for copy in 0..SUPERBLOCK_COPIES {
            let Ok(buffer) = read_blocks(disk, copy, 1) else { continue };
            match Superblock::decode(Bytes::from_owner(buffer)) {
                Ok(Copy::Whole(found)) => {
                    if newest.as_ref().is_none_or(|best| best.generation < found.generation) {
                        newest = Some(found);
                    }
                }
                Ok(Copy::OtherVersion(version)) => newer_version = Some(version),
                Ok(Copy::Nothing) | Err(_) => {}
            }
        }
        match (newest, newer_version) {
            // Even beside an older copy that is whole: its log has been trimmed by the newer release.
            (_, Some(version)) => Err(OpenError::Newer { version, supported: FORMAT_VERSION }),
            (Some(superblock), None) => superblock.validate(disk.size_bytes(Device::Data).unwrap_or(0)),
            (None, None) => Err(OpenError::NotAStore),
        }
    }

    fn validate(self, size_bytes: u64) -> Result<Self, OpenError> {
        if size_bytes < self.device_bytes {
            return Err(OpenError::Shrunk { size_bytes, formatted_bytes: self.device_bytes });
        }
        let layout = Layout::new(self.device_bytes, self.wal_bytes)?;
        if self.slot > 1 || self.wal_position >= layout.wal_blocks {
            let detail = "a position is outside its region".into();
            return Err(OpenError::Damaged { what: "the superblock", detail });
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample() -> Superblock {
        Superblock {
            store_id: [3; 16],
            generation: 9,
            device_bytes: 1 << 30,
            wal_bytes: 1 << 26,
            slot: 1,
            chunk_count: 4,
            incarnation: 2,
            wal_position: 77,
            wal_sequence: 1234,
        }
    }

    #[test]
    fn superblocks_round_trip_and_flips_are_noticed() {
        let encoded = sample().encode();
        let decoded = Superblock::decode(Bytes::copy_from_slice(encoded.as_slice())).unwrap();
        assert_eq!(decoded, Copy::Whole(sample()));
        for position in 12..89 {
            let mut flipped = encoded.clone();
            flipped.as_mut_slice()[position] ^= 1;
            assert_eq!(Superblock::decode(Bytes::from_owner(flipped)).unwrap(), Copy::Nothing, "{position}");
        }
    }

    proptest! {
        #[test]
        fn random_bytes_never_panic(bytes: Vec<u8>) {
            let _ = Superblock::decode(bytes.into());
        }
    }
}
