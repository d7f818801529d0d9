//! Content of objects: made piece by piece while it is sent, compared piece by piece as it comes, so that large
//! objects need no buffer of their size.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};

use crate::block::{STAMP_BYTES, Stamp};
use crate::error::BenchError;
use crate::load::Random;

/// Random data that all objects are cut out of; longer ones have it several times.
const POOL_BYTES: u64 = 8 << 20;
/// The most that is handed to the connection at once.
const PIECE_BYTES_MAX: u64 = 256 << 10;
/// Bytes of an object that share one stamp, if objects are verified.
const UNIT_BYTES: u64 = 4096;
/// Objects that are verified have a stamp at least.
pub(super) const VERIFIED_BYTES_MIN: u64 = STAMP_BYTES as u64 + 1;
/// Bits of a stamp's place that say where in the object it is; above them is the object's number.
const OFFSET_BITS: u32 = 33;

/// Random data for a client's objects.
pub(super) struct Payloads(Bytes);

impl Payloads {
    pub fn new(random: &mut Random, object_bytes_max: u64) -> Self {
        let length = object_bytes_max.clamp(UNIT_BYTES, POOL_BYTES).next_multiple_of(UNIT_BYTES) * 2;
        Payloads(Bytes::from(random.fill(length.min(POOL_BYTES) as usize)))
    }

    /// Returns an object's data; with a stamp it has the content that [`Check`] expects.
    pub fn body(&self, number: u64, size_bytes: u64, stamp: Option<ObjectStamp>) -> ObjectBody {
        let units = self.0.len() as u64 / UNIT_BYTES;
        ObjectBody { pool: self.0.clone(), start: number % units * UNIT_BYTES, position: 0, size_bytes, stamp }
    }
}

/// Writer of an object, number of its operation, and time.
#[derive(Clone, Copy, Debug)]
pub(super) struct ObjectStamp {
    pub writer: u64,
    pub sequence: u64,
    pub number: u64,
    pub unix_ms: u64,
}

/// The body of a PUT.
pub(super) struct ObjectBody {
    pool: Bytes,
    /// Where in the pool the object begins.
    start: u64,
    position: u64,
    size_bytes: u64,
    stamp: Option<ObjectStamp>,
}

impl ObjectBody {
    /// Nothing, for requests that bring no object.
    pub fn empty() -> Self {
        ObjectBody { pool: Bytes::new(), start: 0, position: 0, size_bytes: 0, stamp: None }
    }

    /// A text of a request that brings no object.
    pub fn text(text: String) -> Self {
        let size_bytes = text.len() as u64;
        ObjectBody { pool: Bytes::from(text), start: 0, position: 0, size_bytes, stamp: None }
    }

    fn next_piece(&mut self) -> Bytes {
        let from = ((self.start + self.position) % self.pool.len() as u64) as usize;
        let left = (self.size_bytes - self.position).min(PIECE_BYTES_MAX) as usize;
        // The pool and all pieces but an object's last are of whole units, so that none is cut.
        let piece = self.pool.slice(from..self.pool.len().min(from + left));
        let stamped = self.stamp.map(|stamp| stamp.put_on(&piece, self.position));
        self.position += piece.len() as u64;
        stamped.unwrap_or(piece)
    }
}

impl ObjectStamp {
    fn put_on(&self, piece: &[u8], position: u64) -> Bytes {
        let mut data = piece.to_vec();
        for (index, unit) in data.chunks_mut(UNIT_BYTES as usize).enumerate() {
            if unit.len() <= STAMP_BYTES {
                // Too short for a stamp: the end of an object.
                unit.fill(0);
                continue;
            }
            let place = place(self.number, position + index as u64 * UNIT_BYTES);
            let ObjectStamp { writer, sequence, unix_ms, .. } = *self;
            Stamp { writer, sequence, place, unix_ms }.put(unit);
        }
        Bytes::from(data)
    }
}

fn place(number: u64, offset: u64) -> u64 {
    number << OFFSET_BITS | offset
}

impl Body for ObjectBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.is_end_stream() {
            return Poll::Ready(None);
        }
        Poll::Ready(Some(Ok(Frame::data(self.next_piece()))))
    }

    fn is_end_stream(&self) -> bool {
        self.position == self.size_bytes
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.size_bytes - self.position)
    }
}

/// Compares an object with the written one, as it comes.
pub(super) struct Check {
    writer: u64,
    number: u64,
    position: u64,
    /// The beginning of a unit whose rest has not come yet.
    unit: Vec<u8>,
    sequence: Option<u64>,
}

