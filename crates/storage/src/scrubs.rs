//! Findings of a member about its copy of an object.

use atoll_store::{ScrubError, ScrubResult};
use atoll_wire::{ScrubFinding, ShardOf};

/// Returns a member's finding about its copy of an object that the store has examined.
pub fn finding(result: Result<ScrubResult, ScrubError>) -> ScrubFinding {
    match result {
        Ok(found) => ScrubFinding::Present {
            version: found.version,
            size_bytes: found.size_bytes,
            digest: found.digest,
            bad_block_count: found.bad_blocks.len() as u32,
            shard_of: found.whole_bytes.map(|object_bytes| {
                let (seal_unit_bytes, seal_bytes) = found.seal_shape.unwrap_or_default();
                ShardOf { object_bytes, seal_unit_bytes, seal_bytes }
            }),
        },
        Err(ScrubError::NoSuchObject) => ScrubFinding::Absent,
        Err(ScrubError::DamagedMetadata { .. }) => ScrubFinding::Unreadable,
        Err(ScrubError::Busy) => ScrubFinding::Busy,
    }
}
