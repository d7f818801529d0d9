//! The lock of an image's one writer, in cluster state, and the fence at the OSDs that gives it force.

use std::time::{Duration, Instant};

use atoll_client::PoolClient;
use atoll_cluster::process::{is_gone, this_process};
use atoll_cluster::{ClusterError, Lease, keys};
use atoll_types::Condition;
use atoll_types::records::{ImageLockRecord, ImageRecord, ImageWatcherRecord, RECORD_FORMAT};
use bytes::Bytes;

use crate::ImageError;
use crate::admin::{ImageAdmin, unix_ms};

pub(crate) const LEASE_TERM: Duration = Duration::from_secs(15);
/// How long one waits for the image: longer than a server keeps an image attached after its last client went.
pub(crate) const LOCK_PATIENCE: Duration = Duration::from_secs(4);
pub(crate) const LOCK_PAUSE: Duration = Duration::from_millis(200);

pub(crate) fn host_name() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname")
        .map_or_else(|_| "unknown".into(), |name| name.trim().into())
}

/// Returns true if the process of a lock is known to have ended.
pub(crate) fn is_abandoned(lock: &ImageLockRecord) -> bool {
    is_gone(lock.process_id, lock.process.as_ref())
}

/// The name of an image's fence.
pub(crate) fn fence_name(image_id: &str) -> Bytes {
    Bytes::from(format!("img.{image_id}"))
}

/// Returns the condition of every write under this generation.
pub(crate) fn not_fenced(record: &ImageRecord) -> Condition {
    Condition::NotFenced { name: fence_name(&record.id), generation: record.writer_generation }
}

pub(crate) fn in_use(name: &str, lock: ImageLockRecord) -> ImageError {
    ImageError::InUse { name: name.into(), host: lock.host, process_id: lock.process_id, purpose: lock.purpose }
}

/// Purpose of a writer, for its lock.
#[derive(Clone, Debug, Default)]
pub struct Purpose {
    /// For people.
    pub text: String,
    /// It only copies from the parent, and yields the image to any other user.
    pub(crate) gives_way: bool,
    /// True if it changes nothing of the image's content.
    pub(crate) changes_nothing: bool,
    /// It is an NVMe gateway for this host, or for several (`*`).
    pub nvme_host: Option<String>,
}

impl Purpose {
    /// An NVMe gateway for a host, or for several.
    pub fn nvme_gateway(host: Option<&str>) -> Self {
        let text = host.map_or("NVMe gateway".into(), |host| format!("NVMe gateway for {host}"));
        Purpose { nvme_host: Some(host.unwrap_or("*").into()), ..text[..].into() }
    }

    /// A writer that only copies.
    pub(crate) fn copier(text: &str) -> Self {
        Purpose { gives_way: true, changes_nothing: true, ..text.into() }
    }

    /// A command that only keeps others from writing.
    pub(crate) fn keeper(text: &str) -> Self {
        Purpose { changes_nothing: true, ..text.into() }
    }

    /// Says in a record that such a writer takes the image.
    pub(crate) fn raise_generation(&self, record: &mut ImageRecord) {
        match self.changes_nothing {
            true => record.raise_generation(),
            false => record.raise_generation_for(self.nvme_host.as_deref()),
        }
    }
}

impl From<&str> for Purpose {
    fn from(text: &str) -> Self {
        Purpose { text: text.into(), ..Purpose::default() }
    }
}

/// The lock of a writer in this process.
pub(crate) fn lock_record(generation: u64, purpose: &Purpose, kept_number: u64, lease: &Lease) -> ImageLockRecord {
    ImageLockRecord {
        format: RECORD_FORMAT,
        generation,
        host: host_name(),
        process_id: std::process::id(),
        process: this_process(),
        lease_id: lease.id(),
        purpose: purpose.text.clone(),
        taken_unix_ms: unix_ms(),
        kept_number,
        held_token: None,
        gives_way: purpose.gives_way,
        nvme_host: purpose.nvme_host.clone(),
    }
}

/// A lock that was just taken.
pub(crate) struct TakenLock {
    pub lease: Lease,
    /// Its revision in cluster state, unless it was broken.
    pub revision: i64,
}

