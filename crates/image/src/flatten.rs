//! Flattening: a clone gets what it shows of its parent, and needs the parent no more.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::time::Duration;

use atoll_client::PoolClient;
use atoll_types::records::ImageRecord;
use futures::{StreamExt, TryStreamExt, stream};

use crate::ImageError;
use crate::admin::ImageAdmin;
use crate::names::object_name;
use crate::pieces::{BLOCK, Piece, runs};
use crate::sealing::written_blocks;
use crate::state::Parent;
use crate::volume::Volume;

/// Objects that are copied at once.
const OBJECTS_AT_ONCE: usize = 8;

impl<C: PoolClient> Volume<C> {
    /// Writes what this shows of its parent into its own objects. Doing it again copies only what is still
    /// missing.
    pub async fn copy_from_parent(
        &self,
        bytes_per_second: Option<u64>,
        progress: &dyn Fn(u64, u64),
    ) -> Result<(), ImageError> {
        let Some(parent) = &self.parent else { return Ok(()) };
        self.list_objects().await?;
        parent.state.list_all().await?;
        let objects = objects_below(parent, self.object_bytes);
        let all = objects.len() as u64 * self.object_bytes;
        let done = Cell::new(0);
        let copies = objects.into_iter().map(|object| async move {
            let copied = self.copy_object(parent, object).await?;
            if let Some(rate) = bytes_per_second.filter(|_| copied > 0) {
                let share = rate / OBJECTS_AT_ONCE as u64;
                self.client.sleep(Duration::from_secs_f64(copied as f64 / share.max(1) as f64)).await;
            }
            Ok::<(), ImageError>(())
        });
        let mut copies = stream::iter(copies).buffer_unordered(OBJECTS_AT_ONCE);
        while copies.try_next().await?.is_some() {
            done.set(done.get() + self.object_bytes);
            progress(done.get(), all);
        }
        Ok(())
    }

    /// Copies what one object lacks; returns how many bytes that were.
    async fn copy_object(&self, parent: &Parent<C>, object: u64) -> Result<u64, ImageError> {
        let start = object * self.object_bytes;
        let length = self.object_bytes.min(parent.overlap_bytes.saturating_sub(start));
        if length == 0 {
            return Ok(0);
        }
        let piece = Piece { object, offset: 0, length };
        let _guard = self.locks.lock(start / BLOCK..(start + length).div_ceil(BLOCK), true).await;
        let mut lacks = parent.state.mapped(piece).await?;
        let name = object_name(&self.image_id, object);
        match self.client.read(self.pool, name, 0, length as u32).await {
            Ok(extent) => {
                let written = written_blocks(piece.block_count(), &extent);
                lacks.iter_mut().zip(written).for_each(|(lacks, written)| *lacks &= !written);
            }
            Err(error) if error.is_no_such_object() => {}
            Err(error) => return Err(error.into()),
        }
        let mut copied = 0;
        for (first, count) in runs(&lacks, true) {
            let (offset, length) = (first as u64 * BLOCK, count as u64 * BLOCK);
            let data = parent.state.read_blocks(start + offset, length).await?;
            self.write_blocks(start + offset, &data).await?;
            copied += length;
        }
        Ok(copied)
    }
}

/// The objects that a parent, or one behind it, has within the overlap.
fn objects_below<C: PoolClient>(parent: &Parent<C>, object_bytes: u64) -> BTreeSet<u64> {
    let mut objects = parent.state.known_objects();
    if let Some(behind) = &parent.state.parent {
        objects.extend(objects_below(behind, object_bytes));
    }
    objects.retain(|object| object * object_bytes < parent.overlap_bytes);
    objects
}

impl ImageAdmin {
    /// A clone that has everything it showed of its parent shows nothing of it from now on. It needs the parent no
    /// more when none of its snapshots shows it.
    pub async fn end_flatten(&self, name: &str) -> Result<ImageRecord, ImageError> {
        let ended = self.change_clone(name, |record| {
            let parent = record.states.as_mut().and_then(|states| states.parent.as_mut());
            parent.into_iter().for_each(|parent| parent.overlap_bytes = 0);
            Ok(())
        });
        ended.await
    }

    /// Refuses to flatten what is no clone.
    pub async fn check_flatten(&self, name: &str) -> Result<(), ImageError> {
        match self.get(name).await?.0.parent() {
            Some(_) => Ok(()),
            None => Err(ImageError::Invalid(format!("image '{name}' is no clone: there is nothing to flatten"))),
        }
    }
}
