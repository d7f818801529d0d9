//! The vocabulary of Atoll: identifiers, versions, limits, the records kept in cluster state, the
//! object operations that travel on the wire and end in the store, and the byte encoding they share.
//!
//! Everyone may use this crate; it may use no other crate of the workspace and does no I/O: no
//! files, sockets, threads, clocks or randomness.

pub mod block;
pub mod codec;
pub mod coordination;
pub mod frames;
pub mod ids;
pub mod image_key;
pub mod join;
pub mod limits;
pub mod operation;
pub mod received;
pub mod record_json;
pub mod records;
pub mod size;
pub mod split;

pub use block::{BLOCK_BYTES, BlockBuffer};
pub use codec::{CodecError, Reader, Writer};
pub use ids::{Epoch, ObjectName, OsdId, PgId, PoolId, RequestId, Version};
pub use operation::{
    Condition, LogEntry, Mutation, PreImage, ReadOutcome, ReadRequest, Refusal, Seals, Touched, Transaction,
    WriteRequest,
};
pub use received::Received;

/// CRC-32C (Castagnoli, RFC 3720 section 12.1) of `bytes`, the checksum of every stored block,
/// log record and `crc`-mode frame.
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// CRC-64/NVME of pieces that come one after the other: a digest that is the same for ever, for
/// comparing copies, not against forgery.
pub struct Crc64(crc_fast::Digest);

impl Default for Crc64 {
    fn default() -> Self {
        Crc64(crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc64Nvme))
    }
}

impl Crc64 {
    /// Adds the next piece.
    pub fn add(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The check of all pieces so far.
    pub fn finish(&self) -> u64 {
        self.0.finalize()
    }
}
pub use split::{mix, pg_of_object};
