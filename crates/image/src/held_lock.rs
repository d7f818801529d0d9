//! The lock of an attached image, taken again when its lease ran out while cluster state was away.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use atoll_cluster::{ClusterError, Lease, LeaseStatus, PrefixWatch, Transaction, WatchEvent, keys};
use atoll_types::record_json::read_record;
use atoll_types::records::{ImageLockRecord, ImageRecord};
use tokio::sync::{Mutex, watch};
use tokio::task::JoinHandle;

use crate::ImageError;
use crate::admin::ImageAdmin;
use crate::lock::{LEASE_TERM, Purpose, lock_record};

const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Shared state of the tasks of one held lock.
struct Shared {
    admin: ImageAdmin,
    /// As it was attached.
    record: ImageRecord,
    purpose: Purpose,
    lease: Mutex<Option<Lease>>,
    /// The lock as it was written last, and its revision.
    written: Mutex<Option<(ImageLockRecord, i64)>>,
    /// The newest snapshot for which states are kept.
    kept_number: AtomicU64,
    /// The hold for which writes are held back.
    held_token: std::sync::Mutex<Option<String>>,
}

/// A lock that is held until it is released or dropped, or until another writer has the image.
pub(crate) struct HeldLock {
    shared: Arc<Shared>,
    keeper: JoinHandle<()>,
    /// Dropped with the lock: the task that follows the image's record ends then.
    held: watch::Sender<()>,
}

/// Changes of an image's record, as long as its lock is held.
pub(crate) struct RecordChanges {
    key: String,
    name: String,
    admin: ImageAdmin,
    watch: Option<PrefixWatch>,
    held: watch::Receiver<()>,
}

/// A change that a writer learns of.
pub(crate) enum ImageChange {
    /// The record is another one.
    Record(Box<ImageRecord>),
    /// There is no image of this name any more: it was removed or renamed, which takes an image without a writer.
    Gone,
}

/// Writes into the lock which snapshots the writer keeps states for.
pub(crate) struct Acknowledger(Arc<Shared>);

impl HeldLock {
    /// Keeps the lock of the image as it was attached. Must be called within a tokio runtime.
    pub fn keep(admin: ImageAdmin, record: ImageRecord, purpose: Purpose, lease: Lease) -> HeldLock {
        let lease = Mutex::new(Some(lease));
        let shared = Arc::new(Shared {
            admin,
            record,
            purpose,
            lease,
            written: Mutex::new(None),
            kept_number: AtomicU64::new(0),
            held_token: std::sync::Mutex::default(),
        });
        let keeper = tokio::spawn(keep(Arc::clone(&shared)));
        HeldLock { shared, keeper, held: watch::channel(()).0 }
    }

    /// Follows the image's record. The first change is the record as it is.
    pub fn changes(&self) -> RecordChanges {
        let Shared { admin, record, .. } = &*self.shared;
        let (key, name) = (keys::image(&record.name), record.name.clone());
        RecordChanges { key, name, admin: admin.clone(), watch: None, held: self.held.subscribe() }
    }

    pub fn acknowledger(&self) -> Acknowledger {
        Acknowledger(Arc::clone(&self.shared))
    }

