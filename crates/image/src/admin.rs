//! Making, listing, resizing and removing images.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use atoll_buffers::BLOCK_BYTES;
use atoll_client::ObjectClient;
use atoll_cluster::{ClusterClient, ClusterError, keys};
use atoll_keys::{KeyService, SecretKey, random_u64};
use atoll_types::image_key::ImageKey;
use atoll_types::limits::{IMAGE_BYTES_MAX, OBJECT_BYTES_MAX};
use atoll_types::records::{ImageLockRecord, ImageRecord, RECORD_FORMAT};
use atoll_types::{Condition, Mutation, ObjectName, PoolId};
use futures::{StreamExt, stream};

use crate::ImageError;
use crate::attach::take_lock;

/// Removals that run at once while an image is removed or shrunk.
const REMOVALS_IN_FLIGHT: usize = 32;
const NAME_BYTES_MAX: usize = 128;

/// Access to the records of images.
#[derive(Clone)]
pub struct ImageAdmin {
    pub(crate) cluster: ClusterClient,
    pub(crate) keys: Arc<dyn KeyService>,
}

pub(crate) fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_millis() as u64)
}

/// What the key-management service binds an image's key to, or the permit to use it without one. What was
/// wrapped for the one never opens as the other, and a permit is of no use under another name.
pub fn image_key_context(record: &ImageRecord) -> String {
    match record.key {
        ImageKey::WrappedKey(_) => format!("atoll image {}", record.id),
        ImageKey::UnsealedPermit(_) => format!("atoll image {} unsealed {}", record.id, record.name),
    }
}

/// The name of an image's object.
pub(crate) fn object_name(image_id: &str, index: u64) -> ObjectName {
    ObjectName::new(&format!("img.{image_id}.{index:08x}")).expect("the name is short")
}

fn check_name(name: &str) -> Result<(), ImageError> {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let fits = !name.is_empty() && name.len() <= NAME_BYTES_MAX && name.chars().all(is_allowed);
    if fits && !name.starts_with('.') {
        return Ok(());
    }
    Err(ImageError::Invalid(format!(
        "'{name}' cannot name an image: use 1 to {NAME_BYTES_MAX} letters, digits, '-', '_' and '.', not beginning \
         with '.'"
    )))
}

