//! How much space images take.

use std::collections::{BTreeMap, HashMap};

use atoll_client::{PoolClient, visit_objects};
use atoll_types::PoolId;
use atoll_types::records::ImageRecord;
use serde::Serialize;

use crate::ImageError;
use crate::admin::ImageAdmin;
use crate::names::{ALL_IMAGES_PREFIX, image_id_of, image_prefix, parse};
use crate::pieces::BLOCK;

/// What a snapshot keeps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SnapshotUsage {
    /// Its name.
    pub name: String,
    /// Bytes of states of objects that are kept for it, and for those before it since the one before that.
    /// Much of it may be shared with the image and other snapshots.
    pub kept_bytes: u64,
}

/// Space that an image takes, once, without copies and parity.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ImageUsage {
    /// Its size.
    pub provisioned_bytes: u64,
    /// Bytes of blocks that hold data in the image itself; what a clone shows of its parent is not among them.
    pub used_bytes: u64,
    /// Its snapshots, oldest first.
    pub snapshots: Vec<SnapshotUsage>,
}

impl ImageAdmin {
    /// Counts the blocks of an image and of what its snapshots keep. It costs what was written, not the size.
    pub async fn usage(
        &self,
        client: &impl PoolClient,
        record: &ImageRecord,
        data_shards: u64,
    ) -> Result<ImageUsage, ImageError> {
        let mut used = 0;
        let mut kept: BTreeMap<u64, u64> = BTreeMap::new();
        visit_objects::<ImageError>(client, record.pool, &image_prefix(&record.id), true, async |objects| {
            for object in objects {
                let bytes = u64::from(object.block_count) * BLOCK * data_shards;
                match parse(&record.id, &object.name).map(|part| part.kept_for) {
                    Some(None) => used += bytes,
                    Some(Some(number)) => *kept.entry(number).or_default() += bytes,
                    None => {}
                }
            }
            Ok(())
        })
        .await?;
        let mut snapshots = Vec::new();
        let mut before = 0;
        for snapshot in record.snapshots() {
            let kept_bytes = kept.range(before + 1..=snapshot.number).map(|(_, bytes)| bytes).sum();
            before = snapshot.number;
            snapshots.push(SnapshotUsage { name: snapshot.name.clone(), kept_bytes });
        }
        // What is kept under the number of a snapshot that is gone is the newest one's.
        if let Some(last) = snapshots.last_mut() {
            last.kept_bytes += kept.range(before + 1..).map(|(_, bytes)| bytes).sum::<u64>();
        }
        Ok(ImageUsage { provisioned_bytes: record.size_bytes, used_bytes: used, snapshots })
    }

    /// The bytes that all images of a pool take, their snapshots included, by the ids of the images.
    pub async fn used_in_pool(
        &self,
        client: &impl PoolClient,
        pool: PoolId,
        data_shards: u64,
    ) -> Result<HashMap<String, u64>, ImageError> {
        let mut used: HashMap<String, u64> = HashMap::new();
        visit_objects::<ImageError>(client, pool, ALL_IMAGES_PREFIX, true, async |objects| {
            for object in objects {
                let Some(id) = image_id_of(&object.name) else { continue };
                *used.entry(id.to_owned()).or_default() += u64::from(object.block_count) * BLOCK * data_shards;
            }
            Ok(())
        })
        .await?;
        Ok(used)
    }
}
