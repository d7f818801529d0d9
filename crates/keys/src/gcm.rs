//! AES-256-GCM, and a watch over its one rule: that no key ever meets the same nonce twice.

use std::collections::HashSet;
use std::sync::{Mutex, OnceLock, PoisonError};

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};

use crate::key::{SecretKey, sha256};

/// Bytes of an authentication tag.
const TAG_BYTES: usize = 16;

/// Set in the environment of tests, and by [`watch_nonces`].
const WATCH_VARIABLE: &str = "ATOLL_WATCH_NONCES";

/// Digests of keys with the nonces that they have met, if nonces are watched.
static WATCH: OnceLock<Option<Mutex<HashSet<u128>>>> = OnceLock::new();

/// Makes this process panic when a key meets a nonce twice; for tests, since it remembers each seal
/// that is made (some 30 bytes). Call it before anything is sealed; with `ATOLL_WATCH_NONCES` in the
/// environment it is so from the start.
pub fn watch_nonces() {
    let watch = WATCH.get_or_init(|| Some(Mutex::default()));
    assert!(watch.is_some(), "nonces are watched from the first seal on, or not at all");
}

fn watch() -> Option<&'static Mutex<HashSet<u128>>> {
    WATCH.get_or_init(|| std::env::var_os(WATCH_VARIABLE).map(|_| Mutex::default())).as_ref()
}

/// How many seals were watched; `None` if nonces are not watched.
pub fn watched_nonces() -> Option<usize> {
    watch().map(|seen| seen.lock().unwrap_or_else(PoisonError::into_inner).len())
}

/// A key for AES-256-GCM.
pub struct GcmKey {
    key: LessSafeKey,
    /// Digest of the key; only if nonces are watched.
    digest: Option<[u8; 32]>,
}

impl GcmKey {
    /// Expands the key.
    pub fn new(secret: &SecretKey) -> Self {
        let key = UnboundKey::new(&AES_256_GCM, secret.expose()).expect("32 bytes are an AES-256 key");
        GcmKey { key: LessSafeKey::new(key), digest: watch().map(|_| sha256(secret.expose())) }
    }

    /// Encrypts in place and returns the tag. The nonce must be one that this key has not met.
    pub fn seal(&self, nonce: [u8; NONCE_LEN], associated_data: &[u8], plaintext: &mut [u8]) -> [u8; TAG_BYTES] {
        if let (Some(digest), Some(seen)) = (self.digest, watch()) {
            let mark = sha256(&[&digest[..], &nonce[..]].concat());
            let mark = u128::from_le_bytes(*mark.first_chunk().expect("a digest has 32 bytes"));
            let is_new = seen.lock().unwrap_or_else(PoisonError::into_inner).insert(mark);
            assert!(is_new, "a key met the nonce {} twice", hex::encode(nonce));
        }
        let nonce = Nonce::assume_unique_for_key(nonce);
        let tag = self.key.seal_in_place_separate_tag(nonce, Aad::from(associated_data), plaintext);
        let tag = tag.expect("AES-GCM seals messages shorter than 64 GiB");
        tag.as_ref().try_into().expect("a tag has 16 bytes")
    }

    /// Decrypts into `plaintext`, of the same length; whether everything authenticates.
    pub fn open(
        &self,
        nonce: [u8; NONCE_LEN],
        associated_data: &[u8],
        ciphertext: &[u8],
        tag: &[u8],
        plaintext: &mut [u8],
    ) -> bool {
        let nonce = Nonce::assume_unique_for_key(nonce);
        self.key.open_separate_gather(nonce, Aad::from(associated_data), ciphertext, tag, plaintext).is_ok()
    }
}
