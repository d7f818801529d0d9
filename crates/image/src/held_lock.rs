//! The lock of an attached image, taken again when its lease ran out while cluster state was away.

use std::sync::Arc;
use std::time::Duration;

use atoll_cluster::{ClusterError, Lease, LeaseStatus, Transaction, keys};
use atoll_types::records::ImageRecord;
use tokio::sync::Mutex;
use tokio::task::JoinHandle;

use crate::ImageError;
use crate::admin::ImageAdmin;
use crate::attach::{LEASE_TERM, lock_record};

const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// A lock that is held until it is released or dropped, or until another writer has the image.
pub(crate) struct HeldLock {
    lease: Arc<Mutex<Option<Lease>>>,
    keeper: JoinHandle<()>,
}

impl HeldLock {
    /// Keeps the lock of the image as it was attached. Must be called within a tokio runtime.
    pub fn keep(admin: ImageAdmin, record: ImageRecord, purpose: String, lease: Lease) -> HeldLock {
        let lease = Arc::new(Mutex::new(Some(lease)));
        let keeper = tokio::spawn(keep(admin, record, purpose, lease.clone()));
        HeldLock { lease, keeper }
    }

    /// Gives the lock back.
    pub async fn release(self) -> Result<(), ClusterError> {
        self.keeper.abort();
        match self.lease.lock().await.take() {
            Some(lease) => lease.revoke().await,
            None => Ok(()),
        }
    }
}

impl Drop for HeldLock {
    fn drop(&mut self) {
        self.keeper.abort();
    }
}

async fn keep(admin: ImageAdmin, record: ImageRecord, purpose: String, held: Arc<Mutex<Option<Lease>>>) {
    loop {
        let Some(mut status) = held.lock().await.as_ref().map(Lease::status) else { return };
        // An error means that the renewing task is gone, and then it is lost, too.
        let _ = status.wait_for(|status| *status == LeaseStatus::Lost).await.is_ok();
        tracing::warn!("lost the lock of image '{}'; taking it again", record.name);
        loop {
            match take_again(&admin, &record, &purpose).await {
                Ok(Some(lease)) => {
                    tracing::info!("have the lock of image '{}' again", record.name);
                    *held.lock().await = Some(lease);
                    break;
                }
                // Its fence tells this writer so.
                Ok(None) => return tracing::warn!("another writer has image '{}' now", record.name),
                Err(error) => tracing::debug!("cannot take the lock of image '{}' again: {error}", record.name),
            }
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    }
}

/// The lock, if nobody has attached the image, changed its size or removed it meanwhile.
async fn take_again(admin: &ImageAdmin, record: &ImageRecord, purpose: &str) -> Result<Option<Lease>, ImageError> {
    let (now, revision) = match admin.get(&record.name).await {
        Err(ImageError::NoSuchImage(_)) => return Ok(None),
        found => found?,
    };
    if now.id != record.id || now.writer_generation != record.writer_generation {
        return Ok(None);
    }
    let lease = admin.cluster.grant_lease(LEASE_TERM).await?;
    let lock_key = keys::image_lock(&record.id);
    let lock = lock_record(record.writer_generation, purpose);
    let transaction = Transaction::new()
        .check(&lock_key, 0)
        .check(&keys::image(&record.name), revision)
        .put_with_lease(&lock_key, &lock, lease.id())?;
    // A conflict may be with the old lock, whose lease cluster state has yet to end: try again.
    admin.cluster.transact(&transaction).await?;
    Ok(Some(lease))
}
