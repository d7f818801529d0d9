//! Attaching: taking the writer's lock, fencing off earlier writers, and starting a fresh
//! attachment key.

use std::cell::RefCell;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use atoll_client::{LocalClient, PoolClient};
use atoll_keys::{SecretKey, random_bytes};
use atoll_types::limits::IMAGE_ATTACHES_MAX;
use atoll_types::records::{ExportAccess, ImageRecord};
use bytes::Bytes;
use futures::future::{Either, select};

use crate::admin::ImageAdmin;
use crate::ancestry::{Generation, parent_at, parent_of, parse_attach_ids, parse_image_id, unsealed};
use crate::fill::refuse_to_fill;
use crate::follow::Follower;
use crate::held_lock::HeldLock;
use crate::lock::{fence_name, not_fenced, take_lock};
use crate::resize::refuse_unfinished;
use crate::sealing::Sealing;
use crate::volume::{Volume, VolumeOf};
use crate::{Bridge, ImageError};

/// How long the image's PGs may take to answer when it is attached: clients wait for it.
const ATTACH_LIMIT: Duration = Duration::from_secs(10);

/// An image open for reading and writing; this is its only writer.
pub struct AttachedImage {
    record: ImageRecord,
    volume: Rc<Volume<LocalClient>>,
    bridge: Bridge,
    lock: Rc<RefCell<Option<HeldLock>>>,
}

pub(crate) struct Attachment {
    pub record: ImageRecord,
    key: SecretKey,
    ancestors: Vec<Generation>,
    pub lock: HeldLock,
}

impl AttachedImage {
    /// Takes the image for writing. `purpose` says to people what the writer is.
    ///
    /// ```no_run
    /// use atoll_client::LocalClient;
    /// use atoll_image::{AttachedImage, Bridge, ImageAdmin, ImageError};
    ///
    /// /// Adds one to the number in the first block; it is durable when this returns.
    /// async fn count(client: &LocalClient, bridge: &Bridge, admin: &ImageAdmin) -> Result<(), ImageError> {
    ///     let image = AttachedImage::attach(client, bridge, admin, "numbers", "counter").await?;
    ///     let mut block = image.read(0, 4096).await?.to_vec();
    ///     block[0] = block[0].wrapping_add(1);
    ///     image.write(0, &block.into()).await?;
    ///     image.detach().await
    /// }
    /// ```
    pub async fn attach(
        client: &LocalClient,
        bridge: &Bridge,
        admin: &ImageAdmin,
        name: &str,
        purpose: &str,
    ) -> Result<Self, ImageError> {
        Self::attach_as(client, bridge, admin, (name, purpose), refuse_unfinished).await
    }

    /// Takes an image that was made to be filled.
    pub async fn attach_to_fill(
        client: &LocalClient,
        bridge: &Bridge,
        admin: &ImageAdmin,
        name: &str,
        purpose: &str,
    ) -> Result<Self, ImageError> {
        Self::attach_as(client, bridge, admin, (name, purpose), refuse_to_fill).await
    }

    async fn attach_as(
        client: &LocalClient,
        bridge: &Bridge,
        admin: &ImageAdmin,
        (name, purpose): (&str, &str),
        check: Check,
    ) -> Result<Self, ImageError> {
        let taken = {
            let (admin, name, purpose) = (admin.clone(), name.to_owned(), purpose.to_owned());
            bridge.run(async move { take(&admin, &name, &purpose, check).await }).await?
        };
        let Attachment { record, key, ancestors, lock } = taken;
        match open(client, &record, key, ancestors).await {
            Ok(volume) => {
                let volume = Rc::new(volume);
                let lock = Rc::new(RefCell::new(Some(lock)));
                let image = AttachedImage { record, volume, bridge: bridge.clone(), lock };
                image.follow(client);
                Ok(image)
            }
            Err(error) => {
                bridge.run(lock.release()).await?;
                Err(error)
            }
        }
    }

    /// Learns from the record of what others do with the image.
    fn follow(&self, client: &LocalClient) {
        let Some(changes) = self.lock.borrow().as_ref().map(HeldLock::changes) else { return };
        let follower = Follower {
            volume: Rc::clone(&self.volume),
            generation: self.record.writer_generation,
            lock: Rc::clone(&self.lock),
            bridge: self.bridge.clone(),
            runtime: client.runtime().clone(),
            held_for: None,
            holds: Rc::default(),
        };
        client.runtime().spawn(follower.follow(changes));
    }

    /// The image's record when it was attached.
    pub fn record(&self) -> &ImageRecord {
        &self.record
    }

