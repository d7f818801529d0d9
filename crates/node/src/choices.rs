//! Choices of the first start and of later ones.

use std::net::IpAddr;
use std::path::PathBuf;

use atoll_keys::TransitSettings;
use atoll_types::OsdId;
use atoll_types::frames::FrameModes;
use atoll_types::records::{FailureDomain, Redundancy};
use atoll_types::transports::Transports;

use crate::state_access::EtcdChoices;

/// Size of an OSD's device file if none is chosen and there is room for it. The file is sparse.
pub const DEFAULT_OSD_BYTES: u64 = 32 << 30;
/// Most OSDs of one machine.
pub(crate) const OSDS_MAX: u32 = 64;

/// The variable of the environment that may hold the text of a token.
pub const JOIN_TOKEN_VARIABLE: &str = "ATOLL_JOIN_TOKEN";

/// The user's choices for `atoll up`.
#[derive(Clone, Debug, Default)]
pub struct Choices {
    /// Number of OSDs, for the first start.
    pub osd_count: Option<u32>,
    /// Size of each OSD's device in bytes, for the first start.
    pub osd_bytes: Option<u64>,
    /// Where the S3 gateway listens for HTTP, or `off`.
    pub s3_listen: Option<String>,
    /// Where it listens for HTTPS, or `off`.
    pub s3_tls_listen: Option<String>,
    /// Where the admin server listens, or `off`.
    pub admin_listen: Option<String>,
    /// Where lines of the audit log of commands go.
    pub command_audit_log: Option<String>,
    /// Further names for the certificate that is made for this host.
    pub tls_names: Vec<String>,
    /// Where the NBD server listens.
    pub nbd_listen: Vec<String>,
    /// Where the NVMe/TCP target listens, or `off`.
    pub nvme_listen: Vec<String>,
    /// A real etcd instead of the embedded server.
    pub etcd: EtcdChoices,
    /// This host's name in the failure-domain tree, for the first start.
    pub host: Option<String>,
    /// Its rack, for the first start.
    pub rack: Option<String>,
    /// Its zone, for the first start.
    pub zone: Option<String>,
    /// Where OSDs, and the embedded cluster-state server, listen for other hosts.
    pub listen: Option<IpAddr>,
    /// Address that they announce, if it is another.
    pub advertise: Option<IpAddr>,
    /// Level on which no two copies or shards share an item, for the first start.
    pub failure_domain: Option<FailureDomain>,
    /// Copies of each object, for the first start.
    pub copies: Option<u32>,
    /// The erasure code of S3 data, for the first start.
    pub ec: Option<Redundancy>,
    /// The text of a join token, to come into a cluster that is there.
    pub join: Option<String>,
    /// The key service's file of the cluster that is joined.
    pub key_service: Option<PathBuf>,
    /// Protection of frames, for the first start.
    pub frame_modes: Option<FrameModes>,
    /// Transports of connections, for the first start.
    pub transports: Option<Transports>,
    /// True if device files are LUKS2 volumes that the key service unlocks, for the first start.
    pub encrypt_at_rest: bool,
    /// The Transit service that holds the root of the keys, for the first start.
    pub transit: Option<TransitSettings>,
    /// Lost secrets to recreate: `kms`, `client`, `gateway`, `osd.N`.
    pub new_keys: Vec<String>,
    /// OSDs that are to get an empty device file in place of a device that is lost.
    pub new_devices: Vec<OsdId>,
}
