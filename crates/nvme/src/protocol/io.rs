//! Commands of the NVM command set, checked (NVM Express Base Specification 1.4, section 6).

use std::ops::RangeInclusive;

use bytes::Bytes;

use super::command::{SubmissionEntry, nvm};
use super::pdu::{u32_at, u64_at};
use super::status::Status;
use super::types::{ByteRange, IMAGE_BLOCK_BYTES, LBA_BYTES, NAMESPACE_ID, Namespace};

const RANGE_BYTES: usize = 16;
/// Most ranges of one Dataset Management. Hosts send the room for all of them, however many there are.
const RANGES_MAX: usize = 256;

/// Bits of command dword 12 that may be set.
mod dword_12 {
    pub const LENGTH: u32 = 0xFFFF;
    pub const DEALLOCATE: u32 = 1 << 25;
    pub const FORCE_UNIT_ACCESS: u32 = 1 << 30;
    pub const LIMITED_RETRY: u32 = 1 << 31;
}
/// Dataset Management: the ranges are not needed.
const ATTRIBUTE_DEALLOCATE: u32 = 1 << 2;
/// All its attributes; the others are hints.
const ATTRIBUTES: u32 = 7;

/// Kinds of commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IoOperation {
    Read,
    Write,
    Flush,
    Compare,
    WriteZeroes,
    /// With the number of ranges, and whether anything is to be done with them.
    Trim {
        ranges: usize,
        deallocates: bool,
    },
}

/// A command before its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct IoCommand {
    pub operation: IoOperation,
    /// For operations on one range.
    pub range: ByteRange,
}

impl IoCommand {
    /// How many bytes of data may go from the host, or to it.
    pub fn data_bytes(&self) -> RangeInclusive<usize> {
        let exactly = |bytes| bytes..=bytes;
        match self.operation {
            IoOperation::Read | IoOperation::Write | IoOperation::Compare => exactly(self.range.length as usize),
            IoOperation::Trim { ranges, .. } => ranges * RANGE_BYTES..=RANGES_MAX * RANGE_BYTES,
            IoOperation::Flush | IoOperation::WriteZeroes => exactly(0),
        }
    }

    /// Reads a command. Unsupported commands are refused, also for a single flag.
    pub fn read(command: &SubmissionEntry, namespace: &Namespace, data_bytes_max: usize) -> Result<Self, Status> {
        let operation = match command.opcode() {
            nvm::FLUSH => IoOperation::Flush,
            nvm::WRITE => IoOperation::Write,
            nvm::READ => IoOperation::Read,
            nvm::COMPARE => IoOperation::Compare,
            nvm::WRITE_ZEROES => IoOperation::WriteZeroes,
            nvm::DATASET_MANAGEMENT => IoOperation::Trim {
                ranges: (command.dword(10) & 0xFF) as usize + 1,
                deallocates: command.dword(11) & ATTRIBUTE_DEALLOCATE != 0,
            },
            _ => return Err(Status::InvalidOpcode),
        };
        if command.namespace_id() != NAMESPACE_ID || namespace.is_gone {
            return Err(Status::InvalidNamespace);
        }
        if !namespace.is_accessible {
            return Err(Status::AnaInaccessible);
        }
        let changes =
            matches!(operation, IoOperation::Write | IoOperation::WriteZeroes | IoOperation::Trim { .. });
        if changes && namespace.is_read_only {
            return Err(Status::WriteProtected);
        }
        let range = match operation {
            IoOperation::Flush => ByteRange { offset: 0, length: 0 },
            IoOperation::Trim { .. } => {
                if command.dword(10) & !0xFF != 0 || command.dword(11) & !ATTRIBUTES != 0 {
                    return Err(Status::InvalidField);
                }
                ByteRange { offset: 0, length: 0 }
            }
            _ => {
                let extra = if operation == IoOperation::WriteZeroes { dword_12::DEALLOCATE } else { 0 };
                let known = dword_12::LENGTH | dword_12::FORCE_UNIT_ACCESS | dword_12::LIMITED_RETRY | extra;
                if command.dword(12) & !known != 0 {
                    return Err(Status::InvalidField);
                }
                let blocks = u64::from(command.dword(12) & dword_12::LENGTH) + 1;
                range_of(command.dwords(10), blocks, namespace)?
            }
        };
        let read = IoCommand { operation, range };
        if *read.data_bytes().end() > data_bytes_max {
            return Err(Status::InvalidField);
        }
        Ok(read)
    }

    /// Checks if it may be one half of compare-and-write, within the atomic size.
    pub fn check_atomic(&self) -> Result<(), Status> {
        let (first, last) = (self.range.offset, self.range.offset + self.range.length - 1);
        match first / IMAGE_BLOCK_BYTES == last / IMAGE_BLOCK_BYTES {
            true => Ok(()),
            false => Err(Status::AtomicWriteUnitExceeded),
        }
    }
}

/// Returns the ranges of Dataset Management, `count` of them. Empty ones are left out.
pub(super) fn ranges_of(data: &Bytes, count: usize, namespace: &Namespace) -> Result<Vec<ByteRange>, Status> {
    let ranges =
        data.chunks_exact(RANGE_BYTES).take(count).map(|range| (u64_at(range, 8), u64::from(u32_at(range, 4))));
    ranges.filter(|(_, blocks)| *blocks > 0).map(|(first, blocks)| range_of(first, blocks, namespace)).collect()
}

fn range_of(first: u64, blocks: u64, namespace: &Namespace) -> Result<ByteRange, Status> {
    let end = first.checked_add(blocks).filter(|end| *end <= namespace.size_bytes / LBA_BYTES);
    match end {
        Some(_) => Ok(ByteRange { offset: first * LBA_BYTES, length: blocks * LBA_BYTES }),
        None => Err(Status::LbaOutOfRange),
    }
}
