//! Entry points for fuzzing: everything that decodes bytes of a device. Checksums would reject nearly every input,
//! so they are made to fit; decoded values are then used as the store would use them.

use std::sync::Arc;

use atoll_buffers::{BLOCK_BYTES, BlockBuffer};
use atoll_codec::crc32c;
use bytes::Bytes;

use crate::disk::Disk;
use crate::log::record::{HEADER_BYTES, RecordHeader};
use crate::metadata::{Chunk, ObjectInfo, fuzz_page, keys};
use crate::superblock::Superblock;

/// Gives the bytes to the decoder that the first of them names.
pub fn decode(input: &[u8]) {
    let Some((&choice, bytes)) = input.split_first() else { return };
    match choice % 5 {
        0 => Superblock::fuzz(bytes),
        1 => wal_record(bytes),
        2 => fuzz_page(bytes),
        3 => drop((ObjectInfo::decode(bytes), Chunk::decode(bytes).map(|chunk| chunk.encode()))),
        _ => drop((keys::parse_object(bytes), keys::parse_pg(bytes), keys::parse_shared(bytes))),
    }
}

fn wal_record(bytes: &[u8]) {
    const MAGIC_AND_CHECK: usize = 8;
    let mut record = BlockBuffer::from_bytes(bytes);
    let Some(header) = RecordHeader::parse(record.as_slice()) else { return };
    // The store reads as many blocks as the header says.
    let mut whole = BlockBuffer::zeroed(header.blocks() as usize);
    let common = whole.len().min(record.len());
    whole.as_mut_slice()[..common].copy_from_slice(&record.as_slice()[..common]);
    std::mem::swap(&mut record, &mut whole);
    let end = (HEADER_BYTES + header.text_bytes).min(record.len());
    let check = crc32c(&record.as_slice()[MAGIC_AND_CHECK..end]);
    record.as_mut_slice()[4..MAGIC_AND_CHECK].copy_from_slice(&check.to_le_bytes());
    if let Some(header) = RecordHeader::parse(record.as_slice()) {
        drop(header.decode(&Arc::new(record)));
    }
}

/// Gives every metadata page to `change` and makes all checksums fit, up to the superblock's: then nothing
/// but the store's own checks stands between it and metadata that makes no sense. `None` if there is no
/// store, or a block cannot be read.
pub fn rewrite_pages(disk: &mut dyn Disk, change: &mut dyn FnMut(&mut [u8])) -> Option<()> {
    Superblock::rewrite_pages(disk, change)
}

/// Samples of valid input for [`decode`]: superblocks, records and pages found on a device.
pub fn samples_of(block: &[u8; BLOCK_BYTES]) -> Vec<u8> {
    let is_record = RecordHeader::parse(block).is_some();
    let choice = if is_record {
        1
    } else if Superblock::is_one(&Bytes::copy_from_slice(block)) {
        0
    } else {
        2
    };
    [&[choice], &block[..]].concat()
}
