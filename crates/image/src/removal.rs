//! Removing images. A removed image is no image any more: its record is elsewhere, and it cannot be attached. Its
//! data is removed at once or when its time in the trash is over, by the command, or by a server in the background.
//! Each resumes the interrupted work of the other.

use atoll_client::{PoolClient, visit_objects};
use atoll_cluster::{ClusterError, Transaction, keys};
use atoll_types::records::{ImageRecord, RECORD_FORMAT, RemovedImageRecord};

use crate::ImageError;
use crate::admin::{ImageAdmin, unix_ms};
use crate::flattening::refuse_moving;
use crate::lock::{TakenLock, fence_name, take_lock};
use crate::names::{image_prefix, parse};
use crate::objects::remove_objects;

/// Objects after which the log says how many are gone.
const LOGGED_EVERY: u64 = 4096;
/// Purpose in a lock that is held for a removal.
const REMOVING: &str = "removing";

impl ImageAdmin {
    /// Removes an image and its data. `progress` gets the numbers of removed objects and of all that were found so
    /// far. An image of this name whose removal was interrupted is removed to the end.
    pub async fn remove(
        &self,
        client: &impl PoolClient,
        name: &str,
        progress: &dyn Fn(u64, u64),
    ) -> Result<(), ImageError> {
        let removed = match self.trash(name, 0).await {
            Ok(removed) => removed,
            Err(ImageError::NoSuchImage(_)) => {
                let now_ms = self.lapse_unix_ms().await?;
                let interrupted =
                    |removed: &RemovedImageRecord| removed.image.name == name && is_due(removed, now_ms);
                let found = self.removed().await?.into_iter().find(interrupted);
                found.ok_or_else(|| ImageError::NoSuchImage(name.into()))?
            }
            Err(error) => return Err(error),
        };
        self.purge(client, &removed.image.id, progress).await
    }

    /// Images that were removed and whose data is not gone yet, oldest first.
    pub async fn removed(&self) -> Result<Vec<RemovedImageRecord>, ImageError> {
        let found = self.cluster.list::<RemovedImageRecord>(keys::REMOVED_IMAGES).await?;
        let mut removed: Vec<_> = found.entries.into_iter().map(|(_, record, _)| record).collect();
        removed.sort_by_key(|removed| removed.removed_unix_ms);
        Ok(removed)
    }

    /// The removed image of this id, or the only one of this name.
    pub async fn find_removed(&self, id_or_name: &str) -> Result<RemovedImageRecord, ImageError> {
        let all = self.removed().await?;
        if let Some(found) = all.iter().find(|removed| removed.image.id == id_or_name) {
            return Ok(found.clone());
        }
        let named: Vec<_> = all.into_iter().filter(|removed| removed.image.name == id_or_name).collect();
        match &named[..] {
            [] => Err(ImageError::NotInTrash(id_or_name.to_owned())),
            [one] => Ok(one.clone()),
            _ => Err(ImageError::Invalid(format!(
                "{} images named '{id_or_name}' are in the trash; name one by its id ('atoll image trash ls')",
                named.len()
            ))),
        }
    }

    /// Brings an image back from the trash, with another name if one is given.
    pub async fn restore(&self, id_or_name: &str, new_name: Option<&str>) -> Result<ImageRecord, ImageError> {
        let id = self.find_removed(id_or_name).await?.image.id;
        let found = self.get_removed(&id).await?;
        let (removed, revision) = found.ok_or_else(|| ImageError::NoSuchImage(id_or_name.into()))?;
        let old_name = removed.image.name.clone();
        if is_due(&removed, self.lapse_unix_ms().await?) {
            return Err(ImageError::Invalid(format!("image '{old_name}' is being removed: there is no way back")));
        }
        let image = match new_name.filter(|new_name| *new_name != old_name) {
            Some(new_name) => self.renamed(removed.image, new_name).await?,
            None => removed.image,
        };
        let transaction = Transaction::new()
            .check(&keys::removed_image(&id), revision)
            .check(&keys::image(&image.name), 0)
            .delete(&keys::removed_image(&id))
            .put(&keys::image(&image.name), &image)?;
        match self.cluster.transact(&transaction).await {
            Err(ClusterError::Conflict { .. }) if self.get(&image.name).await.is_ok() => {
                Err(if image.name == old_name {
                    ImageError::Invalid(format!(
                        "there is an image '{old_name}' by now; bring this one back with --name NEW"
                    ))
                } else {
                    ImageError::AlreadyExists(image.name)
                })
            }
            result => result.map(|_| image).map_err(ImageError::from),
        }
    }

    async fn get_removed(&self, image_id: &str) -> Result<Option<(RemovedImageRecord, i64)>, ImageError> {
        Ok(self.cluster.get(&keys::removed_image(image_id)).await?)
    }

    /// Puts an image into the trash, from which it comes back by [`ImageAdmin::restore`], until `keep_ms` have
    /// passed. It is no image from now on: it cannot be attached, and its name is free. Its snapshots go and come
    /// with it, unless it is not to be kept at all: then it must have none.
    pub async fn trash(&self, name: &str, keep_ms: u64) -> Result<RemovedImageRecord, ImageError> {
        self.retried(name, || self.trash_once(name, keep_ms)).await
    }

