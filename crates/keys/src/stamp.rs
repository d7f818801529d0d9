//! Detects if a file has changed since it was read.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::SystemTime;

/// Identity of the file, time of its last write and its length; `None` if these are unknown.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Stamp(Option<(u64, SystemTime, u64)>);

impl Stamp {
    pub(crate) fn of(path: &Path) -> Self {
        let read = || {
            let metadata = fs::metadata(path).ok()?;
            // Two changes within one tick of the clock leave two files.
            Some((metadata.ino(), metadata.modified().ok()?, metadata.len()))
        };
        Stamp(read())
    }

    /// Returns true if there is a file.
    pub(crate) fn is_there(&self) -> bool {
        self.0.is_some()
    }
}
