//! The hash functions that a LUKS2 header may name.

use std::num::NonZeroU32;

use aws_lc_rs::{digest, pbkdf2};
use serde::{Deserialize, Serialize};

/// A hash function of a header: for checksums, key derivation and the anti-forensic splitter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Luks2Hash {
    /// SHA-256, the default of `cryptsetup`.
    Sha256,
    /// SHA-512.
    Sha512,
}

impl Luks2Hash {
    /// The longest digest of all, in bytes.
    pub(crate) const MAX_BYTES: usize = 64;

    /// Length of a digest in bytes.
    pub(crate) fn digest_bytes(self) -> usize {
        self.algorithm().output_len()
    }

    /// The digest of `parts`, one after the other.
    pub(crate) fn digest(self, parts: &[&[u8]]) -> digest::Digest {
        let mut context = digest::Context::new(self.algorithm());
        parts.iter().for_each(|part| context.update(part));
        context.finish()
    }

    /// PBKDF2 with HMAC of this hash (RFC 8018).
    pub(crate) fn pbkdf2(self, iterations: NonZeroU32, salt: &[u8], secret: &[u8], derived: &mut [u8]) {
        pbkdf2::derive(self.pbkdf2_algorithm(), iterations, salt, secret, derived);
    }

    /// Returns true if `derived` equals the result of [`Luks2Hash::pbkdf2`]. Takes the same time in both cases.
    pub(crate) fn pbkdf2_matches(
        self,
        iterations: NonZeroU32,
        salt: &[u8],
        secret: &[u8],
        derived: &[u8],
    ) -> bool {
        pbkdf2::verify(self.pbkdf2_algorithm(), iterations, salt, secret, derived).is_ok()
    }

    fn pbkdf2_algorithm(self) -> pbkdf2::Algorithm {
        match self {
            Luks2Hash::Sha256 => pbkdf2::PBKDF2_HMAC_SHA256,
            Luks2Hash::Sha512 => pbkdf2::PBKDF2_HMAC_SHA512,
        }
    }

    fn algorithm(self) -> &'static digest::Algorithm {
        match self {
            Luks2Hash::Sha256 => &digest::SHA256,
            Luks2Hash::Sha512 => &digest::SHA512,
        }
    }
}
