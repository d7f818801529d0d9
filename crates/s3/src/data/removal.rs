//! Removing stored data.

use std::sync::Arc;

use atoll_types::{Mutation, PoolId};
use futures::{StreamExt, TryStreamExt};

use super::CHUNK_BYTES;
use crate::DataStore;
use crate::error::GatewayError;
use crate::names::{chunk_object, inline_key};
use crate::record::{Piece, Place};

const REMOVALS_IN_FLIGHT: usize = 8;

/// Removes the first `count` chunks of the data `id`; chunks that are not there are no error.
pub(super) async fn remove_chunks(
    store: &Arc<dyn DataStore>,
    pool: PoolId,
    id: &[u8; 16],
    count: u64,
) -> Result<(), GatewayError> {
    let removals = futures::stream::iter(0..count).map(|number| {
        let (store, object) = (store.clone(), chunk_object(id, number));
        async move { store.change(pool, object, Vec::new(), vec![Mutation::Remove]).await }
    });
    Ok(removals.buffer_unordered(REMOVALS_IN_FLIGHT).try_collect::<()>().await?)
}

/// Removes the chunks of those pieces that have some.
pub(crate) async fn remove_chunks_of(
    store: &Arc<dyn DataStore>,
    pool: PoolId,
    pieces: &[Piece],
) -> Result<(), GatewayError> {
    for piece in pieces.iter().filter(|piece| piece.place == Place::Chunks) {
        remove_chunks(store, pool, &piece.data_id, piece.bytes.div_ceil(CHUNK_BYTES)).await?;
    }
    Ok(())
}

/// The mutations of the index object that remove the data of those pieces that are in the index.
pub(crate) fn inline_removals(pieces: &[Piece]) -> impl Iterator<Item = Mutation> {
    let inline = pieces.iter().filter(|piece| piece.place == Place::Index);
    inline.map(|piece| Mutation::OmapRemove { key: inline_key(&piece.data_id) })
}
