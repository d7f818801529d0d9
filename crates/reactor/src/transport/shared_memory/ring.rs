//! A ring of bytes in shared memory, with one process that produces and one that consumes.
//!
//! Each side counts the bytes that it has produced or consumed since the beginning. It keeps its own count to itself
//! and only publishes it; that of the peer it reads once and checks, before anything is done with it.

use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use super::memory::SharedMemory;

/// Bytes that a ring has room for: a power of two. A part of a long payload stays in a processor's second cache from
/// when it is produced until it is consumed.
pub(super) const RING_BYTES: usize = 512 << 10;

/// Bytes that are produced or consumed before the peer is informed, so that both work at the same time.
const STEP_BYTES: usize = 64 << 10;

/// Most bytes, or most room, that a sleeping side waits for.
const AWAITED_BYTES_MAX: usize = RING_BYTES / 2;

/// The words of a ring, each in a cache line of its own (processors fetch lines in pairs).
const WORD_STRIDE: usize = 128;
/// Bytes that the words of a ring take.
pub(super) const RING_WORDS_BYTES: usize = 4 * WORD_STRIDE;

/// Where a ring is in shared memory.
#[derive(Clone)]
pub(super) struct Ring {
    memory: Arc<SharedMemory>,
    words_at: usize,
    bytes_at: usize,
}

/// The peer has published a count that cannot be.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the peer broke the ring in shared memory: it says that it has {verb} {count} bytes, after {produced} were produced \
     and {consumed} consumed, in a ring of {RING_BYTES}"
)]
pub(super) struct ImpossibleCount {
    verb: &'static str,
    count: u64,
    produced: u64,
    consumed: u64,
}

impl From<ImpossibleCount> for std::io::Error {
    fn from(error: ImpossibleCount) -> Self {
        std::io::Error::new(std::io::ErrorKind::InvalidData, error)
    }
}

impl Ring {
    /// A ring whose four words are at `words_at` and whose bytes are at `bytes_at`.
    pub fn new(memory: Arc<SharedMemory>, words_at: usize, bytes_at: usize) -> Self {
        Ring { memory, words_at, bytes_at }
    }

    fn word(&self, number: usize) -> &AtomicU64 {
        self.memory.word(self.words_at + number * WORD_STRIDE)
    }

    /// Bytes produced since the beginning.
    fn produced(&self) -> &AtomicU64 {
        self.word(0)
    }

    /// Bytes consumed since the beginning.
    fn consumed(&self) -> &AtomicU64 {
        self.word(1)
    }

    /// Bytes at which the sleeping consumer wants to be woken; 0: it is awake, or wants none.
    fn awaited_bytes(&self) -> &AtomicU64 {
        self.word(2)
    }

    /// Room at which the sleeping producer wants to be woken; 0: it is awake, or needs none.
    fn awaited_room(&self) -> &AtomicU64 {
        self.word(3)
    }

    /// Where in memory the byte of a count is, and how many follow it before the ring's end.
    fn place(&self, count: u64) -> (usize, usize) {
        let at = (count % RING_BYTES as u64) as usize;
        (self.bytes_at + at, RING_BYTES - at)
    }
}

/// Asks to be woken at `count` bytes of data or room; 0: not at all.
fn ask_to_be_woken(awaited: &AtomicU64, count: usize) {
    awaited.store(count.min(AWAITED_BYTES_MAX) as u64, Ordering::Relaxed);
    if count > 0 {
        // Either the peer sees this after it has published something, or what it has published is seen by the look
        // that follows.
        fence(Ordering::SeqCst);
    }
}

/// For how much a sleeping peer waits; 0: it is awake, or waits for nothing.
fn look_for_sleeper(awaited: &AtomicU64) -> u64 {
    // The other half of the fence above.
    fence(Ordering::SeqCst);
    awaited.load(Ordering::Relaxed)
}

/// The end of a ring that bytes are put into.
pub(super) struct Producer {
    ring: Ring,
    produced: u64,
    published: u64,
    /// As the peer has said last.
    consumed: u64,
}

impl Producer {
    pub fn new(ring: Ring) -> Self {
        Producer { ring, produced: 0, published: 0, consumed: 0 }
    }

    fn known_room(&self) -> usize {
        RING_BYTES - (self.produced - self.consumed) as usize
    }

    /// Bytes that there is room for.
    fn room(&mut self) -> Result<usize, ImpossibleCount> {
        let count = self.ring.consumed().load(Ordering::Acquire);
        if !(self.consumed..=self.published).contains(&count) {
            let (produced, consumed) = (self.published, self.consumed);
            return Err(ImpossibleCount { verb: "consumed", count, produced, consumed });
        }
        self.consumed = count;
        Ok(self.known_room())
    }

