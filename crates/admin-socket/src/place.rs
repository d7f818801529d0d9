//! Where a socket is. A path may be longer than a socket's address, so it is reached through its open directory.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// A directory that is open, and a name in it.
pub(crate) struct Place {
    /// The address below holds only while this is open.
    _directory: File,
    /// Short, whatever the directory's path is.
    pub address: PathBuf,
}

impl Place {
    /// Opens the place of a socket that may be there.
    pub fn open(path: &Path) -> io::Result<Place> {
        let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a socket needs a directory and a name"));
        };
        let directory = File::open(directory)?;
        let address = Path::new("/proc/self/fd").join(directory.as_raw_fd().to_string()).join(name);
        Ok(Place { _directory: directory, address })
    }

    /// Makes the place of a new socket; its directory is for this user only.
    pub fn make(path: &Path) -> io::Result<Place> {
        if let Some(directory) = path.parent() {
            DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        }
        Place::open(path)
    }
}
