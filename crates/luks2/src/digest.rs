//! The digest that identifies a volume key (LUKS2 On-Disk Format Specification 1.1, section 3.4).

use std::num::NonZeroU32;

use crate::metadata::{self, Base64, Metadata, parse};
use crate::{Luks2Error, Luks2Hash, VolumeKey, key_derivation};

const KIND: &str = "pbkdf2";
/// A volume key is random and long, so nothing is won by making its digest slow to compute.
const ITERATIONS: NonZeroU32 = NonZeroU32::new(1000).expect("not zero");

/// PBKDF2 of the volume key.
pub(crate) struct KeyDigest {
    hash: Luks2Hash,
    iterations: NonZeroU32,
    salt: Vec<u8>,
    digest: Vec<u8>,
}

impl KeyDigest {
    pub(crate) fn create(key: &VolumeKey, random: &mut impl FnMut(&mut [u8])) -> Self {
        let (hash, mut salt) = (Luks2Hash::Sha256, vec![0; 32]);
        random(&mut salt);
        let mut digest = vec![0; hash.digest_bytes()];
        hash.pbkdf2(ITERATIONS, &salt, key.expose(), &mut digest);
        KeyDigest { hash, iterations: ITERATIONS, salt, digest }
    }

    /// Returns the entry in the JSON of a header with one keyslot and one segment.
    pub(crate) fn to_metadata(&self) -> metadata::Digest {
        metadata::Digest {
            kind: KIND.into(),
            keyslots: vec!["0".into()],
            segments: vec!["0".into()],
            hash: self.hash,
            iterations: self.iterations.get(),
            salt: Base64(self.salt.clone()),
            digest: Base64(self.digest.clone()),
        }
    }

    /// The digest of the key of segment `number`, and the numbers of the keyslots that hold it.
    pub(crate) fn of_segment(number: &str, metadata: &Metadata) -> Result<(Self, Vec<String>), Luks2Error> {
        for json in metadata.digests.values() {
            let used: metadata::DigestUse = parse("a digest", json)?;
            if !used.segments.iter().any(|segment| segment == number) {
                continue;
            }
            if json["type"] != KIND {
                return Err(Luks2Error::unsupported(format!("a digest of type {}", json["type"])));
            }
            let json: metadata::Digest = parse("a digest", json)?;
            // A digest that is cut short would be matched by many keys, and an empty one by all.
            if json.digest.0.len() != json.hash.digest_bytes() {
                return Err(Luks2Error::damaged("a digest has not the length of its hash"));
            }
            let digest = KeyDigest {
                hash: json.hash,
                iterations: key_derivation::checked_iterations(json.iterations)?,
                salt: json.salt.0,
                digest: json.digest.0,
            };
            return Ok((digest, json.keyslots));
        }
        Err(Luks2Error::damaged("its data segment has no digest"))
    }

    /// Returns true if this is the key.
    pub(crate) fn matches(&self, key: &[u8; VolumeKey::BYTES]) -> bool {
        self.hash.pbkdf2_matches(self.iterations, &self.salt, key, &self.digest)
    }
}
