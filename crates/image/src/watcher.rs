//! A reader's entry in cluster state, which keeps what it reads from being removed. It is made again when its lease
//! ran out while cluster state was away, unless what is read was removed meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use atoll_cluster::process::this_process;
use atoll_cluster::{ClusterError, Lease, LeaseStatus, keys};
use atoll_keys::random_u64;
use atoll_types::records::{ImageRecord, ImageWatcherRecord, RECORD_FORMAT};
use tokio::sync::Mutex;
use tokio::task::JoinHandle;

use crate::ImageError;
use crate::admin::{ImageAdmin, unix_ms};
use crate::lock::{LEASE_TERM, host_name};

const RETRY_PAUSE: Duration = Duration::from_secs(1);

struct Shared {
    admin: ImageAdmin,
    image_id: String,
    image_name: String,
    record: ImageWatcherRecord,
    /// The image that what is read shows where it was not written.
    parent_id: Option<String>,
    lease: Mutex<Option<Lease>>,
    is_gone: AtomicBool,
}

/// Somebody reads an image or a snapshot until this is ended or dropped.
pub(crate) struct Watcher {
    shared: Arc<Shared>,
    keeper: JoinHandle<()>,
}

impl Watcher {
    /// Begins to watch an image, at the snapshot of this number if there is one, which shows this parent. Must be
    /// called within a tokio runtime.
    pub async fn begin(
        admin: &ImageAdmin,
        image: &ImageRecord,
        (number, parent_id): (Option<u64>, Option<String>),
        purpose: &str,
    ) -> Result<Self, ImageError> {
        let record = ImageWatcherRecord {
            format: RECORD_FORMAT,
            host: host_name(),
            process_id: std::process::id(),
            process: this_process(),
            purpose: purpose.to_owned(),
            number,
            since_unix_ms: unix_ms(),
        };
        let shared = Arc::new(Shared {
            admin: admin.clone(),
            image_id: image.id.clone(),
            image_name: image.name.clone(),
            record,
            parent_id,
            lease: Mutex::new(None),
            is_gone: AtomicBool::new(false),
        });
        if !shared.enter().await? {
            return Err(ImageError::NoSuchImage(image.name.clone()));
        }
        let keeper = tokio::spawn(keep(Arc::clone(&shared)));
        Ok(Watcher { shared, keeper })
    }

    /// Whether what was watched has been removed.
    pub fn is_gone(&self) -> bool {
        self.shared.is_gone.load(Ordering::SeqCst)
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
    /// Makes the entry. False if what is read is not there any more: that is looked at behind it, so that nobody
    /// removes it from then on.
    async fn enter(&self) -> Result<bool, ImageError> {
        let lease = self.admin.cluster.grant_lease(LEASE_TERM).await?;
        let key = format!("{}{:016x}", keys::image_watchers(&self.image_id), random_u64());
        self.admin.cluster.create_with_lease(&key, &self.record, &lease).await?;
        let is_there = match self.admin.find(&self.image_id, &self.image_name).await {
            Ok((record, _)) => {
                let mut snapshots = record.snapshots().iter();
                let shown = match self.record.number {
                    Some(number) => snapshots
                        .find(|snapshot| snapshot.number == number)
                        .map(|snapshot| record.shown_parent_at(snapshot)),
                    None => Some(record.shown_parent()),
                };
                shown.is_some_and(|parent| parent.map(|parent| parent.image_id) == self.parent_id)
            }
            Err(ImageError::NoSuchImage(_)) => false,
            Err(error) => return Err(error),
        };
        match is_there {
            true => *self.lease.lock().await = Some(lease),
            false => lease.revoke().await?,
        }
        Ok(is_there)
    }
}

async fn keep(shared: Arc<Shared>) {
    loop {
        let Some(mut status) = shared.lease.lock().await.as_ref().map(Lease::status) else { return };
        // An error means that the renewing task is gone, and then it is lost, too.
        let _ = status.wait_for(|status| *status == LeaseStatus::Lost).await.is_ok();
        loop {
            match shared.enter().await {
                Ok(true) => break,
                Ok(false) => {
                    tracing::warn!("what is read of image '{}' was removed", shared.image_name);
                    return shared.is_gone.store(true, Ordering::SeqCst);
                }
                Err(error) => tracing::debug!("cannot watch image '{}': {error}", shared.image_name),
            }
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    }
}
