//! The records kept in cluster state, as JSON values under the keys of `atoll-cluster`. Each has the version of
//! its own format, which later releases check.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

pub use crate::access::BucketAccess;
pub use crate::bucket_settings::{
    BucketEncryption, BucketObjectLock, BucketVersioning, DefaultRetention, PublicAccessBlock, RetentionMode,
    RetentionPeriod,
};
use crate::cors::CorsRule;
use crate::frames::FrameMode;
pub use crate::identities::AccessKeyRecord;
use crate::ids::{Epoch, ObjectName, OsdId, PgId, PoolId};
pub use crate::images::{
    ExportAccess, ImageChanger, ImageExport, ImageFlattening, ImageHold, ImageLockRecord, ImageMove, ImageRecord,
    ImageStates, ImageWatcherRecord, ImageWork, ParentRecord, RemovedImageRecord, SnapshotRecord,
};
use crate::limits::EC_CHUNK_BYTES_DEFAULT;
pub use crate::peer_keys::{AuthorizedKeyRecord, PeerRole};
use crate::pg_copies::AcceptedCopies;
use crate::split::pg_of_object;
use crate::transports::Transport;

/// The format version that this release writes into every record.
pub const RECORD_FORMAT: u32 = 1;
/// The format version of a bucket that has versions, or had some: a release that does not know them
/// would throw them away, so it must not read the record.
pub const RECORD_FORMAT_OF_VERSIONS: u32 = 2;
/// The format version of an image with snapshots, a parent, settings of its export, key-value pairs, or work that
/// is under way on all its objects: a release that does not know them would do harm.
pub const RECORD_FORMAT_OF_STATES: u32 = 2;
/// The format version of an image that is being flattened by its writer, or moved: a release that does not support
/// that could use it while another one writes to its previous place.
pub const RECORD_FORMAT_OF_FLATTENING: u32 = 3;
/// The format version of an image that is being moved with its snapshots: a release that does not know of that would
/// read each snapshot as the image itself.
pub const RECORD_FORMAT_OF_MOVED_SNAPSHOTS: u32 = 4;
/// The format version of an image that returns to its place before a move, and of the place that it leaves: a
/// release that does not support that would miss the writes there.
pub const RECORD_FORMAT_OF_GOING_BACK: u32 = 5;
/// The format version of a bucket with a policy, an ACL or an ownership of its own.
pub const RECORD_FORMAT_OF_ACCESS: u32 = 3;

/// Properties of the whole cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterRecord {
    /// [`RECORD_FORMAT`].
    pub format: u32,
    /// 128 random bits in hexadecimal.
    pub id: String,
    /// Protection of frames between Atoll processes, as chosen when the cluster was made. The current protection
    /// is in the [`FramesRecord`](crate::frames::FramesRecord).
    pub frame_mode: FrameMode,
    /// Unix time of creation, in milliseconds.
    pub created_unix_ms: u64,
}

/// An OSD that is a part of the cluster, running or not.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OsdRecord {
    /// [`RECORD_FORMAT`].
    pub format: u32,
    /// Its number.
    pub id: OsdId,
    /// The host it lives on: a failure domain.
    pub host: String,
    /// Static X25519 public key, in hexadecimal.
    pub public_key: String,
    /// Share of data that it should hold, by convention its size in TiB.
    pub weight: f64,
    /// `ssd`, `hdd`, ...
    pub device_class: String,
    /// Size of its device in bytes.
    pub device_bytes: u64,
    /// The rack of its host; empty if it is not known.
    #[serde(default)]
    pub rack: String,
    /// The zone (room, data centre) of its rack; empty if it is not known.
    #[serde(default)]
    pub zone: String,
    /// Holds no data by plan: its data moves to others.
    #[serde(default)]
    pub is_out: bool,
    /// The store on its device, in hexadecimal; empty until it has started once.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub store_id: String,
}

/// A backup of a host's keys was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyBackupRecord {
    /// [`RECORD_FORMAT`].
    pub format: u32,
    /// Unix time when, in milliseconds.
    pub made_unix_ms: u64,
    /// Secrets of the key service in the backup: ids of local keys' versions, and the address of Transit. Earlier
    /// releases did not say it.
    #[serde(default)]
    pub holds: BTreeSet<String>,
}

