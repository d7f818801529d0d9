//! Operations of clients on one object, and their forms between members and in the store. A [`WriteRequest`]
//! becomes, at the primary, a [`Transaction`] that every member applies in the same order; peering and retries
//! later read the [`LogEntry`] in it. [`codec`] holds the byte encodings.

use bytes::Bytes;

pub mod codec;
mod mutation;
pub mod shapes;
mod shared;
pub mod table;
#[cfg(test)]
mod touched_tests;

pub use mutation::Mutation;
pub use shared::SharedTransaction;

use crate::ids::{ObjectName, PgId, RequestId, Version};

/// The name of a PG's own object. Its omap entries hold the PG's durable state: the promised epoch and the image
/// fences. Clients may only set fences in it.
pub const PG_META_OBJECT: &str = "@pg";
/// Prefix of the names of pre-images: shards as they were before a write.
pub const PRE_IMAGE_PREFIX: &str = "@kept/";
/// Prefix of fence keys in the PG's own object; the rest of the key is the fence's name.
pub const FENCE_KEY_PREFIX: &[u8] = b"fence/";

/// Seals (authentication tags and the data to open them) of consecutive sealed units. OSDs store and return them
/// beside the data and do not look inside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seals {
    /// Bytes of data that one seal covers: a multiple of the block size.
    pub unit_bytes: u32,
    /// Length of one seal in bytes.
    pub seal_bytes: u16,
    /// The seals, one after the other. All zeros means "never written".
    pub bytes: Bytes,
}

impl Seals {
    /// Returns true if they belong to ciphertext, and not to plain data, whose units have one byte each that only
    /// marks them as written.
    pub fn are_of_ciphertext(&self) -> bool {
        self.seal_bytes > 1
    }
}

/// Requirement of a write; a write that does not meet it is refused and changes nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    /// The object exists.
    ObjectExists,
    /// The object does not exist.
    ObjectAbsent,
    /// The omap entry exists.
    OmapExists {
        /// The key.
        key: Bytes,
    },
    /// The omap entry does not exist.
    OmapAbsent {
        /// The key.
        key: Bytes,
    },
    /// The omap entry exists and has exactly this value.
    OmapEquals {
        /// The key.
        key: Bytes,
        /// The value.
        value: Bytes,
    },
    /// No fence of this name with a higher generation was set in the PG.
    NotFenced {
        /// The fence's name.
        name: Bytes,
        /// The generation that the writer holds.
        generation: u64,
    },
    /// The PG is one of `pg_num`: it was not split since the writer read the map.
    PgNum {
        /// The number of PGs.
        pg_num: u32,
    },
    /// Another object of the same PG exists. Writes of one PG become durable in their order, so a write with this
    /// condition is never durable without the write that made the other object.
    OtherExists {
        /// The other object.
        object: ObjectName,
    },
}

impl Condition {
    /// The other object that it looks at.
    pub fn other_object(&self) -> Option<&ObjectName> {
        match self {
            Condition::OtherExists { object } => Some(object),
            _ => None,
        }
    }
}

/// A client's write to one object: all of it happens, or nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriteRequest {
    /// The object.
    pub object: ObjectName,
    /// Checked in order before anything is changed.
    pub conditions: Vec<Condition>,
    /// Applied in order.
    pub mutations: Vec<Mutation>,
    /// The data of the `Write` mutations, one after the other.
    pub payload: Bytes,
    /// True if the client sealed the payload. It then travels authenticated, not encrypted a second time.
    pub payload_sealed: bool,
}