fn check_size(size_bytes: u64) -> Result<(), ImageError> {
    if size_bytes == 0 || size_bytes > IMAGE_BYTES_MAX || !size_bytes.is_multiple_of(BLOCK_BYTES as u64) {
        return Err(ImageError::Invalid(format!(
            "an image cannot have {size_bytes} bytes: choose a multiple of {BLOCK_BYTES} up to {IMAGE_BYTES_MAX}"
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
            created_unix_ms: unix_ms(),
        };
        *record.key.wrapped_mut() = self.keys.wrap(&image_key_context(&record), &SecretKey::random()).await?;
        match self.cluster.create(&keys::image(name), &record).await {
            Ok(_) => Ok(record),
            Err(ClusterError::AlreadyExists { .. }) => Err(ImageError::AlreadyExists(name.into())),
            Err(error) => Err(error.into()),
        }
    }

    /// All images, by name.
    pub async fn list(&self) -> Result<Vec<ImageRecord>, ImageError> {
        let listing = self.cluster.list::<ImageRecord>(keys::IMAGES).await?;
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

    /// The present writer of an image, if there is one.
    pub async fn lock(&self, image_id: &str) -> Result<Option<(ImageLockRecord, i64)>, ImageError> {
        Ok(self.cluster.get(&keys::image_lock(image_id)).await?)
    }

    /// Changes the size. Growing is always possible; shrinking needs `allow_shrink`, removes the
    /// data beyond the new end, and is refused while a writer holds the image.
    pub async fn resize(
        &self,
        client: &impl ObjectClient,
        name: &str,
        size_bytes: u64,
        allow_shrink: bool,
    ) -> Result<ImageRecord, ImageError> {
        check_size(size_bytes)?;
        let (old, revision) = self.get(name).await?;
        if size_bytes < old.size_bytes && !allow_shrink {
            return Err(ImageError::Invalid(format!(
                "image '{name}' has {} bytes; making it smaller destroys data and needs --allow-shrink",
                old.size_bytes
            )));
        }
        let record = ImageRecord { size_bytes, ..old.clone() };
        if size_bytes < old.size_bytes {
            let lease = take_lock(self, &old, "shrinking").await?;
            self.discard(client, &old, size_bytes, &|_, _| {}).await?;
            self.cluster.compare_and_swap(&keys::image(name), revision, &record).await?;
            lease.revoke().await?;
        } else {
            self.cluster.compare_and_swap(&keys::image(name), revision, &record).await?;
        }
        Ok(record)
    }

    /// Removes an image and its data. `progress` is told the number of objects done and of all.
    pub async fn remove(
        &self,
        client: &impl ObjectClient,
        name: &str,
        progress: &dyn Fn(u64, u64),
    ) -> Result<(), ImageError> {
        let (record, revision) = self.get(name).await?;
        let lease = take_lock(self, &record, "removing").await?;
        self.discard(client, &record, 0, progress).await?;
        self.cluster.delete_if(&keys::image(name), revision).await?;
        lease.revoke().await?;
        Ok(())
    }

    /// Forgets the key of an image: what is in it can never be read again. The image stays, to be removed.
    pub async fn destroy_key(&self, name: &str) -> Result<(), ImageError> {
        let (mut record, revision) = self.get(name).await?;
        if !record.key.is_sealed() {
            return Err(ImageError::Invalid(format!(
                "image '{name}' is not sealed: there is no key without which it could not be read; 'atoll image rm' \
                 removes it"
            )));
        }
        let lease = take_lock(self, &record, "destroying its key").await?;
        record.key.wrapped_mut().clear();
        self.cluster.compare_and_swap(&keys::image(name), revision, &record).await?;
        lease.revoke().await?;
        Ok(())
    }

    /// Removes the data from `from_bytes` to the image's old end.
    async fn discard(
        &self,
        client: &impl ObjectClient,
        record: &ImageRecord,
        from_bytes: u64,
        progress: &dyn Fn(u64, u64),
    ) -> Result<(), ImageError> {
        let boundary = from_bytes % record.object_bytes;
        if boundary != 0 {
            let zero = Mutation::Zero { offset: boundary, length: record.object_bytes - boundary };
            let object = object_name(&record.id, from_bytes / record.object_bytes);
            let changed = client.change(record.pool, object, vec![Condition::ObjectExists], vec![zero]).await;
            ignore_absent(changed)?;
        }
        let first = from_bytes.div_ceil(record.object_bytes);
        let count = record.size_bytes.div_ceil(record.object_bytes);
        let removals = stream::iter(first..count).map(|index| {
            let object = object_name(&record.id, index);
            client.change(record.pool, object, vec![Condition::ObjectExists], vec![Mutation::Remove])
        });
        let mut removals = removals.buffer_unordered(REMOVALS_IN_FLIGHT);
        let mut done = first;
        while let Some(result) = removals.next().await {
            ignore_absent(result)?;
            done += 1;
            progress(done, count);
        }
        Ok(())
    }
}

/// A change under the condition that the object exists: if it does not, there is nothing to do.
pub(crate) fn ignore_absent(result: Result<(), atoll_client::ClientError>) -> Result<(), ImageError> {
    match result {
        Err(error) if error.failed_condition().is_some() => Ok(()),
        other => other.map_err(ImageError::from),
    }
}

pub(crate) fn in_use(name: &str, lock: ImageLockRecord) -> ImageError {
    ImageError::InUse { name: name.into(), host: lock.host, process_id: lock.process_id, purpose: lock.purpose }
}
