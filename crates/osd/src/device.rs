//! A store's device: blocking before the loop runs, through the ring afterwards. The load generator
//! that measures a store alone uses it in the same way as the OSD.

use std::io;
use std::path::Path;

use atoll_reactor::{DirectFile, FileOperation};
use atoll_store::{
    Device, Disk, DiskOperation, DiskResult, FormatOptions, MemoryMetadata, OpenError, Segment, Store,
};

/// A device before it is handed to the loop.
pub struct BlockingDevice<'a> {
    file: &'a DirectFile,
    size_bytes: u64,
}

impl<'a> BlockingDevice<'a> {
    /// The whole of an open file or block device.
    pub fn new(file: &'a DirectFile) -> Self {
        BlockingDevice { file, size_bytes: file.size_bytes() }
    }

    /// No more than the first `size_bytes` of it.
    pub fn first_bytes(file: &'a DirectFile, size_bytes: u64) -> Self {
        BlockingDevice { file, size_bytes: size_bytes.min(file.size_bytes()) }
    }
}

impl Disk for BlockingDevice<'_> {
    fn size_bytes(&self, device: Device) -> Option<u64> {
        (device == Device::Data).then_some(self.size_bytes)
    }

    fn execute(&mut self, _device: Device, operation: DiskOperation) -> DiskResult {
        match operation {
            DiskOperation::Read { offset, block_count } => self.file.read_at(offset, block_count).map(Some),
            DiskOperation::Write { offset, segments, durable } => {
                let mut offset = offset;
                for segment in &segments {
                    self.file.write_at(offset, segment.bytes())?;
                    offset += segment.bytes().len() as u64;
                }
                if durable {
                    self.file.sync()?;
                }
                Ok(None)
            }
            DiskOperation::Sync => self.file.sync().map(|()| None),
        }
    }
}

/// The store's request in the reactor's terms.
pub fn file_operation(operation: DiskOperation) -> FileOperation {
    match operation {
        DiskOperation::Read { offset, block_count } => FileOperation::Read { offset, block_count },
        DiskOperation::Write { offset, segments, durable } => {
            let piece = |segment: Segment| (segment.buffer, segment.first_block, segment.block_count);
            FileOperation::Write { offset, pieces: segments.into_iter().map(piece).collect(), durable }
        }
        DiskOperation::Sync => FileOperation::Sync,
    }
}

/// Makes a file of `size_bytes` (if there is none) and an empty store in it. A file that holds
/// anything is refused.
pub fn format_device(path: &Path, size_bytes: u64, wal_bytes: u64, store_id: [u8; 16]) -> Result<(), OpenError> {
    let file = std::fs::File::options().write(true).create_new(true).open(path)?;
    file.set_len(size_bytes)?;
    file.sync_all()?;
    drop(file);
    let direct = open_device(path)?;
    let options = FormatOptions { store_id, wal_bytes };
    Store::<MemoryMetadata>::format(&mut BlockingDevice::new(&direct), options)
}

/// Opens a file or block device for a store.
pub fn open_device(path: &Path) -> io::Result<DirectFile> {
    DirectFile::open(path).map_err(explain_direct_io)
}

/// `O_DIRECT` is not possible on every file system; say so.
fn explain_direct_io(error: io::Error) -> io::Error {
    if error.raw_os_error() == Some(22) {
        return io::Error::other(
            "the file system does not support O_DIRECT (tmpfs and some network file systems do not); put the data \
             directory on ext4, XFS or a block device",
        );
    }
    error
}
