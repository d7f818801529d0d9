//! A reader's entries in cluster state, which keep its data from being removed or changed: one of the image, and
//! one of each snapshot of a parent that it reads. They are made in one transaction, only while all of that is
//! there, and again when their lease ran out while cluster state was away. As long as they may not be there,
//! nothing is read.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex as SyncMutex};
use std::time::{Duration, Instant};

use atoll_cluster::process::this_process;
use atoll_cluster::{ClusterError, Lease, LeaseStatus, TermEnd, Transaction, keys};
use atoll_keys::random_u64;
use atoll_types::records::{ImageRecord, ImageWatcherRecord, ParentRecord, RECORD_FORMAT};
use tokio::sync::Mutex;
use tokio::task::JoinHandle;

use crate::ImageError;
use crate::admin::{ImageAdmin, unix_ms};
use crate::lock::{LEASE_TERM, LOCK_PATIENCE, LOCK_PAUSE, host_name, in_use};

const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Data that a reader reads of one image.
#[derive(Clone, Debug)]
pub(crate) struct Watched {
    image_id: String,
    image_name: String,
    /// The number of the snapshot; `None` for the image itself, which must not be changed meanwhile.
    number: Option<u64>,
    /// Revision of the last change of the image itself.
    changed_at: u64,
    /// The image that is shown where this one was not written.
    parent_id: Option<String>,
}

impl Watched {
    /// An image that shows this parent, at the snapshot of this number if there is one.
    pub fn new(image: &ImageRecord, number: Option<u64>, parent: Option<&ParentRecord>) -> Self {
        Watched {
            image_id: image.id.clone(),
            image_name: image.name.clone(),
            number,
            changed_at: image.changed_at(),
            parent_id: parent.map(|parent| parent.image_id.clone()),
        }
    }

    /// Returns true if it is the same as at the first read.
    fn is_in(&self, record: &ImageRecord) -> bool {
        let parent = match self.number {
            Some(number) => match record.snapshots().iter().find(|snapshot| snapshot.number == number) {
                Some(snapshot) => record.shown_parent_at(snapshot),
                None => return false,
            },
            None if record.changed_at() != self.changed_at => return false,
            None => record.shown_parent(),
        };
        parent.map(|parent| parent.image_id) == self.parent_id
    }
}

struct Shared {
    admin: ImageAdmin,
    /// The image itself, and its parents.
    watched: Vec<Watched>,
    purpose: String,
    since_unix_ms: u64,
    lease: Mutex<Option<Lease>>,
    entered_until: SyncMutex<Option<TermEnd>>,
    is_gone: AtomicBool,
    /// The image itself with a generation that was raised for this reader.
    raised: SyncMutex<Option<ImageRecord>>,
}

/// Keeps a reader's entries until it is ended or dropped.
pub(crate) struct Watcher {
    shared: Arc<Shared>,
    keeper: JoinHandle<()>,
}

impl Watcher {
    /// Begins to watch an image, which comes first, and the parents that it shows. Must be called within a tokio
    /// runtime.
    pub async fn begin(admin: &ImageAdmin, watched: Vec<Watched>, purpose: &str) -> Result<Self, ImageError> {
        let shared = Arc::new(Shared {
            admin: admin.clone(),
            watched,
            purpose: purpose.to_owned(),
            since_unix_ms: unix_ms(),
            lease: Mutex::new(None),
            entered_until: SyncMutex::new(None),
            is_gone: AtomicBool::new(false),
            raised: SyncMutex::new(None),
        });
        let deadline = Instant::now() + LOCK_PATIENCE;
        loop {
            match shared.enter().await {
                Ok(true) => break,
                Ok(false) => return Err(ImageError::NoSuchImage(shared.name().to_owned())),
                // It may be a command that is about to be done.
                Err(ImageError::InUse { .. }) if Instant::now() < deadline => tokio::time::sleep(LOCK_PAUSE).await,
                Err(error) => return Err(error),
            }
        }
        let keeper = tokio::spawn(keep(Arc::clone(&shared)));
        Ok(Watcher { shared, keeper })
    }

    /// Returns the image itself, if it is read, with the generation whose fence stops its last writer. That one may
    /// write on without its lock, cut off from cluster state. `None` if a copier has fenced it off.
    pub fn raised(&self) -> Option<ImageRecord> {
        self.shared.raised()
    }

