//! Putting extents together: runs of blocks that hold data, and holes.

use futures::future::try_join_all;

use crate::ImageError;
use crate::pieces::{BLOCK, Piece};

/// Extents in one answer.
const EXTENTS_MAX: usize = 4096;

/// Lengths in bytes, and whether each is a hole; no two in a row are of one kind.
#[derive(Default)]
pub(crate) struct Extents(Vec<(u64, bool)>);

/// The extents of pieces in order, which may end early. Pieces that are known to be holes cost nothing; `mapped`
/// returns the blocks of another one that hold data, for some at once.
pub(crate) async fn gather(
    pieces: impl Iterator<Item = Piece>,
    at_once: usize,
    is_known_hole: impl Fn(Piece) -> bool,
    mapped: impl AsyncFn(Piece) -> Result<Vec<bool>, ImageError>,
) -> Result<Extents, ImageError> {
    let mut extents = Extents::default();
    let mut pieces = pieces.peekable();
    while extents.0.len() < EXTENTS_MAX && pieces.peek().is_some() {
        while let Some(hole) = pieces.next_if(|piece| is_known_hole(*piece)) {
            extents.push(hole.length, true);
        }
        let mut asked = Vec::new();
        while asked.len() < at_once
            && let Some(piece) = pieces.next_if(|piece| !is_known_hole(*piece))
        {
            asked.push(piece);
        }
        let found = try_join_all(asked.iter().map(|piece| mapped(*piece))).await?;
        asked.iter().zip(found).for_each(|(piece, mapped)| extents.add(&mapped, piece.length));
    }
    Ok(extents)
}

impl Extents {
    fn push(&mut self, length: u64, is_hole: bool) {
        match self.0.last_mut() {
            Some(last) if last.1 == is_hole => last.0 += length,
            _ => self.0.push((length, is_hole)),
        }
    }

    fn add(&mut self, mapped: &[bool], length: u64) {
        let mut left = length;
        for is_mapped in mapped {
            let part = left.min(BLOCK);
            self.push(part, !is_mapped);
            left -= part;
        }
    }

    /// Without the first `skip` bytes, and with no more than `length`.
    pub fn cut(self, mut skip: u64, mut length: u64) -> Vec<(u64, bool)> {
        let mut kept = Vec::new();
        for (extent, is_hole) in self.0 {
            let skipped = skip.min(extent);
            skip -= skipped;
            let part = (extent - skipped).min(length);
            length -= part;
            if part > 0 {
                kept.push((part, is_hole));
            }
        }
        kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pieces::pieces;
    use futures::executor::block_on;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn extents_say_of_each_block_whether_it_is_there(
            blocks in proptest::collection::vec(any::<bool>(), 64), first in 0u64..40, count in 1u64..24, shift in 0u64..4096,
        ) {
            const OBJECT_BYTES: u64 = 4 * BLOCK;
            let whole = |piece: Piece| {
                let start = (piece.start(OBJECT_BYTES) / BLOCK) as usize;
                blocks[start..start + piece.block_count()].to_vec()
            };
            let asked = gather(
                pieces(first * BLOCK, count * BLOCK, OBJECT_BYTES),
                3,
                |piece| whole(piece).iter().all(|is_there| !is_there),
                async |piece| Ok(whole(piece)),
            );
            let length = count * BLOCK - shift;
            let extents = block_on(asked).unwrap().cut(shift, length);
            prop_assert_eq!(extents.iter().map(|(length, _)| length).sum::<u64>(), length);
            prop_assert!(extents.windows(2).all(|pair| pair[0].1 != pair[1].1));
            let mut at = first * BLOCK + shift;
            for (length, is_hole) in extents {
                let covered = at / BLOCK..(at + length).div_ceil(BLOCK);
                prop_assert!(covered.into_iter().all(|block| blocks[block as usize] != is_hole));
                at += length;
            }
        }
    }
}
