//! The stamp of a block: its writer, the operation's number, the place and the time.

use std::time::{Duration, UNIX_EPOCH};

use atoll_codec::crc32c;

use crate::error::BenchError;

const MAGIC: [u8; 8] = *b"atollbch";
/// Bytes at the beginning of each stamped unit.
pub(crate) const STAMP_BYTES: usize = 48;

/// The beginning of a block: magic, writer, sequence, place, milliseconds since 1970, CRC-32C of
/// these and of the rest of the block; all little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    /// Drawn at random by each client of each run.
    pub writer: u64,
    /// Counts the writer's operations.
    pub sequence: u64,
    /// Where the block is, in bytes.
    pub place: u64,
    /// When it was written.
    pub unix_ms: u64,
}

impl Stamp {
    /// Puts the stamp on a block, which is longer than it.
    pub fn put(&self, block: &mut [u8]) {
        let (head, body) = block.split_at_mut(STAMP_BYTES);
        head[..8].copy_from_slice(&MAGIC);
        let words = [self.writer, self.sequence, self.place, self.unix_ms];
        for (at, word) in words.into_iter().enumerate() {
            head[8 + 8 * at..16 + 8 * at].copy_from_slice(&word.to_le_bytes());
        }
        let checks = u64::from(crc32c(body)) << 32 | u64::from(crc32c(&head[..40]));
        head[40..].copy_from_slice(&checks.to_le_bytes());
    }

    /// Reads the stamp of the block at `place`; an error if the block is not whole, has no stamp, or
    /// belongs elsewhere.
    pub fn check(block: &[u8], place: u64) -> Result<Stamp, BenchError> {
        let wrong = |what: String| BenchError::WrongData(format!("the block at {place} {what}"));
        let (Some(head), Some(body)) = (block.get(..STAMP_BYTES), block.get(STAMP_BYTES..)) else {
            return Err(wrong(format!("has {} bytes", block.len())));
        };
        let word = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("eight bytes"));
        if head[..8] != MAGIC {
            return Err(wrong("was not written by a benchmark that verifies".into()));
        }
        let stamp = Stamp { writer: word(8), sequence: word(16), place: word(24), unix_ms: word(32) };
        if word(40) as u32 != crc32c(&head[..40]) {
            return Err(wrong("has a damaged stamp".into()));
        }
        if (word(40) >> 32) as u32 != crc32c(body) {
            return Err(wrong(format!("is damaged behind its stamp: {stamp}")));
        }
        if stamp.place != place {
            return Err(wrong(format!("belongs elsewhere: {stamp}")));
        }
        Ok(stamp)
    }
}

impl std::fmt::Display for Stamp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let age = UNIX_EPOCH.checked_add(Duration::from_millis(self.unix_ms)).and_then(|at| at.elapsed().ok());
        let age_s = age.map_or(0.0, |age| age.as_secs_f64());
        let Stamp { writer, sequence, place, .. } = self;
        write!(f, "operation {sequence} of writer {writer:016x} wrote it for {place}, {age_s:.3} s ago")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_name_their_writer_and_damage_is_seen() {
        let stamp = Stamp { writer: 7, sequence: 3, place: 8192, unix_ms: 1_000 };
        let mut block = vec![5; 4096];
        stamp.put(&mut block);
        assert_eq!(Stamp::check(&block, 8192).unwrap(), stamp);
        let other = Stamp::check(&block, 4096).unwrap_err().to_string();
        assert!(other.contains("belongs elsewhere: operation 3 of writer 0000000000000007"), "{other}");
        for at in [0, 9, 17, 25, 33, 41, 45, 48, 4095] {
            let mut damaged = block.clone();
            damaged[at] ^= 1;
            assert!(Stamp::check(&damaged, 8192).is_err(), "byte {at}");
        }
        assert!(Stamp::check(&block[..40], 8192).is_err());
    }
}
