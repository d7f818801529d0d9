//! The records of images: making, listing and changing them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use atoll_buffers::BLOCK_BYTES;
use atoll_client::PoolClient;
use atoll_cluster::process::is_gone;
use atoll_cluster::{ClusterClient, ClusterError, Transaction, keys};
use atoll_keys::{KeyService, SecretKey, random_u64};
use atoll_types::PoolId;
use atoll_types::coordination::{ClockRecord, lapse_unix_ms, later_unix_ms};
use atoll_types::image_key::ImageKey;
use atoll_types::limits::{IMAGE_BYTES_MAX, OBJECT_BYTES_MAX};
use atoll_types::records::{
    ImageExport, ImageLockRecord, ImageRecord, ImageWatcherRecord, ImageWork, PoolRecord, RECORD_FORMAT,
};
use atoll_types::size::format_size;
use futures::future::try_join_all;

use crate::ImageError;
use crate::destination::Destination;
use crate::flattening::refuse_moving;
use crate::lock::{Fenced, Purpose, being_read, in_use, is_abandoned, take_lock};
use crate::resize::refuse_unfinished;

const NAME_BYTES_MAX: usize = 128;
const METADATA_BYTES_MAX: usize = 64 << 10;

/// Access to the records of images.
#[derive(Clone)]
pub struct ImageAdmin {
    pub(crate) cluster: ClusterClient,
    pub(crate) keys: Arc<dyn KeyService>,
}

/// Those who read an image, as of some revision.
pub(crate) struct Readers {
    pub present: Vec<ImageWatcherRecord>,
    prefix: String,
    revision: i64,
}

impl Readers {
    /// Refuses if there is one.
    pub fn refuse(&self, name: &str) -> Result<(), ImageError> {
        self.present.first().map_or(Ok(()), |reader| Err(being_read(name, reader.clone())))
    }

    /// The transaction, unless one has come since.
    pub fn nobody_came(&self, transaction: Transaction) -> Transaction {
        transaction.check_prefix(&self.prefix, self.revision)
    }
}

pub(crate) fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_millis() as u64)
}

/// Returns the context that the key-management service binds an image's key to, or the permit to use it without
/// one. A secret wrapped for the one never opens as the other, and a permit is invalid under another name.
pub fn image_key_context(record: &ImageRecord) -> String {
    match record.key {
        ImageKey::WrappedKey(_) => format!("atoll image {}", record.id),
        ImageKey::UnsealedPermit(_) => format!("atoll image {} unsealed {}", record.id, record.name),
    }
}

pub(crate) fn check_name(name: &str) -> Result<(), ImageError> {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let fits = !name.is_empty() && name.len() <= NAME_BYTES_MAX && name.chars().all(is_allowed);
    if fits && !name.starts_with(['.', '-']) {
        return Ok(());
    }
    Err(ImageError::Unfit(format!(
        "'{name}' cannot be a name: use 1 to {NAME_BYTES_MAX} letters, digits, '-', '_' and '.', beginning with a \
         letter, a digit or '_'"
    )))
}

pub(crate) fn check_size(size_bytes: u64) -> Result<(), ImageError> {
    if size_bytes == 0 || size_bytes > IMAGE_BYTES_MAX || !size_bytes.is_multiple_of(BLOCK_BYTES as u64) {
        return Err(ImageError::Unfit(format!(
            "an image cannot have {size_bytes} bytes: choose a multiple of {} up to {}",
            format_size(BLOCK_BYTES as u64),
            format_size(IMAGE_BYTES_MAX)
        )));
    }
    Ok(())
}

impl ImageAdmin {
    /// `keys` wraps the images' keys.
    ///
    /// ```no_run
    /// use std::sync::Arc;
    ///
    /// use atoll_cluster::ClusterClient;
    /// use atoll_image::{ImageAdmin, ImageError};
    /// use atoll_keys::KeyService;
    /// use atoll_types::PoolId;
    ///
    /// async fn make(
    ///     cluster: ClusterClient,
    ///     keys: Arc<dyn KeyService>,
    ///     pool: PoolId,
    /// ) -> Result<Vec<String>, ImageError> {
    ///     let images = ImageAdmin::new(cluster, keys);
    ///     images.create("root", 10 << 30, pool, true).await?;
    ///     Ok(images.list().await?.into_iter().map(|record| record.name).collect())
    /// }
    /// ```
    pub fn new(cluster: ClusterClient, keys: Arc<dyn KeyService>) -> Self {
        ImageAdmin { cluster, keys }
    }