/// A client's read of one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadRequest {
    /// Data of a block-aligned range, as far as the object reaches; holes read as zeros.
    Data {
        /// Offset in bytes, a multiple of the block size.
        offset: u64,
        /// Length in bytes.
        length: u32,
        /// The reader opens seals before it uses the data, and so detects changes on the way; nothing else does
        /// then. A reader that cannot open them asks again without this.
        opens_seals: bool,
    },
    /// Existence of the object, its size and version.
    Stat,
    /// The value of one omap entry.
    OmapGet {
        /// The key.
        key: Bytes,
    },
    /// Omap entries in key order.
    OmapList {
        /// Only keys with this prefix.
        prefix: Bytes,
        /// Only keys at or after this one.
        from: Bytes,
        /// At most this many entries, and at most [`crate::limits::OMAP_LIST_MAX`].
        limit: u32,
    },
    /// Which blocks of a range hold data.
    Extents {
        /// Offset in bytes, a multiple of the block size.
        offset: u64,
        /// Length in bytes.
        length: u32,
    },
    /// The objects whose names begin so, in order, of the PG that the object is in, which itself does not matter.
    /// Objects whose making or removal is in flight may be in the list or not.
    ObjectList {
        /// Only names with this prefix, which is not empty.
        prefix: Bytes,
        /// Only names after this one.
        after: Option<ObjectName>,
        /// True if each object's blocks are counted. Then fewer objects come at once.
        counts_blocks: bool,
        /// Refused as a failed condition unless the PG is one of this many.
        pg_num: Option<u32>,
    },
}

impl ReadRequest {
    /// Data that is checked on its way, sealed or not.
    pub fn checked_data(offset: u64, length: u32) -> Self {
        ReadRequest::Data { offset, length, opens_seals: false }
    }

    /// Requests data, for a reader that opens seals before it uses the data.
    pub fn data_to_open(offset: u64, length: u32) -> Self {
        ReadRequest::Data { offset, length, opens_seals: true }
    }

    /// Returns the largest number of bytes of data that are read from the device for it.
    pub fn data_bytes_bound(&self) -> u64 {
        match self {
            // Extents of an erasure-coded object are found by its data.
            ReadRequest::Data { length, .. } | ReadRequest::Extents { length, .. } => {
                u64::from(*length).min(crate::limits::OBJECT_BYTES_MAX)
            }
            ReadRequest::Stat
            | ReadRequest::OmapGet { .. }
            | ReadRequest::OmapList { .. }
            | ReadRequest::ObjectList { .. } => 0,
        }
    }
}

/// Result of a read. Data itself travels as the payload beside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadOutcome {
    /// Result of [`ReadRequest::Data`]: the payload holds the data.
    Data {
        /// Size of the whole object, in bytes.
        object_bytes: u64,
        /// Version of its last change; in an answer between members, of the shard's.
        version: Version,
        /// Seals of the units that overlap the range, if the object has any.
        seals: Option<Seals>,
    },
    /// Result of [`ReadRequest::Stat`].
    Stat {
        /// Size in bytes.
        object_bytes: u64,
        /// Version of its last change.
        version: Version,
    },
    /// Result of [`ReadRequest::OmapGet`].
    OmapValue(Option<Bytes>),
    /// Result of [`ReadRequest::OmapList`].
    OmapPage {
        /// Keys and values in key order.
        entries: Vec<(Bytes, Bytes)>,
        /// True if more entries follow.
        more: bool,
    },
    /// Result of [`ReadRequest::Extents`].
    Extents {
        /// Size in bytes.
        object_bytes: u64,
        /// Version of its last change.
        version: Version,
        /// A bit for each block of the range, the lowest of a byte first: 1 if the block holds data. Other blocks
        /// read as zeros. In an erasure-coded pool a block of zeros without seals counts as none.
        blocks: Bytes,
    },
    /// Result of [`ReadRequest::ObjectList`].
    ObjectPage {
        /// The objects, in the order of their names.
        objects: Vec<ListedObject>,
        /// There may be more objects after this name.
        next: Option<ObjectName>,
    },
}

impl ReadOutcome {
    /// Returns the version of the object, if the outcome has it.
    pub fn version(&self) -> Option<Version> {
        match self {
            ReadOutcome::Data { version, .. }
            | ReadOutcome::Stat { version, .. }
            | ReadOutcome::Extents { version, .. } => Some(*version),
            ReadOutcome::OmapValue(_) | ReadOutcome::OmapPage { .. } | ReadOutcome::ObjectPage { .. } => None,
        }
    }
}

