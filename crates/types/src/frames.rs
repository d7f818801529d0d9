//! Protection of frames between Atoll processes, by the roles of their ends.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::records::{PeerRole, RECORD_FORMAT};
use crate::transports::{Transport, Transports};

/// How the frames of a connection are protected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum FrameMode {
    /// AES-256-GCM: control segments are encrypted and authenticated; payloads too, or only
    /// authenticated when the client has sealed them.
    #[default]
    #[serde(rename = "secure")]
    Secure,
    /// The same with AES-128-GCM.
    #[serde(rename = "secure-128")]
    Secure128,
    /// Frames carry checksums against accidents only; the handshake still authenticates the peers.
    #[serde(rename = "crc")]
    Crc,
}

impl fmt::Display for FrameMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FrameMode::Secure => "secure",
            FrameMode::Secure128 => "secure-128",
            FrameMode::Crc => "crc",
        })
    }
}

impl FromStr for FrameMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "secure" => Ok(FrameMode::Secure),
            "secure-128" => Ok(FrameMode::Secure128),
            "crc" => Ok(FrameMode::Crc),
            other => Err(format!("'{other}' is no frame mode: choose secure, secure-128 or crc")),
        }
    }
}

/// Connections to OSDs that have a frame mode of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameScope {
    /// Those of one role over networks.
    Role(PeerRole),
    /// Connections over Unix sockets and shared memory, of any role.
    Unix,
}

/// The frame modes by the role that connects to OSDs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FrameModes {
    /// OSDs among themselves.
    pub cluster: FrameMode,
    /// NBD servers, benches and the command line.
    pub client: FrameMode,
    /// S3 gateways.
    pub gateway: FrameMode,
    /// All of them over Unix sockets and shared memory, which no network sees; as over networks if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unix: Option<FrameMode>,
}

impl FrameModes {
    /// Returns the default modes of a new cluster. No network is crossed within a host, and a process that could
    /// read frames between two processes could read the memory of both.
    pub fn of_new_clusters() -> Self {
        FrameModes { unix: Some(FrameMode::Crc), ..FrameModes::default() }
    }

    /// The same for everyone.
    pub fn all(mode: FrameMode) -> Self {
        FrameModes { cluster: mode, client: mode, gateway: mode, unix: None }
    }

    /// The mode of a connection that the holder of a key of this role makes to an OSD.
    pub fn of(&self, role: PeerRole, transport: Transport) -> FrameMode {
        let over_networks = match role {
            PeerRole::Osd => self.cluster,
            PeerRole::Client => self.client,
            PeerRole::Gateway => self.gateway,
        };
        match transport {
            Transport::Tcp | Transport::Rdma => over_networks,
            Transport::Unix | Transport::SharedMemory => self.unix.unwrap_or(over_networks),
        }
    }

    /// The same but for some connections.
    pub fn with(self, scope: FrameScope, mode: FrameMode) -> Self {
        match scope {
            FrameScope::Role(PeerRole::Osd) => FrameModes { cluster: mode, ..self },
            FrameScope::Role(PeerRole::Client) => FrameModes { client: mode, ..self },
            FrameScope::Role(PeerRole::Gateway) => FrameModes { gateway: mode, ..self },
            FrameScope::Unix => FrameModes { unix: Some(mode), ..self },
        }
    }
}

impl fmt::Display for FrameModes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cluster {}, client {}, gateway {}", self.cluster, self.client, self.gateway)?;
        self.unix.map_or(Ok(()), |mode| write!(f, "; within a host {mode}"))
    }
}

/// Modes and transports of new connections. A cluster without this record is `secure`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FramesRecord {
    /// [`RECORD_FORMAT`].
    pub format: u32,
    /// The modes.
    #[serde(flatten)]
    pub modes: FrameModes,
    /// Transports of frames.
    pub transports: Transports,
    /// A connection that is so old gets its next key, and again after as long.
    pub rekey_seconds: u64,
}

impl Default for FramesRecord {
    fn default() -> Self {
        FramesRecord {
            format: RECORD_FORMAT,
            modes: FrameModes::default(),
            transports: Transports::default(),
            rekey_seconds: 3_600,
        }
    }
}

impl From<FrameModes> for FramesRecord {
    fn from(modes: FrameModes) -> Self {
        FramesRecord { modes, ..FramesRecord::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_the_same_everywhere() {
        for mode in [FrameMode::Secure, FrameMode::Secure128, FrameMode::Crc] {
            assert_eq!(mode.to_string().parse(), Ok(mode));
            assert_eq!(serde_json::to_value(mode).unwrap(), mode.to_string());
        }
        assert!("Secure".parse::<FrameMode>().unwrap_err().contains("secure-128"));
    }

    #[test]
    fn the_record_is_plain_json() {
        let record = FramesRecord::from(
            FrameModes::all(FrameMode::Crc).with(FrameScope::Role(PeerRole::Gateway), FrameMode::Secure128),
        );
        let text = serde_json::to_string(&record).unwrap();
        assert_eq!(
            text,
            r#"{"format":1,"cluster":"crc","client":"crc","gateway":"secure-128","transports":{"cluster":"unix","client":"unix","gateway":"unix"},"rekey_seconds":3600}"#
        );
        assert_eq!(serde_json::from_str::<FramesRecord>(&text).unwrap(), record);
        let older = r#"{"format":1,"cluster":"crc","client":"crc","gateway":"crc","rekey_seconds":3600}"#;
        let older: FramesRecord = serde_json::from_str(older).unwrap();
        assert_eq!(older.modes.of(PeerRole::Osd, Transport::Unix), FrameMode::Crc, "as over networks");
        let unix = older.modes.with(FrameScope::Unix, FrameMode::Secure);
        assert_eq!(unix.of(PeerRole::Osd, Transport::Unix), FrameMode::Secure);
        assert_eq!(unix.of(PeerRole::Osd, Transport::SharedMemory), FrameMode::Secure);
        assert_eq!(unix.of(PeerRole::Osd, Transport::Tcp), FrameMode::Crc);
    }
}
