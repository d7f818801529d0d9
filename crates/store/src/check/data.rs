//! Reading the data of all objects and comparing it with its checksums.

use std::io;

use atoll_buffers::{BLOCK_BYTES, BlockBuffer};
use atoll_codec::crc32c;

use super::entries::Reference;
use super::problem::{BytePlace, Problem, Problems};
use crate::disk::{Device, Disk, read_device};
use crate::layout::Layout;
use crate::metadata::ObjectKey;
use crate::overlay::{Home, Overlay};

/// Blocks in one read.
const RUN_BLOCKS: usize = 256;

/// Where the newest bytes of a block are to be read.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Source {
    place: BytePlace,
    block: u64,
}

struct Expected {
    object: ObjectKey,
    index: usize,
    crc: u32,
}

/// Gathers blocks that lie one after the other, to read them at once.
pub(super) struct DataReader<'a> {
    layout: Layout,
    overlay: &'a Overlay,
    /// Where the first of the gathered blocks is.
    first: Source,
    gathered: Vec<Expected>,
    pub block_count: u64,
}

impl<'a> DataReader<'a> {
    pub fn new(layout: Layout, overlay: &'a Overlay) -> Self {
        let first = Source { place: BytePlace::Data, block: 0 };
        DataReader { layout, overlay, first, gathered: Vec::new(), block_count: 0 }
    }

    /// Checks a block, now or later.
    pub fn take(&mut self, disk: &mut dyn Disk, reference: &Reference, problems: &mut Problems) {
        self.block_count += 1;
        let mut source = Source { place: BytePlace::Data, block: u64::from(reference.device_block) };
        if let Some(pending) = self.overlay.get(reference.device_block)
            && let Home::Log { block, .. } = pending.home
        {
            source = Source { place: BytePlace::Log, block };
        }
        let follows = self.first.place == source.place
            && self.first.block + self.gathered.len() as u64 == source.block
            && self.gathered.len() < RUN_BLOCKS;
        if !follows {
            self.finish(disk, problems);
            self.first = source;
        }
        let object = reference.object.clone();
        self.gathered.push(Expected { object, index: reference.index, crc: reference.crc });
    }

    /// Checks the gathered blocks.
    pub fn finish(&mut self, disk: &mut dyn Disk, problems: &mut Problems) {
        let gathered = std::mem::take(&mut self.gathered);
        let buffer = self.read(disk, 0, gathered.len());
        for (position, expected) in gathered.into_iter().enumerate() {
            let bytes = match &buffer {
                Ok(buffer) => Ok(buffer.as_slice()[position * BLOCK_BYTES..][..BLOCK_BYTES].to_vec()),
                // One bad sector must not hide the state of its neighbours.
                Err(_) => self.read(disk, position, 1).map(|buffer| buffer.as_slice().to_vec()),
            };
            let detail = match bytes {
                Ok(bytes) if crc32c(&bytes) == expected.crc => continue,
                Ok(_) => "do not fit their checksum".into(),
                Err(error) => format!("cannot be read: {error}"),
            };
            let block = self.first.block + position as u64;
            let Expected { object, index, .. } = expected;
            problems.add(Problem::RottenBlock { object, index, place: self.first.place, block, detail });
        }
    }

    /// Reads gathered blocks from the one at `position` on.
    fn read(&self, disk: &mut dyn Disk, position: usize, count: usize) -> io::Result<BlockBuffer> {
        if count == 0 {
            return Ok(BlockBuffer::default());
        }
        let (device, start) = match self.first.place {
            BytePlace::Data => (Device::Data, 0),
            BytePlace::Log => (self.layout.wal_device, self.layout.wal_start),
        };
        read_device(disk, device, start + self.first.block + position as u64, count)
    }
}
