//! From a passphrase to the key of a keyslot area.

use std::num::NonZeroU32;

use argon2::{Algorithm, Argon2, Block, Params, Version};
use serde::{Deserialize, Serialize};
use zeroize::{Zeroize, Zeroizing};

use crate::{Luks2Error, Luks2Hash, VolumeKey};

/// Most memory that Argon2 may require: the limit of `cryptsetup`, too.
const MAX_MEMORY_KIB: u32 = 4 << 20;
/// Memory times passes: 32 GiB are filled in a minute or two.
const MAX_FILLED_KIB: u64 = 32 << 20;
/// A few minutes of HMAC-SHA-512.
const MAX_PBKDF2_ITERATIONS: u32 = 1 << 28;

/// How a keyslot makes a key of a passphrase, with its cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum KeyDerivation {
    /// Argon2id (RFC 9106): recommended for new keyslots.
    Argon2id {
        /// How often the memory is filled.
        #[serde(rename = "time")]
        passes: u32,
        /// Memory in KiB, at least 8 for each lane.
        #[serde(rename = "memory")]
        memory_kib: u32,
        /// Parts of the memory that could be filled in parallel. They are filled one by one here.
        #[serde(rename = "cpus")]
        lanes: u32,
    },
    /// Argon2i, which `cryptsetup` used before version 2.4.
    Argon2i {
        /// As for Argon2id.
        #[serde(rename = "time")]
        passes: u32,
        /// As for Argon2id.
        #[serde(rename = "memory")]
        memory_kib: u32,
        /// As for Argon2id.
        #[serde(rename = "cpus")]
        lanes: u32,
    },
    /// PBKDF2 (RFC 8018), for machines without the memory.
    Pbkdf2 {
        /// The hash under its HMAC.
        hash: Luks2Hash,
        /// Number of iterations.
        iterations: u32,
    },
}

impl KeyDerivation {
    /// The usual cost: a passphrase of an OSD comes from a key file or a key service and has entropy
    /// of its own, so 64 MiB and 4 passes (about half a second) are enough.
    pub const MODEST: Self = KeyDerivation::Argon2id { passes: 4, memory_kib: 64 << 10, lanes: 1 };

    /// For tests: no protection for a weak passphrase, but no waiting either.
    pub const FAST_FOR_TESTS: Self = KeyDerivation::Argon2id { passes: 4, memory_kib: 64, lanes: 1 };

    /// Derives the key of a keyslot area. Costs beyond the limits of this module are errors, so a
    /// hostile header cannot take all the memory or run for hours.
    pub(crate) fn derive(&self, passphrase: &[u8], salt: &[u8]) -> Result<VolumeKey, Luks2Error> {
        let mut key = Zeroizing::new([0; VolumeKey::BYTES]);
        match *self {
            KeyDerivation::Argon2id { passes, memory_kib, lanes } => {
                let params = argon2_params(passes, memory_kib, lanes)?;
                argon2(Algorithm::Argon2id, params, passphrase, salt, &mut key[..])?;
            }
            KeyDerivation::Argon2i { passes, memory_kib, lanes } => {
                let params = argon2_params(passes, memory_kib, lanes)?;
                argon2(Algorithm::Argon2i, params, passphrase, salt, &mut key[..])?;
            }
            KeyDerivation::Pbkdf2 { hash, iterations } => {
                hash.pbkdf2(checked_iterations(iterations)?, salt, passphrase, &mut key[..]);
            }
        }
        VolumeKey::from_bytes(*key)
    }
}

/// The number of iterations, if it is within the limits.
pub(crate) fn checked_iterations(iterations: u32) -> Result<NonZeroU32, Luks2Error> {
    NonZeroU32::new(iterations)
        .filter(|iterations| iterations.get() <= MAX_PBKDF2_ITERATIONS)
        .ok_or_else(|| failed(format!("PBKDF2 wants 1 to {MAX_PBKDF2_ITERATIONS} iterations, not {iterations}")))
}

fn argon2_params(passes: u32, memory_kib: u32, lanes: u32) -> Result<Params, Luks2Error> {
    if memory_kib > MAX_MEMORY_KIB || u64::from(memory_kib) * u64::from(passes) > MAX_FILLED_KIB {
        return Err(failed(format!("{passes} passes over {memory_kib} KiB of memory are beyond the limits")));
    }
    Params::new(memory_kib, passes, lanes, Some(VolumeKey::BYTES)).map_err(failed)
}

fn argon2(
    algorithm: Algorithm,
    params: Params,
    passphrase: &[u8],
    salt: &[u8],
    key: &mut [u8],
) -> Result<(), Luks2Error> {
    // The memory is had here and not by the library, so that it can be wiped.
    let blocks = params.block_count();
    let mut memory = Vec::new();
    memory.try_reserve_exact(blocks).map_err(|_| failed(format!("there is no memory for {blocks} KiB")))?;
    memory.resize_with(blocks, Block::new);
    let result = Argon2::new(algorithm, Version::V0x13, params).hash_password_into_with_memory(
        passphrase,
        salt,
        key,
        &mut memory[..],
    );
    memory.zeroize();
    result.map_err(failed)
}

fn failed(detail: impl ToString) -> Luks2Error {
    Luks2Error::KeyDerivation { detail: detail.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_beyond_the_limits_are_refused_at_once() {
        let costs =
            [(1, MAX_MEMORY_KIB + 1, 1), (u32::MAX, 64, 1), (1, 64, u32::MAX), (0, 64, 1), (1, 64, 0), (1, 0, 1)];
        for (passes, memory_kib, lanes) in costs {
            let derivation = KeyDerivation::Argon2id { passes, memory_kib, lanes };
            assert!(matches!(derivation.derive(b"", &[0; 32]), Err(Luks2Error::KeyDerivation { .. })));
        }
        for iterations in [0, MAX_PBKDF2_ITERATIONS + 1] {
            let derivation = KeyDerivation::Pbkdf2 { hash: Luks2Hash::Sha256, iterations };
            assert!(matches!(derivation.derive(b"", &[0; 32]), Err(Luks2Error::KeyDerivation { .. })));
        }
        let short_salt = KeyDerivation::FAST_FOR_TESTS.derive(b"", &[0; 7]);
        assert!(matches!(short_salt, Err(Luks2Error::KeyDerivation { .. })));
    }
}