/// Why an OSD could not start; gone when it could.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OsdFailureRecord {
    /// [`RECORD_FORMAT`].
    pub format: u32,
    /// In one line.
    pub reason: String,
    /// Unix time when, in milliseconds.
    pub unix_ms: u64,
}

/// Identity of a process among all others of its host, beside its number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessRecord {
    /// Which boot of a kernel it runs under: random, drawn by the kernel.
    pub boot_id: String,
    /// Its namespaces of processes and of time, as the kernel names them.
    pub namespaces: String,
    /// When it started, in clock ticks since the boot.
    pub start_ticks: u64,
}

/// How often an OSD has ended by itself lately, and why it did last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OsdEndsRecord {
    /// [`RECORD_FORMAT`].
    pub format: u32,
    /// The store that it had, in hexadecimal.
    pub store_id: String,
    /// How often since there was a day without.
    pub count: u32,
    /// Why it did last, in one line.
    pub reason: String,
    /// Unix time when it did last, in milliseconds.
    pub last_unix_ms: u64,
}

impl OsdEndsRecord {
    /// Returns true if less than a day has passed since the last end.
    pub fn is_recent(&self, now_unix_ms: u64) -> bool {
        now_unix_ms.saturating_sub(self.last_unix_ms) < 24 * 60 * 60 * 1_000
    }
}

/// The presence of a running OSD; the key is tied to its lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OsdUpRecord {
    /// [`RECORD_FORMAT`].
    pub format: u32,
    /// Its number.
    pub id: OsdId,
    /// `IP:PORT` where it listens.
    pub address: String,
    /// The abstract Unix socket where it listens for processes of its host; empty: none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub local_name: String,
    /// `PROVIDER:IP:PORT` where it listens over RDMA; empty: nowhere.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub rdma_address: String,
    /// Process id on its host.
    pub process_id: u32,
    /// Its process, to find out if it has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<ProcessRecord>,
    /// A new random number at every start.
    pub incarnation: u64,
    /// It signs its changes of PGs. Earlier releases do not.
    #[serde(default, skip_serializing_if = "is_false")]
    pub signs_changes: bool,
}

fn is_false(value: &bool) -> bool {
    !value
}

/// An OSD's usage by one pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OsdPoolUsage {
    /// Bytes of the data region that the pool's objects take, without metadata.
    pub used_bytes: u64,
    /// Objects, with copies and shards counted each.
    pub object_count: u64,
}

/// An OSD's last report about its device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OsdUsageRecord {
    /// [`RECORD_FORMAT`].
    pub format: u32,
    /// Bytes of the data region.
    pub total_bytes: u64,
    /// Bytes of the data region in use.
    pub used_bytes: u64,
    /// True if it refuses new data for lack of space.
    pub is_full: bool,
    /// True if the file system under its device file is almost full, so that the file cannot grow.
    #[serde(default)]
    pub is_file_system_full: bool,
    /// Objects stored.
    pub object_count: u64,
    /// PGs for which it is the primary, by state: `active`, `peering`, ...
    pub primary_pg_states: std::collections::BTreeMap<String, u32>,
    /// Damaged blocks found since start.
    pub corrupt_block_count: u64,
    /// Bytes read to backfill other OSDs since start.
    #[serde(default)]
    pub recovery_read_bytes: u64,
    /// Bytes per second that it may read for backfill while clients are active.
    #[serde(default)]
    pub recovery_bytes_per_second: u64,
    /// Connections that it has accepted whose frames are in another mode than cluster state wants by
    /// now.
    #[serde(default)]
    pub links_in_other_mode: u32,
    /// Connections that it has accepted, by transport.
    #[serde(default)]
    pub links_by_transport: std::collections::BTreeMap<Transport, u32>,
    /// Its usage by each pool; none if its store was made by a release that did not count it.
    #[serde(default)]
    pub pools: Option<std::collections::BTreeMap<PoolId, OsdPoolUsage>>,
}