    /// Gives the lock back.
    pub async fn release(self) -> Result<(), ClusterError> {
        self.keeper.abort();
        match self.shared.lease.lock().await.take() {
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

impl RecordChanges {
    /// The next change; `None` when the lock is not held any more.
    pub async fn next(&mut self) -> Option<ImageChange> {
        tokio::select! {
            change = next_change(&self.key, &self.name, &self.admin, &mut self.watch) => change,
            // Nothing is ever sent.
            _ = self.held.changed() => None,
        }
    }
}

async fn next_change(
    key: &str,
    name: &str,
    admin: &ImageAdmin,
    watch: &mut Option<PrefixWatch>,
) -> Option<ImageChange> {
    while watch.is_none() {
        match admin.get(name).await {
            Ok((record, revision)) => {
                *watch = Some(admin.cluster.watch_prefix(key, revision + 1));
                return Some(ImageChange::Record(Box::new(record)));
            }
            Err(ImageError::NoSuchImage(_)) => return Some(ImageChange::Gone),
            Err(error) => tracing::debug!("cannot follow image '{name}': {error}"),
        }
        tokio::time::sleep(RETRY_PAUSE).await;
    }
    let watch = watch.as_mut()?;
    loop {
        // Other images' names begin so, too.
        let value = match watch.next().await? {
            WatchEvent::Put { key: changed, value, .. } if changed == key => value,
            WatchEvent::Delete { key: deleted, .. } if deleted == key => return Some(ImageChange::Gone),
            WatchEvent::Put { .. } | WatchEvent::Delete { .. } => continue,
            WatchEvent::Resync { entries, .. } => match entries.into_iter().find(|(found, ..)| found == key) {
                Some((_, value, _)) => value,
                None => return Some(ImageChange::Gone),
            },
        };
        match read_record(&value) {
            Ok(record) => return Some(ImageChange::Record(Box::new(record))),
            Err(error) => tracing::warn!("the record of image '{name}' cannot be read: {error}"),
        }
    }
}

impl Acknowledger {
    /// States are kept for snapshots up to this number. If it cannot be said now, the lock says so when it is
    /// taken again, or with the next change.
    pub async fn kept(self, number: u64) {
        let shared = &*self.0;
        if shared.kept_number.swap(number, Ordering::SeqCst) == number {
            return;
        }
        self.say_until_said().await;
    }

    /// Writes are held back for this hold, or for none.
    pub async fn held(self, token: Option<String>) {
        {
            let mut held = self.0.held_token.lock().expect("its holders never panic");
            if *held == token {
                return;
            }
            *held = token;
        }
        self.say_until_said().await;
    }

    async fn say_until_said(&self) {
        let shared = &*self.0;
        while let Err(error) = self.say().await {
            tracing::debug!("cannot report the kept states of image '{}': {error}", shared.record.name);
            tokio::time::sleep(RETRY_PAUSE).await;
            if shared.lease.lock().await.is_none() {
                return;
            }
        }
    }

    async fn say(&self) -> Result<(), ImageError> {
        let shared = &*self.0;
        let lease = shared.lease.lock().await;
        let Some(lease) = lease.as_ref() else { return Ok(()) };
        let mut written = shared.written.lock().await;
        // Clients' writes may be waiting for this, so what is known is not read again.
        if let Some((lock, revision)) = written.take() {
            match self.write(lease, lock, revision).await {
                Err(ImageError::Cluster(ClusterError::Conflict { .. })) => {}
                outcome => return outcome.map(|now| *written = now),
            }
        }
        let Some((lock, revision)) = shared.admin.lock(&shared.record.id).await? else { return Ok(()) };
        *written = self.write(lease, lock, revision).await?;
        Ok(())
    }

    /// The lock as it is now; `None` if it is another writer's.
    async fn write(
        &self,
        lease: &Lease,
        mut lock: ImageLockRecord,
        revision: i64,
    ) -> Result<Option<(ImageLockRecord, i64)>, ImageError> {
        let shared = &*self.0;
        let lock_key = keys::image_lock(&shared.record.id);
        if lock.lease_id != lease.id() {
            return Ok(None);
        }
        // When it was taken, a copier that gave way may have been about to raise the generation.
        lock.generation = shared.record.writer_generation;
        lock.kept_number = shared.kept_number.load(Ordering::SeqCst);
        lock.held_token = shared.held_token.lock().expect("its holders never panic").clone();
        let transaction =
            Transaction::new().check(&lock_key, revision).put_with_lease(&lock_key, &lock, lease.id())?;
        let revision = shared.admin.cluster.transact(&transaction).await?;
        Ok(Some((lock, revision)))
    }
}

async fn keep(shared: Arc<Shared>) {
    let name = &shared.record.name;
    loop {
        let Some(mut status) = shared.lease.lock().await.as_ref().map(Lease::status) else { return };
        // An error means that the renewing task is gone, and then it is lost, too.
        let _ = status.wait_for(|status| *status == LeaseStatus::Lost).await.is_ok();
        tracing::warn!("lost the lock of image '{name}'; taking it again");
        loop {
            match take_again(&shared).await {
                Ok(Some(lease)) => {
                    tracing::info!("have the lock of image '{name}' again");
                    *shared.lease.lock().await = Some(lease);
                    break;
                }
                // Its fence tells this writer so.
                Ok(None) => return tracing::warn!("another writer has image '{name}' now"),
                Err(error) => tracing::debug!("cannot take the lock of image '{name}' again: {error}"),
            }
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    }
}

/// Takes the lock, if the image was not attached, resized or removed meanwhile.
async fn take_again(shared: &Shared) -> Result<Option<Lease>, ImageError> {
    let Shared { admin, record, purpose, kept_number, .. } = shared;
    let (now, revision) = match admin.get(&record.name).await {
        Err(ImageError::NoSuchImage(_)) => return Ok(None),
        found => found?,
    };
    if now.id != record.id || now.writer_generation != record.writer_generation {
        return Ok(None);
    }
    let lease = admin.cluster.grant_lease(LEASE_TERM).await?;
    let lock_key = keys::image_lock(&record.id);
    let lock = lock_record(record.writer_generation, purpose, kept_number.load(Ordering::SeqCst), &lease);
    let transaction = Transaction::new()
        .check(&lock_key, 0)
        .check(&keys::image(&record.name), revision)
        .put_with_lease(&lock_key, &lock, lease.id())?;
    // A conflict may be with the old lock, whose lease cluster state has yet to end: try again.
    admin.cluster.transact(&transaction).await?;
    Ok(Some(lease))
}

#[cfg(test)]
impl HeldLock {
    /// The lease ends in cluster state, and the writer does not know.
    pub async fn cut_off(&self) {
        self.keeper.abort();
        self.shared.lease.lock().await.take().expect("it was held").revoke().await.unwrap();
    }

    /// Returns true if the writer gets the lock again.
    pub async fn takes_again(&self) -> bool {
        take_again(&self.shared).await.unwrap().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attach::take;
    use crate::attach::tests::world;
    use crate::resize::refuse_unfinished;

    const PATIENCE: Duration = Duration::from_secs(30);

    /// It would write on, and its writes would go with the image.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_writer_that_was_cut_off_learns_that_its_image_was_removed_or_renamed() {
        let world = world().await;
        for round in 0..2 {
            world.create("disk", true).await;
            let attached = take(&world.admin, "disk", &"a writer".into(), refuse_unfinished).await.unwrap();
            let mut changes = attached.lock.changes();
            assert!(matches!(changes.next().await, Some(ImageChange::Record(_))));
            attached.lock.cut_off().await;
            match round {
                0 => drop(world.admin.trash("disk", 1_000_000).await.unwrap()),
                _ => drop(world.admin.rename("disk", "other").await.unwrap()),
            }
            let told = tokio::time::timeout(PATIENCE, changes.next()).await.expect("it is told");
            assert!(matches!(told, Some(ImageChange::Gone)));
            assert!(!attached.lock.takes_again().await);
            // One that begins to look only now.
            assert!(matches!(attached.lock.changes().next().await, Some(ImageChange::Gone)));
        }
    }
}
