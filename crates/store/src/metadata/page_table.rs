//! Where every page is on the device: a radix tree of two levels of index blocks, whose top is in
//! the superblock. An index block holds `level u8 | 7 zeros | number u64`, then 510 locations
//! (`block u32 | crc u32`); the CRC is of the whole block referred to, so that a block which was
//! lost, misdirected or is out of date is noticed.

use std::collections::BTreeSet;
use std::sync::Arc;

use atoll_buffers::{BLOCK_BYTES, BlockBuffer};
use atoll_codec::crc32c;

use super::pages::{Location, Pages};
use crate::disk::{Device, Disk, DiskOperation, Segment, read_blocks};
use crate::error::OpenError;

const HEADER_BYTES: usize = 16;
pub(crate) const INDEX_ENTRIES: u32 = ((BLOCK_BYTES - HEADER_BYTES) / 8) as u32;
/// Index blocks of the upper level that a superblock can refer to.
pub(crate) const DIRECTORIES_MAX: usize = 480;
/// Most pages of a store.
pub(crate) const PAGES_MAX: u32 = DIRECTORIES_MAX as u32 * INDEX_ENTRIES * INDEX_ENTRIES;

/// The index blocks: where they are, and which are out of date.
#[derive(Default)]
pub(crate) struct PageTable {
    tables: Vec<Location>,
    directories: Vec<Location>,
    stale_tables: BTreeSet<u32>,
    stale_directories: BTreeSet<u32>,
}

fn encode(level: u8, number: u32, entries: impl Iterator<Item = Location>) -> BlockBuffer {
    let mut buffer = BlockBuffer::zeroed(1);
    let bytes = buffer.as_mut_slice();
    bytes[0] = level;
    bytes[8..12].copy_from_slice(&number.to_le_bytes());
    for (place, location) in bytes[HEADER_BYTES..].as_chunks_mut::<8>().0.iter_mut().zip(entries) {
        place[..4].copy_from_slice(&location.block.to_le_bytes());
        place[4..].copy_from_slice(&location.crc.to_le_bytes());
    }
    buffer
}

fn decode(buffer: &BlockBuffer, level: u8, number: u32, location: Location) -> Option<Vec<Location>> {
    let bytes = buffer.as_slice();
    let is_sound = crc32c(bytes) == location.crc && bytes[0] == level && bytes[8..12] == number.to_le_bytes();
    let entry = |bytes: &[u8; 8]| {
        let [a, b, c, d, crc @ ..] = *bytes;
        Location { block: u32::from_le_bytes([a, b, c, d]), crc: u32::from_le_bytes(crc) }
    };
    is_sound.then(|| bytes[HEADER_BYTES..].as_chunks::<8>().0.iter().map(entry).collect())
}

fn load_level(
    disk: &mut dyn Disk,
    level: u8,
    locations: &[Location],
    count: u32,
) -> Result<Vec<Location>, OpenError> {
    let mut entries = Vec::new();
    for (number, location) in (0..).zip(locations) {
        let wanted = (count - entries.len() as u32).min(INDEX_ENTRIES) as usize;
        if location.block == 0 {
            entries.resize(entries.len() + wanted, Location::default());
            continue;
        }
        let buffer = read_blocks(disk, u64::from(location.block), 1)?;
        let found = decode(&buffer, level, number, *location).ok_or_else(|| OpenError::Damaged {
            what: "the page table",
            detail: format!("index block {number} of level {level} does not check"),
        })?;
        entries.extend_from_slice(&found[..wanted]);
    }
    Ok(entries)
}

/// Gives every page below the directories to `change` and makes all checksums fit the result, for tests
/// of damage that no checksum finds. Returns the changed directories.
pub(crate) fn rewrite(
    disk: &mut dyn Disk,
    directories: &[Location],
    change: &mut dyn FnMut(&mut [u8]),
) -> Option<Vec<Location>> {
    directories.iter().map(|location| rewrite_below(disk, 2, *location, change)).collect()
}

