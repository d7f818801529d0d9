//! A limit on everything. Back-pressure follows from these numbers.

use std::ops::RangeInclusive;

/// Longest object name, in bytes.
pub const OBJECT_NAME_BYTES_MAX: usize = 255;
/// Largest object, in bytes; also the piece into which images and S3 data are cut.
pub const OBJECT_BYTES_MAX: u64 = 4 << 20;
/// Largest payload of one frame, in bytes.
pub const PAYLOAD_BYTES_MAX: usize = 4 << 20;
/// Largest control segment of one frame, in bytes. It holds a request's operations, its seals and
/// its omap keys and values.
pub const CONTROL_BYTES_MAX: usize = 2 << 20;
/// Most operations in one request or transaction.
pub const OPERATIONS_MAX: usize = 16_384;
/// Most omap entries in one reply.
pub const OMAP_LIST_MAX: u32 = 1_000;
/// Longest omap key, in bytes: an S3 key (1,024) with room for a prefix and a suffix.
pub const OMAP_KEY_BYTES_MAX: usize = 1_280;
/// Longest omap value, in bytes.
pub const OMAP_VALUE_BYTES_MAX: usize = 1 << 20;
/// Longest seal (tag, counter and key reference of one sealed unit), in bytes.
pub const SEAL_BYTES_MAX: usize = 64;
/// Largest unit that one seal covers, in bytes.
pub const SEAL_UNIT_BYTES_MAX: u32 = 64 << 10;
/// Largest difference of the clocks of a gateway and of the cluster, in milliseconds.
pub const CLOCK_DIFFERENCE_MS_MAX: u64 = 60_000;
/// No PG comes to so high an epoch; beyond it the next one could not be counted.
pub const EPOCH_MAX: u64 = 1 << 62;
/// Largest sequence; no PG reaches this many writes.
pub const SEQUENCE_MAX: u64 = 1 << 62;
/// Entries kept in a PG's log ring. More than twice [`PG_IN_FLIGHT_MAX`], so that a member that
/// missed only unacknowledged writes can always catch up by the log.
pub const PG_LOG_ENTRIES: usize = 1_024;
/// Bytes that a PG's log ring takes, roughly, beyond which it keeps no more entries than [`PG_LOG_ENTRIES_MIN`].
pub const PG_LOG_BYTES: u64 = 1 << 20;
/// Entries that a PG's log ring keeps however large they are: more than twice [`PG_IN_FLIGHT_MAX`], too.
pub const PG_LOG_ENTRIES_MIN: usize = 2 * PG_IN_FLIGHT_MAX + 1;
/// Bytes of omap keys in one log entry; of a write that touches more only that it touched its object is kept.
pub const LOG_ENTRY_KEYS_BYTES_MAX: usize = 4 << 10;
/// OSDs in one PG: members, and those that are about to become or cease to be members.
pub const PG_MEMBERS_MAX: usize = 64;
/// Objects in one message that lists a PG.
pub const OBJECTS_LISTED_MAX: usize = 1_000;
/// Objects in one message that lists a PG with the number of their blocks: their metadata must be in memory at
/// once.
pub const OBJECTS_COUNTED_MAX: usize = 32;
/// Writes of one PG that may be in flight at once.
pub const PG_IN_FLIGHT_MAX: usize = 256;
/// Requests that one client connection may have in flight at an OSD.
pub const CONNECTION_REQUESTS_MAX: usize = 1_024;
/// Calls that the object client of one thread has under way at once for tasks of tokio; more wait for their turn.
pub const CLIENT_CALLS_MAX: usize = 4_096;
/// Connections that one process accepts at once.
pub const CONNECTIONS_MAX: usize = 4_096;
/// Largest weight of an OSD: by convention its size in TiB.
pub const OSD_WEIGHT_MAX: f64 = 10_000.0;
/// Largest number of an OSD.
pub const OSD_ID_MAX: u32 = 65_535;
/// OSDs of one host.
pub const HOST_OSDS_MAX: usize = 512;
/// PGs in one pool.
pub const PG_NUM_MAX: u32 = 65_536;
/// Copies of an object in a replicated pool.
pub const COPIES: RangeInclusive<u32> = 1..=8;
/// Data shards of an erasure code.
pub const EC_DATA_SHARDS: RangeInclusive<u32> = 2..=16;
/// Parity shards of an erasure code.
pub const EC_PARITY_SHARDS: RangeInclusive<u32> = 1..=4;
/// Bytes of a chunk of an erasure-coded object, a power of two.
pub const EC_CHUNK_BYTES: RangeInclusive<u32> = 4 << 10..=1 << 20;
/// The default: the unit in which S3 data is sealed, so that a small read touches one shard.
pub const EC_CHUNK_BYTES_DEFAULT: u32 = 64 << 10;
/// Largest image, in bytes (64 TiB).
pub const IMAGE_BYTES_MAX: u64 = 64 << 40;
/// Attachments recorded in one image header: every writing attach adds one.
pub const IMAGE_ATTACHES_MAX: usize = 100_000;

/// Lines of an access control list, as in S3.
pub const ACL_GRANTS_MAX: usize = 100;
/// Bytes of a bucket policy, as in S3.
pub const BUCKET_POLICY_BYTES_MAX: usize = 20 << 10;
