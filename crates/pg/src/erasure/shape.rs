//! How an object is cut into shards. Chunks of a fixed size go round the data shards; a stripe is
//! one chunk of each. All shards of an object have the same length, a whole number of chunks.

use crate::config::CodeShape;
use atoll_buffers::BLOCK_BYTES;

/// A range of bytes in every shard of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Span {
    pub start: u64,
    pub end: u64,
}

/// A part of an object that lies in one chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// The data shard.
    pub shard: u8,
    /// Byte of the shard at which it begins.
    pub offset: u64,
    pub length: u64,
}

impl Span {
    /// All of an object, however long it is.
    pub const WHOLE: Span = Span { start: 0, end: u64::MAX };

    /// Returns the span of `length` bytes from an offset on.
    pub fn of(offset: u64, length: u32) -> Self {
        Span { start: offset, end: offset.saturating_add(u64::from(length)) }
    }

    pub fn length(&self) -> usize {
        (self.end - self.start) as usize
    }

    pub fn overlaps(&self, other: &Span) -> bool {
        self.start < other.end && other.start < self.end
    }

    /// The bytes in both; `None` if there are none.
    pub fn intersection(&self, other: &Span) -> Option<Span> {
        let common = Span { start: self.start.max(other.start), end: self.end.min(other.end) };
        (common.start < common.end).then_some(common)
    }

    /// The smallest span that contains both.
    pub fn hull(&self, other: &Span) -> Span {
        Span { start: self.start.min(other.start), end: self.end.max(other.end) }
    }

    /// Widened to whole units.
    pub fn widened(&self, unit: u64) -> Span {
        Span { start: self.start / unit * unit, end: self.end.next_multiple_of(unit) }
    }
}

impl CodeShape {
    /// The number of data and parity shards.
    pub fn shards(&self) -> u8 {
        self.data + self.parity
    }

    fn chunk(&self) -> u64 {
        u64::from(self.chunk_bytes)
    }

    pub(crate) fn stripe_bytes(&self) -> u64 {
        self.chunk() * u64::from(self.data)
    }

    /// Length of every shard of an object of `object_bytes`.
    pub(crate) fn shard_bytes(&self, object_bytes: u64) -> u64 {
        object_bytes.div_ceil(self.stripe_bytes()) * self.chunk()
    }

    /// The pieces of a range of an object, in order.
    pub(crate) fn pieces(&self, offset: u64, length: u64) -> impl Iterator<Item = Piece> + use<> {
        let (chunk, data) = (self.chunk(), u64::from(self.data));
        let (mut at, end) = (offset, offset + length);
        std::iter::from_fn(move || {
            let number = at / chunk;
            let length = end.min((number + 1) * chunk).checked_sub(at).filter(|length| *length > 0)?;
            let offset = number / data * chunk + at % chunk;
            at += length;
            Some(Piece { shard: (number % data) as u8, offset, length })
        })
    }

    /// The span of every shard that contains the blocks of a range of an object.
    pub(crate) fn span(&self, offset: u64, length: u64) -> Option<Span> {
        let spans = self.pieces(offset, length).map(|piece| piece.span());
        spans.reduce(|one, other| one.hull(&other))
    }
}

impl Piece {
    /// The span of its blocks in its shard.
    pub fn span(&self) -> Span {
        Span { start: self.offset, end: self.offset + self.length }.widened(BLOCK_BYTES as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_go_round_the_data_shards() {
        let shape = CodeShape { data: 2, parity: 1, chunk_bytes: 8192 };
        let pieces: Vec<_> =
            shape.pieces(4096, 20_000).map(|piece| (piece.shard, piece.offset, piece.length)).collect();
        assert_eq!(pieces, [(0, 4096, 4096), (1, 0, 8192), (0, 8192, 7712)]);
        assert_eq!(shape.span(4096, 20_000), Some(Span { start: 0, end: 16_384 }));
        assert_eq!(shape.span(8192, 4096), Some(Span { start: 0, end: 4096 }));
        assert_eq!(shape.span(8192, 0), None);
        assert_eq!([0, 1, 16_384, 16_385].map(|bytes| shape.shard_bytes(bytes)), [0, 8192, 8192, 16_384]);
    }
}
