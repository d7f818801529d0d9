//! S3 data (docs/reference/formats.md, "Sealed S3 segment"): each object version, and each attempt at a part
//! of a multipart upload, has a random key of its own, under which its 64 KiB segments are sealed
//! with AES-256-GCM. The nonce is the segment's number with a mark on the last one, so segments
//! cannot be reordered and an object cannot be cut short (the STREAM construction, Hoang,
//! Reyhanitabar, Rogaway, Vizár 2015).

use atoll_keys::{GcmKey, SecretKey};

use crate::SealError;

/// Plaintext length of every segment but the last, which has 1 to this many bytes.
pub const SEGMENT_BYTES: usize = 64 << 10;
/// Length of a segment's seal: mark (1), zeros (3), number (8), tag (16). All zeros means
/// "never written"; the mark is 1 for a middle segment and 2 for the last one.
pub const SEGMENT_SEAL_BYTES: usize = 28;

const FORMAT: u8 = 1;

/// Seals and opens the segments of one data object.
pub struct SegmentCipher {
    cipher: GcmKey,
    associated_data: [u8; 17],
}

impl SegmentCipher {
    /// `data_key` must be fresh for sealing; `data_id` names the data and is bound to every tag.
    pub fn new(data_key: &SecretKey, data_id: &[u8; 16]) -> Self {
        let mut associated_data = [FORMAT; 17];
        associated_data[1..].copy_from_slice(data_id);
        SegmentCipher { cipher: GcmKey::new(data_key), associated_data }
    }

    fn nonce(number: u64, is_last: bool) -> [u8; 12] {
        let mut bytes = [0; 12];
        bytes[0] = if is_last { 2 } else { 1 };
        bytes[4..].copy_from_slice(&number.to_be_bytes());
        bytes
    }

    /// Encrypts segment `number` in place and returns its seal.
    pub fn seal(&self, number: u64, is_last: bool, segment: &mut [u8]) -> [u8; SEGMENT_SEAL_BYTES] {
        assert!(!segment.is_empty() && segment.len() <= SEGMENT_BYTES, "a segment has 1 to 65536 bytes");
        assert!(is_last || segment.len() == SEGMENT_BYTES, "only the last segment may be short");
        let nonce = Self::nonce(number, is_last);
        let tag = self.cipher.seal(nonce, &self.associated_data, segment);
        let mut seal = [0; SEGMENT_SEAL_BYTES];
        seal[..12].copy_from_slice(&nonce);
        seal[12..].copy_from_slice(&tag);
        seal
    }

    /// Decrypts segment `number` into `plaintext`, which has the ciphertext's length. The caller
    /// knows from the object's length whether the segment must be the last one.
    pub fn open(
        &self,
        number: u64,
        is_last: bool,
        seal: &[u8],
        ciphertext: &[u8],
        plaintext: &mut [u8],
    ) -> Result<(), SealError> {
        let nonce = Self::nonce(number, is_last);
        let not_authentic = || SealError::NotAuthentic { what: format!("data segment {number}") };
        if seal.len() != SEGMENT_SEAL_BYTES || seal[..12] != nonce || plaintext.len() != ciphertext.len() {
            return Err(not_authentic());
        }
        if !self.cipher.open(nonce, &self.associated_data, ciphertext, &seal[12..], plaintext) {
            return Err(not_authentic());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cipher() -> SegmentCipher {
        SegmentCipher::new(
            &SecretKey::from_bytes(std::array::from_fn(|i| i as u8)),
            &std::array::from_fn(|i| 0xa0 + i as u8),
        )
    }

    #[test]
    fn segments_open_only_in_their_own_place() {
        let plain = vec![0x41; SEGMENT_BYTES];
        let mut sealed = plain.clone();
        let seal = cipher().seal(3, false, &mut sealed);
        let mut opened = vec![0; SEGMENT_BYTES];
        cipher().open(3, false, &seal, &sealed, &mut opened).unwrap();
        assert_eq!(opened, plain);
        assert!(cipher().open(4, false, &seal, &sealed, &mut opened).is_err(), "moved");
        assert!(cipher().open(3, true, &seal, &sealed, &mut opened).is_err(), "cut short");
        assert!(cipher().open(3, false, &seal, &sealed[1..], &mut opened[1..]).is_err(), "shortened");
        sealed[9] ^= 4;
        assert!(cipher().open(3, false, &seal, &sealed, &mut opened).is_err(), "flipped");
    }

    /// The vector in docs/reference/formats.md, so that another implementation can check itself.
    #[test]
    fn known_answer() {
        let mut segment = b"the last segment".to_vec();
        let seal = cipher().seal(1, true, &mut segment);
        assert_eq!(hex::encode(seal), KNOWN_SEAL);
        assert_eq!(hex::encode(segment), KNOWN_CIPHERTEXT);
    }

    const KNOWN_SEAL: &str = "020000000000000000000001673a998923b214d5875b4425ebe33533";
    const KNOWN_CIPHERTEXT: &str = "a58ce4cc035944e7aa0963b0e137031c";
}
