//! Images. Operations on an image's data are in `atoll-image`.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use atoll_cluster::{ClusterClient, keys};
use atoll_image::ImageAdmin;
use atoll_keys::KeyService;
use atoll_types::PoolId;
use atoll_types::records::{
    ImageExport, ImageFlattening, ImageLockRecord, ImageRecord, ImageWatcherRecord, PgRecord, PoolRecord,
    Redundancy, SnapshotRecord,
};
use serde::Serialize;

use crate::error::AdminError;

/// The parts of an image's record that are for people and scripts; the wrapped key is not.
#[derive(Clone, Debug, Serialize)]
pub struct ImageSummary {
    /// Its name.
    pub name: String,
    /// Prefix of its objects.
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
    /// True if its blocks are sealed.
    pub sealed: bool,
    /// Notes of users and programs about it.
    pub metadata: BTreeMap<String, String>,
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
            metadata: record.metadata.clone(),
        }
    }
}

/// An image in a list.
#[derive(Clone, Debug, Serialize)]
pub struct ImageListing {
    /// The image.
    #[serde(flatten)]
    pub image: ImageSummary,
    /// The name of its pool.
    pub pool_name: String,
    /// How many snapshots it has.
    pub snapshots: usize,
    /// Its writer.
    pub writer: Option<ImageLockRecord>,
    /// Its parent, as `IMAGE@SNAPSHOT`.
    pub parent: Option<String>,
}

/// An image and its users.
#[derive(Clone, Debug, Serialize)]
pub struct ImageDetails {
    /// The image.
    #[serde(flatten)]
    pub image: ImageSummary,
    /// The name of its pool.
    pub pool_name: String,
    /// Its snapshots, oldest first.
    pub snapshots: Vec<SnapshotRecord>,
    /// Its clones, each with the snapshot that it is one of.
    pub clones: Vec<(String, String)>,
    /// Its parent, as `IMAGE@SNAPSHOT`.
    pub parent: Option<String>,
    /// Bytes that read from the parent where the image was not written.
    pub overlap_bytes: u64,
    /// Access of clients through NBD.
    pub export: ImageExport,
    /// Interrupted work that must be repeated.
    pub unfinished: Option<String>,
    /// Its writer copies the blocks that it reads from its parent, perhaps because it was moved.
    pub flattening: Option<ImageFlattening>,
    /// Its writer.
    pub writer: Option<ImageLockRecord>,
    /// Those who read it or its snapshots.
    pub watchers: Vec<ImageWatcherRecord>,
}

/// The pool of this name, if something could be written to it.
pub async fn writable_pool(client: &ClusterClient, name: &str) -> Result<PoolId, AdminError> {
    let pools = client.list::<PoolRecord>(keys::POOLS).await?.entries.into_iter().map(|(_, pool, _)| pool);
    let pool = pools.into_iter().find(|pool| pool.name == name);
    let pool = pool.ok_or_else(|| AdminError::NoSuchPool(name.to_owned()))?;
    let pgs = client.list::<PgRecord>(&keys::pgs_of_pool(pool.id)).await?.entries;
    let min_size = pool.redundancy.min_size();
    let usable = pgs.iter().filter(|(_, pg, _)| pg.members.len() >= min_size as usize).count();
    if usable < pool.pg_num as usize {
        return AdminError::refused(format!(
            "the pool '{name}' has {usable} of {} placement groups with the {min_size} OSDs that each needs, so \
             that parts of the image could not be written: 'atoll health' names the missing ones",
            pool.pg_num
        ));
    }
    Ok(pool.id)
}

/// How each pool protects its objects.
pub async fn redundancy(client: &ClusterClient) -> Result<HashMap<PoolId, Redundancy>, AdminError> {
    let pools = client.list::<PoolRecord>(keys::POOLS).await?.entries;
    Ok(pools.into_iter().map(|(_, pool, _)| (pool.id, pool.redundancy)).collect())
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
    let pool = writable_pool(client, pool).await?;
    let record = ImageAdmin::new(client.clone(), service).create(name, size_bytes, pool, is_sealed).await?;
    Ok(ImageSummary::from(&record))
}

/// Gives an image another name.
pub async fn rename(
    client: &ClusterClient,
    service: Arc<dyn KeyService>,
    name: &str,
    new_name: &str,
) -> Result<ImageSummary, AdminError> {
    let record = ImageAdmin::new(client.clone(), service).rename(name, new_name).await?;
    Ok(ImageSummary::from(&record))
}

/// The name of a pool.
pub async fn pool_name(client: &ClusterClient, pool: PoolId) -> Result<String, AdminError> {
    Ok(name_of_pool(&pool_names(client).await?, pool))
}

async fn pool_names(client: &ClusterClient) -> Result<HashMap<PoolId, String>, AdminError> {
    let pools = client.list::<PoolRecord>(keys::POOLS).await?.entries;
    Ok(pools.into_iter().map(|(_, pool, _)| (pool.id, pool.name)).collect())
}

fn name_of_pool(pools: &HashMap<PoolId, String>, pool: PoolId) -> String {
    pools.get(&pool).cloned().unwrap_or_else(|| format!("{pool} (removed)"))
}

/// Returns the parent of an image; images and snapshots may have other names by now.
fn parent_text(record: &ImageRecord, all: &[ImageRecord]) -> Option<String> {
    let parent = record.parent()?;
    let found = all.iter().find(|other| other.id == parent.image_id);
    let snapshots = found.map(ImageRecord::snapshots).unwrap_or_default();
    let snapshot = snapshots.iter().find(|snapshot| snapshot.number == parent.number);
    let image_name = found.map_or(&parent.image_name, |found| &found.name);
    Some(format!("{image_name}@{}", snapshot.map_or("?", |snapshot| &snapshot.name)))
}

/// All images.
pub async fn list(client: &ClusterClient, service: Arc<dyn KeyService>) -> Result<Vec<ImageListing>, AdminError> {
    let admin = ImageAdmin::new(client.clone(), service);
    let records = admin.list_usable().await?;
    let pools = pool_names(client).await?;
    let writers: HashMap<String, ImageLockRecord> = admin.locks().await?.into_iter().collect();
    let listing = |record: &ImageRecord| ImageListing {
        image: ImageSummary::from(record),
        pool_name: name_of_pool(&pools, record.pool),
        snapshots: record.snapshots().len(),
        writer: writers.get(&record.name).cloned(),
        parent: parent_text(record, &records),
    };
    Ok(records.iter().map(listing).collect())
}

/// One image.
pub async fn info(
    client: &ClusterClient,
    service: Arc<dyn KeyService>,
    name: &str,
) -> Result<ImageDetails, AdminError> {
    let admin = ImageAdmin::new(client.clone(), service);
    let (record, _) = admin.get(name).await?;
    let pools = pool_names(client).await?;
    let parent = match record.parent() {
        Some(_) => parent_text(&record, &admin.list_usable().await?),
        None => None,
    };
    Ok(ImageDetails {
        image: ImageSummary::from(&record),
        pool_name: name_of_pool(&pools, record.pool),
        snapshots: record.snapshots().to_vec(),
        clones: admin.clones(&record).await?,
        parent,
        overlap_bytes: record.overlap_bytes(),
        export: record.export.clone().unwrap_or_default(),
        unfinished: admin.unfinished(&record).map(|error| error.to_string()),
        flattening: record.flattening.clone(),
        writer: admin.live_lock(&record.id).await?,
        watchers: admin.watchers(&record.id).await?,
    })
}
