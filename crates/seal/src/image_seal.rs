//! Image blocks (docs/reference/formats.md, "Sealed image block"): AES-256-GCM per 4 KiB block. Every
//! writing attachment has a random id and, derived from the image key by HKDF-SHA256 (RFC 5869),
//! a key of its own; nonces count up within the attachment. So no nonce needs to be remembered
//! anywhere and none is ever used twice.

use std::collections::HashMap;

use atoll_keys::{GcmKey, SecretKey};
use aws_lc_rs::hkdf;

use crate::SealError;

/// Plaintext and ciphertext length of one sealed image block.
pub const SEALED_BLOCK_BYTES: usize = 4096;
/// Length of an image block's seal: attachment index (4), counter (8), tag (16).
pub const BLOCK_SEAL_BYTES: usize = 28;

/// Random name of one writing attachment.
pub type AttachId = [u8; 16];

const FORMAT: u8 = 1;

fn attach_cipher(image_key: &SecretKey, attach_id: &AttachId) -> GcmKey {
    let pseudo_random_key = hkdf::Salt::new(hkdf::HKDF_SHA256, attach_id).extract(image_key.expose());
    let mut key = [0; 32];
    pseudo_random_key
        .expand(&[b"atoll image attach key, format 1"], hkdf::HKDF_SHA256)
        .and_then(|output| output.fill(&mut key))
        .expect("HKDF-SHA256 gives 32 bytes");
    GcmKey::new(&SecretKey::from_bytes(key))
}

fn nonce(counter: u64) -> [u8; 12] {
    let mut bytes = [0; 12];
    bytes[4..].copy_from_slice(&counter.to_be_bytes());
    bytes
}

/// Returns the further data under a block's tag: format (1 byte), image id (8 bytes), block number (8 bytes).
fn associated_data(image_id: u64, block_number: u64) -> [u8; 17] {
    let mut bytes = [FORMAT; 17];
    bytes[1..9].copy_from_slice(&image_id.to_be_bytes());
    bytes[9..].copy_from_slice(&block_number.to_be_bytes());
    bytes
}

/// Seals the blocks of one writing attachment.
pub struct BlockSealer {
    cipher: GcmKey,
    image_id: u64,
    attach_index: u32,
    counter: u64,
}

impl BlockSealer {
    /// `attach_index` is the place of `attach_id` in the image header's list. The id must be fresh:
    /// a second sealer with the same id would use the same nonces again.
    pub fn new(image_key: &SecretKey, image_id: u64, attach_index: u32, attach_id: &AttachId) -> Self {
        BlockSealer { cipher: attach_cipher(image_key, attach_id), image_id, attach_index, counter: 0 }
    }

    /// Encrypts a block in place and returns its seal.
    pub fn seal(
        &mut self,
        block_number: u64,
        block: &mut [u8; SEALED_BLOCK_BYTES],
    ) -> Result<[u8; BLOCK_SEAL_BYTES], SealError> {
        // The counter starts at 1, so that a seal is never all zeros, which means "never written".
        self.counter = self.counter.checked_add(1).ok_or(SealError::NoncesExhausted)?;
        let aad = associated_data(self.image_id, block_number);
        let tag = self.cipher.seal(nonce(self.counter), &aad, block);
        let mut seal = [0; BLOCK_SEAL_BYTES];
        seal[..4].copy_from_slice(&self.attach_index.to_le_bytes());
        seal[4..12].copy_from_slice(&self.counter.to_le_bytes());
        seal[12..].copy_from_slice(&tag);
        Ok(seal)
    }
}

/// Opens the blocks of an image, whichever attachment sealed them.
pub struct BlockOpener {
    image_key: SecretKey,
    image_id: u64,
    attach_ids: Vec<AttachId>,
    ciphers: HashMap<u32, GcmKey>,
}

impl BlockOpener {
    /// `attach_ids` is the list in the image header.
    pub fn new(image_key: SecretKey, image_id: u64, attach_ids: Vec<AttachId>) -> Self {
        BlockOpener { image_key, image_id, attach_ids, ciphers: HashMap::new() }
    }

    /// Replaces the list by a newer one that begins with the old one.
    pub fn set_attach_ids(&mut self, attach_ids: Vec<AttachId>) {
        self.attach_ids = attach_ids;
    }

    /// Decrypts `ciphertext` into `plaintext`. If the attachment that made the seal is unknown, the header's list has
    /// grown since it was read and must be read again. A seal of all zeros means that the block was never
    /// written: the plaintext is zeros.
    pub fn open(
        &mut self,
        block_number: u64,
        seal: &[u8; BLOCK_SEAL_BYTES],
        ciphertext: &[u8; SEALED_BLOCK_BYTES],
        plaintext: &mut [u8; SEALED_BLOCK_BYTES],
    ) -> Result<(), SealError> {
        if seal == &[0; BLOCK_SEAL_BYTES] {
            plaintext.fill(0);
            return Ok(());
        }
        let index = attach_index(seal);
        let cipher = match self.ciphers.entry(index) {
            std::collections::hash_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::hash_map::Entry::Vacant(entry) => {
                let attach_id = self
                    .attach_ids
                    .get(index as usize)
                    .ok_or(SealError::UnknownAttachment { block_number, index })?;
                entry.insert(attach_cipher(&self.image_key, attach_id))
            }
        };
        let counter = u64::from_le_bytes(seal[4..12].try_into().expect("a counter has 8 bytes"));
        let aad = associated_data(self.image_id, block_number);
        if !cipher.open(nonce(counter), &aad, ciphertext, &seal[12..], plaintext) {
            return Err(SealError::NotAuthentic { what: format!("image block {block_number}") });
        }
        Ok(())
    }
}

