//! Work of a run: operation, size and depth, with a name such as `4k-randwrite-qd32`.

use std::fmt;
use std::str::FromStr;

use atoll_buffers::BLOCK_BYTES;
use atoll_types::limits::OBJECT_BYTES_MAX;
use atoll_types::size::parse_size_bytes;

use crate::block::AccessPattern;

const DEPTH_MAX: u32 = 1024;

/// Work of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workload {
    /// Bytes per operation: a power of two from one block to a whole object.
    pub block_bytes: u64,
    /// Which blocks are accessed, and how.
    pub pattern: AccessPattern,
    /// Operations in flight at once.
    pub depth: u32,
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (number, suffix) = match self.block_bytes {
            bytes if bytes.is_multiple_of(1 << 20) => (bytes >> 20, 'm'),
            bytes => (bytes >> 10, 'k'),
        };
        write!(f, "{number}{suffix}-{}-qd{}", self.pattern.name(), self.depth)
    }
}

impl FromStr for Workload {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let form = || format!("'{text}' is not a workload: use SIZE-PATTERN-qdDEPTH such as 4k-randwrite-qd32");
        let (size, rest) = text.split_once('-').ok_or_else(form)?;
        let (pattern, depth) = rest.split_once("-qd").ok_or_else(form)?;
        let block_bytes = parse_size_bytes(size)?;
        if !block_bytes.is_power_of_two() || !(BLOCK_BYTES as u64..=OBJECT_BYTES_MAX).contains(&block_bytes) {
            return Err(format!("'{text}': operations are of 4k, 8k, 16k and so on up to 4m"));
        }
        let pattern = AccessPattern::ALL.into_iter().find(|known| known.name() == pattern);
        let pattern =
            pattern.ok_or_else(|| format!("'{text}': the pattern is randwrite, randread, write or read"))?;
        let depth = depth.parse().ok().filter(|depth| (1..=DEPTH_MAX).contains(depth));
        let depth = depth.ok_or_else(|| format!("'{text}': the depth is a number from 1 to {DEPTH_MAX}"))?;
        Ok(Workload { block_bytes, pattern, depth })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_and_print() {
        for name in ["4k-randwrite-qd1", "64k-randread-qd128", "4m-write-qd16", "1m-read-qd4"] {
            assert_eq!(name.parse::<Workload>().unwrap().to_string(), name);
        }
        for bad in ["", "4k", "4k-randwrite", "4k-random-qd1", "5k-read-qd1", "8m-read-qd1", "4k-read-qd0"] {
            assert!(bad.parse::<Workload>().is_err(), "{bad}");
        }
    }
}