/// A bit for each of these, the lowest of a byte first.
pub fn bits(flags: &[bool]) -> Bytes {
    let byte = |flags: &[bool]| flags.iter().rev().fold(0_u8, |byte, flag| byte << 1 | u8::from(*flag));
    flags.chunks(8).map(byte).collect()
}

/// An object as [`ReadRequest::ObjectList`] shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedObject {
    /// Its name.
    pub name: ObjectName,
    /// Its size, in bytes.
    pub object_bytes: u64,
    /// Version of its last change.
    pub version: Version,
    /// Blocks that hold data, in an erasure-coded pool those of one shard; 0 if they were not to be counted.
    pub block_count: u32,
    /// Blocks that it shares with other objects: its clones, or its source.
    pub shared_block_count: u32,
}

/// Reasons for which an OSD does not execute a request. Every refusal but [`Refusal::Undecided`] is definite: this
/// copy of the request changed nothing and never will.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The object does not exist.
    #[error("no such object")]
    NoSuchObject,
    /// A condition of the write does not hold.
    #[error("condition {index} of the write does not hold")]
    ConditionFailed {
        /// Which of the request's conditions.
        index: u16,
    },
    /// Another writer has fenced this one off.
    #[error("fenced off by a newer writer (generation {generation})")]
    Fenced {
        /// The generation that the newer writer holds.
        generation: u64,
    },
    /// An OSD of the PG has no space left.
    #[error("no space left on {osd}: 'atoll health' names the full OSDs; delete data or add OSDs")]
    NoSpace {
        /// The full OSD.
        osd: crate::ids::OsdId,
    },
    /// The data of this object is damaged on every copy that could be asked.
    #[error("data is damaged on every copy: {detail}")]
    Corrupt {
        /// The contradicting state.
        detail: String,
    },
    /// The request breaks a rule of its own: alignment, size, order.
    #[error("invalid request: {detail}")]
    Invalid {
        /// Which rule.
        detail: String,
    },
    /// This OSD is not the primary of the PG, or not under this epoch. The client
    /// should refresh its map and retry.
    #[error("not the primary of this PG in this epoch")]
    NotPrimary,
    /// The PG cannot serve now. The client should retry later.
    #[error("PG is not active: {detail}")]
    Inactive {
        /// The missing event.
        detail: String,
    },
    /// A limit on requests in flight is reached. The client should retry later.
    #[error("too many requests in flight")]
    Busy,
    /// This copy of the write did nothing. Whether an earlier one was done the PG does not know any more.
    #[error("whether an earlier attempt of this write was done is not known any more")]
    OutcomeUnknown,
    /// The write was ordered, and another primary may or may not continue the history with it. The client retries,
    /// and gets the decision.
    #[error("the write is under way, and peering decides whether it is done")]
    Undecided,
}

impl Refusal {
    /// Returns the kind of the refusal, in one word.
    pub fn name(&self) -> &'static str {
        match self {
            Refusal::NoSuchObject => "no_such_object",
            Refusal::ConditionFailed { .. } => "condition_failed",
            Refusal::Fenced { .. } => "fenced",
            Refusal::NoSpace { .. } => "no_space",
            Refusal::Corrupt { .. } => "corrupt",
            Refusal::Invalid { .. } => "invalid",
            Refusal::NotPrimary => "not_primary",
            Refusal::Inactive { .. } => "inactive",
            Refusal::Busy => "busy",
            Refusal::OutcomeUnknown => "outcome_unknown",
            Refusal::Undecided => "undecided",
        }
    }

    /// Returns true if the same request may succeed later without any change on the client's side.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Refusal::NotPrimary | Refusal::Inactive { .. } | Refusal::Busy | Refusal::Undecided)
    }
}

