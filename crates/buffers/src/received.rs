//! Bytes that have arrived on a connection: short ones one after the other, and an awaited long run of bytes in an
//! aligned buffer of its own, from which a device can take it.

use std::ops::{Deref, DerefMut};

use bytes::BytesMut;

use crate::block::{BLOCK_BYTES, BlockBuffer};

/// Bytes that have arrived and were not taken yet. As a [`BytesMut`] it has the bytes behind the long run.
#[derive(Default)]
pub struct Received {
    bytes: BytesMut,
    long_run: Option<LongRun>,
    is_lent: bool,
}

/// A long run while it is being filled; see [`Received::lend_long_run`].
pub struct LongRun {
    buffer: BlockBuffer,
    filled_bytes: usize,
    length_bytes: usize,
}

impl LongRun {
    fn missing_bytes(&self) -> usize {
        self.length_bytes - self.filled_bytes
    }

    /// The buffer that it is filled into.
    pub fn buffer(&self) -> &BlockBuffer {
        &self.buffer
    }

    /// Where the rest of it goes.
    pub fn room(&mut self) -> &mut [u8] {
        &mut self.buffer.as_mut_slice()[self.filled_bytes..self.length_bytes]
    }

    fn push(&mut self, bytes: &[u8]) {
        let end = self.filled_bytes + bytes.len();
        self.buffer.as_mut_slice()[self.filled_bytes..end].copy_from_slice(bytes);
        self.filled_bytes = end;
    }
}

impl Received {
    /// The next `length_bytes` bytes are to come into a buffer of their own. Bytes of it that have arrived already
    /// are moved.
    pub fn expect_long_run(&mut self, length_bytes: usize) {
        assert!(self.long_run.is_none() && !self.is_lent, "one long run is awaited at a time");
        let buffer = BlockBuffer::for_overwriting(length_bytes.div_ceil(BLOCK_BYTES));
        let mut long_run = LongRun { buffer, filled_bytes: 0, length_bytes };
        let there = length_bytes.min(self.bytes.len());
        long_run.push(&self.bytes.split_to(there));
        self.long_run = Some(long_run);
    }

    /// The long run, once all of it has arrived. Memory behind it in the buffer is noise.
    pub fn take_long_run(&mut self) -> Option<BlockBuffer> {
        let is_there = self.long_run.as_ref().is_some_and(|long_run| long_run.missing_bytes() == 0);
        self.long_run.take_if(|_| is_there).map(|long_run| long_run.buffer)
    }

    /// Where the rest of the long run goes, if one is awaited that is not there yet.
    pub fn long_run_room(&mut self) -> Option<&mut [u8]> {
        let long_run = self.long_run.as_mut().filter(|long_run| long_run.missing_bytes() > 0)?;
        Some(long_run.room())
    }

    /// Hands out the long run that is not there yet, for a device that fills it while the rest stays here. Nothing may
    /// be pushed until it is back.
    pub fn lend_long_run(&mut self) -> Option<LongRun> {
        let long_run = self.long_run.take_if(|long_run| long_run.missing_bytes() > 0)?;
        self.is_lent = true;
        Some(long_run)
    }

    /// Takes it back, with `bytes` more bytes in it.
    pub fn return_long_run(&mut self, long_run: LongRun, bytes: usize) {
        assert!(self.is_lent, "a returned long run was lent");
        self.is_lent = false;
        self.long_run = Some(long_run);
        self.advance_long_run(bytes);
    }

    /// Notes that `bytes` bytes were written to [`Received::long_run_room`].
    pub fn advance_long_run(&mut self, bytes: usize) {
        let long_run = self.long_run.as_mut().expect("a long run is awaited");
        assert!(bytes <= long_run.missing_bytes(), "no more is written than there is room for");
        long_run.filled_bytes += bytes;
    }

    /// Returns true if there is anything to look at.
    pub fn has_news(&self) -> bool {
        !self.bytes.is_empty() || self.long_run.as_ref().is_some_and(|long_run| long_run.missing_bytes() == 0)
    }

    /// Appends bytes as if they had just arrived.
    pub fn push(&mut self, mut bytes: &[u8]) {
        assert!(!self.is_lent, "bytes keep their order");
        if let Some(long_run) = &mut self.long_run {
            let (of_run, rest) = bytes.split_at(bytes.len().min(long_run.missing_bytes()));
            long_run.push(of_run);
            bytes = rest;
        }
        self.bytes.extend_from_slice(bytes);
    }
}

impl Deref for Received {
    type Target = BytesMut;

    fn deref(&self) -> &BytesMut {
        &self.bytes
    }
}

impl DerefMut for Received {
    fn deref_mut(&mut self) -> &mut BytesMut {
        &mut self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn bytes_keep_their_order(before in 0usize..40, long_bytes in 1usize..9000, step in 1usize..3000, how in 0..3) {
            let sent: Vec<u8> = (0..before + long_bytes + 50).map(|number| (number % 251) as u8).collect();
            let (head, run) = (&sent[..before], &sent[before..before + long_bytes]);
            let mut received = Received::default();
            let first = step.min(sent.len());
            received.push(&sent[..first]);
            let mut at = first;
            while received.len() < before {
                received.push(&sent[at..at + 1]);
                at += 1;
            }
            prop_assert_eq!(&received.split_to(before)[..], head);
            received.expect_long_run(long_bytes);
            while let Some(room) = received.long_run_room() {
                let count = room.len().min(step);
                if how == 0 {
                    room[..count].copy_from_slice(&sent[at..at + count]);
                    received.advance_long_run(count);
                    at += count;
                } else if how == 1 {
                    let mut lent = received.lend_long_run().unwrap();
                    prop_assert!(received.long_run_room().is_none() && received.take_long_run().is_none());
                    lent.room()[..count].copy_from_slice(&sent[at..at + count]);
                    received.return_long_run(lent, count);
                    at += count;
                } else {
                    let end = sent.len().min(at + step);
                    received.push(&sent[at..end]);
                    at = end;
                }
            }
            let buffer = received.take_long_run().unwrap();
            prop_assert_eq!(&buffer.as_slice()[..long_bytes], run);
            prop_assert!(received.take_long_run().is_none() && received.lend_long_run().is_none());
            received.push(&sent[at..]);
            prop_assert_eq!(&received[..], &sent[before + long_bytes..]);
        }
    }
}
