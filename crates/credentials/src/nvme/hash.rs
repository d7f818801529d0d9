//! The hash functions of NVMe's authentication (NVM Express Base Specification 2.0, section 8.13.5).

use aws_lc_rs::{digest, hmac};

/// A hash function, by its identifier in messages and in secrets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HashFunction {
    /// SHA-256.
    Sha256 = 1,
    /// SHA-384.
    Sha384 = 2,
    /// SHA-512.
    Sha512 = 3,
}

impl HashFunction {
    /// All of them, the strongest first.
    pub const ALL: [HashFunction; 3] = [HashFunction::Sha512, HashFunction::Sha384, HashFunction::Sha256];

    /// The one with this identifier.
    pub fn from_id(id: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|hash| *hash as u8 == id)
    }

    /// Bytes of a hash.
    pub fn output_bytes(self) -> usize {
        match self {
            HashFunction::Sha256 => 32,
            HashFunction::Sha384 => 48,
            HashFunction::Sha512 => 64,
        }
    }

    /// Returns the hash of bytes.
    pub fn digest(self, bytes: &[u8]) -> digest::Digest {
        let algorithm = match self {
            HashFunction::Sha256 => &digest::SHA256,
            HashFunction::Sha384 => &digest::SHA384,
            HashFunction::Sha512 => &digest::SHA512,
        };
        digest::digest(algorithm, bytes)
    }

    /// Returns the HMAC with this function of parts one after the other.
    pub fn hmac(self, key: &[u8], parts: &[&[u8]]) -> hmac::Tag {
        let algorithm = match self {
            HashFunction::Sha256 => hmac::HMAC_SHA256,
            HashFunction::Sha384 => hmac::HMAC_SHA384,
            HashFunction::Sha512 => hmac::HMAC_SHA512,
        };
        let mut context = hmac::Context::with_key(&hmac::Key::new(algorithm, key));
        parts.iter().for_each(|part| context.update(part));
        context.sign()
    }
}
