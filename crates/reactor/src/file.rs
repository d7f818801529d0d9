//! Files and block devices opened with `O_DIRECT`.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use atoll_base::BlockBuffer;

/// A file or block device that bypasses the page cache. Offsets and lengths are whole blocks.
pub struct DirectFile {
    file: File,
    size_bytes: u64,
}

impl DirectFile {
    /// Opens an existing file or block device for reading and writing and takes an exclusive lock
    /// on it, so that no second process uses it at the same time.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = File::options().read(true).write(true).custom_flags(libc::O_DIRECT).open(path)?;
        file.try_lock().map_err(|error| match error {
            std::fs::TryLockError::WouldBlock => {
                io::Error::new(io::ErrorKind::ResourceBusy, "another process uses this device")
            }
            std::fs::TryLockError::Error(error) => error,
        })?;
        let size_bytes = io::Seek::seek(&mut &file, io::SeekFrom::End(0))?;
        Ok(DirectFile { file, size_bytes })
    }

    /// Size in bytes when it was opened.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Reads blocks and waits for them.
    pub fn read_at(&self, offset: u64, block_count: usize) -> io::Result<BlockBuffer> {
        let mut buffer = BlockBuffer::zeroed(block_count);
        self.file.read_exact_at(buffer.as_mut_slice(), offset)?;
        Ok(buffer)
    }

    /// Writes block-aligned bytes and waits for the write, not for durability.
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, offset)
    }

    /// Waits until everything written is durable.
    pub fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}

impl AsRawFd for DirectFile {
    fn as_raw_fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }
}
