//! Differences between two states of an image.

use atoll_client::PoolClient;
use bytes::Bytes;

use crate::ImageError;
use crate::pieces::{BLOCK, Piece, runs};
use crate::state::State;

/// A range that two states have differently.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Where it begins in the image, in bytes.
    pub offset: u64,
    /// Data of the newer state.
    pub data: Bytes,
}

/// The objects that may be different in two states of one image, the older first: those whose states are not in
/// one place. It costs in proportion to the written data and not to the image's size.
pub(crate) async fn changed_objects<C: PoolClient>(
    older: &State<C>,
    newer: &State<C>,
) -> Result<Vec<u64>, ImageError> {
    older.list_all().await?;
    newer.list_all().await?;
    let mut objects = older.known_objects();
    objects.extend(newer.known_objects());
    objects.retain(|object| older.known_place(*object) != newer.known_place(*object));
    // Where one of them shows more of the parent than the other.
    let overlap = |state: &State<C>| state.parent.as_ref().map_or(0, |parent| parent.overlap_bytes);
    let (less, more) = (overlap(older).min(overlap(newer)), overlap(older).max(overlap(newer)));
    objects.extend(less / newer.object_bytes..more.div_ceil(newer.object_bytes));
    Ok(objects.into_iter().collect())
}

/// The changes of one object, by blocks of 4 KiB.
pub(crate) async fn changes_of<C: PoolClient>(
    older: &State<C>,
    newer: &State<C>,
    object: u64,
) -> Result<Vec<Change>, ImageError> {
    let start = object * newer.object_bytes;
    let length = newer.object_bytes.min(newer.size_bytes.saturating_sub(start));
    if length == 0 {
        return Ok(Vec::new());
    }
    let piece = Piece { object, offset: 0, length };
    let after = newer.read_blocks(start, length).await?;
    // What the older one did not have reads as zeros there.
    let before = older.read_blocks(start, length).await?;
    let shown = older.size_bytes.saturating_sub(start).min(length) as usize;
    let differs: Vec<bool> = (0..piece.block_count())
        .map(|block| {
            let range = block * BLOCK as usize..((block + 1) * BLOCK as usize).min(length as usize);
            let is_new = range.start >= shown && after[range.clone()].iter().any(|byte| *byte != 0);
            is_new || range.start < shown && after[range.clone()] != before[range]
        })
        .collect();
    let change = |(first, count): (usize, usize)| {
        let at = first * BLOCK as usize;
        let end = (at + count * BLOCK as usize).min(length as usize);
        Change { offset: start + at as u64, data: after.slice(at..end) }
    };
    Ok(runs(&differs, true).map(change).collect())
}
