//! Cancelling a move to another pool. In one transaction the image is again in its old place, and the data in the
//! other pool gets another name. Its writer switches (`going_over`), and the image's writers copy the writes made
//! there meanwhile back (`ahead`); at the end the other place is removed.

use atoll_client::PoolClient;
use atoll_cluster::{Transaction, keys};
use atoll_keys::random_u64;
use atoll_types::records::{ImageFlattening, ImageMove, ImageRecord, ImageStates, ImageWork, SnapshotRecord};

use crate::ImageError;
use crate::admin::ImageAdmin;
use crate::ancestry::Generation;
use crate::lock::{Fenced, Purpose};
use crate::moves::{NAME_KEPT_BYTES, to_be_purged};
use crate::objects::list_parts;
use crate::resize::refuse_unfinished;

impl ImageAdmin {
    /// Has an image that is being moved go back to where it was, which is possible until all its data is in the
    /// new place. Its writer stays attached. Its writers copy the writes made meanwhile back afterwards, at most
    /// so many bytes per second. Again, it changes the rate. If the image was not written since, it is over with
    /// this, also when the new place does not answer.
    pub async fn cancel_move(
        &self,
        client: &impl PoolClient,
        name: &str,
        bytes_per_second: Option<u64>,
    ) -> Result<ImageRecord, ImageError> {
        let (record, _) = self.get(name).await?;
        let back = match record.is_going_back() {
            true => self.change_rate(name, bytes_per_second).await?,
            false => self.go_back(client, &record, bytes_per_second).await?,
        };
        if !back.moving().is_some_and(|moving| moving.goes_back && moving.has_only_copies) {
            return Ok(back);
        }
        match self.end_going_back(name, &back.id).await {
            // They may have opened it where it was to go.
            Ok(()) | Err(ImageError::InUse { .. }) => Ok(self.get(name).await?.0),
            Err(error) => Err(error),
        }
    }

    async fn go_back(
        &self,
        client: &impl PoolClient,
        record: &ImageRecord,
        bytes_per_second: Option<u64>,
    ) -> Result<ImageRecord, ImageError> {
        let name = &record.name[..];
        let moving = refuse_to_go_back(record)?;
        self.settle_move(client, name).await?;
        let old = self.find(&moving.old_id, &moving.old_name).await?.0;
        // Whoever wrote to the old place under its other name cannot any more.
        Fenced::take(self, client, &old.name, Purpose::keeper("cancelling a move")).await?.release().await?;
        self.retried(name, || self.go_back_once(client, name, bytes_per_second)).await
    }

    async fn go_back_once(
        &self,
        client: &impl PoolClient,
        name: &str,
        bytes_per_second: Option<u64>,
    ) -> Result<ImageRecord, ImageError> {
        let (record, revision) = self.get(name).await?;
        let moving = refuse_to_go_back(&record)?;
        refuse_unfinished(&record)?;
        let (old, old_revision) = self.find(&moving.old_id, &moving.old_name).await?;
        refuse_used(client, &old, &record).await?;
        let kept = name.get(..NAME_KEPT_BYTES).unwrap_or(name);
        let mut left = self.renamed(record.clone(), &format!("{kept}.after-{:08x}", random_u64() as u32)).await?;
        // Its writer is fenced off by this when it has gone over, or is gone.
        left.raise_generation_for(None);
        left.work = Some(ImageWork::GoBack { name: name.into() });
        let moving = ImageMove {
            old_id: left.id.clone(),
            old_name: left.name.clone(),
            goes_back: true,
            settled_by: None,
            ..moving
        };
        let flattening = ImageFlattening { bytes_per_second, done_bytes: 0, all_bytes: 0, moving: Some(moving) };
        let old_key = keys::image(&old.name);
        let back = ImageRecord {
            flattening: Some(flattening),
            states: old.states.as_ref().map(|states| states_back(states, record.snapshots())),
            size_bytes: record.size_bytes,
            writer_generation: old.writer_generation.max(record.writer_generation),
            changer: record.changer,
            export: record.export,
            metadata: record.metadata,
            ..self.renamed(old, name).await?
        };
        let back = back.with_format();
        let transaction = Transaction::new()
            .check(&keys::image(name), revision)
            .check(&old_key, old_revision)
            .check(&keys::image(&left.name), 0)
            .check(&keys::image_lock(&back.id), 0)
            .delete(&old_key)
            .put(&keys::image(&left.name), &left.clone().with_format())?
            .put(&keys::image(name), &back)?;
        self.cluster.transact(&transaction).await?;
        Ok(back)
    }

