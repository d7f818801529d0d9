//! Conversion of blocks between an image and its objects: they are sealed under the image's key, or stored as they
//! are if the image was made so.

use std::cell::RefCell;

use atoll_buffers::{BLOCK_BYTES, BlockBuffer};
use atoll_client::Extent;
use atoll_keys::SecretKey;
use atoll_seal::{AttachId, BLOCK_SEAL_BYTES, BlockOpener, BlockSealer, SEALED_BLOCK_BYTES, SealError};
use atoll_types::Seals;
use bytes::{Bytes, BytesMut};

use crate::ImageError;

/// How the blocks of an attached image are protected.
pub(crate) enum Sealing {
    /// Each is encrypted and authenticated in its place.
    On(Box<Ciphers>),
    /// They are stored as they are.
    Off,
    /// They are stored as they are, and a byte beside each marks it as written: an unwritten one is its parent's.
    Marked,
}

pub(crate) struct Ciphers {
    /// Seals with this attachment; a reader has none.
    sealer: Option<RefCell<BlockSealer>>,
    /// Opens blocks that any attachment has sealed.
    opener: RefCell<BlockOpener>,
}

impl Sealing {
    /// Seals with the newest attachment of the list.
    pub(crate) fn on(key: SecretKey, image_id: u64, attach_ids: Vec<AttachId>) -> Result<Self, SealError> {
        let newest = attach_ids.last().ok_or_else(|| SealError::Malformed {
            what: "the image header".into(),
            detail: "it has no attachments".into(),
        })?;
        let sealer = BlockSealer::new(&key, image_id, attach_ids.len() as u32 - 1, newest);
        let opener = BlockOpener::new(key, image_id, attach_ids);
        let sealer = Some(RefCell::new(sealer));
        Ok(Sealing::On(Box::new(Ciphers { sealer, opener: RefCell::new(opener) })))
    }

    /// Opens blocks that any of these attachments has sealed, and seals nothing.
    pub(crate) fn reading(key: SecretKey, image_id: u64, attach_ids: Vec<AttachId>) -> Self {
        let opener = RefCell::new(BlockOpener::new(key, image_id, attach_ids));
        Sealing::On(Box::new(Ciphers { sealer: None, opener }))
    }

    /// There are more attachments than were known.
    pub(crate) fn learn(&self, attach_ids: Vec<AttachId>) {
        if let Sealing::On(ciphers) = self {
            ciphers.opener.borrow_mut().set_attach_ids(attach_ids);
        }
    }

    /// Whole blocks from `first_block` on as they are to be stored.
    pub(crate) fn close(&self, first_block: u64, plaintext: Bytes) -> Result<(Bytes, Option<Seals>), SealError> {
        let ciphers = match self {
            Sealing::On(ciphers) => ciphers,
            Sealing::Off => return Ok((plaintext, None)),
            Sealing::Marked => {
                let marks = Bytes::from(vec![MARK; plaintext.len().div_ceil(BLOCK_BYTES)]);
                return Ok((
                    plaintext,
                    Some(Seals { unit_bytes: BLOCK_BYTES as u32, seal_bytes: 1, bytes: marks }),
                ));
            }
        };
        let mut payload = BlockBuffer::from_bytes(&plaintext);
        let mut seals = BytesMut::with_capacity(payload.block_count() * BLOCK_SEAL_BYTES);
        let mut sealer = ciphers.sealer.as_ref().expect("only writers close blocks").borrow_mut();
        for (block, bytes) in (first_block..).zip(payload.as_mut_slice().chunks_exact_mut(BLOCK_BYTES)) {
            let seal = sealer.seal(block, bytes.try_into().expect("chunks have this length"))?;
            seals.extend_from_slice(&seal);
        }
        let seals = Seals {
            unit_bytes: SEALED_BLOCK_BYTES as u32,
            seal_bytes: BLOCK_SEAL_BYTES as u16,
            bytes: seals.freeze(),
        };
        Ok((payload.into_bytes(plaintext.len()), Some(seals)))
    }

    /// Returns the `length` bytes of whole blocks from `first_block` on, from the stored data. Missing blocks read
    /// as zeros.
    pub(crate) fn open(&self, first_block: u64, length: usize, stored: Extent) -> Result<Bytes, ImageError> {
        match (self, stored.seals) {
            (Sealing::On(ciphers), Some(seals)) => {
                open_sealed(&mut ciphers.opener.borrow_mut(), first_block, length, &stored.data, &seals)
            }
            // An object without seals was never written, only zeroed; its data is ignored.
            (Sealing::On(_), None) => Ok(BytesMut::zeroed(length).freeze()),
            (Sealing::Off | Sealing::Marked, None) => Ok(padded(stored.data, length)),
            (Sealing::Marked, Some(seals)) if !seals.are_of_ciphertext() => Ok(padded(stored.data, length)),
            // Ciphertext is not what the image holds: its record is not the one that it was written with.
            (Sealing::Off | Sealing::Marked, Some(_)) => Err(ImageError::Invalid(format!(
                "block {first_block} is sealed, but the image's record says that the image is not; put the right \
                 record back from a backup of cluster state"
            ))),
        }
    }
}