/// How old the device of an OSD is. The OSD writes it when it starts, and again every minute in which its store made
/// a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OsdStoreRecord {
    /// [`RECORD_FORMAT`].
    pub format: u32,
    /// Id of the store, in hexadecimal.
    pub store_id: String,
    /// Generation of the store's superblock. It rises at every start and with every checkpoint, so a device
    /// with a lower one is an older copy.
    pub generation: u64,
}

/// How a pool protects its objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Redundancy {
    /// `size` full copies; I/O needs `min_size` of them.
    Replicated {
        /// Copies.
        size: u32,
        /// Copies without which I/O stops.
        min_size: u32,
    },
    /// Objects are cut into chunks that go round `data` shards, beside `parity` shards computed
    /// from them: any `data` of all shards give everything back.
    Erasure {
        /// Data shards, k.
        data: u32,
        /// Parity shards, m: any m shards may be lost.
        parity: u32,
        /// Bytes of a chunk, a power of two of 4,096 or more.
        chunk_bytes: u32,
        /// Shards without which I/O stops.
        min_size: u32,
    },
}

impl Redundancy {
    /// Returns a redundancy of `size` copies. By default I/O needs half of them, as in Ceph.
    pub fn replicated(size: u32, min_size: Option<u32>) -> Redundancy {
        Redundancy::Replicated { size, min_size: min_size.unwrap_or(size - size / 2) }
    }

    /// An erasure code. By default I/O needs one shard more than the data: then acknowledged writes survive the
    /// loss of one more.
    pub fn erasure(data: u32, parity: u32, chunk_bytes: Option<u32>, min_size: Option<u32>) -> Redundancy {
        Redundancy::Erasure {
            data,
            parity,
            chunk_bytes: chunk_bytes.unwrap_or(EC_CHUNK_BYTES_DEFAULT),
            min_size: min_size.unwrap_or(data.saturating_add(1)),
        }
    }

    /// Returns the name of one OSD's part of a PG's data.
    pub fn part_name(&self) -> &'static str {
        match self {
            Redundancy::Replicated { .. } => "copies",
            Redundancy::Erasure { .. } => "shards",
        }
    }

    /// OSDs that each PG should have.
    pub fn size(&self) -> u32 {
        match self {
            Redundancy::Replicated { size, .. } => *size,
            Redundancy::Erasure { data, parity, .. } => data + parity,
        }
    }

    /// OSDs of a PG without which I/O stops.
    pub fn min_size(&self) -> u32 {
        let (Redundancy::Replicated { min_size, .. } | Redundancy::Erasure { min_size, .. }) = self;
        *min_size
    }

    /// OSDs of a PG that must be left for its data not to be lost.
    pub fn copies_needed(&self) -> u32 {
        match self {
            Redundancy::Replicated { .. } => 1,
            Redundancy::Erasure { data, .. } => *data,
        }
    }

    /// Bytes on all devices per byte stored.
    pub fn space_factor(&self) -> f64 {
        f64::from(self.size()) / f64::from(self.copies_needed())
    }
}

impl std::fmt::Display for Redundancy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Redundancy::Replicated { size, .. } => write!(f, "{size} copies"),
            Redundancy::Erasure { data, parity, chunk_bytes, .. } => {
                write!(f, "erasure code {data}+{parity}, chunks of {} KiB", chunk_bytes >> 10)
            }
        }
    }
}

/// The level of the CRUSH tree across which the members of a PG are spread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FailureDomain {
    /// Members on different OSDs, perhaps of one host.
    Osd,
    /// Members on different hosts.
    #[default]
    Host,
    /// Members in different racks.
    Rack,
    /// Members in different zones.
    Zone,
}

/// A pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolRecord {
    /// [`RECORD_FORMAT`].
    pub format: u32,
    /// Its number.
    pub id: PoolId,
    /// Its name.
    pub name: String,
    /// How it protects objects.
    pub redundancy: Redundancy,
    /// Number of PGs that there should be, a power of two.
    pub pg_num: u32,
    /// The number that the pool was made with; 0 if it has not changed.
    #[serde(default)]
    pub pg_num_first: u32,
    /// Where members may sit.
    pub failure_domain: FailureDomain,
    /// Only OSDs of this class, or all.
    pub device_class: Option<String>,
}

