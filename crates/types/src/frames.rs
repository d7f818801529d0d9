//! How frames between Atoll processes are protected, by who speaks to whom.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::records::{PeerRole, RECORD_FORMAT};

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

/// The frame modes by who speaks to OSDs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FrameModes {
    /// OSDs among themselves.
    pub cluster: FrameMode,
    /// NBD servers, benches and the command line.
    pub client: FrameMode,
    /// S3 gateways.
    pub gateway: FrameMode,
}

impl FrameModes {
    /// The same for everyone.
    pub fn all(mode: FrameMode) -> Self {
        FrameModes { cluster: mode, client: mode, gateway: mode }
    }

    /// The mode of a connection that the holder of a key of this role makes to an OSD.
    pub fn of(&self, role: PeerRole) -> FrameMode {
        match role {
            PeerRole::Osd => self.cluster,
            PeerRole::Client => self.client,
            PeerRole::Gateway => self.gateway,
        }
    }

    /// The same but for one role.
    pub fn with(self, role: PeerRole, mode: FrameMode) -> Self {
        match role {
            PeerRole::Osd => FrameModes { cluster: mode, ..self },
            PeerRole::Client => FrameModes { client: mode, ..self },
            PeerRole::Gateway => FrameModes { gateway: mode, ..self },
        }
    }
}

impl fmt::Display for FrameModes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cluster {}, client {}, gateway {}", self.cluster, self.client, self.gateway)
    }
}

/// What new connections keep to. A cluster without this record is `secure`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FramesRecord {
    /// [`RECORD_FORMAT`].
    pub format: u32,
    /// The modes.
    #[serde(flatten)]
    pub modes: FrameModes,
    /// A connection that is so old gets its next key, and again after as long.
    pub rekey_seconds: u64,
}

impl Default for FramesRecord {
    fn default() -> Self {
        FramesRecord { format: RECORD_FORMAT, modes: FrameModes::default(), rekey_seconds: 3_600 }
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
        let record =
            FramesRecord::from(FrameModes::all(FrameMode::Crc).with(PeerRole::Gateway, FrameMode::Secure128));
        let text = serde_json::to_string(&record).unwrap();
        assert_eq!(
            text,
            r#"{"format":1,"cluster":"crc","client":"crc","gateway":"secure-128","rekey_seconds":3600}"#
        );
        assert_eq!(serde_json::from_str::<FramesRecord>(&text).unwrap(), record);
    }
}
