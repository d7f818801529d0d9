//! Where the write test writes: a file that has no name any more, or a block device that may be
//! overwritten.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use atoll_buffers::{BLOCK_BYTES, BlockBuffer};
use atoll_reactor::DirectFile;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{RngCore, SeedableRng};
use rustix::fs::OFlags;

use crate::facts::Facts;

/// Size of the area that the log's writes cycle through.
const SIZE_BYTES: u64 = 64 << 20;
const FILL_BLOCKS: usize = 256;

/// Opens without the page cache.
pub(super) fn direct_options() -> std::fs::OpenOptions {
    let mut options = File::options();
    options.custom_flags(OFlags::DIRECT.bits() as i32);
    options
}

/// A place that may be written, filled once.
pub(super) struct WriteTarget {
    file: File,
    size_bytes: u64,
    /// Keeps others from the block device.
    _claim: Option<DirectFile>,
}

impl WriteTarget {
    /// A new file in the directory (or beside the file), or the beginning of the block device.
    pub fn open(facts: &Facts, path: &Path, disk: Option<&str>, wipe: bool) -> io::Result<Self> {
        let metadata = path.metadata()?;
        let target = if metadata.file_type().is_block_device() {
            of_device(facts, path, disk, wipe)?
        } else if metadata.is_dir() {
            of_directory(path)?
        } else {
            of_directory(path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new(".")))?
        };
        target.fill()?;
        Ok(target)
    }

    pub fn file(&self) -> &File {
        &self.file
    }

    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// A file system that must allocate blocks inside a durable write would measure something else.
    fn fill(&self) -> io::Result<()> {
        // Nothing that a drive can compress.
        let mut random = Xoshiro256PlusPlus::seed_from_u64(1);
        let buffer = BlockBuffer::filled(FILL_BLOCKS, |_, block| random.fill_bytes(block));
        let mut offset = 0;
        while offset < self.size_bytes {
            let length = (self.size_bytes - offset).min(buffer.len() as u64);
            self.file.write_all_at(&buffer.as_slice()[..length as usize], offset)?;
            offset += length;
        }
        self.file.sync_all()
    }
}

fn of_device(facts: &Facts, path: &Path, disk: Option<&str>, wipe: bool) -> io::Result<WriteTarget> {
    if !wipe {
        let text = "its content would be lost; say --wipe if that is meant";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
    }
    let name = fs::canonicalize(path)?;
    // A whole disk may not be claimed by anybody although its partitions hold data.
    let is_whole = disk.is_some_and(|disk| name.ends_with(disk));
    if let Some(disk) = disk.filter(|_| is_whole) {
        let mut parts = facts.names(&format!("sys/block/{disk}"));
        parts.retain(|part| facts.exists(&format!("sys/block/{disk}/{part}/partition")));
        if !parts.is_empty() {
            let text =
                format!("it has partitions ({}); remove them first, or name an unused one", parts.join(", "));
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, text));
        }
    }
    let claim = DirectFile::open(path)?;
    let size_bytes = claim.size_bytes().min(SIZE_BYTES);
    let file = direct_options().write(true).open(path)?;
    Ok(WriteTarget { file, size_bytes, _claim: Some(claim) })
}

fn of_directory(directory: &Path) -> io::Result<WriteTarget> {
    let path: PathBuf = directory.join(format!(".atoll-preflight-{}", std::process::id()));
    let file = direct_options().read(true).write(true).create_new(true).open(&path);
    let file = file.map_err(|error| match error.kind() {
        io::ErrorKind::InvalidInput => io::Error::new(
            io::ErrorKind::Unsupported,
            "this file system does not support O_DIRECT (tmpfs and some network file systems do not); use ext4, XFS or a \
             block device",
        ),
        _ => error,
    })?;
    // Without a name it is gone when this process is, however that ends.
    fs::remove_file(&path)?;
    assert!(SIZE_BYTES.is_multiple_of(BLOCK_BYTES as u64), "the file has whole blocks");
    Ok(WriteTarget { file, size_bytes: SIZE_BYTES, _claim: None })
}