impl PoolRecord {
    /// The number of PGs that the pool was made with.
    pub fn pg_num_first(&self) -> u32 {
        if self.pg_num_first == 0 { self.pg_num } else { self.pg_num_first }
    }

    /// The PG of an object: of those that it could belong to, the youngest
    /// that exists, since PGs are split one after the other. `pg_num` is the number of PGs after all splits so far, or
    /// less.
    pub fn pg_of_object(&self, object: &ObjectName, pg_num: u32, exists: impl Fn(PgId) -> bool) -> PgId {
        let mut pg_num = pg_num.max(self.pg_num);
        loop {
            let pg = pg_of_object(self.id, object, pg_num);
            if pg_num <= self.pg_num_first() || pg.index < self.pg_num_first() || exists(pg) {
                return pg;
            }
            pg_num /= 2;
        }
    }
}

/// The configuration in force of one PG. It changes only by compare-and-swap, and
/// every change raises the epoch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PgRecord {
    /// [`RECORD_FORMAT`].
    pub format: u32,
    /// Generation of this configuration.
    pub epoch: Epoch,
    /// Members; an ack means durable on all of them.
    pub members: Vec<OsdId>,
    /// The member that orders writes and serves reads.
    pub primary: OsdId,
    /// The last epoch that became active.
    pub activated_epoch: Epoch,
    /// Members of that epoch's configuration.
    pub last_active_members: Vec<OsdId>,
    /// The pool's number of PGs as of this PG's last split; 0 if the pool was made with this PG and
    /// it was never split.
    #[serde(default)]
    pub pg_num: u32,
    /// In an erasure-coded pool the shard that each member holds, in the order of the members. Two may
    /// hold the same one while it moves.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shards: Vec<u8>,
    /// The same of the last active members.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub last_active_shards: Vec<u8>,
    /// An operator has chosen the copies from which the PG resumes: those of the last active members. None again
    /// once the PG has been active with them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accepted: Option<AcceptedCopies>,
}

impl PgRecord {
    /// The shard of an erasure-coded PG that an OSD holds, as a member or as one of the last active
    /// configuration.
    pub fn shard_of(&self, osd: OsdId) -> Option<u8> {
        let find = |osds: &[OsdId], shards: &[u8]| {
            let position = osds.iter().position(|other| *other == osd)?;
            shards.get(position).copied()
        };
        find(&self.members, &self.shards).or_else(|| find(&self.last_active_members, &self.last_active_shards))
    }

    /// The pool's number of PGs as of this PG's last split, if the pool was made with
    /// `pg_num_first`.
    pub fn pg_num_of(&self, pg: PgId, pg_num_first: u32) -> u32 {
        if self.pg_num == 0 { pg.first_pg_num(pg_num_first) } else { self.pg_num }
    }
}

/// A PG and its configuration.
pub type PgMapEntry = (PgId, PgRecord);

/// The members of a PG that the balancer chose, in place of those of the CRUSH tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PgTargetRecord {
    /// [`RECORD_FORMAT`].
    pub format: u32,
    /// The members that it is to have; the first is to be the primary.
    pub members: Vec<OsdId>,
}

/// Result of the last scrub of a PG, by its primary.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PgScrubRecord {
    /// [`RECORD_FORMAT`].
    pub format: u32,
    /// Unix time, in milliseconds, when the last scrub that came to its end began, light or deep.
    pub light_unix_ms: u64,
    /// The same of the last deep one; 0 if there was none.
    pub deep_unix_ms: u64,
    /// The primary that did the last one.
    pub osd: OsdId,
    /// True if the last one was deep.
    pub is_deep: bool,
    /// Objects that it examined.
    pub objects: u64,
    /// Objects with bad copies.
    pub errors: u64,
    /// Objects with bad copies that were all repaired.
    pub repaired: u64,
    /// Objects with bad copies left; after a light scrub also those that the deep one before it had left.
    pub unrepaired: u64,
    /// The members whose copies it examined; empty in records of releases that did not say.
    #[serde(default)]
    pub members: Vec<OsdId>,
}