    /// Makes an image; it takes no space until it is written. Whether it is sealed never changes.
    pub async fn create(
        &self,
        name: &str,
        size_bytes: u64,
        pool: PoolId,
        is_sealed: bool,
    ) -> Result<ImageRecord, ImageError> {
        self.create_with(name, size_bytes, Destination { pool, is_sealed }, None).await
    }

    pub(crate) async fn create_with(
        &self,
        name: &str,
        size_bytes: u64,
        Destination { pool, is_sealed }: Destination,
        work: Option<ImageWork>,
    ) -> Result<ImageRecord, ImageError> {
        check_name(name)?;
        check_size(size_bytes)?;
        let key = if is_sealed { ImageKey::WrappedKey } else { ImageKey::UnsealedPermit };
        let mut record = ImageRecord {
            format: RECORD_FORMAT,
            id: format!("{:016x}", random_u64()),
            name: name.into(),
            size_bytes,
            object_bytes: OBJECT_BYTES_MAX,
            pool,
            key: key(String::new()),
            attach_ids: Vec::new(),
            writer_generation: 0,
            changer: None,
            created_unix_ms: unix_ms(),
            states: None,
            work,
            flattening: None,
            hold: None,
            export: None,
            metadata: BTreeMap::new(),
        }
        .with_format();
        *record.key.wrapped_mut() = self.keys.wrap(&image_key_context(&record), &SecretKey::random()).await?;
        let key = keys::image(name);
        let attempt = || async {
            let transaction = self.while_there_is(pool).await?.check(&key, 0).put(&key, &record)?;
            match self.cluster.transact(&transaction).await {
                Err(ClusterError::Conflict { key: changed, .. }) if changed == key => {
                    Err(ImageError::AlreadyExists(name.into()))
                }
                result => Ok(result.map(drop)?),
            }
        };
        self.retried(name, attempt).await?;
        Ok(record)
    }

    /// Returns a transaction that succeeds only while there is a pool: a pool with images cannot be removed.
    pub(crate) async fn while_there_is(&self, pool: PoolId) -> Result<Transaction, ImageError> {
        let key = keys::pool(pool);
        let (_, revision) = self.cluster.get::<PoolRecord>(&key).await?.ok_or(ImageError::NoSuchPool(pool))?;
        Ok(Transaction::new().check(&key, revision))
    }

    /// All images, by name.
    pub async fn list(&self) -> Result<Vec<ImageRecord>, ImageError> {
        let listing = self.cluster.list::<ImageRecord>(keys::IMAGES).await?;
        Ok(listing.entries.into_iter().map(|(_, record, _)| record).collect())
    }

    /// Returns the images whose records can be used, by name: for commands that show or serve them one by one.
    pub async fn list_usable(&self) -> Result<Vec<ImageRecord>, ImageError> {
        let listing = self.cluster.list_usable::<ImageRecord>(keys::IMAGES).await?;
        Ok(listing.entries.into_iter().map(|(_, record, _)| record).collect())
    }

    /// An image's record and its revision.
    pub async fn get(&self, name: &str) -> Result<(ImageRecord, i64), ImageError> {
        let found = self.cluster.get::<ImageRecord>(&keys::image(name)).await?;
        let (record, revision) = found.ok_or_else(|| ImageError::NoSuchImage(name.into()))?;
        if record.name != name {
            return Err(ImageError::Invalid(format!(
                "the record of image '{name}' is that of image '{}'; put the right one back from a backup of cluster \
                 state",
                record.name
            )));
        }
        Ok((record, revision))
    }

    /// Cluster state.
    pub fn state(&self) -> &ClusterClient {
        &self.cluster
    }

    /// The time at which terms lapse whose end removes data.
    pub(crate) async fn lapse_unix_ms(&self) -> Result<u64, ImageError> {
        Ok(lapse_unix_ms(unix_ms(), self.cluster_unix_ms().await?))
    }