/// The parts of an object that a write touched: a member that missed the write must fetch them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Touched {
    /// The object was removed or may have been made again: all of it counts.
    pub whole: bool,
    /// First block and number of blocks of the data ranges written or zeroed.
    pub block_ranges: Vec<(u32, u32)>,
    /// Omap keys set or removed.
    pub omap_keys: Vec<Bytes>,
}

impl WriteRequest {
    /// The other objects of its PG that the write looks at: those that it clones, and those of its conditions.
    pub fn other_objects(&self) -> impl Iterator<Item = &ObjectName> {
        let clones = self.mutations.iter().filter_map(Mutation::clone_source);
        clones.chain(self.conditions.iter().filter_map(Condition::other_object))
    }

    /// Returns the largest number of bytes of the request without its data.
    pub fn control_bytes_bound(&self) -> usize {
        let conditions: usize = self
            .conditions
            .iter()
            .map(|condition| match condition {
                Condition::OmapEquals { key, value } => 32 + key.len() + value.len(),
                Condition::OmapExists { key } | Condition::OmapAbsent { key } => 32 + key.len(),
                Condition::NotFenced { name, .. } => 32 + name.len(),
                Condition::OtherExists { object } => 32 + object.as_str().len(),
                Condition::ObjectExists | Condition::ObjectAbsent | Condition::PgNum { .. } => 32,
            })
            .sum();
        let mutations: usize = self.mutations.iter().map(Mutation::control_bytes_bound).sum();
        conditions + mutations + 1024
    }

    /// Checks that the write fits into one message, on its way to the primary and from there to the
    /// members.
    pub fn check_size(&self) -> Result<(), Refusal> {
        let total = self.control_bytes_bound();
        if total > crate::limits::CONTROL_BYTES_MAX || self.payload.len() > crate::limits::PAYLOAD_BYTES_MAX {
            let detail = format!(
                "a write of {total} bytes of operations and {} of data; one message takes {} and {}",
                self.payload.len(),
                crate::limits::CONTROL_BYTES_MAX,
                crate::limits::PAYLOAD_BYTES_MAX
            );
            return Err(Refusal::Invalid { detail });
        }
        Ok(())
    }
}

impl LogEntry {
    /// No fewer bytes than the entry takes when encoded.
    pub fn encoded_bytes_bound(&self) -> usize {
        let keys: usize = self.touched.omap_keys.iter().map(|key| key.len() + 4).sum();
        let pre_image = self.pre_image.as_ref().map_or(0, |pre_image| {
            pre_image.payload.len() + pre_image.mutations.iter().map(Mutation::control_bytes_bound).sum::<usize>()
        });
        keys + 8 * self.touched.block_ranges.len() + self.object.as_str().len() + pre_image + 72
    }
}

impl Touched {
    /// Returns the parts that `mutations` touch.
    pub fn by(mutations: &[Mutation]) -> Self {
        let mut touched = Touched::default();
        for mutation in mutations {
            match mutation {
                Mutation::Write { offset, length, .. } => touched.add_range(*offset, u64::from(*length)),
                Mutation::Zero { offset, length } => touched.add_range(*offset, *length),
                Mutation::Create
                | Mutation::SetVersion { .. }
                | Mutation::ResetLog { .. }
                | Mutation::SetShardOf { .. }
                | Mutation::ClonePreImage { .. }
                | Mutation::RemoveOther { .. }
                | Mutation::Split { .. } => {}
                Mutation::Remove | Mutation::Truncate { .. } | Mutation::CloneFrom { .. } => touched.whole = true,
                Mutation::OmapSet { key, .. } | Mutation::OmapRemove { key } => {
                    touched.omap_keys.push(key.clone())
                }
                Mutation::OmapReplace { key, displaced_to, .. } => {
                    touched.omap_keys.extend([key.clone(), displaced_to.clone()]);
                }
            }
        }
        touched
    }