/// A scrub that an operator has asked for. The primary removes the record when it is done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubRequestRecord {
    /// [`RECORD_FORMAT`].
    pub format: u32,
    /// True if all data is to be read.
    pub is_deep: bool,
    /// Unix time when it was asked for, in milliseconds.
    pub requested_unix_ms: u64,
}

/// An action that an operator has suspended for the whole cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClusterFlag {
    /// OSDs that are down for long are not taken for lost.
    NoOut,
    /// Nothing is copied to OSDs that are not members yet.
    NoBackfill,
    /// The balancer moves nothing.
    NoRebalance,
    /// No scheduled scrubs.
    NoScrub,
    /// No scheduled deep scrubs.
    NoDeepScrub,
}

/// The flags that are set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlagsRecord {
    /// [`RECORD_FORMAT`].
    pub format: u32,
    /// Each with the Unix time, in milliseconds, when it was set.
    pub flags: std::collections::BTreeMap<ClusterFlag, u64>,
}

/// An S3 bucket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BucketRecord {
    /// [`RECORD_FORMAT`], [`RECORD_FORMAT_OF_VERSIONS`] or [`RECORD_FORMAT_OF_ACCESS`].
    pub format: u32,
    /// 64 random bits in hexadecimal; names the bucket's index objects.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Canonical id of the account that owns it.
    pub owner: String,
    /// The pool of its index.
    pub pool: PoolId,
    /// The pool of its data, if it is another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_pool: Option<PoolId>,
    /// Number of index objects over which its keys are spread.
    pub index_shards: u32,
    /// The bucket key, wrapped by the key-management service.
    pub wrapped_key: String,
    /// Unix time of creation, in milliseconds.
    pub created_unix_ms: u64,
    /// For each key of the key service used by objects: the key that wraps their data keys, wrapped by it.
    #[serde(default, skip_serializing_if = "std::collections::BTreeMap::is_empty")]
    pub named_keys: std::collections::BTreeMap<String, String>,
    /// Raised to make gateways forget the keys that they have unwrapped.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub key_generation: u64,
    /// How objects are encrypted when the request does not say; `None` for by the bucket's own key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_encryption: Option<BucketEncryption>,
    /// Present if the operator has new objects stored without sealing unless a request asks for encryption:
    /// a secret that the key-management service has wrapped for this, which encrypts nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unsealed_permit: Option<String>,
    /// Versioning of objects; `None` if it was never set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub versioning: Option<BucketVersioning>,
    /// Present if versions may be locked against removal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object_lock: Option<BucketObjectLock>,
    /// The owner's tags of the bucket.
    #[serde(default, skip_serializing_if = "std::collections::BTreeMap::is_empty")]
    pub tags: std::collections::BTreeMap<String, String>,
    /// Public access that the owner has forbidden, beside access that is never public anyway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub public_access_block: Option<PublicAccessBlock>,
    /// Which scripts of other origins may use the bucket; the first rule that fits a request counts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cors: Vec<CorsRule>,
    /// Ownership of objects, ACL and policy, if any was set; without it everything is the owner's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub access: Option<BucketAccess>,
}

impl BucketRecord {
    /// Sets the format that its fields need: earlier releases must not read, and so lose, unknown fields.
    pub fn settle_format(&mut self) {
        self.format = match (&self.access, &self.versioning) {
            (Some(_), _) => RECORD_FORMAT_OF_ACCESS,
            (None, Some(_)) => RECORD_FORMAT_OF_VERSIONS,
            (None, None) => RECORD_FORMAT,
        };
    }

    /// The pool of its data.
    pub fn data_pool(&self) -> PoolId {
        self.data_pool.unwrap_or(self.pool)
    }

    /// Returns true if new objects are sealed without a request for encryption. Default encryption that S3 clients
    /// have set for the bucket is such a request.
    pub fn seals_by_default(&self) -> bool {
        self.unsealed_permit.is_none() || self.default_encryption.is_some()
    }
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}
