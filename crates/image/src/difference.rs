//! Contents of an object at two times, and the difference between them.

use atoll_client::PoolClient;
use bytes::Bytes;

use crate::ImageError;
use crate::pieces::{BLOCK, Piece, runs};
use crate::state::State;

/// Content of an object.
pub(crate) struct Contents {
    /// By block: whether it holds data.
    mapped: Vec<bool>,
    /// Empty if no block does.
    bytes: Bytes,
}

/// How an object becomes the next state.
pub(crate) struct Difference {
    /// The offsets in the object, and the data to write there.
    pub writes: Vec<(u64, Bytes)>,
    /// Offsets and lengths of zeroed ranges.
    pub zeros: Vec<(u64, u64)>,
    /// True if there was data before, and there is data afterwards.
    pub had_data: bool,
    pub has_data: bool,
}

impl Contents {
    pub fn none() -> Self {
        Contents { mapped: Vec::new(), bytes: Bytes::new() }
    }

    /// Returns the content of a piece in a state.
    pub async fn of<C: PoolClient>(state: &State<C>, piece: Piece) -> Result<Self, ImageError> {
        let mapped = state.mapped(piece).await?;
        let bytes = match mapped.contains(&true) {
            true => state.read_blocks(piece.start(state.object_bytes), piece.length).await?,
            false => Bytes::new(),
        };
        Ok(Contents { mapped, bytes })
    }

    pub fn has_data(&self) -> bool {
        self.mapped.contains(&true)
    }

    fn block(&self, block: usize) -> Option<&[u8]> {
        let at = block * BLOCK as usize;
        self.mapped.get(block).filter(|mapped| **mapped).map(|_| &self.bytes[at..at + BLOCK as usize])
    }
}

impl Difference {
    pub fn between(before: &Contents, after: &Contents) -> Self {
        let blocks = 0..after.mapped.len();
        let is_written = |block| after.block(block).is_some() && after.block(block) != before.block(block);
        let is_zeroed = |block| after.block(block).is_none() && before.block(block).is_some();
        let written: Vec<bool> = blocks.clone().map(is_written).collect();
        let zeroed: Vec<bool> = blocks.map(is_zeroed).collect();
        let data = |(first, count): (usize, usize)| {
            let at = first * BLOCK as usize;
            (at as u64, after.bytes.slice(at..at + count * BLOCK as usize))
        };
        Difference {
            writes: runs(&written, true).map(data).collect(),
            zeros: runs(&zeroed, true)
                .map(|(first, count)| (first as u64 * BLOCK, count as u64 * BLOCK))
                .collect(),
            had_data: before.has_data(),
            has_data: after.has_data(),
        }
    }

    pub fn is_none(&self) -> bool {
        self.writes.is_empty() && self.zeros.is_empty()
    }

    pub fn written_bytes(&self) -> u64 {
        self.writes.iter().map(|(_, data)| data.len() as u64).sum()
    }
}