    /// Returns true if the watched data has been removed or changed.
    pub fn is_gone(&self) -> bool {
        self.shared.is_gone.load(Ordering::SeqCst)
    }

    /// Returns true if its entries are there now: all data read since [`Watcher::begin`] was there to be read.
    pub fn is_entered(&self) -> bool {
        let entered_until = self.shared.entered_until.lock().expect("its holders never panic");
        !self.is_gone() && entered_until.as_ref().is_some_and(TermEnd::is_ahead)
    }

    /// Stops watching.
    pub async fn end(self) -> Result<(), ClusterError> {
        self.keeper.abort();
        match self.shared.lease.lock().await.take() {
            Some(lease) => lease.revoke().await,
            None => Ok(()),
        }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.keeper.abort();
    }
}

impl Shared {
    fn name(&self) -> &str {
        &self.watched.first().expect("an image is watched").image_name
    }

    /// Makes the entries. False if the data is not there any more, or has changed.
    async fn enter(&self) -> Result<bool, ImageError> {
        let lease = self.admin.cluster.grant_lease(LEASE_TERM).await?;
        match self.admin.retried(self.name(), || self.enter_once(&lease)).await {
            Ok(true) => {
                *self.entered_until.lock().expect("its holders never panic") = Some(lease.term_end());
                *self.lease.lock().await = Some(lease);
                Ok(true)
            }
            not_entered => {
                lease.revoke().await?;
                not_entered
            }
        }
    }

    /// A process that removes or changes some of it has seen the entries, or has changed the records checked here.
    async fn enter_once(&self, lease: &Lease) -> Result<bool, ImageError> {
        let (mut transaction, mut raised) = (Transaction::new(), self.raised());
        for watched in &self.watched {
            let (mut record, revision) = match self.admin.find(&watched.image_id, &watched.image_name).await {
                Err(ImageError::NoSuchImage(_)) => return Ok(false),
                found => found?,
            };
            if !watched.is_in(&record) {
                return Ok(false);
            }
            if watched.number.is_none() {
                let lock = self.admin.lock(&record.id).await?;
                let lock_revision = lock.as_ref().map_or(0, |(_, revision)| *revision);
                // Copying changes nothing for those who read.
                if let Some((lock, _)) = lock.filter(|(lock, _)| !lock.gives_way) {
                    return Err(in_use(&record.name, lock));
                }
                transaction = transaction.check(&keys::image_lock(&record.id), lock_revision);
                // Its last writer may have lost the lock without knowing.
                if lock_revision == 0 && raised.is_none() {
                    record.raise_generation();
                    record = record.with_format();
                    transaction = transaction.put(&keys::image(&record.name), &record)?;
                    raised = Some(record.clone());
                }
            }
            let key = format!("{}{:016x}", keys::image_watchers(&record.id), random_u64());
            transaction = transaction.check(&keys::image(&record.name), revision).put_with_lease(
                &key,
                &self.entry(watched),
                lease.id(),
            )?;
        }
        self.admin.cluster.transact(&transaction).await?;
        *self.raised.lock().expect("its holders never panic") = raised;
        Ok(true)
    }

    fn raised(&self) -> Option<ImageRecord> {
        self.raised.lock().expect("its holders never panic").clone()
    }

    fn entry(&self, watched: &Watched) -> ImageWatcherRecord {
        ImageWatcherRecord {
            format: RECORD_FORMAT,
            host: host_name(),
            process_id: std::process::id(),
            process: this_process(),
            purpose: self.purpose.clone(),
            number: watched.number,
            since_unix_ms: self.since_unix_ms,
        }
    }
}

async fn keep(shared: Arc<Shared>) {
    loop {
        let Some(mut status) = shared.lease.lock().await.as_ref().map(Lease::status) else { return };
        // An error means that the renewing task is gone, and then it is lost, too.
        let _ = status.wait_for(|status| *status == LeaseStatus::Lost).await.is_ok();
        tracing::warn!("the entry of a reader of image '{}' has run out; making it again", shared.name());
        loop {
            match shared.enter().await {
                Ok(true) => break,
                Ok(false) => {
                    tracing::warn!("the data read from image '{}' was removed or changed", shared.name());
                    return shared.is_gone.store(true, Ordering::SeqCst);
                }
                Err(error) => tracing::debug!("cannot watch image '{}': {error}", shared.name()),
            }
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    }
}

#[cfg(test)]
mod tests;