    /// Returns the image in the place that it leaves, and the key to read it, if it returns to its old place.
    pub(crate) async fn left_place(&self, record: &ImageRecord) -> Result<Option<Generation>, ImageError> {
        let Some(moving) = record.moving().filter(|moving| moving.goes_back) else { return Ok(None) };
        let (left, _) = self.find(&moving.old_id, &moving.old_name).await?;
        let key = self.unwrapped_key(&left).await?;
        let size_bytes = left.size_bytes;
        Ok(Some(Generation { record: left, key, number: None, size_bytes, overlap_bytes: 0 }))
    }

    /// Removes the place that an image has left: everything is copied back, and later readers of the image do not
    /// read that place.
    pub(crate) async fn end_going_back(&self, name: &str, image_id: &str) -> Result<(), ImageError> {
        self.retried(name, || self.remove_left_place(name, image_id)).await
    }

    async fn remove_left_place(&self, name: &str, image_id: &str) -> Result<(), ImageError> {
        let (mut record, revision) = self.get(name).await?;
        let is_same = record.id == image_id && record.is_going_back();
        let Some(moving) = record.moving().filter(|_| is_same).cloned() else { return Ok(()) };
        let (left, left_revision) = self.find(&moving.old_id, &moving.old_name).await?;
        let mut transaction = Transaction::new();
        // Those of the other place read here what was not written there.
        for read in [image_id, &left.id] {
            let readers = self.readers(read).await?;
            readers.refuse(name)?;
            transaction = readers.nobody_came(transaction);
        }
        record.flattening = None;
        if let Some(states) = &mut record.states {
            states.needs_trimming = true;
            let snapshots = states.snapshots.iter_mut();
            snapshots.for_each(|snapshot| snapshot.clones.retain(|clone| *clone != left.id));
        }
        let transaction = transaction
            .check(&keys::image(name), revision)
            .check(&keys::image(&left.name), left_revision)
            .put(&keys::image(name), &record.with_format())?
            .delete(&keys::image(&left.name))
            .put(&keys::removed_image(&left.id), &to_be_purged(left))?;
        self.cluster.transact(&transaction).await?;
        Ok(())
    }
}

/// The move that can still be cancelled.
fn refuse_to_go_back(record: &ImageRecord) -> Result<ImageMove, ImageError> {
    let name = &record.name;
    let Some(moving) = record.moving() else {
        return Err(ImageError::Invalid(format!("image '{name}' is not being moved: there is nothing to cancel")));
    };
    if record.overlap_bytes() == 0 {
        return Err(ImageError::Invalid(format!(
            "all data of image '{name}' is in its new pool, and the old data is being removed; when that is done, 'atoll \
             image migrate' moves it to the old pool again"
        )));
    }
    Ok(moving.clone())
}

/// Refuses if an image's previous place was used since, which is not possible any more.
async fn refuse_used(client: &impl PoolClient, old: &ImageRecord, record: &ImageRecord) -> Result<(), ImageError> {
    let shown = record.parent().map_or(0, |parent| parent.number);
    let is_cloned = |snapshot: &&SnapshotRecord| snapshot.clones.iter().any(|clone| *clone != record.id);
    if let Some(snapshot) = old.snapshots().iter().find(is_cloned) {
        return Err(ImageError::HasClones { name: old.name.clone(), snapshot: snapshot.name.clone() });
    }
    let has_more = old.snapshots().last().is_some_and(|snapshot| snapshot.number > shown);
    let changed = list_parts(client, old.pool, &old.id, |part| part.kept_for >= Some(shown)).await?;
    if has_more || !changed.is_empty() || old.work.is_some() {
        return Err(ImageError::Invalid(format!(
            "image '{}' cannot return to its old pool: its old data ('{}') was changed since; let the move \
             continue",
            record.name, old.name
        )));
    }
    Ok(())
}

/// The snapshots as they were before, under the names that they have now, and a number for the going back, under which
/// states are kept until it is over.
fn states_back(before: &ImageStates, now: &[SnapshotRecord]) -> ImageStates {
    let named = |snapshot: &SnapshotRecord| {
        let now = now.iter().find(|now| now.number == snapshot.number)?;
        Some(SnapshotRecord { name: now.name.clone(), ..snapshot.clone() })
    };
    ImageStates {
        newest: before.newest + 1,
        snapshots: before.snapshots.iter().filter_map(named).collect(),
        ..before.clone()
    }
}
