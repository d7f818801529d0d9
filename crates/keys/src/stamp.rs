//! Tells whether a file is still the one that was read.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::SystemTime;

/// Which file it is, when it was written and how long it is; `None` if that cannot be told.
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

    /// Whether there is a file.
    pub(crate) fn is_there(&self) -> bool {
        self.0.is_some()
    }
}
