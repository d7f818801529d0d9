//! Problems of a store.

use atoll_types::PgId;
use serde::{Serialize, Serializer};

use crate::metadata::ObjectKey;

/// Something that is wrong, and where. Blocks and pages are numbers; a range has the first one and
/// how many.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, thiserror::Error)]
#[serde(tag = "problem", rename_all = "snake_case")]
#[allow(missing_docs, reason = "the texts describe the fields")]
pub enum Problem {
    #[error("the superblocks do not belong together: {detail}")]
    Superblocks { detail: String },
    #[error("damage was met while the store was in use, so it does not open any more: {detail}")]
    Remembered { detail: String },
    #[error("the page table: {detail}")]
    PageTable { detail: String },
    #[error("metadata page {page} in block {block} is damaged: {detail}")]
    DamagedPage { page: u32, block: u32, detail: String },
    #[error("metadata page {page} is referred to by page {parent} but does not exist")]
    MissingPage { page: u32, parent: u32 },
    #[error("metadata page {page} is referred to twice, the second time by page {parent}")]
    PageReachedTwice { page: u32, parent: u32 },
    #[error("{count} metadata pages from {first} on are in use, but nothing refers to them")]
    UnreachablePages { first: u32, count: u32 },
    #[error("metadata page {page}: {detail}")]
    MisplacedKeys { page: u32, detail: String },
    #[error("metadata page {page} is a leaf at depth {depth}, others are at depth {expected}")]
    UnevenDepth { page: u32, depth: usize, expected: usize },
    #[error("metadata block {block} is outside the data region, or {detail} has it too")]
    MetadataBlock { block: u32, detail: String },
    #[error("an entry of the metadata makes no sense: {detail}")]
    Entry { detail: String },
    #[error("pg {pg}: {detail}")]
    Pg {
        #[serde(serialize_with = "as_text")]
        pg: PgId,
        detail: String,
    },
    #[error("pg {}, object {}: {detail}", object.pg, object.name)]
    Object {
        #[serde(flatten)]
        object: ObjectKey,
        detail: String,
    },
    #[error("pg {}, object {}: there is no header before its other entries", object.pg, object.name)]
    MissingHeader {
        #[serde(flatten)]
        object: ObjectKey,
    },
    #[error("the store has {found} objects, the superblock and the log say {recorded}")]
    ObjectCount { found: u64, recorded: u64 },
    #[error(
        "pool {pool} has {objects} objects and {blocks} blocks, the metadata says {recorded_objects} and {recorded_blocks}"
    )]
    PoolCount { pool: u32, objects: u64, blocks: u64, recorded_objects: u64, recorded_blocks: u64 },
    #[error("pg {}, object {}: its block {index} is at {block}, outside the data region", object.pg, object.name)]
    BlockOutside {
        #[serde(flatten)]
        object: ObjectKey,
        index: usize,
        block: u32,
    },
    #[error("{count} blocks from {first} on belong to objects, but the bitmap says that they are free")]
    UnmarkedBlocks { first: u32, count: u32 },
    #[error("{count} blocks from {first} on are lost: the bitmap says that objects have them, but none does")]
    LeakedBlocks { first: u32, count: u32 },
    #[error(
        "{count} blocks from {first} on are referred to more than once, but nothing says that they are shared"
    )]
    BlocksReferredToTwice { first: u32, count: u32 },
    #[error("block {block} is referred to {found} times, and {recorded} times by its count")]
    ReferenceCount { block: u32, found: u64, recorded: u64 },
    #[error("pg {}, object {}: it has the shared block {block}, but its header says that it shares none", object.pg, object.name)]
    NotMarkedShared {
        #[serde(flatten)]
        object: ObjectKey,
        block: u32,
    },
    #[error("the log: {detail}")]
    Log { detail: String },
    #[error("pg {}, object {}: the bytes of its block {index}, in {place} {block}, {detail}", object.pg, object.name)]
    RottenBlock {
        #[serde(flatten)]
        object: ObjectKey,
        index: usize,
        place: BytePlace,
        block: u64,
        detail: String,
    },
}

/// Where the newest bytes of a block are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "the names say it")]
pub enum BytePlace {
    Data,
    Log,
}

impl std::fmt::Display for BytePlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            BytePlace::Data => "data block",
            BytePlace::Log => "log block",
        })
    }
}

impl Problem {
    /// Returns true if this problem of the metadata may make replaying the log fail.
    pub(super) fn prevents_replay(&self) -> bool {
        !matches!(
            self,
            Problem::LeakedBlocks { .. }
                | Problem::ObjectCount { .. }
                | Problem::Remembered { .. }
                | Problem::Superblocks { .. }
                | Problem::UnreachablePages { .. }
        )
    }
}

/// A problem, and in which state it was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// True if the checkpoint is free of the problem, and replaying the log brought it.
    pub after_replay: bool,
    /// The problem.
    #[serde(flatten)]
    pub problem: Problem,
}

/// Findings that are listed; more are only counted.
const LISTED_MAX: usize = 256;

/// The problems of a store.
#[derive(Default)]
pub(super) struct Problems {
    pub listed: Vec<Finding>,
    pub total: u64,
    pub after_replay: bool,
    pub prevent_replay: bool,
}

impl Problems {
    /// Adds a problem, unless it is listed already: the replayed state has most problems of the checkpoint, too.
    pub fn add(&mut self, problem: Problem) {
        if self.listed.iter().any(|finding| finding.problem == problem) {
            return;
        }
        self.total += 1;
        self.prevent_replay |= problem.prevents_replay();
        if self.listed.len() < LISTED_MAX {
            self.listed.push(Finding { after_replay: self.after_replay, problem });
        }
    }
}

/// Serialises a value with a text form as text.
pub(crate) fn as_text<T: std::fmt::Display, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

impl Serialize for ObjectKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct;
        let mut fields = serializer.serialize_struct("ObjectKey", 2)?;
        fields.serialize_field("pg", &self.pg.to_string())?;
        fields.serialize_field("object", self.name.as_str())?;
        fields.end()
    }
}
