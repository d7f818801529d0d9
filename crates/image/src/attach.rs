//! Attaching: taking the writer's lock, fencing off earlier writers, and starting a fresh
//! attachment key.

use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

use atoll_client::LocalClient;
use atoll_cluster::{ClusterError, Lease, keys};
use atoll_keys::{SecretKey, random_bytes};
use atoll_seal::{AttachId, SealError};
use atoll_types::limits::IMAGE_ATTACHES_MAX;
use atoll_types::records::{ImageLockRecord, ImageRecord, RECORD_FORMAT};
use bytes::Bytes;

use crate::admin::{ImageAdmin, image_key_context, in_use, unix_ms};
use crate::held_lock::HeldLock;
use crate::range_locks::RangeLocks;
use crate::sealing::Sealing;
use crate::{Bridge, ImageError};

pub(crate) const LEASE_TERM: Duration = Duration::from_secs(15);
/// How long an attach waits for the image: longer than a server keeps an image attached after its
/// last client went.
const LOCK_PATIENCE: Duration = Duration::from_secs(4);
const LOCK_PAUSE: Duration = Duration::from_millis(200);

/// An image open for reading and writing; this is its only writer.
pub struct AttachedImage {
    pub(crate) client: LocalClient,
    pub(crate) record: ImageRecord,
    size_bytes: Cell<u64>,

    pub(crate) fence_name: Bytes,
    pub(crate) generation: u64,
    pub(crate) sealing: Sealing,
    pub(crate) locks: RangeLocks,
    /// Set when another writer has taken over. Losing the lease alone does not stop a writer: without
    /// cluster state no other writer can take the image, and one that takes it fences this writer off.
    pub(crate) is_lost: Cell<bool>,
    bridge: Bridge,
    lock: RefCell<Option<HeldLock>>,
}

struct Attachment {
    record: ImageRecord,
    key: SecretKey,
    lock: HeldLock,
}

fn host_name() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname")
        .map_or_else(|_| "unknown".into(), |name| name.trim().into())
}

fn process_is_alive(process_id: u32) -> bool {
    std::path::Path::new(&format!("/proc/{process_id}")).exists()
}

fn parse_attach_ids(record: &ImageRecord) -> Result<Vec<AttachId>, SealError> {
    let parse = |text: &String| {
        let mut id = AttachId::default();
        hex::decode_to_slice(text, &mut id).map(|()| id).map_err(|error| SealError::Malformed {
            what: format!("the header of image '{}'", record.name),
            detail: error.to_string(),
        })
    };
    record.attach_ids.iter().map(parse).collect()
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
        let (admin, name, purpose) = (admin.clone(), name.to_owned(), purpose.to_owned());
        let taken = bridge.run(async move { take(&admin, &name, &purpose).await }).await?;
        let Attachment { record, key, lock } = taken;
        let image_id = u64::from_str_radix(&record.id, 16)
            .map_err(|_| ImageError::Invalid(format!("image id '{}' is not hexadecimal", record.id)))?;
        let sealing = match record.key.is_sealed() {
            true => Sealing::on(key, image_id, parse_attach_ids(&record)?)?,
            false => Sealing::Off,
        };
        let fence_name = Bytes::from(format!("img.{}", record.id));
        // From here on no earlier writer can change anything, not even with what it has in flight.
        let fenced = client.fence(record.pool, fence_name.clone(), record.writer_generation).await;
        if let Err(error) = fenced {
            bridge.run(lock.release()).await?;
            return Err(error.into());
        }
        Ok(AttachedImage {
            client: client.clone(),
            size_bytes: Cell::new(record.size_bytes),

            fence_name,
            generation: record.writer_generation,
            sealing,
            locks: RangeLocks::default(),
            is_lost: Cell::new(false),
            bridge: bridge.clone(),
            lock: RefCell::new(Some(lock)),
            record,
        })
    }

    /// The image's record when it was attached.
    pub fn record(&self) -> &ImageRecord {
        &self.record
    }

    /// Size in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes.get()
    }

    /// Whether another writer has taken the image over, or it was detached.
    pub fn is_lost(&self) -> bool {
        self.is_lost.get()
    }

    /// Tells that the image has grown to `size_bytes` since it was attached. It cannot shrink while it is
    /// attached.
    pub fn grow(&self, size_bytes: u64) {
        self.size_bytes.set(self.size_bytes.get().max(size_bytes));
    }

    /// Gives the image back. Everything acknowledged is durable already.
    pub async fn detach(&self) -> Result<(), ImageError> {
        self.is_lost.set(true);
        let Some(lock) = self.lock.borrow_mut().take() else { return Ok(()) };
        self.bridge.run(lock.release()).await?;
        Ok(())
    }
}

