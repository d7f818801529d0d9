//! Cutting ranges of an image into ranges of its objects.

use atoll_buffers::BLOCK_BYTES;

pub(crate) const BLOCK: u64 = BLOCK_BYTES as u64;

/// A range of one object of an image, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub object: u64,
    pub offset: u64,
    pub length: u64,
}

impl Piece {
    /// Where it begins in the image, in bytes.
    pub fn start(&self, object_bytes: u64) -> u64 {
        self.object * object_bytes + self.offset
    }

    /// The number of its blocks.
    pub fn block_count(&self) -> usize {
        self.length.div_ceil(BLOCK) as usize
    }
}

/// Cuts a range of an image at object boundaries, in order.
pub(crate) fn pieces(offset: u64, length: u64, object_bytes: u64) -> impl Iterator<Item = Piece> + use<> {
    let end = offset + length;
    let mut position = offset;
    std::iter::from_fn(move || {
        if position >= end {
            return None;
        }
        let within = position % object_bytes;
        let length = (object_bytes - within).min(end - position);
        let piece = Piece { object: position / object_bytes, offset: within, length };
        position += length;
        Some(piece)
    })
}

/// Runs of blocks that are so: the first block and the number of blocks of each, in order.
pub fn runs(flags: &[bool], wanted: bool) -> impl Iterator<Item = (usize, usize)> + use<'_> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let first = at + flags[at..].iter().position(|flag| *flag == wanted)?;
        let count = flags[first..].iter().take_while(|flag| **flag == wanted).count();
        at = first + count;
        Some((first, count))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn pieces_cover_the_range_in_order(offset in 0u64..100_000, length in 0u64..100_000) {
            let mut position = offset;
            for piece in pieces(offset, length, 4096) {
                prop_assert_eq!(piece.start(4096), position);
                prop_assert!(piece.length > 0 && piece.offset + piece.length <= 4096);
                position += piece.length;
            }
            prop_assert_eq!(position, offset + length);
        }
    }
}