    /// Returns true if there is room for `count` bytes, or for a part that is worth copying.
    pub fn has_room_for(&mut self, count: usize) -> Result<bool, ImpossibleCount> {
        let enough = count.min(AWAITED_BYTES_MAX);
        Ok(self.known_room() >= enough || self.room()? >= enough)
    }

    /// Puts in as many bytes as there is room for, and gives their number. The last of them may not be published yet.
    /// `wake` is called when the consumer has to be woken.
    pub fn push(&mut self, bytes: &[u8], wake: impl Fn()) -> Result<usize, ImpossibleCount> {
        let mut pushed = 0;
        while pushed < bytes.len() {
            let rest = bytes.len() - pushed;
            if self.known_room() < rest {
                self.room()?;
            }
            let (at, contiguous) = self.ring.place(self.produced);
            let step = STEP_BYTES - (self.produced - self.published) as usize;
            let count = rest.min(step).min(contiguous).min(self.known_room());
            if count == 0 {
                break;
            }
            self.ring.memory.write(at, &bytes[pushed..pushed + count]);
            self.produced += count as u64;
            pushed += count;
            if count == step {
                self.publish(&wake)?;
            }
        }
        Ok(pushed)
    }

    /// Lets the consumer see everything that was put in.
    pub fn publish(&mut self, wake: impl Fn()) -> Result<(), ImpossibleCount> {
        if self.published == self.produced {
            return Ok(());
        }
        self.ring.produced().store(self.produced, Ordering::Release);
        self.published = self.produced;
        let awaited = look_for_sleeper(self.ring.awaited_bytes());
        if awaited > 0 && (RING_BYTES - self.room()?) as u64 >= awaited {
            // It is woken once.
            self.ring.awaited_bytes().store(0, Ordering::Relaxed);
            wake();
        }
        Ok(())
    }

    /// Asks the consumer for a wake-up when there is room for `count` bytes or for a good part of them; 0: for none.
    pub fn await_room(&self, count: usize) {
        ask_to_be_woken(self.ring.awaited_room(), count);
    }
}

/// The end of a ring that bytes are taken from.
pub(super) struct Consumer {
    ring: Ring,
    consumed: u64,
    /// As the peer has said last.
    produced: u64,
}

impl Consumer {
    pub fn new(ring: Ring) -> Self {
        Consumer { ring, consumed: 0, produced: 0 }
    }

    /// Bytes that can be taken.
    pub fn available(&mut self) -> Result<usize, ImpossibleCount> {
        let count = self.ring.produced().load(Ordering::Acquire);
        if !(self.produced..=self.consumed + RING_BYTES as u64).contains(&count) {
            let (produced, consumed) = (self.produced, self.consumed);
            return Err(ImpossibleCount { verb: "produced", count, produced, consumed });
        }
        self.produced = count;
        Ok((self.produced - self.consumed) as usize)
    }

    /// Bytes that can be taken, or none if there are fewer than `count`, unless they are a good part of it.
    pub fn available_of(&mut self, count: usize) -> Result<usize, ImpossibleCount> {
        let available = self.available()?;
        Ok(if available < count.min(AWAITED_BYTES_MAX) { 0 } else { available })
    }

    /// Takes bytes that are there: fills `target`. `wake` is called when the producer has to be woken.
    pub fn take(&mut self, target: &mut [MaybeUninit<u8>], wake: impl Fn()) -> Result<(), ImpossibleCount> {
        for step in target.chunks_mut(STEP_BYTES) {
            let (at, contiguous) = self.ring.place(self.consumed);
            let (first, second) = step.split_at_mut(step.len().min(contiguous));
            self.ring.memory.read(at, first);
            self.ring.memory.read(self.ring.bytes_at, second);
            self.consumed += step.len() as u64;
            assert!(self.consumed <= self.produced, "the caller takes available bytes");
            self.ring.consumed().store(self.consumed, Ordering::Release);
            let awaited = look_for_sleeper(self.ring.awaited_room());
            if awaited > 0 && (RING_BYTES - self.available()?) as u64 >= awaited {
                self.ring.awaited_room().store(0, Ordering::Relaxed);
                wake();
            }
        }
        Ok(())
    }

    /// Asks the producer for a wake-up when there are `count` bytes or a good part of them; 0: for none.
    pub fn await_bytes(&self, count: usize) {
        ask_to_be_woken(self.ring.awaited_bytes(), count);
    }
}

#[cfg(test)]
#[path = "ring_tests.rs"]
mod tests;
