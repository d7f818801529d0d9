//! The mutations: changes of an object in a transaction.

use bytes::Bytes;

use super::Seals;
use super::shapes::{OmapKey, OmapValue, OptionalOmapValue};
use crate::ids::{ObjectName, Version};
use crate::kinds;
use atoll_codec::{CodecError, Reader, Writer};

#[cfg(test)]
use samples::Sample;

kinds! {
    /// One change of one object. The table is that of docs/reference/formats.md; the crate `store` has the effects
    /// of each kind on the store's metadata.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub enum Mutation("mutation") {
        /// Writes the next `length` bytes of the payload at `offset`, growing the object if needed.
        /// The offset is a multiple of the block size, and so is the length unless the write reaches
        /// the object's end.
        1 => Write {
            /// Offset in the object, in bytes.
            offset: u64,
            /// Length in bytes.
            length: u32,
            /// Seals of the units written; the write must then start at a unit boundary.
            seals: Option<Seals>,
        },
        /// Makes a block-aligned range read as zeros, without seals, and frees its space. It does not
        /// change the object's size.
        2 => Zero {
            /// Offset in the object, in bytes.
            offset: u64,
            /// Length in bytes.
            length: u64,
        },
        /// Makes sure that the object exists.
        3 => Create,
        /// Removes the object with its data and omap; no error if it does not exist.
        4 => Remove,
        /// Sets an omap entry.
        5 => OmapSet {
            /// The key.
            key: Bytes as OmapKey,
            /// Its new value.
            value: Bytes as OmapValue,
        },
        /// Removes an omap entry; no error if it does not exist.
        6 => OmapRemove {
            /// The key.
            key: Bytes as OmapKey,
        },
        /// Sets (or, without a value, removes) an omap entry; if there was one, its old value moves
        /// to the key `displaced_to`. This is how replaced data gets onto a garbage list atomically.
        7 => OmapReplace {
            /// The key.
            key: Bytes as OmapKey,
            /// The new value, or `None` to remove the entry.
            value: Option<Bytes> as OptionalOmapValue,
            /// Where the old value goes.
            displaced_to: Bytes as OmapKey,
        },
        /// Cuts the object off at a size and frees the space behind it. The size is no more than the
        /// object's and, unless it is equal, a multiple of the block size and of the unit of its seals.
        8 => Truncate {
            /// The new size in bytes.
            size_bytes: u64,
        },
        /// Makes the object a copy of another one of the same PG, data, seals and omap
        /// included, that shares its space. It is the only mutation of its write.
        9 => CloneFrom {
            /// The object to copy.
            source: ObjectName,
        },
        /// Says which write the object's state is that of. Only between members: a copy that was made
        /// from another one has the other one's version.
        10 (members) => SetVersion {
            /// The version of the object's last change.
            version: Version,
        },
        /// Forgets the entries of the PG's log that are newer, so that the member's history ends there. Only
        /// between members, in the PG's own object: entries that a member has and the PG does not have were never
        /// acknowledged.
        11 (members) => ResetLog {
            /// The new head.
            head: Version,
        },
        /// Makes the PG one of `pg_num` of its pool. Objects that are not its own then belong to
        /// PGs that were split off, which begin with the PG's history and its own object; PGs that
        /// were split off beyond `pg_num` are merged back. Only between members, in the PG's own
        /// object, behind all other mutations.
        12 (members) => Split {
            /// If `is_whole`, the number of PGs until now. Otherwise the number of PGs that the pool was made
            /// with, for a member that has missed a split.
            pg_num_before: u32,
            /// Number of PGs from now on.
            pg_num: u32,
            /// True if the member has all objects, so that the PGs split off are whole as well. Otherwise nothing
            /// is known of them.
            is_whole: bool,
        },
        /// Sets the whole object of this shard, and grows the shard to the length that follows; the added part
        /// reads as zeros. Only between members.
        13 (members) => SetShardOf {
            /// Size of the whole object, in bytes.
            object_bytes: u64,
            /// Size of the shard, in bytes, a multiple of the block size and no less than it was.
            shard_bytes: u64,
            /// Bytes of data that one seal covers; 0 if the object has no seals.
            seal_unit_bytes: u32,
            /// Length of a seal.
            seal_bytes: u16,
        },
        /// Makes another object of the PG a copy of this one as it is so far, which shares its space; it
        /// has none if this one does not exist. Only between members.
        14 (members) => ClonePreImage {
            /// The copy.
            copy: ObjectName,
        },
        /// Removes another object of the PG. Only between members.
        15 (members) => RemoveOther {
            /// The object to remove.
            object: ObjectName,
        },
    }
}

/// Bytes that a mutation takes in a control segment and in the log, but for its long fields.
const FIXED_BYTES: usize = 64;

impl Mutation {
    /// Appends the mutation.
    pub fn encode(&self, writer: &mut Writer) {
        self.encode_kind(writer);
    }

    /// Reads a mutation.
    pub fn decode(reader: &mut Reader) -> Result<Self, CodecError> {
        Self::decode_kind(reader)
    }

    /// No fewer bytes than the mutation takes in a control segment, its trace in the log included.
    pub fn control_bytes_bound(&self) -> usize {
        FIXED_BYTES + self.variable_bytes()
    }

    /// Returns true if clients may request it.
    pub fn is_for_clients(&self) -> bool {
        !self.is_between_members()
    }

    /// The object that it makes a copy of.
    pub fn clone_source(&self) -> Option<&ObjectName> {
        match self {
            Mutation::CloneFrom { source } => Some(source),
            _ => None,
        }
    }
}

#[cfg(test)]
mod known_answers;
#[cfg(test)]
mod samples;
#[cfg(test)]
mod tests;