/// Beside a block that was written.
const MARK: u8 = 1;

fn padded(data: Bytes, length: usize) -> Bytes {
    if data.len() >= length {
        return data.slice(..length);
    }
    let mut whole = BytesMut::zeroed(length);
    whole[..data.len()].copy_from_slice(&data);
    whole.freeze()
}

/// Returns which of `block_count` blocks were written, by the seals beside them. Without seals none was: whatever
/// may have a parent has them.
pub(crate) fn written_blocks(block_count: usize, stored: &Extent) -> Vec<bool> {
    let Some(seals) = &stored.seals else { return vec![false; block_count] };
    let is_written = |seal: &[u8]| seal.iter().any(|&byte| byte != 0);
    let mut written: Vec<bool> = seals.bytes.chunks(usize::from(seals.seal_bytes)).map(is_written).collect();
    written.resize(block_count, false);
    written
}

fn open_sealed(
    opener: &mut BlockOpener,
    first_block: u64,
    length: usize,
    data: &[u8],
    seals: &Seals,
) -> Result<Bytes, ImageError> {
    let is_sealed_as_expected =
        seals.unit_bytes as usize == SEALED_BLOCK_BYTES && usize::from(seals.seal_bytes) == BLOCK_SEAL_BYTES;
    if !is_sealed_as_expected {
        return Err(ImageError::Invalid(format!("block {first_block} of the image has a foreign seal")));
    }
    let mut plaintext = BlockBuffer::for_overwriting(length.div_ceil(BLOCK_BYTES));
    let mut opened_blocks = 0;
    let sealed = data.chunks_exact(BLOCK_BYTES).zip(seals.bytes.chunks_exact(BLOCK_SEAL_BYTES));
    for ((block, output), (ciphertext, seal)) in
        (first_block..).zip(plaintext.as_mut_slice().chunks_exact_mut(BLOCK_BYTES)).zip(sealed)
    {
        let ciphertext = ciphertext.try_into().expect("chunks have this length");
        let seal = seal.try_into().expect("chunks have this length");
        opener.open(block, seal, ciphertext, output.try_into().expect("chunks have this length"))?;
        opened_blocks += 1;
    }
    plaintext.as_mut_slice()[opened_blocks * BLOCK_BYTES..].fill(0);
    Ok(plaintext.into_bytes(length))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENGTH: usize = 3 * BLOCK_BYTES;

    fn sealed() -> Sealing {
        Sealing::on(SecretKey::from_bytes([7; 32]), 1, vec![[1; 16], [2; 16]]).unwrap()
    }

    fn plaintext() -> Bytes {
        Bytes::from(b"what the owner of the image wrote".repeat(LENGTH)).slice(..LENGTH)
    }

    fn extent((data, seals): (Bytes, Option<Seals>)) -> Extent {
        Extent { object_bytes: data.len() as u64, version: atoll_types::Version::default(), data, seals }
    }

    #[test]
    fn sealed_blocks_are_stored_sealed_and_others_plain() {
        let (data, seals) = sealed().close(9, plaintext()).unwrap();
        assert!(!data.windows(9).any(|window| window == b"the owner"));
        assert_eq!(seals.as_ref().unwrap().bytes.len(), 3 * BLOCK_SEAL_BYTES);
        assert_eq!(sealed().open(9, LENGTH, extent((data, seals))).unwrap(), plaintext());

        let (data, seals) = Sealing::Off.close(9, plaintext()).unwrap();
        assert_eq!((&data, &seals), (&plaintext(), &None), "not a byte more than the data");
        assert_eq!(Sealing::Off.open(9, LENGTH, extent((data, seals))).unwrap(), plaintext());
    }

    #[test]
    fn neither_is_taken_for_the_other() {
        let stored = extent(sealed().close(0, plaintext()).unwrap());
        let error = Sealing::Off.open(0, LENGTH, stored).unwrap_err();
        assert!(error.to_string().contains("is sealed"), "{error}");
        // A block without a seal was not written by a holder of the key.
        let stored = extent((plaintext(), None));
        assert_eq!(sealed().open(0, LENGTH, stored).unwrap(), Bytes::from(vec![0; LENGTH]));
    }

    #[test]
    fn absent_blocks_read_as_zeros() {
        let stored = extent((plaintext().slice(..BLOCK_BYTES), None));
        let found = Sealing::Off.open(0, LENGTH, stored).unwrap();
        assert_eq!(found[..BLOCK_BYTES], plaintext()[..BLOCK_BYTES]);
        assert!(found.len() == LENGTH && found[BLOCK_BYTES..].iter().all(|&byte| byte == 0));
        let more = extent((Bytes::from(vec![1; 2 * LENGTH]), None));
        assert_eq!(Sealing::Off.open(0, LENGTH, more).unwrap().len(), LENGTH);
    }
}