    /// The time at which such a term begins.
    pub(crate) async fn term_begin_unix_ms(&self) -> Result<u64, ImageError> {
        Ok(later_unix_ms(unix_ms(), self.cluster_unix_ms().await?))
    }

    /// The cluster's time, if it was ever written.
    async fn cluster_unix_ms(&self) -> Result<Option<u64>, ImageError> {
        let found = self.cluster.get::<ClockRecord>(keys::CLOCK).await?;
        Ok(found.map(|(clock, _)| clock.unix_ms))
    }

    /// Returns the interrupted work on an image that must be repeated, if there is any.
    pub fn unfinished(&self, record: &ImageRecord) -> Option<ImageError> {
        refuse_unfinished(record).err()
    }

    /// The writers of all images, by the names of the images. Those whose processes are known to be gone are
    /// left out.
    pub async fn locks(&self) -> Result<Vec<(String, ImageLockRecord)>, ImageError> {
        let locks = self.cluster.list::<ImageLockRecord>(keys::IMAGE_LOCKS).await?.entries;
        let live = locks.into_iter().filter(|(_, lock, _)| !is_abandoned(lock));
        let by_key: BTreeMap<String, ImageLockRecord> = live.map(|(key, lock, _)| (key, lock)).collect();
        let records = self.list_usable().await?.into_iter();
        Ok(records
            .filter_map(|record| Some((record.name, by_key.get(&keys::image_lock(&record.id))?.clone())))
            .collect())
    }

    /// The present writer of an image, unless its process is known to be gone.
    pub async fn live_lock(&self, image_id: &str) -> Result<Option<ImageLockRecord>, ImageError> {
        let lock = self.lock(image_id).await?.map(|(lock, _)| lock);
        Ok(lock.filter(|lock| !is_abandoned(lock)))
    }

    /// The lock of an image and its revision, if it has a writer, dead or alive.
    pub async fn lock(&self, image_id: &str) -> Result<Option<(ImageLockRecord, i64)>, ImageError> {
        Ok(self.cluster.get(&keys::image_lock(image_id)).await?)
    }

    /// Destroys the key of an image: its data can never be read again. The image stays, to be removed.
    pub async fn destroy_key(&self, name: &str) -> Result<(), ImageError> {
        let (record, _) = self.get(name).await?;
        refuse_moving(&record)?;
        if !record.key.is_sealed() {
            return Err(ImageError::Invalid(format!(
                "image '{name}' is not sealed: there is no key without which it could not be read; 'atoll image rm' \
                 removes it"
            )));
        }
        let lock = take_lock(self, &record, &"destroying its key".into()).await?;
        let destroyed = self.change_as_holder(name, lock.revision, |record| {
            refuse_moving(record)?;
            if let Some(snapshot) = record.snapshots().iter().find(|snapshot| !snapshot.clones.is_empty()) {
                return Err(ImageError::HasClones { name: name.into(), snapshot: snapshot.name.clone() });
            }
            record.key.wrapped_mut().clear();
            Ok(())
        });
        let destroyed = destroyed.await;
        lock.lease.revoke().await?;
        destroyed.map(drop)
    }

    /// Changes the record of an image, again if another process changes it at the same time. Returns it and its
    /// revision.
    pub(crate) async fn change(
        &self,
        name: &str,
        edit: impl Fn(&mut ImageRecord) -> Result<(), ImageError>,
    ) -> Result<(ImageRecord, i64), ImageError> {
        let (mut records, revision) = self.change_together(&[name], |_, record| edit(record)).await?;
        Ok((records.remove(0), revision))
    }

