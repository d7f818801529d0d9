//! The superblock: the store's id, where its newest checkpoint is and where the log begins. There
//! are two copies; each checkpoint overwrites the older one, so one is always whole. A log on a
//! device of its own begins with a mark that says which store it belongs to.

use std::sync::Arc;

use atoll_buffers::{BLOCK_BYTES, BlockBuffer};
use atoll_codec::{CodecError, Reader, Writer, crc32c};
use bytes::Bytes;

use crate::disk::{Device, Disk, DiskOperation, Segment, read_blocks, read_log_blocks};
use crate::error::OpenError;
use crate::layout::{Layout, SUPERBLOCK_COPIES};
use crate::log::record::counter;
use crate::metadata::Location;
use crate::metadata::page_table::{DIRECTORIES_MAX, PAGES_MAX, rewrite};

pub(crate) const FORMAT_VERSION: u32 = 4;
/// The oldest version that is read. Version 2 has no counts of pools; before version 4 no log entry has the
/// committed sequence, and no superblock has damage.
const FORMAT_VERSION_MIN: u32 = 2;
/// The first version whose superblock has damage.
const FORMAT_VERSION_DAMAGE: u32 = 4;
/// Longest description of damage, in bytes.
pub(crate) const DAMAGE_BYTES_MAX: usize = 256;
const MAGIC: &[u8; 8] = b"ATOLSTOR";
const LOG_MAGIC: &[u8; 8] = b"ATOLWAL2";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Superblock {
    pub store_id: [u8; 16],
    /// Raised by every checkpoint; the copy with the higher one is in force.
    pub generation: u64,
    pub device_bytes: u64,
    pub wal_bytes: u64,
    /// True if the log is on a device of its own.
    pub wal_is_apart: bool,
    /// Number of metadata pages, and where the top of their table is.
    pub page_count: u32,
    pub directories: Vec<Location>,
    pub object_count: u64,
    /// Raised at every opening; log records of other incarnations are not replayed.
    pub incarnation: u64,
    /// Ring position (in blocks) and number of the first record to replay.
    pub wal_position: u64,
    pub wal_sequence: u64,
    /// Damage of the metadata that was found while the store was in use; empty without damage.
    pub damage: String,
}

