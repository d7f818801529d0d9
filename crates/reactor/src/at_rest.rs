//! Encryption at rest, as a file does it for whoever uses it: what comes in and goes out is plain,
//! what the device gets is not, and the bytes before the data (a LUKS header) cannot be reached.

use std::sync::Arc;

use atoll_base::{BLOCK_BYTES, BlockBuffer};

use crate::reactor::FilePieces;

/// A cipher over whole sectors of [`BLOCK_BYTES`]. It runs on the event loop's own thread.
pub trait SectorCipher: Send + Sync {
    /// Encrypts in place. `offset` is where the bytes begin, in bytes from the first byte of data;
    /// it and the length are multiples of the sector size.
    fn encrypt(&self, offset: u64, bytes: &mut [u8]);

    /// Decrypts in place; `offset` as for [`SectorCipher::encrypt`].
    fn decrypt(&self, offset: u64, bytes: &mut [u8]);
}

/// The cipher of a file and where its data begins.
pub(crate) struct AtRest {
    cipher: Box<dyn SectorCipher>,
    data_offset: u64,
}

impl AtRest {
    pub fn new(cipher: Box<dyn SectorCipher>, data_offset: u64) -> Self {
        AtRest { cipher, data_offset }
    }

    /// First byte of data on the device.
    pub fn data_offset(&self) -> u64 {
        self.data_offset
    }

    /// A fresh buffer with the bytes encrypted. The plain bytes stay as they are, because the store
    /// still serves reads from them.
    pub fn seal(&self, offset: u64, bytes: &[u8]) -> BlockBuffer {
        let mut sealed = BlockBuffer::from_bytes(bytes);
        self.cipher.encrypt(offset, sealed.as_mut_slice());
        sealed
    }

    /// As [`AtRest::seal`], for pieces that are written one after the other.
    pub fn seal_pieces(&self, offset: u64, pieces: &FilePieces) -> FilePieces {
        let block_count = pieces.iter().map(|(_, _, count)| count).sum();
        let mut sealed = BlockBuffer::zeroed(block_count);
        let mut rest = sealed.as_mut_slice();
        for (buffer, first, count) in pieces {
            let (place, behind) = rest.split_at_mut(count * BLOCK_BYTES);
            place.copy_from_slice(&buffer.as_slice()[first * BLOCK_BYTES..][..place.len()]);
            rest = behind;
        }
        self.cipher.encrypt(offset, sealed.as_mut_slice());
        vec![(Arc::new(sealed), 0, block_count)]
    }

    /// Decrypts what was read.
    pub fn open(&self, offset: u64, buffer: &mut BlockBuffer) {
        self.cipher.decrypt(offset, buffer.as_mut_slice());
    }
}