/// The lock of a writer in this process.
pub(crate) fn lock_record(generation: u64, purpose: &str) -> ImageLockRecord {
    ImageLockRecord {
        format: RECORD_FORMAT,
        generation,
        host: host_name(),
        process_id: std::process::id(),
        purpose: purpose.to_owned(),
        taken_unix_ms: unix_ms(),
    }
}

/// Takes the lock of an image; waits a little for one that is being given back.
pub(crate) async fn take_lock(
    admin: &ImageAdmin,
    record: &ImageRecord,
    purpose: &str,
) -> Result<Lease, ImageError> {
    let lease = admin.cluster.grant_lease(LEASE_TERM).await?;
    let lock = lock_record(record.writer_generation + 1, purpose);
    let lock_key = keys::image_lock(&record.id);
    let deadline = Instant::now() + LOCK_PATIENCE;
    while let Err(error) = admin.cluster.create_with_lease(&lock_key, &lock, &lease).await {
        let ClusterError::AlreadyExists { .. } = error else { return Err(error.into()) };
        if let Err(in_use) = break_dead_lock(admin, record).await {
            if Instant::now() > deadline {
                lease.revoke().await?;
                return Err(in_use);
            }
            tokio::time::sleep(LOCK_PAUSE).await;
        }
    }
    Ok(lease)
}

/// Takes the lock and adds an attachment to the header.
async fn take(admin: &ImageAdmin, name: &str, purpose: &str) -> Result<Attachment, ImageError> {
    let (record, _) = admin.get(name).await?;
    if record.key.wrapped().is_empty() {
        return Err(ImageError::KeyDestroyed(name.into()));
    }
    let lease = take_lock(admin, &record, purpose).await?;
    match add_attachment(admin, name).await {
        Ok((record, key)) => {
            let lock = HeldLock::keep(admin.clone(), record.clone(), purpose.to_owned(), lease);
            Ok(Attachment { record, key, lock })
        }
        Err(error) => {
            lease.revoke().await?;
            Err(error)
        }
    }
}

/// Adds an attachment to the header, under the lock: nobody else changes it now. Gives what the key
/// service has unwrapped.
async fn add_attachment(admin: &ImageAdmin, name: &str) -> Result<(ImageRecord, SecretKey), ImageError> {
    let (mut record, revision) = admin.get(name).await?;
    if record.attach_ids.len() >= IMAGE_ATTACHES_MAX {
        return Err(ImageError::Invalid(format!(
            "image '{name}' was attached {IMAGE_ATTACHES_MAX} times, which is the limit; copy it to a new image"
        )));
    }
    // Also of an image that is not sealed: a record that somebody has changed must not open.
    let key = admin.keys.unwrap(&image_key_context(&record), record.key.wrapped()).await?;
    if record.key.is_sealed() {
        record.attach_ids.push(hex::encode(random_bytes::<16>()));
    }
    record.writer_generation += 1;
    admin.cluster.compare_and_swap(&keys::image(name), revision, &record).await?;
    Ok((record, key))
}

/// Removes the lock of a writer of this host whose process is gone. Even if that were wrong, the
/// fence would keep the old writer from changing anything.
async fn break_dead_lock(admin: &ImageAdmin, record: &ImageRecord) -> Result<(), ImageError> {
    let Some((lock, revision)) = admin.lock(&record.id).await? else { return Ok(()) };
    if lock.host != host_name() || process_is_alive(lock.process_id) {
        return Err(in_use(&record.name, lock));
    }
    tracing::info!("taking image '{}' over from process {}, which is gone", record.name, lock.process_id);
    admin.cluster.delete_if(&keys::image_lock(&record.id), revision).await?;
    Ok(())
}

#[cfg(test)]
mod tests;
