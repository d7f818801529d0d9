//! Discards of a store: when the next begins, and when one has ended.

use atoll_buffers::BLOCK_BYTES;

use crate::discards::DISCARD_BLOCKS_MAX;
use crate::disk::{DiskOperation, DiskResult};
use crate::outbox::Purpose;
use crate::store::Store;

impl Store {
    /// Sets whether free places are discarded under the data device. They are unless this says otherwise, or the
    /// device once cannot.
    pub fn set_discards(&mut self, is_on: bool) {
        self.space.discards.set(is_on);
    }

    /// Gives back all free places, little by little: those that were not when they became free.
    pub fn discard_free_space(&mut self) {
        self.space.discards.add_all((self.layout.data_start as u32, self.layout.data_blocks as u32));
        self.discard_next();
    }

    /// Starts the next discard, if there is none and space is not so short that these blocks would be missed.
    pub(crate) fn discard_next(&mut self) {
        if self.poisoned.is_some() || !self.space.can_spare(DISCARD_BLOCKS_MAX) {
            return;
        }
        let Some((first, count)) = self.space.begin_discard() else { return };
        let offset = u64::from(first) * BLOCK_BYTES as u64;
        self.outbox.request(Purpose::Discard, DiskOperation::Discard { offset, block_count: count as usize });
    }

    /// A discard has ended. One that failed has taken nothing away: it was of free blocks.
    pub(crate) fn discarded(&mut self, result: &DiskResult) {
        let (first, count) = self.space.discards.ended();
        self.space.allocator().release_run(first, count);
        match result {
            Ok(_) => self.discard_next(),
            Err(_) => self.set_discards(false),
        }
    }
}
