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

/// Space of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SnapshotUsage {
    /// Its name.
    pub name: String,
    /// Bytes of states of objects that are kept for it, and for those before it since the one before that.
    /// Much of it may be shared with the image and other snapshots.
    pub kept_bytes: u64,
    /// Part of it that nothing else shares.
    pub exclusive_bytes: u64,
}

/// Space that an image takes, once, without copies and parity.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ImageUsage {
    /// Its size.
    pub provisioned_bytes: u64,
    /// Bytes of blocks that hold data in the image itself, without those that a clone reads from its parent.
    pub used_bytes: u64,
    /// Part of them that no snapshot shares: these bytes have changed since the newest one.
    pub exclusive_bytes: u64,
    /// Its snapshots, oldest first.
    pub snapshots: Vec<SnapshotUsage>,
}

/// Space of some objects.
#[derive(Clone, Copy, Default)]
struct Counted {
    bytes: u64,
    exclusive_bytes: u64,
}

impl Counted {
    fn add(&mut self, more: Counted) {
        self.bytes += more.bytes;
        self.exclusive_bytes += more.exclusive_bytes;
    }
}

impl ImageAdmin {
    /// Counts the blocks of an image and of its snapshots' states. It costs in proportion to the written data, not
    /// to the size.
    pub async fn usage(
        &self,
        client: &impl PoolClient,
        record: &ImageRecord,
        data_shards: u64,
    ) -> Result<ImageUsage, ImageError> {
        let mut own = Counted::default();
        let mut kept: BTreeMap<u64, Counted> = BTreeMap::new();
        visit_objects::<ImageError>(client, record.pool, &image_prefix(&record.id), true, async |objects| {
            for object in objects {
                let bytes_of = |blocks: u32| u64::from(blocks) * BLOCK * data_shards;
                let exclusive = object.block_count.saturating_sub(object.shared_block_count);
                let counted =
                    Counted { bytes: bytes_of(object.block_count), exclusive_bytes: bytes_of(exclusive) };
                match parse(&record.id, &object.name).map(|part| part.kept_for) {
                    Some(None) => own.add(counted),
                    Some(Some(number)) => kept.entry(number).or_default().add(counted),
                    None => {}
                }
            }
            Ok(())
        })
        .await?;
        Ok(ImageUsage {
            provisioned_bytes: record.size_bytes,
            used_bytes: own.bytes,
            exclusive_bytes: own.exclusive_bytes,
            snapshots: by_snapshot(record, &kept),
        })
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

/// Returns the states kept for each snapshot, oldest first.
fn by_snapshot(record: &ImageRecord, kept: &BTreeMap<u64, Counted>) -> Vec<SnapshotUsage> {
    let newest = record.snapshots().last().map(|snapshot| snapshot.number);
    let mut first = 0;
    let mut usage = Vec::new();
    for snapshot in record.snapshots() {
        // What is kept under the number of a snapshot that is gone is the newest one's.
        let last = if Some(snapshot.number) == newest { u64::MAX } else { snapshot.number };
        let mut sum = Counted::default();
        let of_it = kept.iter().filter(|(number, _)| (first..=last).contains(*number));
        of_it.for_each(|(_, counted)| sum.add(*counted));
        let Counted { bytes: kept_bytes, exclusive_bytes } = sum;
        usage.push(SnapshotUsage { name: snapshot.name.clone(), kept_bytes, exclusive_bytes });
        first = snapshot.number.saturating_add(1);
    }
    usage
}
