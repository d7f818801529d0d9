//! Moving an image to another pool while it is in use. In one transaction the image becomes a clone, in the new
//! pool, of its old data, which gets another name. Its writer switches to the clone (`going_over`), and the
//! image's writers copy the blocks that it reads from its parent; at the end the parent is removed. Its snapshots
//! are the clone's from the beginning, under their numbers, and each shows itself as it was before until its
//! states are copied (`moved_states`).

use atoll_client::PoolClient;
use atoll_cluster::{Lease, Transaction, keys};
use atoll_keys::{SecretKey, random_u64};
use atoll_types::image_key::ImageKey;
use atoll_types::records::{
    ImageFlattening, ImageMove, ImageRecord, ImageStates, ParentRecord, RECORD_FORMAT, RemovedImageRecord,
    SnapshotRecord,
};

use crate::ImageError;
use crate::admin::{ImageAdmin, image_key_context, unix_ms};
use crate::destination::Destination;
use crate::flattening::refuse_moving;
use crate::lock::{fence_name, take_lock};
use crate::resize::refuse_unfinished;
use crate::snapshots::add_snapshot;

/// The name of the snapshot that an image's new place shows until everything is copied, unless it has one of that name.
const SNAPSHOT: &str = "moved";
/// Longest prefix of an image's name kept in its source's name, in bytes.
pub(crate) const NAME_KEPT_BYTES: usize = 100;

/// An image's previous place, with the lock of its writer.
pub(crate) struct OldPlace {
    pub record: ImageRecord,
    lease: Lease,
}

impl ImageAdmin {
    /// Makes an image one of another pool, or one that is sealed where it was not. Its writer stays attached. Its
    /// writers copy its data afterwards, at most so many bytes per second. Again, it changes the rate.
    pub async fn begin_move(
        &self,
        name: &str,
        to: Destination,
        bytes_per_second: Option<u64>,
    ) -> Result<ImageRecord, ImageError> {
        self.retried(name, || self.begin_move_once(name, to, bytes_per_second)).await
    }

    async fn begin_move_once(
        &self,
        name: &str,
        to: Destination,
        bytes_per_second: Option<u64>,
    ) -> Result<ImageRecord, ImageError> {
        let (record, revision) = self.get(name).await?;
        if record.moving().is_some() && Destination::of(&record) == to {
            return self.change_rate(name, bytes_per_second).await;
        }
        check_move(&record, to)?;
        let readers = self.readers(&record.id).await?;
        readers.refuse(name)?;
        self.check_generations(&record).await?;
        let old = self.old_place(&record).await?;
        let (old_id, old_name) = (old.id.clone(), old.name.clone());
        let moving =
            Some(ImageMove { old_id, old_name, goes_back: false, settled_by: None, has_only_copies: true });
        let flattening = ImageFlattening { bytes_per_second, done_bytes: 0, all_bytes: 0, moving };
        let moved = self.new_place(record, &old, to, flattening).await?;
        let transaction = readers
            .nobody_came(self.while_there_is(to.pool).await?)
            .check(&keys::image(name), revision)
            .check(&keys::image(&old.name), 0)
            .put(&keys::image(&old.name), &with_clone(old.clone(), &moved.id).with_format())?
            .put(&keys::image(name), &moved)?;
        self.cluster.transact(&transaction).await?;
        Ok(moved)
    }

    pub(crate) async fn change_rate(
        &self,
        name: &str,
        bytes_per_second: Option<u64>,
    ) -> Result<ImageRecord, ImageError> {
        let changed = self.change(name, |record| {
            record.flattening.iter_mut().for_each(|flattening| flattening.bytes_per_second = bytes_per_second);
            Ok(())
        });
        Ok(changed.await?.0)
    }

    /// Returns the record of the previous place, under another name, with a snapshot that the new place reads.
    async fn old_place(&self, record: &ImageRecord) -> Result<ImageRecord, ImageError> {
        let kept = record.name.get(..NAME_KEPT_BYTES).unwrap_or(&record.name);
        let mut old = self.renamed(record.clone(), &format!("{kept}.before-{:08x}", random_u64() as u32)).await?;
        let is_free = record.snapshot(SNAPSHOT).is_none();
        let snapshot = if is_free { SNAPSHOT.into() } else { format!("{SNAPSHOT}-{:08x}", random_u64() as u32) };
        add_snapshot(&mut old, &snapshot)?;
        // Its writer is fenced off by this when it has gone over, or is gone.
        old.raise_generation_for(None);
        let snapshots = old.states.iter_mut().flat_map(|states| states.snapshots.iter_mut());
        snapshots.for_each(|snapshot| snapshot.is_pending = false);
        Ok(old)
    }

    async fn new_place(
        &self,
        record: ImageRecord,
        old: &ImageRecord,
        to: Destination,
        flattening: ImageFlattening,
    ) -> Result<ImageRecord, ImageError> {
        let key = if to.is_sealed { ImageKey::WrappedKey } else { ImageKey::UnsealedPermit };
        let snapshot = old.snapshots().last().expect("one was just taken");
        let parent = ParentRecord {
            image_id: old.id.clone(),
            image_name: old.name.clone(),
            number: snapshot.number,
            overlap_bytes: record.size_bytes,
        };
        // A snapshot shows itself as it was before.
        let shown =
            |snapshot: &SnapshotRecord| SnapshotRecord { overlap_bytes: snapshot.size_bytes, ..snapshot.clone() };
        let states = ImageStates {
            newest: snapshot.number,
            snapshots: record.snapshots().iter().map(shown).collect(),
            needs_trimming: false,
            parent: Some(parent),
            is_marked: !to.is_sealed,
        };
        let mut moved = ImageRecord {
            format: RECORD_FORMAT,
            id: format!("{:016x}", random_u64()),
            pool: to.pool,
            key: key(String::new()),
            attach_ids: Vec::new(),
            states: Some(states),
            flattening: Some(flattening),
            ..record
        }
        .with_format();
        *moved.key.wrapped_mut() = self.keys.wrap(&image_key_context(&moved), &SecretKey::random()).await?;
        Ok(moved)
    }

