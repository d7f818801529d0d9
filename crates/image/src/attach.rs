//! Attaching: taking the writer's lock, fencing off earlier writers, and starting a fresh
//! attachment key.

use std::pin::pin;
use std::time::Duration;

use atoll_client::{LocalClient, PoolClient};
use atoll_keys::{SecretKey, random_bytes};
use atoll_types::limits::IMAGE_ATTACHES_MAX;
use atoll_types::records::{ExportAccess, ImageRecord};
use futures::future::{Either, select};

use crate::admin::ImageAdmin;
use crate::ahead::Ahead;
use crate::ancestry::{Generation, over_here, parent_of, parse_attach_ids, parse_image_id, unsealed};
use crate::held_lock::HeldLock;
use crate::lock::{Purpose, TakenLock, fence_name, not_fenced, refuse_read, take_lock};
use crate::moved_states::moved_states;
use crate::sealing::Sealing;
use crate::volume::{Volume, VolumeOf};
use crate::{Bridge, ImageError};

/// How long the image's PGs may take to answer when it is attached: clients wait for it.
const ATTACH_LIMIT: Duration = Duration::from_secs(10);

/// An image whose lock is held, with the keys and parents to open it.
pub(crate) struct Attachment {
    pub record: ImageRecord,
    pub key: SecretKey,
    pub ancestors: Vec<Generation>,
    /// The place that it leaves, if it returns to its old place.
    pub left: Option<Generation>,
    pub lock: HeldLock,
}

/// Makes sure that the previous place of a moved image has no writer any more.
pub(crate) async fn settle_move(
    client: &LocalClient,
    bridge: &Bridge,
    admin: &ImageAdmin,
    name: &str,
) -> Result<(), ImageError> {
    let old = {
        let (admin, name) = (admin.clone(), name.to_owned());
        bridge.run(async move { admin.take_old_place(&name).await }).await?
    };
    let Some(old) = old else { return Ok(()) };
    fence_within_limit(client, &old.record).await?;
    let (admin, name) = (admin.clone(), name.to_owned());
    bridge.run(async move { admin.settled(&name, old).await }).await
}

/// Fences off all writers of generations before the record's.
pub(crate) async fn fence_within_limit(client: &LocalClient, record: &ImageRecord) -> Result<(), ImageError> {
    let fencing = pin!(client.fence(record.pool, fence_name(&record.id), record.writer_generation));
    let limit = pin!(client.runtime().sleep(ATTACH_LIMIT));
    match select(fencing, limit).await {
        Either::Left((fenced, _)) => Ok(fenced?),
        Either::Right(_) => Err(ImageError::NotServing { name: record.name.clone(), limit: ATTACH_LIMIT }),
    }
}

/// Opens the image for its writer, when no earlier writer can change anything any more, not even with pending
/// requests.
pub(crate) async fn open(
    client: &LocalClient,
    record: &ImageRecord,
    key: SecretKey,
    ancestors: Vec<Generation>,
    left: Option<Generation>,
) -> Result<Volume<LocalClient>, ImageError> {
    let sealing = match record.key.is_sealed() {
        true => Sealing::on(key.clone(), parse_image_id(record)?, parse_attach_ids(record)?)?,
        false => unsealed(record),
    };
    fence_within_limit(client, record).await?;
    let moved_states = moved_states(record, &ancestors);
    let (parent, ahead) = match left {
        Some(left) => {
            let shown =
                parent_of(client, over_here(left, record, key, ancestors))?.expect("there are generations");
            let number = record.states.as_ref().map_or(0, |states| states.newest);
            let ahead = Ahead::find(shown.state, number).await?;
            (ahead.parent(), Some(ahead))
        }
        None => (parent_of(client, ancestors)?, None),
    };
    let is_clone = parent.is_some();
    let volume = Volume::new(VolumeOf {
        client: client.clone(),
        name: record.name.clone(),
        image_id: record.id.clone(),
        pool: record.pool,
        object_bytes: record.object_bytes,
        size_bytes: record.size_bytes,
        sealing,
        fence: not_fenced(record),
        kept_number: record.kept_number(),
        parent,
        moved_states,
        ahead,
    });
    if is_clone {
        // Otherwise each read of what only the parent has would first ask for the clone's object.
        volume.list_objects().await?;
    }
    Ok(volume)
}

/// Checks if an image may be written for the purpose of its attachment.
pub(crate) type Check = fn(&ImageRecord) -> Result<(), ImageError>;

/// Takes the lock and adds an attachment to the header.
pub(crate) async fn take(
    admin: &ImageAdmin,
    name: &str,
    purpose: &Purpose,
    check: Check,
) -> Result<Attachment, ImageError> {
    let (record, _) = admin.get(name).await?;
    check(&record)?;
    let is_read_only = record.export.as_ref().is_some_and(|export| export.access == ExportAccess::ReadOnly);
    // Copying changes nothing for those who read.
    if is_read_only && !purpose.gives_way {
        return Err(ImageError::ReadOnly(name.into()));
    }
    if record.key.wrapped().is_empty() {
        return Err(ImageError::KeyDestroyed(name.into()));
    }
    let lock = take_lock(admin, &record, purpose).await?;
    if !purpose.changes_nothing
        && let Err(error) = refuse_read(admin, &record).await
    {
        lock.lease.revoke().await?;
        return Err(error);
    }
    let attach_id = new_attach_id();
    let add = |record: &mut ImageRecord| {
        check(record)?;
        add_attach_id(record, &attach_id, purpose)
    };
    attach_locked(admin, name, purpose, lock, add).await
}

/// Adds an attachment to the header, if the lock is still held: a writer that only copies may have had to give
/// way. Returns the unwrapped keys, and the parents. The lock is given back if that fails.
pub(crate) async fn attach_locked(
    admin: &ImageAdmin,
    name: &str,
    purpose: &Purpose,
    TakenLock { lease, revision }: TakenLock,
    add: impl Fn(&mut ImageRecord) -> Result<(), ImageError>,
) -> Result<Attachment, ImageError> {
    let added = async {
        let (record, _) = admin.get(name).await?;
        let key = admin.unwrapped_key(&record).await?;
        let add = |record: &mut ImageRecord| {
            add(record)?;
            if !purpose.gives_way {
                record.note_writer();
            }
            Ok(())
        };
        let record = admin.change_as_holder(name, revision, add).await?;
        let ancestors = admin.ancestors(record.shown_parent()).await?;
        let left = admin.left_place(&record).await?;
        Ok((record, key, ancestors, left))
    };
    match added.await {
        Ok((record, key, ancestors, left)) => {
            let lock = HeldLock::keep(admin.clone(), record.clone(), purpose.clone(), lease);
            Ok(Attachment { record, key, ancestors, left, lock })
        }
        Err(error) => {
            lease.revoke().await?;
            Err(error)
        }
    }
}

pub(crate) fn new_attach_id() -> String {
    hex::encode(random_bytes::<16>())
}

/// Makes the next writer the one that seals under this id.
pub(crate) fn add_attach_id(
    record: &mut ImageRecord,
    attach_id: &str,
    purpose: &Purpose,
) -> Result<(), ImageError> {
    if record.attach_ids.len() >= IMAGE_ATTACHES_MAX {
        return Err(ImageError::Invalid(format!(
            "image '{}' was attached {IMAGE_ATTACHES_MAX} times, which is the limit; copy it to a new image",
            record.name
        )));
    }
    if record.key.is_sealed() {
        record.attach_ids.push(attach_id.to_owned());
    }
    purpose.raise_generation(record);
    // That was meant for the writer before.
    record.hold = None;
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests;
