//! Files and block devices opened with `O_DIRECT`.

use std::fs::{File, FileType};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::Path;

use atoll_buffers::{BLOCK_BYTES, BlockBuffer};
use bytes::Bytes;

use crate::at_rest::{AtRest, SectorCipher};
use crate::reactor::FilePieces;

/// Sector sizes that a block device may have, in bytes: the usual ones, and both divide a block.
const SECTOR_BYTES_KNOWN: [libc::c_int; 2] = [512, 4096];

/// Asks whether a block device is read-only, `_IO(0x12, 94)`; the libc crate does not have it.
const BLKROGET: libc::Ioctl = 0x125e;

/// Flags that free blocks: a device zeroes them by deallocation, if it can, and refuses otherwise.
pub(crate) const PUNCH: libc::c_int = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;

const READ_ONLY: &str = "it is read-only; make it writable ('blockdev --setrw' for a device) or name another";

/// A file or block device that bypasses the page cache. Offsets and lengths are whole blocks.
///
/// With a cipher ([`DirectFile::with_cipher`]) it encrypts and decrypts on the way, here and in the
/// ring: this is the only place that does. Offsets then count from the first byte of data.
pub struct DirectFile {
    file: File,
    size_bytes: u64,
    at_rest: Option<AtRest>,
}

impl DirectFile {
    /// Opens an existing file or block device for reading and writing and takes it for this process alone: with a
    /// lock, and a block device also against mounting, LVM and the like. The error contains the reason and the
    /// remedy; a file in use is [`io::ErrorKind::ResourceBusy`].
    pub fn open(path: &Path) -> io::Result<Self> {
        let kind = file_type(path)?;
        // Without O_CREAT, O_EXCL has a meaning for block devices only: nobody else claims it.
        let exclusive = if kind.is_block_device() { libc::O_EXCL } else { 0 };
        let mut options = File::options();
        options.read(true).write(true).custom_flags(libc::O_DIRECT | exclusive);
        let file = options.open(path).map_err(explain_open)?;
        file.try_lock().map_err(|error| match error {
            std::fs::TryLockError::WouldBlock => {
                let text = "another process uses this device, or one has ended whose requests the device has not completed; \
                            end that process, or wait for the device";
                io::Error::new(io::ErrorKind::ResourceBusy, text)
            }
            std::fs::TryLockError::Error(error) => error,
        })?;
        let whole_bytes = io::Seek::seek(&mut &file, io::SeekFrom::End(0))?;
        let size_bytes = whole_bytes / BLOCK_BYTES as u64 * BLOCK_BYTES as u64;
        if kind.is_block_device() {
            refuse_unusable(&file, size_bytes)?;
        }
        Ok(DirectFile { file, size_bytes, at_rest: None })
    }

    /// The same file with encryption: data begins `data_offset` bytes (whole blocks) from its
    /// start, and everything read and written from now on goes through the cipher.
    pub fn with_cipher(mut self, cipher: Box<dyn SectorCipher>, data_offset: u64) -> Self {
        assert!(data_offset.is_multiple_of(BLOCK_BYTES as u64), "data begins at a block");
        assert!(self.at_rest.is_none(), "a file has one cipher");
        self.at_rest = Some(AtRest::new(cipher, data_offset));
        self
    }

    /// Returns true if it encrypts.
    pub fn is_encrypted(&self) -> bool {
        self.at_rest.is_some()
    }

