//! Hosts that must prove themselves to NVMe gateways, by secrets or by keys of TLS.

use serde::{Deserialize, Serialize};

/// Longest name of a host or subsystem, in bytes.
pub const NQN_BYTES_MAX: usize = 223;

/// A host with a secret. No gateway lets it connect without a proof that it holds it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NvmeHostRecord {
    /// [`crate::records::RECORD_FORMAT`].
    pub format: u32,
    /// Its name (NQN).
    pub host: String,
    /// Its secret.
    pub secret: WrappedNvmeSecret,
    /// The secret by which gateways prove themselves to it, if it requires that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub controller_secret: Option<WrappedNvmeSecret>,
    /// Unix time when the secrets were set, in milliseconds.
    pub created_unix_ms: u64,
}

/// A host with a key for TLS.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NvmeTlsRecord {
    /// [`crate::records::RECORD_FORMAT`].
    pub format: u32,
    /// Its name (NQN).
    pub host: String,
    /// Its configured key.
    pub key: WrappedNvmeSecret,
    /// True if it may also connect without TLS.
    pub is_plain_allowed: bool,
    /// Unix time when the key was set, in milliseconds.
    pub created_unix_ms: u64,
}

/// A secret of DH-HMAC-CHAP or a key for TLS as the key service has wrapped it, in pieces of the 32 bytes that it takes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WrappedNvmeSecret {
    /// The function that transforms it: 0 for none, 1 to 3 for SHA-256, SHA-384 and SHA-512.
    pub hash: u8,
    /// Length of the secret: 32, 48 or 64 bytes.
    pub length_bytes: u8,
    /// The pieces in their order, the last one filled up with zeros.
    pub wrapped_parts: Vec<String>,
}
