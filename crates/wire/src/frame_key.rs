//! The key of one direction of a connection in a `secure` mode, and the keys that follow it.
//!
//! Each key is derived from the previous one by HKDF, which cannot be inverted: a learned key decrypts nothing
//! that was sent before it was in use.

use atoll_types::frames::FrameMode;
use aws_lc_rs::aead::{AES_128_GCM, AES_256_GCM, Aad, Algorithm, LessSafeKey, Nonce, Tag, UnboundKey};
use aws_lc_rs::hkdf;
use zeroize::Zeroizing;

use crate::invariants;

const LABEL: &[u8] = b"atoll frame key";

/// A key and the secret that its successor is derived from.
pub(crate) struct FrameKey {
    secret: Zeroizing<[u8; 32]>,
    algorithm: &'static Algorithm,
    key: LessSafeKey,
    /// The nonce used last, under this key or one before it.
    last_nonce: Option<u64>,
}

impl FrameKey {
    /// The first key of a direction, or `None` for a mode without keys.
    pub fn new(mode: FrameMode, secret: &[u8; 32]) -> Option<Self> {
        let algorithm = match mode {
            FrameMode::Secure => &AES_256_GCM,
            FrameMode::Secure128 => &AES_128_GCM,
            FrameMode::Crc => return None,
        };
        Some(FrameKey {
            secret: Zeroizing::new(*secret),
            algorithm,
            key: cipher(algorithm, secret),
            last_nonce: None,
        })
    }

    /// Replaces the key by the next one; the old one is wiped.
    pub fn advance(&mut self) {
        let mut next = Zeroizing::new([0; 32]);
        hkdf::Prk::new_less_safe(hkdf::HKDF_SHA256, &*self.secret)
            .expand(&[LABEL], hkdf::HKDF_SHA256)
            .and_then(|output| output.fill(&mut *next))
            .expect("HKDF-SHA-256 gives 32 bytes");
        self.key = cipher(self.algorithm, &next);
        self.secret = next;
    }

    /// Encrypts `data` in place; returns the tag over it and `associated`.
    pub fn seal(&mut self, nonce: u64, associated: &[u8], data: &mut [u8]) -> Tag {
        let nonce = self.next_nonce(nonce);
        let sealed = self.key.seal_in_place_separate_tag(nonce, Aad::from(associated), data);
        sealed.expect("AES-GCM seals a bounded segment")
    }

    /// Decrypts `data`, which ends with its tag, in place. Says whether the tag fits.
    #[must_use]
    pub fn open(&mut self, nonce: u64, associated: &[u8], data: &mut [u8]) -> bool {
        let nonce = self.next_nonce(nonce);
        self.key.open_in_place(nonce, Aad::from(associated), data).is_ok()
    }

    /// The 12 bytes of a nonce: four zeros, then the number.
    fn next_nonce(&mut self, number: u64) -> Nonce {
        invariants::nonces_ascend(self.last_nonce, number);
        self.last_nonce = Some(number);
        let mut bytes = [0; 12];
        bytes[4..].copy_from_slice(&number.to_be_bytes());
        Nonce::assume_unique_for_key(bytes)
    }
}

fn cipher(algorithm: &'static Algorithm, secret: &[u8; 32]) -> LessSafeKey {
    let key = UnboundKey::new(algorithm, &secret[..algorithm.key_len()]);
    LessSafeKey::new(key.expect("an AES key has 16 or 32 bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Computed with Python: `hmac.digest(b"\7" * 32, b"atoll frame key\1", "sha256")`.
    const SECOND: &str = "39241b77bf40399bfddb6d14b5d82edb5ab9be50f18a24993bd6e47796bb1323";

    #[test]
    fn the_next_key_is_derived_as_in_protocol_md() {
        for mode in [FrameMode::Secure, FrameMode::Secure128] {
            let mut key = FrameKey::new(mode, &[7; 32]).unwrap();
            key.advance();
            assert_eq!(hex(&*key.secret), SECOND);
            let mut fresh = FrameKey::new(mode, &key.secret).unwrap();
            let (mut left, mut right) = (*b"data", *b"data");
            let tags = (key.seal(1, b"", &mut left), fresh.seal(1, b"", &mut right));
            assert_eq!((left, tags.0.as_ref()), (right, tags.1.as_ref()));
        }
        assert!(FrameKey::new(FrameMode::Crc, &[7; 32]).is_none());
    }

    #[test]
    #[should_panic(expected = "nonce 4 comes after Some(4)")]
    fn sealing_twice_under_one_nonce_is_noticed() {
        let mut key = FrameKey::new(FrameMode::Secure, &[7; 32]).unwrap();
        let _ = key.seal(4, b"", &mut []);
        // The keys that follow count on.
        key.advance();
        let _ = key.seal(4, b"", &mut []);
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}