    /// Size in bytes when it was opened, whole blocks, without the header before encrypted data.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes.saturating_sub(self.device_offset(0))
    }

    /// Reads blocks and waits for them.
    pub fn read_at(&self, offset: u64, block_count: usize) -> io::Result<BlockBuffer> {
        let mut buffer = BlockBuffer::zeroed(block_count);
        self.file.read_exact_at(buffer.as_mut_slice(), self.device_offset(offset))?;
        self.open_read(offset, &mut buffer);
        Ok(buffer)
    }

    /// Writes block-aligned bytes and waits for the write, not for durability.
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        match &self.at_rest {
            None => self.file.write_all_at(bytes, offset),
            Some(at_rest) => {
                let sealed = at_rest.seal(offset, bytes);
                self.file.write_all_at(sealed.as_slice(), self.device_offset(offset))
            }
        }
    }

    /// Frees blocks, and waits for that: a hole in a file, TRIM on a device.
    pub fn discard(&self, offset: u64, block_count: usize) -> io::Result<()> {
        let length_bytes = (block_count * BLOCK_BYTES) as libc::off_t;
        let offset = self.device_offset(offset) as libc::off_t;
        // SAFETY: the call takes no memory, and the descriptor is open as long as `self` exists.
        let result = unsafe { libc::fallocate(self.file.as_raw_fd(), PUNCH, offset, length_bytes) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Bytes that the file takes on its file system; none for a block device, which has all its own.
    pub fn allocated_bytes(&self) -> Option<u64> {
        let metadata = self.file.metadata().ok()?;
        metadata.is_file().then(|| std::os::unix::fs::MetadataExt::blocks(&metadata) * 512)
    }

    /// Waits until everything written is durable.
    pub fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    /// Where an offset of the caller's is on the device.
    pub(crate) fn device_offset(&self, offset: u64) -> u64 {
        offset + self.at_rest.as_ref().map_or(0, AtRest::data_offset)
    }

    /// Returns the pieces to submit for a write.
    pub(crate) fn seal_write(&self, offset: u64, pieces: FilePieces) -> FilePieces {
        match &self.at_rest {
            None => pieces,
            Some(at_rest) => at_rest.seal_pieces(offset, &pieces),
        }
    }

    /// Returns the bytes to submit for a write: sealed, and aligned for `O_DIRECT`.
    pub(crate) fn seal_bytes(&self, offset: u64, bytes: Bytes) -> Bytes {
        match &self.at_rest {
            Some(at_rest) => Bytes::from_owner(at_rest.seal(offset, &bytes)),
            None if bytes.as_ptr().addr().is_multiple_of(BLOCK_BYTES) => bytes,
            None => Bytes::from_owner(BlockBuffer::from_bytes(&bytes)),
        }
    }

    /// Decrypts data read from the device.
    pub(crate) fn open_read(&self, offset: u64, buffer: &mut BlockBuffer) {
        if let Some(at_rest) = &self.at_rest {
            at_rest.open(offset, buffer);
        }
    }
}

impl AsRawFd for DirectFile {
    fn as_raw_fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }
}

/// Looks before opening: merely opening a pipe or a terminal may block or change something.
fn file_type(path: &Path) -> io::Result<FileType> {
    let kind = std::fs::metadata(path)?.file_type();
    if kind.is_file() || kind.is_block_device() {
        return Ok(kind);
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, "it is neither a file nor a block device; name one of these"))
}

fn explain_open(error: io::Error) -> io::Error {
    let text = match error.raw_os_error() {
        Some(libc::EBUSY) => {
            "it is in use (mounted, swap, or claimed by LVM, mdraid, dm-crypt or another process, or it has not completed \
             requests of one that has ended); end that use first, or wait for the device"
        }
        Some(libc::EROFS) => READ_ONLY,
        Some(libc::EACCES | libc::EPERM) => {
            "permission denied; run this as root, or as a user who may read and write it (or the device is read-only)"
        }
        Some(libc::EINVAL) => {
            "its file system does not support O_DIRECT (tmpfs and some network file systems do not); use ext4, XFS or \
             a block device"
        }
        _ => return error,
    };
    io::Error::new(error.kind(), text)
}

fn refuse_unusable(device: &File, size_bytes: u64) -> io::Result<()> {
    if size_bytes == 0 {
        return Err(io::Error::new(io::ErrorKind::NotFound, "there is no disk behind it; its size is 0"));
    }
    // Many drivers let a read-only device be opened for writing and fail the first write.
    if device_setting(device, BLKROGET)? != 0 {
        return Err(io::Error::new(io::ErrorKind::ReadOnlyFilesystem, READ_ONLY));
    }
    let sector_bytes = device_setting(device, libc::BLKSSZGET)?;
    if !SECTOR_BYTES_KNOWN.contains(&sector_bytes) {
        let text = format!(
            "its logical sectors have {sector_bytes} bytes; Atoll uses devices with sectors of 512 or 4096 bytes; \
             format the device to one of these or name another"
        );
        return Err(io::Error::new(io::ErrorKind::Unsupported, text));
    }
    Ok(())
}

/// Asks a block device for one of its settings that are an int.
fn device_setting(device: &File, request: libc::Ioctl) -> io::Result<libc::c_int> {
    let mut value: libc::c_int = 0;
    // SAFETY: the two requests that are used write one int to the address that they are given,
    // which lives through the call; the descriptor is open as long as `device` exists.
    let result = unsafe { libc::ioctl(device.as_raw_fd(), request, &raw mut value) };
    if result == 0 { Ok(value) } else { Err(io::Error::last_os_error()) }
}
