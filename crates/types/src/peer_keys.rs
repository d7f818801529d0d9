//! Static keys that may open connections to OSDs.

use serde::{Deserialize, Serialize};

use crate::ids::OsdId;

/// Role of a static key's holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PeerRole {
    /// Sends replication messages and client requests.
    Osd,
    /// Sends client requests: an NBD server, a bench, the command line.
    Client,
    /// Sends client requests: an S3 gateway.
    Gateway,
}

impl std::fmt::Display for PeerRole {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            PeerRole::Osd => "osd",
            PeerRole::Client => "client",
            PeerRole::Gateway => "gateway",
        })
    }
}

/// A static X25519 key that may open connections to OSDs; the key's hexadecimal is the record's
/// key in cluster state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuthorizedKeyRecord {
    /// [`crate::records::RECORD_FORMAT`].
    pub format: u32,
    /// Role of its holder.
    pub role: PeerRole,
    /// For an OSD, its number.
    pub osd: Option<OsdId>,
    /// Name of its holder, for revocation: `osd.3`, `client@HOST`, `gateway@HOST`.
    pub name: String,
}
