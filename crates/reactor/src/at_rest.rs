//! Encryption at rest, as a file applies it for its users: data in memory is plain, data on the device is
//! encrypted, and the bytes before the data (a LUKS header) cannot be reached.

use std::cell::RefCell;
use std::sync::Arc;

use atoll_buffers::{BLOCK_BYTES, BlockBuffer};

use crate::reactor::FilePieces;

/// A cipher over whole sectors of [`BLOCK_BYTES`]. It runs on the thread that has the file: the
/// event loop's own, and before the loop runs the one that opens the device.
pub trait SectorCipher: Send {
    /// Encrypts `plain` into `sealed`, which is as long. `offset` is where the bytes begin, in bytes
    /// from the first byte of data; it and the length are multiples of the sector size.
    fn encrypt_into(&mut self, offset: u64, plain: &[u8], sealed: &mut [u8]);

    /// Decrypts in place; `offset` as for [`SectorCipher::encrypt_into`].
    fn decrypt(&mut self, offset: u64, bytes: &mut [u8]);
}

/// The cipher of a file and where its data begins.
pub(crate) struct AtRest {
    /// Ciphers keep state between the sectors of a call. A file is used by one thread, and a call
    /// ends before the next one begins, so this is never borrowed twice.
    cipher: RefCell<Box<dyn SectorCipher>>,
    data_offset: u64,
}

impl AtRest {
    pub fn new(cipher: Box<dyn SectorCipher>, data_offset: u64) -> Self {
        AtRest { cipher: RefCell::new(cipher), data_offset }
    }

    /// First byte of data on the device.
    pub fn data_offset(&self) -> u64 {
        self.data_offset
    }

    /// A fresh buffer with whole blocks encrypted. The plain bytes stay as they are, because the
    /// store still serves reads from them.
    pub fn seal(&self, offset: u64, bytes: &[u8]) -> BlockBuffer {
        self.seal_blocks(offset, bytes.len() / BLOCK_BYTES, bytes.chunks_exact(BLOCK_BYTES))
    }

    /// As [`AtRest::seal`], for pieces that are written one after the other.
    pub fn seal_pieces(&self, offset: u64, pieces: &FilePieces) -> FilePieces {
        let block_count = pieces.iter().map(|(_, _, count)| count).sum();
        let plain = pieces.iter().flat_map(|(buffer, first, count)| {
            buffer.as_slice()[first * BLOCK_BYTES..][..count * BLOCK_BYTES].chunks_exact(BLOCK_BYTES)
        });
        vec![(Arc::new(self.seal_blocks(offset, block_count, plain)), 0, block_count)]
    }

    fn seal_blocks<'a>(
        &self,
        offset: u64,
        block_count: usize,
        mut plain: impl Iterator<Item = &'a [u8]>,
    ) -> BlockBuffer {
        let mut cipher = self.cipher.borrow_mut();
        BlockBuffer::filled(block_count, |number, sealed| {
            let plain = plain.next().expect("there are as many plain blocks as were counted");
            cipher.encrypt_into(offset + (number * BLOCK_BYTES) as u64, plain, sealed);
        })
    }

    /// Decrypts read data.
    pub fn open(&self, offset: u64, buffer: &mut BlockBuffer) {
        self.cipher.borrow_mut().decrypt(offset, buffer.as_mut_slice());
    }
}
