//! Small data that is kept in the index, in the same change as the entry that names it: one
//! replicated write instead of two, and no object of its own that must be removed later. It is sealed
//! like the only segment of a chunk; the seal comes first.

use atoll_seal::{SEGMENT_SEAL_BYTES, SegmentCipher};
use bytes::{BufMut, Bytes, BytesMut};

use crate::error::GatewayError;
use crate::record::{Piece, Place};

/// Plaintext that is kept in the index. With its seal it still fits into one entry of the store's
/// tree (1,200 bytes), and the log that carries index changes stays short.
pub(super) const INLINE_BYTES_MAX: u64 = 1 << 10;

/// Most plaintext that is kept beside the index: an OSD writes it into its log, so that the data and the change of
/// the index are in one record.
pub(super) const BESIDE_BYTES_MAX: u64 = 64 << 10;

impl Place {
    /// Returns the place of a whole object of `bytes` bytes. Beside the index there is data only if it is meant
    /// for the pool of the index.
    pub(crate) fn of_object(bytes: u64, is_data_with_index: bool) -> Self {
        match bytes {
            0..=INLINE_BYTES_MAX => Place::Index,
            ..=BESIDE_BYTES_MAX if is_data_with_index => Place::Beside,
            _ => Place::Chunks,
        }
    }
}

/// Returns the index's value: the seal and the data, which is encrypted in place. Without a cipher the data as it
/// is.
pub(super) fn seal(cipher: Option<&SegmentCipher>, data: &mut [u8]) -> Bytes {
    let Some(cipher) = cipher else { return Bytes::copy_from_slice(data) };
    let mut value = BytesMut::with_capacity(SEGMENT_SEAL_BYTES + data.len());
    value.put_slice(&cipher.seal(0, true, data));
    value.put_slice(data);
    value.freeze()
}

/// Returns the plaintext of a piece from the index's value.
pub(super) fn open(cipher: Option<&SegmentCipher>, piece: &Piece, value: Bytes) -> Result<Bytes, GatewayError> {
    let seal_bytes = if cipher.is_some() { SEGMENT_SEAL_BYTES } else { 0 };
    let (seal, data) = value
        .split_at_checked(seal_bytes)
        .filter(|(_, data)| data.len() as u64 == piece.bytes)
        .ok_or_else(|| GatewayError::Malformed {
            what: format!("data {} in the bucket index", hex::encode(piece.data_id)),
            detail: format!(
                "it has {} bytes where {} with a seal of {seal_bytes} were written",
                value.len(),
                piece.bytes
            ),
        })?;
    let Some(cipher) = cipher else { return Ok(value) };
    let mut plain = BytesMut::zeroed(data.len());
    cipher.open(0, true, seal, data, &mut plain)?;
    Ok(plain.freeze())
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_keys::{SecretKey, WRAPPED_KEY_BYTES};
    use proptest::prelude::*;

    const ID: [u8; 16] = [7; 16];

    fn cipher() -> SegmentCipher {
        SegmentCipher::new(&SecretKey::random(), &ID)
    }

    fn piece(bytes: usize) -> Piece {
        let wrapped_key = [0; WRAPPED_KEY_BYTES];
        Piece { place: Place::Index, data_id: ID, wrapped_key, bytes: bytes as u64 }
    }

    proptest! {
        #[test]
        fn data_survives_and_no_damage_does(
            data in prop::collection::vec(any::<u8>(), 1..=INLINE_BYTES_MAX as usize),
            at: prop::sample::Index,
            bit in 0..8,
        ) {
            let (cipher, piece) = (cipher(), piece(data.len()));
            let value = seal(Some(&cipher), &mut data.clone());
            prop_assert_eq!(value.len(), SEGMENT_SEAL_BYTES + data.len());
            prop_assert_eq!(&open(Some(&cipher), &piece, value.clone()).unwrap()[..], &data[..]);

            let mut flipped = value.to_vec();
            flipped[at.index(value.len())] ^= 1u8 << bit;
            prop_assert!(matches!(open(Some(&cipher), &piece, flipped.into()), Err(GatewayError::Seal(_))));
            let cut = open(Some(&cipher), &piece, value.slice(..at.index(value.len())));
            let is_malformed = matches!(cut, Err(GatewayError::Malformed { .. }));
            prop_assert!(is_malformed);
        }
    }

    #[test]
    fn a_seal_of_other_data_opens_nothing() {
        let cipher = cipher();
        let value = seal(Some(&cipher), &mut [1; 100]);
        let other = seal(Some(&SegmentCipher::new(&SecretKey::random(), &ID)), &mut [1; 100]);
        let mixed = [&other[..SEGMENT_SEAL_BYTES], &value[SEGMENT_SEAL_BYTES..]].concat();
        assert!(matches!(open(Some(&cipher), &piece(100), mixed.into()), Err(GatewayError::Seal(_))));
        assert!(matches!(open(Some(&cipher), &piece(100), other), Err(GatewayError::Seal(_))));
        assert!(matches!(open(Some(&cipher), &piece(99), value), Err(GatewayError::Malformed { .. })));
    }

    #[test]
    fn without_a_cipher_data_is_as_it_is() {
        let value = seal(None, &mut [1, 2, 3]);
        assert_eq!(value, [1, 2, 3][..]);
        assert_eq!(open(None, &piece(3), value.clone()).unwrap(), value);
        // A sealed value is too long for an unsealed piece, and the other way round.
        assert!(matches!(open(None, &piece(2), value.clone()), Err(GatewayError::Malformed { .. })));
        assert!(matches!(open(Some(&cipher()), &piece(3), value), Err(GatewayError::Malformed { .. })));
    }

    #[test]
    fn objects_up_to_the_limit_are_in_the_index() {
        for is_data_with_index in [false, true] {
            let place = |bytes| Place::of_object(bytes, is_data_with_index);
            assert_eq!([0, 1, 1_023, 1_024].map(place), [Place::Index; 4]);
            let beside = if is_data_with_index { Place::Beside } else { Place::Chunks };
            assert_eq!([1_025, 64 << 10].map(place), [beside; 2]);
            assert_eq!([(64 << 10) + 1, u64::MAX].map(place), [Place::Chunks; 2]);
        }
        assert!(INLINE_BYTES_MAX as usize + SEGMENT_SEAL_BYTES <= 1_200);
    }
}