/// Content of one of the two places.
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
        writer.u8(u8::from(self.wal_is_apart));
        writer.u64(self.incarnation);
        writer.u64(self.wal_position);
        writer.u64(self.wal_sequence);
        writer.u64(self.object_count);
        writer.u32(self.page_count);
        writer.u32(self.directories.len() as u32);
        for location in &self.directories {
            writer.u32(location.block);
            writer.u32(location.crc);
        }
        writer.bytes(self.damage.as_bytes());
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
        if !(FORMAT_VERSION_MIN..=FORMAT_VERSION).contains(&version) {
            return Ok(Copy::OtherVersion(version));
        }
        let superblock = Self::decode_fields(&mut reader, version)?;
        let checked_bytes = bytes.len() - reader.remaining();
        let check = reader.u32("check")?;
        Ok(if crc32c(&bytes[..checked_bytes]) == check { Copy::Whole(superblock) } else { Copy::Nothing })
    }

    fn decode_fields(reader: &mut Reader, version: u32) -> Result<Self, CodecError> {
        let mut superblock = Superblock {
            store_id: reader.raw(16, "store id")?[..].try_into().expect("16 bytes were read"),
            generation: counter(reader.u64("generation")?, "generation")?,
            device_bytes: reader.u64("device size")?,
            wal_bytes: reader.u64("WAL size")?,
            wal_is_apart: reader.u8("log device")? != 0,
            incarnation: reader.u64("incarnation")?,
            wal_position: reader.u64("WAL position")?,
            wal_sequence: counter(reader.u64("WAL sequence")?, "WAL sequence")?,
            object_count: reader.u64("object count")?,
            page_count: reader.u32("page count")?,
            directories: Vec::new(),
            damage: String::new(),
        };
        for _ in 0..reader.count(DIRECTORIES_MAX, "directories")? {
            let block = reader.u32("directory block")?;
            superblock.directories.push(Location { block, crc: reader.u32("directory check")? });
        }
        if version >= FORMAT_VERSION_DAMAGE {
            superblock.damage = reader.text(DAMAGE_BYTES_MAX, "damage")?;
        }
        Ok(superblock)
    }

    /// Decodes bytes whose check is made to fit.
    pub fn fuzz(bytes: &[u8]) {
        let mut bytes = bytes.to_vec();
        let mut reader = Reader::new(Bytes::copy_from_slice(&bytes));
        let version = reader.raw(MAGIC.len(), "magic").and_then(|_| reader.u32("format version"));
        if version.is_ok_and(|version| Self::decode_fields(&mut reader, version).is_ok()) {
            let end = bytes.len() - reader.remaining();
            let check = crc32c(&bytes[..end]);
            if let Some(place) = bytes.get_mut(end..end + 4) {
                place.copy_from_slice(&check.to_le_bytes());
            }
        }
        if let Ok(Copy::Whole(superblock)) = Self::decode(bytes.into())
            && let Ok(superblock) = superblock.validate(u64::MAX)
        {
            drop(superblock.encode());
        }
    }

    /// Changes pages of a store's metadata: see `fuzz::rewrite_pages`.
    pub fn rewrite_pages(disk: &mut dyn Disk, change: &mut dyn FnMut(&mut [u8])) -> Option<()> {
        let mut superblock = Superblock::load(disk).ok()?;
        superblock.directories = rewrite(disk, &superblock.directories, change)?;
        let segment = Segment { buffer: Arc::new(superblock.encode()), first_block: 0, block_count: 1 };
        let offset = superblock.block() * BLOCK_BYTES as u64;
        let write = DiskOperation::Write { offset, segments: vec![segment], durable: true };
        disk.execute(Device::Data, write).ok().map(drop)
    }

    /// Returns true if a block is a superblock.
    pub fn is_one(block: &Bytes) -> bool {
        matches!(Self::decode(block.clone()), Ok(Copy::Whole(_)))
    }

    /// Block where this generation is written.
    pub fn block(&self) -> u64 {
        self.generation % SUPERBLOCK_COPIES
    }

    /// Both copies, as far as they are whole.
    pub fn copies(disk: &mut dyn Disk) -> [Option<Self>; SUPERBLOCK_COPIES as usize] {
        std::array::from_fn(|copy| {
            let buffer = read_blocks(disk, copy as u64, 1).ok()?;
            match Superblock::decode(Bytes::from_owner(buffer)) {
                Ok(Copy::Whole(found)) => Some(found),
                _ => None,
            }
        })
    }

    /// Reads both copies and picks the newest whole one.
    pub fn load(disk: &mut dyn Disk) -> Result<Self, OpenError> {
        let mut newest: Option<Superblock> = None;
        let (mut other_version, mut unreadable) = (None, None);
        for copy in 0..SUPERBLOCK_COPIES {
            let buffer = match read_blocks(disk, copy, 1) {
                Ok(buffer) => buffer,
                Err(error) => {
                    unreadable = Some(error);
                    continue;
                }
            };
            match Superblock::decode(Bytes::from_owner(buffer)) {
                Ok(Copy::Whole(found)) => {
                    if newest.as_ref().is_none_or(|best| best.generation < found.generation) {
                        newest = Some(found);
                    }
                }
                Ok(Copy::OtherVersion(version)) => other_version = Some(version),
                Ok(Copy::Nothing) | Err(_) => {}
            }
        }
        match (newest, other_version) {
            // Even beside an older copy that is whole: its log has been trimmed by the other release.
            (_, Some(version)) => Err(OpenError::OtherVersion { version, supported: FORMAT_VERSION }),
            (Some(superblock), None) => superblock.validate(disk.size_bytes(Device::Data).unwrap_or(0)),
            // There may be a store where nothing can be read.
            (None, None) => Err(unreadable.map_or(OpenError::NotAStore, OpenError::Io)),
        }
    }

    fn validate(self, size_bytes: u64) -> Result<Self, OpenError> {
        if size_bytes < self.device_bytes {
            return Err(OpenError::Shrunk { size_bytes, formatted_bytes: self.device_bytes });
        }
        let layout = Layout::new(self.device_bytes, self.wal_bytes, self.wal_is_apart)?;
        let is_inside = |location: &Location| u64::from(location.block) < layout.data_start + layout.data_blocks;
        let has_room = self.page_count <= PAGES_MAX;
        if self.wal_position >= layout.wal_blocks || !self.directories.iter().all(is_inside) || !has_room {
            let detail = "a position is outside its region".into();
            return Err(OpenError::Damaged { what: "the superblock", detail });
        }
        Ok(self)
    }
}

/// The first block of a log on a device of its own.
pub(crate) fn encode_log_mark(store_id: [u8; 16]) -> BlockBuffer {
    BlockBuffer::from_bytes(&[&LOG_MAGIC[..], &store_id].concat())
}

/// Checks that the log device belongs to the store.
pub(crate) fn check_log_mark(disk: &mut dyn Disk, superblock: &Superblock) -> Result<(), OpenError> {
    let wrong = |detail: &str| Err(OpenError::WrongLogDevice { detail: detail.into() });
    let Some(size_bytes) = disk.size_bytes(Device::Log) else { return wrong("no log device was given") };
    if size_bytes < superblock.wal_bytes.saturating_add(BLOCK_BYTES as u64) {
        return wrong("the device is smaller than the log");
    }
    let block = read_log_blocks(disk, 0, 1)?;
    if block.as_slice() != encode_log_mark(superblock.store_id).as_slice() {
        return wrong("the device does not hold the log of this store");
    }
    Ok(())
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
            wal_is_apart: true,
            page_count: 4,
            directories: vec![Location { block: 5, crc: 6 }],
            object_count: 3,
            incarnation: 2,
            wal_position: 77,
            wal_sequence: 1234,
            damage: "page 7 is damaged".into(),
        }
    }

    #[test]
    fn superblocks_round_trip_and_flips_are_noticed() {
        let encoded = sample().encode();
        let decoded = Superblock::decode(Bytes::copy_from_slice(encoded.as_slice())).unwrap();
        assert_eq!(decoded, Copy::Whole(sample()));
        for position in 12..105 {
            let mut flipped = encoded.clone();
            flipped.as_mut_slice()[position] ^= 1;
            let found = Superblock::decode(Bytes::from_owner(flipped));
            assert!(!matches!(found, Ok(Copy::Whole(_))), "{position}");
        }
    }

    proptest! {
        #[test]
        fn random_bytes_never_panic(bytes: Vec<u8>) {
            let _ = Superblock::decode(bytes.into());
        }
    }
}