    /// Size in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.volume.size_bytes.get()
    }

    /// Whether another writer has taken the image over, or it was detached.
    pub fn is_lost(&self) -> bool {
        self.volume.is_lost.get()
    }

    /// Tells that the image has grown to `size_bytes` since it was attached. It cannot shrink while it is
    /// attached.
    pub fn grow(&self, size_bytes: u64) {
        self.volume.size_bytes.set(self.size_bytes().max(size_bytes));
    }

    /// Reads a range, aligned or not.
    pub async fn read(&self, offset: u64, length: u32) -> Result<Bytes, ImageError> {
        self.volume.read(offset, length).await
    }

    /// Writes a range, aligned or not; it is durable on all members when this returns.
    pub async fn write(&self, offset: u64, data: &Bytes) -> Result<(), ImageError> {
        self.volume.write(offset, data).await
    }

    /// Makes a range read as zeros and frees its space where it covers whole blocks.
    pub async fn write_zeroes(&self, offset: u64, length: u64) -> Result<(), ImageError> {
        self.volume.write_zeroes(offset, length).await
    }

    /// Frees the whole blocks within a range; they read as zeros afterwards. Blocks at the ends
    /// that are covered only partly stay as they are.
    pub async fn trim(&self, offset: u64, length: u64) -> Result<(), ImageError> {
        self.volume.trim(offset, length).await
    }

    /// Which parts of a range hold no data, by blocks of 4 KiB: length in bytes and whether it is a hole, from
    /// `offset` on. It may end early.
    pub async fn extents(&self, offset: u64, length: u64) -> Result<Vec<(u64, bool)>, ImageError> {
        self.volume.extents(offset, length).await
    }

    /// Gives the image back. Everything acknowledged is durable already.
    pub async fn detach(&self) -> Result<(), ImageError> {
        self.volume.is_lost.set(true);
        let Some(lock) = self.lock.borrow_mut().take() else { return Ok(()) };
        self.bridge.run(lock.release()).await?;
        Ok(())
    }

    /// Writes what a clone shows of its parent into the clone itself. `progress` is told the numbers of bytes
    /// looked at and of all; at most `bytes_per_second` are copied. Afterwards
    /// [`ImageAdmin::end_flatten`](crate::ImageAdmin::end_flatten) makes it an image of its own.
    pub async fn copy_from_parent(
        &self,
        bytes_per_second: Option<u64>,
        progress: &dyn Fn(u64, u64),
    ) -> Result<(), ImageError> {
        self.volume.copy_from_parent(bytes_per_second, progress).await
    }
}

/// The image as its writer has it, when no earlier writer can change anything any more, not even with what it has
/// in flight.
async fn open(
    client: &LocalClient,
    record: &ImageRecord,
    key: SecretKey,
    ancestors: Vec<Generation>,
) -> Result<Volume<LocalClient>, ImageError> {
    let sealing = match record.key.is_sealed() {
        true => Sealing::on(key, parse_image_id(record)?, parse_attach_ids(record)?)?,
        false => unsealed(record),
    };
    let fencing = pin!(client.fence(record.pool, fence_name(&record.id), record.writer_generation));
    let limit = pin!(client.runtime().sleep(ATTACH_LIMIT));
    match select(fencing, limit).await {
        Either::Left((fenced, _)) => fenced?,
        Either::Right(_) => {
            return Err(ImageError::NotServing { name: record.name.clone(), limit: ATTACH_LIMIT });
        }
    }
    let parent = parent_of(client, ancestors)?;
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
    });
    if is_clone {
        // Otherwise each read of what only the parent has would first ask for the clone's object.
        volume.list_objects().await?;
    }
    Ok(volume)
}

/// Whether an image may be written for what it is attached for.
pub(crate) type Check = fn(&ImageRecord) -> Result<(), ImageError>;

/// Takes the lock and adds an attachment to the header.
pub(crate) async fn take(
    admin: &ImageAdmin,
    name: &str,
    purpose: &str,
    check: Check,
) -> Result<Attachment, ImageError> {
    let (record, _) = admin.get(name).await?;
    check(&record)?;
    if record.export.as_ref().is_some_and(|export| export.access == ExportAccess::ReadOnly) {
        return Err(ImageError::ReadOnly(name.into()));
    }
    if record.key.wrapped().is_empty() {
        return Err(ImageError::KeyDestroyed(name.into()));
    }
    let lease = take_lock(admin, &record, purpose).await?;
    match add_attachment(admin, name, check).await {
        Ok((record, key, ancestors)) => {
            let lock = HeldLock::keep(admin.clone(), record.clone(), purpose.to_owned(), lease);
            Ok(Attachment { record, key, ancestors, lock })
        }
        Err(error) => {
            lease.revoke().await?;
            Err(error)
        }
    }
}

/// Adds an attachment to the header, under the lock: no other writer changes it now. Gives what the key
/// service has unwrapped, and what it takes to read the parents.
async fn add_attachment(
    admin: &ImageAdmin,
    name: &str,
    check: Check,
) -> Result<(ImageRecord, SecretKey, Vec<Generation>), ImageError> {
    let (record, _) = admin.get(name).await?;
    let key = admin.unwrapped_key(&record).await?;
    let attach_id = hex::encode(random_bytes::<16>());
    let (record, _) = admin
        .change(name, |record| {
            check(record)?;
            if record.attach_ids.len() >= IMAGE_ATTACHES_MAX {
                return Err(ImageError::Invalid(format!(
                    "image '{name}' was attached {IMAGE_ATTACHES_MAX} times, which is the limit; copy it to a new image"
                )));
            }
            if record.key.is_sealed() {
                record.attach_ids.push(attach_id.clone());
            }
            record.writer_generation += 1;
            // That was meant for the writer before.
            record.hold = None;
            Ok(())
        })
        .await?;
    let ancestors = admin.ancestors(parent_at(&record, record.overlap_bytes())).await?;
    Ok((record, key, ancestors))
}

#[cfg(test)]
pub(crate) mod tests;