/// Takes the lock of an image; waits a little for one that is being given back.
pub(crate) async fn take_lock(
    admin: &ImageAdmin,
    record: &ImageRecord,
    purpose: &Purpose,
) -> Result<TakenLock, ImageError> {
    let lease = admin.cluster.grant_lease(LEASE_TERM).await?;
    let lock = lock_record(record.writer_generation + 1, purpose, 0, &lease);
    let lock_key = keys::image_lock(&record.id);
    let deadline = Instant::now() + LOCK_PATIENCE;
    loop {
        match admin.cluster.create_with_lease(&lock_key, &lock, &lease).await {
            Ok(revision) => return Ok(TakenLock { lease, revision }),
            Err(ClusterError::AlreadyExists { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        if let Err(in_use) = break_lock_of(admin, record, purpose).await {
            if Instant::now() > deadline {
                lease.revoke().await?;
                return Err(in_use);
            }
            tokio::time::sleep(LOCK_PAUSE).await;
        }
    }
}

/// Removes the lock of a writer whose process is known to be gone, or of one that gives way to this purpose. The fence
/// keeps the old writer from changing anything.
async fn break_lock_of(admin: &ImageAdmin, record: &ImageRecord, purpose: &Purpose) -> Result<(), ImageError> {
    let Some((lock, revision)) = admin.lock(&record.id).await? else { return Ok(()) };
    let why = match (is_abandoned(&lock), lock.gives_way && !purpose.gives_way) {
        (true, _) => "which is gone",
        (false, true) => "which gives way",
        (false, false) => return Err(in_use(&record.name, lock)),
    };
    tracing::info!("taking image '{}' over from process {}, {why}", record.name, lock.process_id);
    match admin.cluster.delete_if(&keys::image_lock(&record.id), revision).await {
        // Somebody else has removed it meanwhile, or taken the image already.
        Ok(_) | Err(ClusterError::Conflict { .. }) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Refuses to change an image that has readers, of itself and not of a snapshot. Waits a little for readers that
/// are about to leave. No reader enters while the caller holds the lock: a reader's entry requires that there is
/// none.
pub(crate) async fn refuse_read(admin: &ImageAdmin, record: &ImageRecord) -> Result<(), ImageError> {
    let deadline = Instant::now() + LOCK_PATIENCE;
    loop {
        let readers = admin.watchers(&record.id).await?;
        let Some(reader) = readers.into_iter().find(|reader| reader.number.is_none()) else { return Ok(()) };
        if Instant::now() > deadline {
            return Err(being_read(&record.name, reader));
        }
        tokio::time::sleep(LOCK_PAUSE).await;
    }
}

pub(crate) fn being_read(name: &str, reader: ImageWatcherRecord) -> ImageError {
    let (host, process_id, purpose) = (reader.host, reader.process_id, reader.purpose);
    ImageError::InUse { name: name.into(), host, process_id, purpose }
}

/// An image that no other process can change, not even a writer that has lost its lock without knowing.
pub(crate) struct Fenced {
    admin: ImageAdmin,
    name: String,
    lock: TakenLock,
}

impl Fenced {
    /// Takes the lock of the image of this name and fences earlier writers off.
    pub async fn take(
        admin: &ImageAdmin,
        client: &impl PoolClient,
        name: &str,
        purpose: impl Into<Purpose>,
    ) -> Result<Self, ImageError> {
        admin.settle_move(client, name).await?;
        let (record, _) = admin.get(name).await?;
        let purpose = purpose.into();
        let lock = take_lock(admin, &record, &purpose).await?;
        let held = Fenced { admin: admin.clone(), name: name.to_owned(), lock };
        match held.fence(client, &record, &purpose).await {
            Ok(()) => Ok(held),
            Err(error) => {
                held.release().await?;
                Err(error)
            }
        }
    }

    async fn fence(
        &self,
        client: &impl PoolClient,
        record: &ImageRecord,
        purpose: &Purpose,
    ) -> Result<(), ImageError> {
        if !purpose.changes_nothing {
            refuse_read(&self.admin, record).await?;
        }
        let raise = |record: &mut ImageRecord| {
            purpose.raise_generation(record);
            Ok(())
        };
        let record = self.change(raise).await?;
        Ok(client.fence(record.pool, fence_name(&record.id), record.writer_generation).await?)
    }

    /// Changes the image's record, unless another process has taken the image meanwhile.
    pub async fn change(
        &self,
        edit: impl Fn(&mut ImageRecord) -> Result<(), ImageError>,
    ) -> Result<ImageRecord, ImageError> {
        self.admin.change_as_holder(&self.name, self.lock.revision, edit).await
    }

    /// Gives the image back.
    pub async fn release(self) -> Result<(), ImageError> {
        Ok(self.lock.lease.revoke().await?)
    }
}
