//! Tells whether a file is still the one that was read.

use std::fs;
use std::path::Path;
use std::time::SystemTime;

/// When a file was written and how long it is; `None` if that cannot be told.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Stamp(Option<(SystemTime, u64)>);

impl Stamp {
    pub(crate) fn of(path: &Path) -> Self {
        let read = || {
            let metadata = fs::metadata(path).ok()?;
            Some((metadata.modified().ok()?, metadata.len()))
        };
        Stamp(read())
    }

    /// Whether there is a file.
    pub(crate) fn is_there(&self) -> bool {
        self.0.is_some()
    }
}