fn rewrite_below(
    disk: &mut dyn Disk,
    level: u8,
    location: Location,
    change: &mut dyn FnMut(&mut [u8]),
) -> Option<Location> {
    if location.block == 0 {
        return Some(location);
    }
    let mut buffer = read_blocks(disk, location.block.into(), 1).ok()?;
    if level == 0 {
        change(buffer.as_mut_slice());
    } else {
        for place in buffer.as_mut_slice()[HEADER_BYTES..].as_chunks_mut::<8>().0 {
            let [a, b, c, d, ..] = *place;
            let below = Location { block: u32::from_le_bytes([a, b, c, d]), crc: 0 };
            let below = rewrite_below(disk, level - 1, below, change)?;
            place[4..].copy_from_slice(&below.crc.to_le_bytes());
        }
    }
    let crc = crc32c(buffer.as_slice());
    let segments = vec![Segment { buffer: Arc::new(buffer), first_block: 0, block_count: 1 }];
    let offset = u64::from(location.block) * BLOCK_BYTES as u64;
    disk.execute(Device::Data, DiskOperation::Write { offset, segments, durable: true }).ok()?;
    Some(Location { crc, ..location })
}

impl PageTable {
    /// Loads the table with `page_count` pages.
    pub fn load(
        disk: &mut dyn Disk,
        page_count: u32,
        directories: &[Location],
    ) -> Result<(Self, Pages), OpenError> {
        let table_count = page_count.div_ceil(INDEX_ENTRIES);
        let tables = load_level(disk, 2, directories, table_count)?;
        let locations = load_level(disk, 1, &tables, page_count)?;
        if tables.len() != table_count as usize || locations.len() != page_count as usize {
            let detail = format!("it has {} pages instead of {page_count}", locations.len());
            return Err(OpenError::Damaged { what: "the page table", detail });
        }
        let mut pages = Pages::new();
        locations.into_iter().for_each(|location| pages.add(location));
        let table = PageTable { tables, directories: directories.to_vec(), ..PageTable::default() };
        Ok((table, pages))
    }

    /// The blocks that the index itself takes.
    pub fn blocks(&self) -> impl Iterator<Item = u32> + '_ {
        self.tables.iter().chain(&self.directories).map(|location| location.block).filter(|&block| block != 0)
    }

    pub fn directories(&self) -> &[Location] {
        &self.directories
    }

    /// A page has moved.
    pub fn page_moved(&mut self, number: u32) {
        self.stale_tables.insert(number / INDEX_ENTRIES);
    }

    /// Returns true if index blocks must be written.
    pub fn is_stale(&self) -> bool {
        !self.stale_tables.is_empty() || !self.stale_directories.is_empty()
    }

    /// The next index block that must be written, lower level first. It goes to `block`; the place
    /// that it had before is returned with it, 0 if it had none.
    pub fn write_next(&mut self, pages: &Pages, block: u32) -> (BlockBuffer, u32) {
        let place = |locations: &mut Vec<Location>, number: u32| {
            if locations.len() <= number as usize {
                locations.resize(number as usize + 1, Location::default());
            }
        };
        if let Some(number) = self.stale_tables.pop_first() {
            let first = number * INDEX_ENTRIES;
            let end = (first + INDEX_ENTRIES).min(pages.count());
            let buffer = encode(1, number, (first..end).map(|page| pages.location(page)));
            place(&mut self.tables, number);
            self.stale_directories.insert(number / INDEX_ENTRIES);
            let new = Location { block, crc: crc32c(buffer.as_slice()) };
            let old = std::mem::replace(&mut self.tables[number as usize], new);
            return (buffer, old.block);
        }
        let number = self.stale_directories.pop_first().expect("the caller asked whether there is one");
        let first = (number * INDEX_ENTRIES) as usize;
        let end = (first + INDEX_ENTRIES as usize).min(self.tables.len());
        let buffer = encode(2, number, self.tables[first..end].iter().copied());
        place(&mut self.directories, number);
        let new = Location { block, crc: crc32c(buffer.as_slice()) };
        let old = std::mem::replace(&mut self.directories[number as usize], new);
        (buffer, old.block)
    }
}