fn attach_index(seal: &[u8; BLOCK_SEAL_BYTES]) -> u32 {
    u32::from_le_bytes(seal[..4].try_into().expect("an index has 4 bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const IMAGE_ID: u64 = 0x0123_4567_89ab_cdef;

    fn fixed_key() -> SecretKey {
        SecretKey::from_bytes(std::array::from_fn(|i| i as u8))
    }

    #[test]
    fn blocks_open_only_in_their_own_place() {
        let attach_id = [9; 16];
        let mut sealer = BlockSealer::new(&fixed_key(), IMAGE_ID, 0, &attach_id);
        let mut block = [0x5a; SEALED_BLOCK_BYTES];
        let seal = sealer.seal(7, &mut block).unwrap();
        let mut plaintext = [0; SEALED_BLOCK_BYTES];

        let mut opener = BlockOpener::new(fixed_key(), IMAGE_ID, vec![attach_id]);
        opener.open(7, &seal, &block, &mut plaintext).unwrap();
        assert_eq!(plaintext, [0x5a; SEALED_BLOCK_BYTES]);
        assert!(opener.open(8, &seal, &block, &mut plaintext).is_err());
        let mut other_image = BlockOpener::new(fixed_key(), IMAGE_ID + 1, vec![attach_id]);
        assert!(other_image.open(7, &seal, &block, &mut plaintext).is_err());
        let mut flipped = block;
        flipped[100] ^= 1;
        assert!(opener.open(7, &seal, &flipped, &mut plaintext).is_err());
    }

    #[test]
    fn an_unknown_attachment_is_an_error() {
        let mut sealer = BlockSealer::new(&fixed_key(), IMAGE_ID, 3, &[9; 16]);
        let mut block = [1; SEALED_BLOCK_BYTES];
        let seal = sealer.seal(0, &mut block).unwrap();
        let mut opener = BlockOpener::new(fixed_key(), IMAGE_ID, vec![[9; 16]]);
        let mut plaintext = [0; SEALED_BLOCK_BYTES];
        let opened = opener.open(0, &seal, &block, &mut plaintext);
        assert!(matches!(opened, Err(SealError::UnknownAttachment { block_number: 0, index: 3 })));
        opener.set_attach_ids(vec![[9; 16]; 4]);
        opener.open(0, &seal, &block, &mut plaintext).unwrap();
        assert_eq!(plaintext, [1; SEALED_BLOCK_BYTES]);
    }

    #[test]
    fn the_same_plaintext_never_looks_the_same() {
        let mut sealer = BlockSealer::new(&fixed_key(), IMAGE_ID, 0, &[9; 16]);
        let (mut first, mut second) = ([3; SEALED_BLOCK_BYTES], [3; SEALED_BLOCK_BYTES]);
        let first_seal = sealer.seal(0, &mut first).unwrap();
        let second_seal = sealer.seal(0, &mut second).unwrap();
        assert_ne!(first, second);
        assert_ne!(first_seal, second_seal);
    }

    #[test]
    fn never_written_blocks_are_zeros() {
        let mut plaintext = [7; SEALED_BLOCK_BYTES];
        let mut opener = BlockOpener::new(fixed_key(), IMAGE_ID, vec![]);
        opener.open(0, &[0; BLOCK_SEAL_BYTES], &[0; SEALED_BLOCK_BYTES], &mut plaintext).unwrap();
        assert_eq!(plaintext, [0; SEALED_BLOCK_BYTES]);
    }

    /// The vector in docs/reference/formats.md, so that another implementation can check itself.
    #[test]
    fn known_answer() {
        let attach_id: AttachId = std::array::from_fn(|i| 0xf0 + i as u8);
        let mut sealer = BlockSealer::new(&fixed_key(), IMAGE_ID, 2, &attach_id);
        let mut block = std::array::from_fn(|i| i as u8);
        let seal = sealer.seal(5, &mut block).unwrap();
        assert_eq!(hex::encode(seal), KNOWN_SEAL);
        assert_eq!(hex::encode(atoll_keys::sha256(&block)), KNOWN_CIPHERTEXT_SHA256);
    }

    const KNOWN_SEAL: &str = "0200000001000000000000004b9dbd6f5ae6b0d2110df4f52df1984f";
    const KNOWN_CIPHERTEXT_SHA256: &str = "5064d7da3e9a369cd4478ca445e80322542b959c6394b4a7e194b5822c6337ca";
}