    /// Makes sure that an image's previous place has no writer any more, so that the image can be used. Waits a
    /// little for a writer to go over by itself.
    pub(crate) async fn settle_move(&self, client: &impl PoolClient, name: &str) -> Result<(), ImageError> {
        let Some(old) = self.take_old_place(name).await? else { return Ok(()) };
        client.fence(old.record.pool, fence_name(&old.record.id), old.record.writer_generation).await?;
        self.settled(name, old).await
    }

    /// Returns the lock of an image's previous place; `None` if that has no writer any more.
    pub(crate) async fn take_old_place(&self, name: &str) -> Result<Option<OldPlace>, ImageError> {
        let (record, _) = self.get(name).await?;
        let Some(moving) = record.moving().filter(|_| record.is_unsettled()) else { return Ok(None) };
        let (old, _) = self.find(&moving.old_id, &moving.old_name).await?;
        match take_lock(self, &old, &"taking over a moved image".into()).await {
            Ok(taken) => Ok(Some(OldPlace { record: old, lease: taken.lease })),
            // Its writer may have gone over meanwhile.
            Err(_) if !self.get(name).await?.0.is_unsettled() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Notes that the writer of the previous place is fenced off.
    pub(crate) async fn settled(&self, name: &str, old: OldPlace) -> Result<(), ImageError> {
        let token = format!("{:016x}", random_u64());
        let settled = self.change(name, |record| {
            let moving = record.flattening.as_mut().and_then(|flattening| flattening.moving.as_mut());
            for moving in moving.into_iter().filter(|moving| moving.old_id == old.record.id) {
                moving.settled_by.get_or_insert(token.clone());
            }
            Ok(())
        });
        let settled = settled.await;
        old.lease.revoke().await?;
        settled.map(drop)
    }

    /// Removes the previous place, unless it is in use: everything is copied, and later readers of the image do
    /// not read the parent.
    pub(crate) async fn remove_old_place(&self, name: &str, image_id: &str) -> Result<(), ImageError> {
        let (mut record, revision) = self.get(name).await?;
        let Some(moving) = record.moving().filter(|_| record.id == image_id).cloned() else { return Ok(()) };
        let old = match self.find(&moving.old_id, &moving.old_name).await {
            // Somebody has removed it.
            Err(ImageError::NoSuchImage(_)) => None,
            found => Some(found?),
        };
        // They may have been opened when the image, or the snapshot that they read, showed the parent.
        let readers = self.readers(image_id).await?;
        readers.refuse(name)?;
        record.flattening = None;
        let newest = record.states.as_ref().map_or(0, |states| states.newest);
        let mut transaction = readers
            .nobody_came(Transaction::new())
            .check(&keys::image(name), revision)
            .put(&keys::image(name), &record.with_format())?;
        if let Some((old, old_revision)) = old
            && let readers = self.readers(&old.id).await?
            && readers.present.is_empty()
            && !is_used(&old, newest)
        {
            transaction = readers
                .nobody_came(transaction)
                .check(&keys::image(&old.name), old_revision)
                .delete(&keys::image(&old.name))
                .put(&keys::removed_image(&old.id), &to_be_purged(old))?;
        }
        self.cluster.transact(&transaction).await?;
        Ok(())
    }
}

/// Returns true if an image's previous place is in use, which had no snapshot after this one.
fn is_used(old: &ImageRecord, newest: u64) -> bool {
    let has_more = old.snapshots().last().is_some_and(|snapshot| snapshot.number > newest);
    has_more || old.snapshots().iter().any(|snapshot| !snapshot.clones.is_empty())
}

/// Refuses an image that cannot be moved as it is.
fn check_move(record: &ImageRecord, to: Destination) -> Result<(), ImageError> {
    refuse_moving(record)?;
    refuse_unfinished(record)?;
    let name = &record.name;
    if record.key.wrapped().is_empty() {
        return Err(ImageError::KeyDestroyed(name.clone()));
    }
    if Destination::of(record) == to {
        return Err(ImageError::Invalid(format!("image '{name}' is in that pool already")));
    }
    for snapshot in record.snapshots() {
        if !snapshot.clones.is_empty() {
            return Err(ImageError::HasClones { name: name.clone(), snapshot: snapshot.name.clone() });
        }
        if snapshot.is_pending {
            return Err(ImageError::Invalid(format!(
                "snapshot '{}' of image '{name}' is being taken; try again when that is over. If the command that \
                 took it is gone, remove it ('atoll image snap rm {name}@{0}')",
                snapshot.name
            )));
        }
    }
    if record.flattening.is_some() || record.hold.is_some() {
        return Err(ImageError::Invalid(format!(
            "image '{name}' is being flattened or snapshotted; try again when that is over"
        )));
    }
    Ok(())
}

fn with_clone(mut old: ImageRecord, clone_id: &str) -> ImageRecord {
    let snapshots = old.states.iter_mut().flat_map(|states| states.snapshots.iter_mut());
    snapshots.for_each(|snapshot| snapshot.clones.push(clone_id.to_owned()));
    old
}

pub(crate) fn to_be_purged(image: ImageRecord) -> RemovedImageRecord {
    RemovedImageRecord {
        format: RECORD_FORMAT,
        image,
        removed_unix_ms: unix_ms(),
        purge_unix_ms: 0,
        is_purging: false,
    }
}