    async fn trash_once(&self, name: &str, keep_ms: u64) -> Result<RemovedImageRecord, ImageError> {
        let (record, revision) = self.get(name).await?;
        refuse_moving(&record)?;
        if let Some(snapshot) = record.snapshots().iter().find(|snapshot| !snapshot.clones.is_empty()) {
            return Err(ImageError::HasClones { name: name.into(), snapshot: snapshot.name.clone() });
        }
        if keep_ms == 0 && !record.snapshots().is_empty() {
            return Err(ImageError::HasSnapshots { name: name.into(), count: record.snapshots().len() });
        }
        let purge_unix_ms = match keep_ms {
            0 => 0,
            _ => self.term_begin_unix_ms().await?.saturating_add(keep_ms),
        };
        let readers = self.readers(&record.id).await?;
        readers.refuse(name)?;
        let TakenLock { lease, revision: lock_revision } = match take_lock(self, &record, &REMOVING.into()).await {
            Ok(taken) => taken,
            Err(error) => {
                // It may be somebody who removes it, too, and has been faster.
                self.get(name).await?;
                return Err(error);
            }
        };
        let removed = RemovedImageRecord {
            format: RECORD_FORMAT,
            image: record.clone(),
            removed_unix_ms: unix_ms(),
            purge_unix_ms,
            is_purging: false,
        };
        let transaction = readers
            .nobody_came(Transaction::new())
            .check(&keys::image(name), revision)
            .check(&keys::image_lock(&record.id), lock_revision)
            .delete(&keys::image(name))
            .put(&keys::removed_image(&record.id), &removed)?;
        let trashed = self.cluster.transact(&transaction).await;
        lease.revoke().await?;
        trashed?;
        Ok(removed)
    }

    /// Removes the data of a removed image, whether its time in the trash is over or not, and then its record. If
    /// others are at it, waits for them.
    pub async fn purge(
        &self,
        client: &impl PoolClient,
        image_id: &str,
        progress: &dyn Fn(u64, u64),
    ) -> Result<(), ImageError> {
        loop {
            match self.purge_alone(client, image_id, progress).await {
                Err(ImageError::InUse { purpose, .. }) if purpose == REMOVING => {}
                done => return done,
            }
        }
    }

    async fn purge_alone(
        &self,
        client: &impl PoolClient,
        image_id: &str,
        progress: &dyn Fn(u64, u64),
    ) -> Result<(), ImageError> {
        // Somebody else may have been faster.
        let Some((removed, _)) = self.get_removed(image_id).await? else { return Ok(()) };
        let lease = take_lock(self, &removed.image, &REMOVING.into()).await?.lease;
        let purged = self.purge_held(client, image_id, progress).await;
        lease.revoke().await?;
        purged
    }

    async fn purge_held(
        &self,
        client: &impl PoolClient,
        image_id: &str,
        progress: &dyn Fn(u64, u64),
    ) -> Result<(), ImageError> {
        let Some((mut removed, mut revision)) = self.get_removed(image_id).await? else { return Ok(()) };
        let key = keys::removed_image(image_id);
        if !removed.is_purging {
            removed.is_purging = true;
            removed.image.writer_generation += 1;
            revision = self.cluster.compare_and_swap(&key, revision, &removed).await?;
        }
        // A writer that has lost the image without knowing must not make objects that nobody removes.
        let record = removed.image.clone();
        client.fence(record.pool, fence_name(image_id), record.writer_generation).await?;
        if let Some(parent) = record.parent() {
            let forget = || async {
                let transaction = self.forget_clone(Transaction::new(), parent, image_id).await?;
                Ok(self.cluster.transact(&transaction).await?)
            };
            self.retried(&record.name, forget).await?;
        }
        let (mut done, mut found) = (0, 0);
        visit_objects::<ImageError>(client, record.pool, &image_prefix(image_id), false, async |objects| {
            let names =
                objects.into_iter().map(|object| object.name).filter(|name| parse(image_id, name).is_some());
            let names: Vec<_> = names.collect();
            found += names.len() as u64;
            let before = done;
            remove_objects(client, record.pool, names, None, || {
                done += 1;
                progress(done, found.max(done + 1));
            })
            .await?;
            if before / LOGGED_EVERY != done / LOGGED_EVERY {
                tracing::info!("removing image '{}': {done} objects are gone", record.name);
            }
            Ok(())
        })
        .await?;
        progress(found.max(1), found.max(1));
        self.cluster.delete_if(&key, revision).await?;
        Ok(())
    }

    /// Removes the data of all removed images that are due and that no other process is removing. Returns the
    /// names of those whose removal has failed, and why.
    pub async fn purge_due(&self, client: &impl PoolClient) -> Result<Vec<(String, ImageError)>, ImageError> {
        let (mut failed, now_ms) = (Vec::new(), self.lapse_unix_ms().await?);
        for removed in self.removed().await?.into_iter().filter(|removed| is_due(removed, now_ms)) {
            match self.purge_alone(client, &removed.image.id, &|_, _| {}).await {
                // Another one is at it.
                Ok(()) | Err(ImageError::InUse { .. }) => {}
                Err(error) => failed.push((removed.image.name, error)),
            }
        }
        Ok(failed)
    }
}

/// Returns true if data may be removed at this time.
fn is_due(removed: &RemovedImageRecord, now_unix_ms: u64) -> bool {
    removed.is_purging || removed.purge_unix_ms <= now_unix_ms
}

#[cfg(test)]
mod tests;
