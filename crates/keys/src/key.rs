//! Secret keys, randomness, and wrapping one key with another.

use aws_lc_rs::aead::NONCE_LEN;

use crate::KeyError;
use crate::gcm::GcmKey;
use crate::locked::LockedBytes;

/// A 256-bit secret. Its memory is locked, in no core dump, and wiped when the key is dropped; it is never printed.
#[derive(Clone)]
pub struct SecretKey(LockedBytes);

impl SecretKey {
    /// A fresh random key.
    pub fn random() -> Self {
        Self::from_bytes(random_bytes())
    }

    /// Takes over existing key bytes.
    pub fn from_bytes(mut bytes: [u8; 32]) -> Self {
        SecretKey(LockedBytes::take(&mut bytes))
    }

    /// The key bytes.
    pub fn expose(&self) -> &[u8; 32] {
        self.0.get()
    }
}

impl PartialEq for SecretKey {
    fn eq(&self, other: &Self) -> bool {
        aws_lc_rs::constant_time::verify_slices_are_equal(self.expose(), other.expose()).is_ok()
    }
}

impl Eq for SecretKey {}

impl std::fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SecretKey(..)")
    }
}

/// `N` bytes from the operating system's random source.
pub fn random_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    fill_random(&mut bytes);
    bytes
}

/// Fills `bytes` from the operating system's random source.
pub fn fill_random(bytes: &mut [u8]) {
    aws_lc_rs::rand::fill(bytes).expect("the operating system's random source does not fail once booted");
}

/// 64 random bits.
pub fn random_u64() -> u64 {
    u64::from_le_bytes(random_bytes())
}

/// SHA-256 of `bytes`.
pub fn sha256(bytes: &[u8]) -> [u8; 32] {
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, bytes);
    digest.as_ref().try_into().expect("SHA-256 digests have 32 bytes")
}

/// HMAC-SHA1, which one-time passwords are made of, and nothing else here.
pub fn hmac_sha1(key: &[u8], bytes: &[u8]) -> [u8; 20] {
    let key = aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, key);
    let tag = aws_lc_rs::hmac::sign(&key, bytes);
    tag.as_ref().try_into().expect("tags of HMAC-SHA1 have 20 bytes")
}

/// Length of a wrapped key: nonce, ciphertext, tag.
pub const WRAPPED_KEY_BYTES: usize = NONCE_LEN + 32 + 16;

/// Wraps `secret` under `wrapping_key`, bound to `context`: AES-256-GCM with a random nonce, which
/// is safe for the few million wraps that one key sees (NIST SP 800-38D section 8.3 allows 2^32).
pub fn wrap_key(wrapping_key: &SecretKey, context: &str, secret: &SecretKey) -> [u8; WRAPPED_KEY_BYTES] {
    let nonce: [u8; NONCE_LEN] = random_bytes();
    let mut ciphertext = *secret.expose();
    let tag = GcmKey::new(wrapping_key).seal(nonce, context.as_bytes(), &mut ciphertext);
    let mut wrapped = [0; WRAPPED_KEY_BYTES];
    wrapped[..NONCE_LEN].copy_from_slice(&nonce);
    wrapped[NONCE_LEN..NONCE_LEN + 32].copy_from_slice(&ciphertext);
    wrapped[NONCE_LEN + 32..].copy_from_slice(&tag);
    wrapped
}

/// Opens a result of [`wrap_key`] with the same key and context.
pub fn unwrap_key(wrapping_key: &SecretKey, context: &str, wrapped: &[u8]) -> Result<SecretKey, KeyError> {
    let wrapped: &[u8; WRAPPED_KEY_BYTES] = wrapped.try_into().map_err(|_| KeyError::Malformed {
        what: format!("the wrapped key of {context}"),
        detail: format!("it has {} bytes instead of {WRAPPED_KEY_BYTES}", wrapped.len()),
    })?;
    let (nonce, sealed) = wrapped.split_first_chunk().expect("a wrapped key begins with its nonce");
    let (ciphertext, tag) = sealed.split_at(32);
    let mut secret = [0; 32];
    if !GcmKey::new(wrapping_key).open(*nonce, context.as_bytes(), ciphertext, tag, &mut secret) {
        return Err(KeyError::NotAuthentic { what: format!("the wrapped key of {context}") });
    }
    Ok(SecretKey::from_bytes(secret))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_wrap_and_unwrap_in_their_context_only() {
        let (outer, inner) = (SecretKey::random(), SecretKey::random());
        let wrapped = wrap_key(&outer, "bucket a", &inner);
        assert_eq!(unwrap_key(&outer, "bucket a", &wrapped).unwrap(), inner);
        assert!(unwrap_key(&outer, "bucket b", &wrapped).is_err());
        assert!(unwrap_key(&SecretKey::random(), "bucket a", &wrapped).is_err());
        assert!(unwrap_key(&outer, "bucket a", &wrapped[1..]).is_err());
        for position in 0..wrapped.len() {
            let mut flipped = wrapped;
            flipped[position] ^= 1;
            assert!(unwrap_key(&outer, "bucket a", &flipped).is_err());
        }
    }

    #[test]
    fn secrets_are_not_printed() {
        assert_eq!(format!("{:?}", SecretKey::from_bytes([65; 32])), "SecretKey(..)");
    }
}
