//! Room for the growth of device files on their file systems: the files are sparse.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use atoll_types::OsdId;
use atoll_types::size::format_size;

use crate::choices::DEFAULT_OSD_BYTES;
use crate::data_dir::{ClusterFile, DataDir};

/// Blocks of [`fs::Metadata::blocks`], in bytes.
const STAT_BLOCK_BYTES: u64 = 512;
/// Largest share of the free space for device files without a chosen size.
const DEFAULT_SHARE_PERCENT: u64 = 80;

/// Device files that cannot grow to their sizes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overcommitted {
    /// The OSDs of the files.
    pub osds: Vec<OsdId>,
    /// Space that they would take in addition, in bytes.
    pub may_grow_bytes: u64,
    /// Free space of their file system, in bytes.
    pub free_bytes: u64,
}

impl std::fmt::Display for Overcommitted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<String> = self.osds.iter().map(ToString::to_string).collect();
        write!(
            f,
            "the device files of {} may grow by {}, and their file system has {} left",
            names.join(", "),
            format_size(self.may_grow_bytes),
            format_size(self.free_bytes)
        )
    }
}

/// The file systems of this host whose device files may grow to more than there is room for.
pub fn overcommitted(directory: &DataDir, cluster: &ClusterFile) -> Vec<Overcommitted> {
    let mut by_file_system: BTreeMap<u64, Overcommitted> = BTreeMap::new();
    for &osd in &cluster.osd_ids {
        let path = directory.device(osd);
        let Ok(metadata) = fs::metadata(&path) else { continue };
        if !metadata.is_file() {
            continue;
        }
        let Some(free_bytes) = free_bytes(&path) else { continue };
        let found = by_file_system.entry(metadata.dev()).or_insert_with(|| Overcommitted {
            osds: Vec::new(),
            may_grow_bytes: 0,
            free_bytes,
        });
        found.osds.push(osd);
        found.may_grow_bytes += metadata.len().saturating_sub(metadata.blocks() * STAT_BLOCK_BYTES);
    }
    by_file_system.into_values().filter(|found| found.may_grow_bytes > found.free_bytes).collect()
}

/// Returns the size of device files without a chosen one: the file system has room for all of them.
pub(crate) fn default_osd_bytes(directory: &DataDir, osd_count: u64) -> u64 {
    let existing = directory.root().ancestors().find(|path| path.exists());
    let free = existing.and_then(free_bytes).unwrap_or(u64::MAX);
    let share = free / 100 * DEFAULT_SHARE_PERCENT / osd_count.max(1);
    (share >> 30 << 30).clamp(1 << 30, DEFAULT_OSD_BYTES)
}

/// Returns the free space of a file's file system for this user, in bytes.
pub fn free_bytes(path: &Path) -> Option<u64> {
    // "" is the present directory.
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    atoll_osd::free_bytes(path)
}