    /// Changes the record of an image only while a lock of it is the one of this revision.
    pub(crate) async fn change_as_holder(
        &self,
        name: &str,
        lock_revision: i64,
        edit: impl Fn(&mut ImageRecord) -> Result<(), ImageError>,
    ) -> Result<ImageRecord, ImageError> {
        let edit = &edit;
        let attempt = || async move {
            let (mut record, revision) = self.get(name).await?;
            match self.lock(&record.id).await? {
                Some((_, found)) if found == lock_revision => {}
                Some((lock, _)) => return Err(in_use(name, lock)),
                None => return Err(ImageError::Lost(name.into())),
            }
            edit(&mut record)?;
            let record = record.with_format();
            let transaction = Transaction::new()
                .check(&keys::image(name), revision)
                .check(&keys::image_lock(&record.id), lock_revision)
                .put(&keys::image(name), &record)?;
            self.cluster.transact(&transaction).await?;
            Ok(record)
        };
        self.retried(name, attempt).await
    }

    /// Changes the records of several images in one transaction, again if another process changes one of them at
    /// the same time. `edit` gets the index in `names` of each record. Returns the records and their revision.
    pub(crate) async fn change_together<S: AsRef<str>>(
        &self,
        names: &[S],
        edit: impl Fn(usize, &mut ImageRecord) -> Result<(), ImageError>,
    ) -> Result<(Vec<ImageRecord>, i64), ImageError> {
        self.change_known(names, &vec![None; names.len()], edit).await
    }

    /// The same for records some of which are known, with their revisions, so that they need not be read unless
    /// they have changed.
    pub(crate) async fn change_known<S: AsRef<str>>(
        &self,
        names: &[S],
        known: &[Option<(ImageRecord, i64)>],
        edit: impl Fn(usize, &mut ImageRecord) -> Result<(), ImageError>,
    ) -> Result<(Vec<ImageRecord>, i64), ImageError> {
        let (edit, is_first) = (&edit, &AtomicBool::new(true));
        let attempt = || async move {
            let is_first = is_first.swap(false, Ordering::Relaxed);
            let found = names.iter().zip(known).map(|(name, known)| async move {
                match known {
                    Some(known) if is_first => Ok(known.clone()),
                    _ => self.get(name.as_ref()).await,
                }
            });
            let found = try_join_all(found).await?;
            let (mut transaction, mut records) = (Transaction::new(), Vec::new());
            for (index, (mut record, revision)) in found.into_iter().enumerate() {
                edit(index, &mut record)?;
                let (key, record) = (keys::image(&record.name), record.with_format());
                transaction = transaction.check(&key, revision).put(&key, &record)?;
                records.push(record);
            }
            Ok((records, self.cluster.transact(&transaction).await?))
        };
        self.retried(names.first().map_or("", AsRef::as_ref), attempt).await
    }

    /// Attempts a change of an image again while others change the same records.
    pub(crate) async fn retried<T, F: Future<Output = Result<T, ImageError>>>(
        &self,
        name: &str,
        attempt: impl Fn() -> F,
    ) -> Result<T, ImageError> {
        let is_conflict = |error: &_| matches!(error, ImageError::Cluster(ClusterError::Conflict { .. }));
        match atoll_cluster::retried(is_conflict, attempt).await {
            Err(error) if is_conflict(&error) => Err(ImageError::Contended(name.into())),
            outcome => outcome,
        }
    }

    /// The record of the image with this id, which probably has this name.
    pub(crate) async fn find(&self, image_id: &str, name: &str) -> Result<(ImageRecord, i64), ImageError> {
        match self.get(name).await {
            Ok((record, revision)) if record.id == image_id => return Ok((record, revision)),
            Ok(_) | Err(ImageError::NoSuchImage(_)) => {}
            Err(error) => return Err(error),
        }
        let all = self.cluster.list::<ImageRecord>(keys::IMAGES).await?.entries.into_iter();
        let found = all.map(|(_, record, revision)| (record, revision)).find(|(record, _)| record.id == image_id);
        found.ok_or_else(|| ImageError::NoSuchImage(format!("{name} ({image_id})")))
    }

    /// Those who read an image or its snapshots now.
    pub async fn watchers(&self, image_id: &str) -> Result<Vec<ImageWatcherRecord>, ImageError> {
        Ok(self.readers(image_id).await?.present)
    }

