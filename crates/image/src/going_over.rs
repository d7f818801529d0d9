//! How the writer of an image that was moved goes over to the new place. It holds its writes back until it has the
//! lock there and every writer, itself included, is fenced off from the old place; reads continue meanwhile.

use std::time::Duration;

use atoll_types::records::ImageRecord;

use crate::ImageError;
use crate::admin::ImageAdmin;
use crate::attach::{Attachment, add_attach_id, attach_locked, fence_within_limit, new_attach_id, open};
use crate::attached_image::Writer;
use crate::held_lock::RecordChanges;
use crate::lock::{Purpose, TakenLock, take_lock};
use crate::resize::refuse_unfinished;

const RETRY_PAUSE: Duration = Duration::from_millis(500);

impl Writer {
    /// Switches to the image's new place; `None` if it belongs to others, or was given back. As long as cluster
    /// state or PGs do not answer, writes wait.
    pub async fn go_over(&self, moved: ImageRecord) -> Option<RecordChanges> {
        let old = self.volume();
        old.keeping.hold().await;
        let attach_id = new_attach_id();
        let gone_over = loop {
            match self.try_to_go_over(&moved, &attach_id).await {
                Ok(changes) => break Ok(changes),
                Err(error) if self.is_detached.get() || is_final(&error) => break Err(error),
                Err(error) => {
                    tracing::warn!("image '{}' was moved, and its writer cannot follow yet: {error}", self.name);
                    self.client.runtime().sleep(RETRY_PAUSE).await;
                }
            }
        };
        if let Err(error) = &gone_over {
            tracing::warn!("image '{}' was moved, and its writer has lost it: {error}", self.name);
            old.is_lost.set(true);
        }
        // Writes that wait now begin in the new place, or fail.
        old.keeping.end();
        gone_over.ok()
    }

    async fn try_to_go_over(&self, moved: &ImageRecord, attach_id: &str) -> Result<RecordChanges, ImageError> {
        let own = self.record();
        if moved.moving().is_none_or(|moving| moving.old_id != own.id) {
            return Err(ImageError::Lost(self.name.clone()));
        }
        let (admin, new, purpose) = (self.admin.clone(), moved.clone(), self.purpose.clone());
        let (old, lock) = self.bridge.run(async move { take_new_lock(&admin, &new, &purpose).await }).await?;
        if let Err(error) = fence_within_limit(&self.client, &old).await {
            self.bridge.run(lock.lease.revoke()).await?;
            return Err(error);
        }
        let (admin, purpose) = (self.admin.clone(), self.purpose.clone());
        let (moved, attach_id) = (moved.clone(), attach_id.to_owned());
        let taken = async move { take_new_place(&admin, &moved, &attach_id, purpose, lock).await };
        let Attachment { record, key, ancestors, left, lock } = self.bridge.run(taken).await?;
        let volume = match open(&self.client, &record, key, ancestors, left).await {
            Ok(volume) if !self.is_detached.get() => volume,
            opened => {
                self.bridge.run(lock.release()).await?;
                return Err(opened.err().unwrap_or_else(|| ImageError::Lost(self.name.clone())));
            }
        };
        let changes = lock.changes();
        if let Some(old_lock) = self.go_to(record, volume, lock) {
            self.bridge.run(old_lock.release()).await?;
        }
        tracing::info!("image '{}' was moved; its writer continues in its new place", self.name);
        Ok(changes)
    }
}

/// Returns true for errors that a repetition cannot mend.
fn is_final(error: &ImageError) -> bool {
    use ImageError::{Client, Cluster, InUse, Key, NotServing};
    // In use it may be by this writer's own attempt before.
    !matches!(error, Client(_) | Cluster(_) | NotServing { .. } | Key(_) | InUse { .. })
}

/// The lock of the new place, and the record of the old one.
async fn take_new_lock(
    admin: &ImageAdmin,
    moved: &ImageRecord,
    purpose: &Purpose,
) -> Result<(ImageRecord, TakenLock), ImageError> {
    let moving = moved.moving().ok_or_else(|| ImageError::Lost(moved.name.clone()))?;
    let (old, _) = admin.find(&moving.old_id, &moving.old_name).await?;
    Ok((old, take_lock(admin, moved, purpose).await?))
}

/// Makes this writer the one of the new place, unless another one has been there before.
async fn take_new_place(
    admin: &ImageAdmin,
    moved: &ImageRecord,
    attach_id: &str,
    purpose: Purpose,
    lock: TakenLock,
) -> Result<Attachment, ImageError> {
    let (name, image_id) = (&moved.name[..], &moved.id[..]);
    // Until somebody has settled the move, nobody raises it.
    let own_generation = moved.writer_generation + 1;
    let take = |record: &mut ImageRecord| {
        let lost = || ImageError::Lost(name.to_owned());
        let is_moved = record.id == image_id;
        let flattening = record.flattening.as_mut().filter(|_| is_moved).ok_or_else(lost)?;
        let moving = flattening.moving.as_mut().ok_or_else(lost)?;
        match &moving.settled_by {
            // An answer was lost. Since then another one may have come and gone.
            Some(settled_by) if settled_by == attach_id => {
                let is_newest = record.attach_ids.last().is_none_or(|newest| newest == attach_id);
                let is_own = is_newest && record.writer_generation == own_generation;
                return if is_own { Ok(()) } else { Err(lost()) };
            }
            Some(_) => return Err(lost()),
            None => moving.settled_by = Some(attach_id.to_owned()),
        }
        add_attach_id(record, attach_id, &purpose)?;
        refuse_unfinished(record)?;
        if record.writer_generation == own_generation { Ok(()) } else { Err(lost()) }
    };
    attach_locked(admin, name, &purpose, lock, take).await
}

#[cfg(test)]
mod tests;
