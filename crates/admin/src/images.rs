//! Images. What touches an image's data is in `atoll-image`.

use std::sync::Arc;

use atoll_cluster::{ClusterClient, keys};
use atoll_image::ImageAdmin;
use atoll_keys::KeyService;
use atoll_types::PoolId;
use atoll_types::records::{ImageLockRecord, ImageRecord, PoolRecord};
use serde::Serialize;

use crate::error::AdminError;

/// The parts of an image's record that are for people and scripts; the wrapped key is not.
#[derive(Clone, Debug, Serialize)]
pub struct ImageSummary {
    /// Its name.
    pub name: String,
    /// What its objects are named after.
    pub id: String,
    /// Its size, in bytes.
    pub size_bytes: u64,
    /// The pool of its data.
    pub pool: PoolId,
    /// Bytes of each of its objects.
    pub object_bytes: u64,
    /// When it was made.
    pub created_unix_ms: u64,
    /// How often a writer has attached it.
    pub attach_count: usize,
    /// Whether its blocks are sealed.
    pub sealed: bool,
}

impl From<&ImageRecord> for ImageSummary {
    fn from(record: &ImageRecord) -> Self {
        ImageSummary {
            name: record.name.clone(),
            id: record.id.clone(),
            size_bytes: record.size_bytes,
            pool: record.pool,
            object_bytes: record.object_bytes,
            created_unix_ms: record.created_unix_ms,
            attach_count: record.attach_ids.len(),
            sealed: record.key.is_sealed(),
        }
    }
}

/// An image and who writes to it.
#[derive(Clone, Debug, Serialize)]
pub struct ImageDetails {
    /// The image.
    #[serde(flatten)]
    pub image: ImageSummary,
    /// Its writer.
    pub writer: Option<ImageLockRecord>,
}

/// Makes an image in a pool.
pub async fn create(
    client: &ClusterClient,
    service: Arc<dyn KeyService>,
    name: &str,
    size_bytes: u64,
    pool: &str,
    is_sealed: bool,
) -> Result<ImageSummary, AdminError> {
    let pools = client.list::<PoolRecord>(keys::POOLS).await?;
    let found = pools.entries.iter().find(|(_, found, _)| found.name == pool);
    let pool = found.ok_or_else(|| AdminError::NoSuchPool(pool.to_owned()))?.1.id;
    let record = ImageAdmin::new(client.clone(), service).create(name, size_bytes, pool, is_sealed).await?;
    Ok(ImageSummary::from(&record))
}

/// All images.
pub async fn list(client: &ClusterClient, service: Arc<dyn KeyService>) -> Result<Vec<ImageSummary>, AdminError> {
    let images = ImageAdmin::new(client.clone(), service).list().await?;
    Ok(images.iter().map(ImageSummary::from).collect())
}

/// One image.
pub async fn info(
    client: &ClusterClient,
    service: Arc<dyn KeyService>,
    name: &str,
) -> Result<ImageDetails, AdminError> {
    let admin = ImageAdmin::new(client.clone(), service);
    let (record, _) = admin.get(name).await?;
    let writer = admin.lock(&record.id).await?.map(|(lock, _)| lock);
    Ok(ImageDetails { image: ImageSummary::from(&record), writer })
}