    /// The same, for a change that must not be made under readers.
    pub(crate) async fn readers(&self, image_id: &str) -> Result<Readers, ImageError> {
        let prefix = keys::image_watchers(image_id);
        let found = self.cluster.list::<ImageWatcherRecord>(&prefix).await?;
        let watchers = found.entries.into_iter().map(|(_, watcher, _)| watcher);
        let present = watchers.filter(|watcher| !is_gone(watcher.process_id, watcher.process.as_ref())).collect();
        Ok(Readers { present, prefix, revision: found.revision })
    }

    /// Takes the lock away from the present writer, which can change nothing from then on. Returns who it was.
    pub async fn break_lock(
        &self,
        client: &impl PoolClient,
        name: &str,
    ) -> Result<Option<ImageLockRecord>, ImageError> {
        let (record, _) = self.get(name).await?;
        let Some((lock, revision)) = self.lock(&record.id).await? else { return Ok(None) };
        self.cluster.delete_if(&keys::image_lock(&record.id), revision).await?;
        let held = Fenced::take(self, client, name, Purpose::keeper("breaking a lock")).await?;
        // It is not for the same NVMe host any more.
        let forgotten = held.change(|record| {
            record.changer = None;
            Ok(())
        });
        let forgotten = forgotten.await;
        held.release().await?;
        forgotten.map(|_| Some(lock))
    }

    /// Gives an image another name.
    pub async fn rename(&self, name: &str, new_name: &str) -> Result<ImageRecord, ImageError> {
        self.retried(name, || self.rename_once(name, new_name)).await
    }

    async fn rename_once(&self, name: &str, new_name: &str) -> Result<ImageRecord, ImageError> {
        let (old, revision) = self.get(name).await?;
        refuse_moving(&old)?;
        // A writer would not find its image again.
        if let Some((lock, _)) = self.lock(&old.id).await? {
            return Err(in_use(name, lock));
        }
        let record = self.renamed(old, new_name).await?;
        let transaction = Transaction::new()
            .check(&keys::image(name), revision)
            .check(&keys::image(new_name), 0)
            .check(&keys::image_lock(&record.id), 0)
            .delete(&keys::image(name))
            .put(&keys::image(new_name), &record)?;
        match self.cluster.transact(&transaction).await {
            Err(ClusterError::Conflict { .. }) if self.get(new_name).await.is_ok() => {
                Err(ImageError::AlreadyExists(new_name.into()))
            }
            result => result.map(|_| record).map_err(ImageError::from),
        }
    }

    /// The record under another name.
    pub(crate) async fn renamed(
        &self,
        mut record: ImageRecord,
        new_name: &str,
    ) -> Result<ImageRecord, ImageError> {
        check_name(new_name)?;
        let old_context = image_key_context(&record);
        record.name = new_name.into();
        // What shows that an image may be unsealed is bound to its name.
        if !record.key.is_sealed() {
            let secret = self.keys.unwrap(&old_context, record.key.wrapped()).await?;
            *record.key.wrapped_mut() = self.keys.wrap(&image_key_context(&record), &secret).await?;
        }
        Ok(record)
    }

    /// Sets key-value pairs, or removes those without a value.
    pub async fn set_metadata(
        &self,
        name: &str,
        pairs: &[(String, Option<String>)],
    ) -> Result<ImageRecord, ImageError> {
        let (record, _) = self
            .change(name, |record| {
                for (key, value) in pairs {
                    match value {
                        Some(value) => drop(record.metadata.insert(key.clone(), value.clone())),
                        None => drop(record.metadata.remove(key)),
                    }
                }
                let bytes: usize = record.metadata.iter().map(|(key, value)| key.len() + value.len()).sum();
                if bytes > METADATA_BYTES_MAX {
                    return Err(ImageError::Invalid(format!(
                        "an image has up to {METADATA_BYTES_MAX} bytes of metadata, and not {bytes}"
                    )));
                }
                Ok(())
            })
            .await?;
        Ok(record)
    }

    /// Sets the access of clients to an image through NBD. Clients that are connected stay.
    pub async fn set_export(&self, name: &str, export: &ImageExport) -> Result<ImageRecord, ImageError> {
        let is_default = *export == ImageExport::default();
        let (record, _) = self
            .change(name, |record| {
                record.export = (!is_default).then(|| export.clone());
                Ok(())
            })
            .await?;
        Ok(record)
    }
}
