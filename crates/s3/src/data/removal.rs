//! Removing stored data.

use std::sync::Arc;

use atoll_types::{Mutation, PoolId};
use futures::{StreamExt, TryStreamExt};

use super::CHUNK_BYTES;
use crate::DataStore;
use crate::error::GatewayError;
use crate::index::Index;
use crate::names::{beside_object, chunk_object, inline_key};
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

/// Removes the objects of those pieces that have some. `shard` is where their record is.
pub(crate) async fn remove_objects_of(index: &Index, shard: u32, pieces: &[Piece]) -> Result<(), GatewayError> {
    let record = &index.bucket.record;
    for piece in pieces {
        match piece.place {
            Place::Index => {}
            Place::Beside => {
                let object = beside_object(&index.object(shard), &piece.data_id);
                index.store.change(record.pool, object, Vec::new(), vec![Mutation::Remove]).await?;
            }
            Place::Chunks => {
                let count = piece.bytes.div_ceil(CHUNK_BYTES);
                remove_chunks(&index.store, record.data_pool(), &piece.data_id, count).await?;
            }
        }
    }
    Ok(())
}

/// The mutations of the index object that remove the data of those pieces that are in the index.
pub(crate) fn inline_removals(pieces: &[Piece]) -> impl Iterator<Item = Mutation> {
    let inline = pieces.iter().filter(|piece| piece.place == Place::Index);
    inline.map(|piece| Mutation::OmapRemove { key: inline_key(&piece.data_id) })
}