impl Check {
    pub fn new(writer: u64, number: u64) -> Self {
        Check { writer, number, position: 0, unit: Vec::new(), sequence: None }
    }

    /// The next bytes.
    pub fn take(&mut self, mut bytes: &[u8]) -> Result<(), BenchError> {
        while !bytes.is_empty() {
            if self.unit.is_empty() && bytes.len() >= UNIT_BYTES as usize {
                let (unit, rest) = bytes.split_at(UNIT_BYTES as usize);
                self.check(unit)?;
                bytes = rest;
                continue;
            }
            let (more, rest) = bytes.split_at(bytes.len().min(UNIT_BYTES as usize - self.unit.len()));
            self.unit.extend_from_slice(more);
            bytes = rest;
            if self.unit.len() == UNIT_BYTES as usize {
                self.finish_unit()?;
            }
        }
        Ok(())
    }

    /// That was all: which of the writer's operations wrote it.
    pub fn finish(mut self) -> Result<u64, BenchError> {
        self.finish_unit()?;
        self.sequence.ok_or_else(|| BenchError::WrongData(format!("object {} is empty", self.number)))
    }

    fn finish_unit(&mut self) -> Result<(), BenchError> {
        let mut unit = std::mem::take(&mut self.unit);
        if !unit.is_empty() {
            self.check(&unit)?;
        }
        unit.clear();
        self.unit = unit;
        Ok(())
    }

    fn check(&mut self, unit: &[u8]) -> Result<(), BenchError> {
        let (number, position) = (self.number, self.position);
        let wrong = |what: String| BenchError::WrongData(format!("object {number} at {position}: {what}"));
        self.position += unit.len() as u64;
        if unit.len() <= STAMP_BYTES {
            let is_written = unit.iter().all(|byte| *byte == 0);
            return if is_written { Ok(()) } else { Err(wrong("its end is damaged".into())) };
        }
        let stamp = Stamp::check(unit, place(number, position)).map_err(|error| wrong(error.to_string()))?;
        if stamp.writer != self.writer {
            return Err(wrong(format!("it is not of this run: {stamp}")));
        }
        if *self.sequence.get_or_insert(stamp.sequence) != stamp.sequence {
            return Err(wrong(format!("it is made of several PUTs: {stamp}")));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    const STAMP: ObjectStamp = ObjectStamp { writer: 5, sequence: 9, number: 3, unix_ms: 1 };

    async fn bytes(size_bytes: u64, stamp: Option<ObjectStamp>) -> Vec<u8> {
        let body = Payloads::new(&mut Random::new(1), size_bytes).body(3, size_bytes, stamp);
        assert_eq!(body.size_hint().exact(), Some(size_bytes));
        body.collect().await.unwrap().to_bytes().to_vec()
    }

    fn check(data: &[u8], piece_bytes: usize) -> Result<u64, BenchError> {
        let mut check = Check::new(5, 3);
        data.chunks(piece_bytes).try_for_each(|piece| check.take(piece))?;
        check.finish()
    }

    #[tokio::test]
    async fn objects_of_all_sizes_are_as_they_were_written() {
        for size_bytes in [49, 4095, 4096, 4097, 4096 + 48, 4096 + 49, 100_000, 600_000, 9 << 20] {
            assert_eq!(bytes(size_bytes, None).await.len() as u64, size_bytes);
            let data = bytes(size_bytes, Some(STAMP)).await;
            assert_eq!(data.len() as u64, size_bytes);
            for piece_bytes in [1000, 4096, 8192, 1 << 20] {
                assert_eq!(check(&data, piece_bytes).unwrap(), 9, "{size_bytes} in {piece_bytes}");
            }
        }
    }

    #[tokio::test]
    async fn damage_and_mixtures_are_noticed() {
        let whole = bytes(10_000, Some(STAMP)).await;
        for at in [0, 4095, 4096, 9_999] {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            assert!(check(&damaged, 4096).is_err(), "byte {at}");
        }
        let later = bytes(10_000, Some(ObjectStamp { sequence: 10, ..STAMP })).await;
        let mixed = [&whole[..4096], &later[4096..]].concat();
        let error = check(&mixed, 4096).unwrap_err().to_string();
        assert!(error.contains("several PUTs"), "{error}");
        assert!(check(&[], 4096).is_err());
        assert!(Check::new(6, 3).take(&whole).is_err(), "of another writer");
        assert!(Check::new(5, 4).take(&whole).is_err(), "of another object");
        let tail = bytes(4096 + 10, Some(STAMP)).await;
        let mut damaged = tail.clone();
        damaged[4100] ^= 1;
        assert!(check(&tail, 4096).is_ok() && check(&damaged, 4096).is_err());
    }
}