    fn add_range(&mut self, offset: u64, length: u64) {
        let block_bytes = atoll_buffers::BLOCK_BYTES as u64;
        let first = offset / block_bytes;
        let end = (offset + length).div_ceil(block_bytes);
        self.block_ranges.push((first as u32, (end - first) as u32));
    }

    /// Returns the same in few bytes, for a log, which keeps many of them: ranges that meet become one, and keys
    /// that would take more than [`crate::limits::LOG_ENTRY_KEYS_BYTES_MAX`] become the whole object.
    pub fn for_log(mut self) -> Self {
        self.block_ranges.sort_unstable();
        let mut ranges: Vec<(u32, u32)> = Vec::with_capacity(self.block_ranges.len());
        for (first, count) in std::mem::take(&mut self.block_ranges) {
            let end = first.saturating_add(count);
            match ranges.last_mut() {
                Some((start, length)) if first <= start.saturating_add(*length) => {
                    *length = (*length).max(end - *start);
                }
                _ => ranges.push((first, count)),
            }
        }
        ranges.shrink_to_fit();
        self.block_ranges = ranges;
        let keys_bytes: usize = self.omap_keys.iter().map(|key| size_of::<Bytes>() + key.len()).sum();
        if keys_bytes > crate::limits::LOG_ENTRY_KEYS_BYTES_MAX {
            (self.whole, self.omap_keys) = (true, Vec::new());
        }
        self
    }

    /// Bytes that it takes in memory, roughly.
    pub fn memory_bytes(&self) -> usize {
        let keys = self.omap_keys.iter().map(|key| size_of::<Bytes>() + key.len());
        size_of_val(&self.block_ranges[..]) + keys.sum::<usize>()
    }

    /// Adds everything that `other` touched.
    pub fn merge(&mut self, other: &Touched) {
        self.whole |= other.whole;
        self.block_ranges.extend_from_slice(&other.block_ranges);
        self.omap_keys.extend_from_slice(&other.omap_keys);
    }
}

/// One entry of a PG's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogEntry {
    /// Its place in the PG's history.
    pub version: Version,
    /// The client's request, which identifies a retry.
    pub request: Option<RequestId>,
    /// The object changed.
    pub object: ObjectName,
    /// The changed parts of the object.
    pub touched: Touched,
    /// Sequence of the newest write that all members were known to have when this one was ordered; 0 if
    /// none was.
    pub committed_sequence: u64,
    /// In an erasure-coded PG, how this member rolls the write back: its pre-image. It stays until all members
    /// are known to have the write.
    pub pre_image: Option<PreImage>,
}

/// Change that restores a shard of an object to its state before a write. Doing it twice is the same as once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreImage {
    /// Applied in order.
    pub mutations: Vec<Mutation>,
    /// The data of the `Write` mutations, one after the other.
    pub payload: Bytes,
}

impl PreImage {
    /// Returns the object that keeps the replaced data, if that is too large for the log.
    pub fn clone_object(&self) -> Option<&ObjectName> {
        self.mutations.iter().find_map(Mutation::clone_source)
    }
}

/// A change of one object of one PG that is applied whole or not at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transaction {
    /// The PG.
    pub pg: PgId,
    /// The object.
    pub object: ObjectName,
    /// Applied in order.
    pub mutations: Vec<Mutation>,
    /// The data of the `Write` mutations, one after the other.
    pub payload: Bytes,
    /// True if the client sealed the payload.
    pub payload_sealed: bool,
    /// The entries that this change adds to the PG's log, oldest first: one for a client's
    /// write, several when a lagging member catches up, none for the PG's own state.
    pub log: Vec<LogEntry>,
}

impl Transaction {
    /// Returns the head of the PG's log after this change has removed newer entries, if it does that.
    pub fn reset_head(&self) -> Option<Version> {
        self.mutations.iter().rev().find_map(|mutation| match mutation {
            Mutation::ResetLog { head } => Some(*head),
            _ => None,
        })
    }
}
