//! The data that a run reads or overwrites, and whether caches may hold it.

use std::fmt;

use atoll_types::size::format_size;

/// Smaller working sets may be in caches, and are called hot.
const COLD_BYTES_MIN: u64 = 8 << 30;
/// The same of sets of objects whose bytes are fewer.
pub const COLD_OBJECTS_MIN: u64 = 100_000;

/// The data that all clients of a run read or overwrite. It prints as `8 GiB`, or `64 objects (hot)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkingSet {
    /// Blocks of images, files or devices.
    Blocks {
        /// Bytes of all blocks.
        bytes: u64,
    },
    /// Objects.
    Objects {
        /// Number of objects.
        count: u64,
        /// Mean size of an object.
        size_bytes: u64,
    },
}

impl WorkingSet {
    /// Returns true if caches may hold it.
    pub fn is_hot(self) -> bool {
        match self {
            WorkingSet::Blocks { bytes } => bytes < COLD_BYTES_MIN,
            WorkingSet::Objects { count, size_bytes } => {
                count < COLD_OBJECTS_MIN && count.saturating_mul(size_bytes) < COLD_BYTES_MIN
            }
        }
    }

    /// Returns the smallest number of objects of a size whose set is not hot.
    pub fn cold_objects(size_bytes: u64) -> u64 {
        COLD_BYTES_MIN.div_ceil(size_bytes.max(1)).min(COLD_OBJECTS_MIN)
    }
}

impl fmt::Display for WorkingSet {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WorkingSet::Blocks { bytes } => formatter.write_str(&format_size(*bytes).replace(".0 ", " "))?,
            WorkingSet::Objects { count, .. } => write!(formatter, "{count} objects")?,
        }
        if self.is_hot() { formatter.write_str(" (hot)") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_sets_are_called_hot() {
        let set = |count, size_bytes| WorkingSet::Objects { count, size_bytes }.to_string();
        assert_eq!(WorkingSet::Blocks { bytes: 8 << 30 }.to_string(), "8 GiB");
        assert_eq!(WorkingSet::Blocks { bytes: 1 << 30 }.to_string(), "1 GiB (hot)");
        assert_eq!(set(100_000, 4096), "100000 objects");
        assert_eq!(set(2048, 4 << 20), "2048 objects");
        assert_eq!(set(2047, 4 << 20), "2047 objects (hot)");
    }

    #[test]
    fn the_cold_number_of_objects_is_the_smallest() {
        for size_bytes in [1, 4096, 65_536, 100_000, 4 << 20, u64::MAX] {
            let count = WorkingSet::cold_objects(size_bytes);
            assert!(!WorkingSet::Objects { count, size_bytes }.is_hot(), "{size_bytes}");
            assert!(WorkingSet::Objects { count: count - 1, size_bytes }.is_hot(), "{size_bytes}");
        }
    }
}
