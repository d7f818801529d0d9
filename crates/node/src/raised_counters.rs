//! Counters of a cluster state that was put back. They are older than those of OSDs, so the counters whose newer
//! value OSDs follow are raised beyond all values that can have been given since.

use std::time::{Duration, Instant};

use atoll_cluster::{ClusterClient, Transaction, keys};
use atoll_coordinator::unix_ms;
use atoll_types::coordination::NextPoolRecord;
use atoll_types::records::{ImageRecord, PgRecord, PoolRecord, RECORD_FORMAT, RemovedImageRecord};
use atoll_types::{Epoch, PoolId};
use serde::Serialize;

use crate::data_dir::{ClusterFile, DataDir};
use crate::error::NodeError;
use crate::processes::ProcessesFile;

/// Smallest raise of a counter, should the clock of the host have gone back.
const RAISED_MIN: u64 = 1 << 20;
/// The same of pools.
const POOLS_RAISED_MIN: u32 = 1_000;
/// Numbers of pools are short, so that seconds count for them, since the beginning of 2026 as Unix time.
const POOL_SECONDS_START: u64 = 1_767_225_600;
/// Changes of one transaction; etcd takes 128.
const CHANGES_MAX: usize = 100;

/// How long leases may last of OSDs that were up when the snapshot was taken: an etcd that was restored gives them their
/// whole time again.
const LEASES_MAX: Duration = Duration::from_secs(30);
const POLL_PAUSE: Duration = Duration::from_millis(500);

/// The raised counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct RaisedCounters {
    /// Number of PGs with raised epochs.
    pub pgs: usize,
    /// Number of images with raised generations, removed ones included.
    pub images: usize,
}

/// Raises the counters in an etcd that was restored from a snapshot, while the cluster is stopped.
pub async fn raise_restored(
    directory: &DataDir,
    cluster: &ClusterFile,
    client: &ClusterClient,
) -> Result<RaisedCounters, NodeError> {
    let invalid = |detail: String| Err(NodeError::Invalid(detail));
    if cluster.is_state_embedded() {
        return invalid(
            "the cluster state of this cluster is the embedded one: 'atoll state restore', on the host that has \
             it, raises the restored counters"
                .into(),
        );
    }
    if ProcessesFile::running(directory).is_some() {
        return invalid(format!(
            "the cluster in {} is running; stop it first on all hosts ('atoll down')",
            directory.root().display()
        ));
    }
    let deadline = Instant::now() + LEASES_MAX;
    loop {
        let up = client.list_raw(keys::OSD_UP).await?.entries;
        let Some((key, ..)) = up.first() else { break };
        if Instant::now() > deadline {
            let osd = key.trim_start_matches(keys::OSD_UP);
            return invalid(format!(
                "osd.{osd} is up, and {} in all: stop the cluster on all hosts ('atoll down'), and try again",
                up.len()
            ));
        }
        tokio::time::sleep(POLL_PAUSE).await;
    }
    let (pgs, images) = raise(client).await?;
    Ok(RaisedCounters { pgs, images })
}

/// A value beyond all that can have been given since the snapshot, also after earlier restores of the same one: the time
/// in milliseconds, since no counter goes up more often.
fn raised(counter: u64) -> u64 {
    counter.saturating_add(RAISED_MIN).max(unix_ms())
}

/// Raises all counters, while no other process changes them. Gives the numbers of PGs and images.
pub(crate) async fn raise(client: &ClusterClient) -> Result<(usize, usize), NodeError> {
    let mut changes = Changes { client, transaction: Transaction::new(), count: 0 };
    let pgs = client.list::<PgRecord>(keys::PGS).await?.entries;
    let pg_count = pgs.len();
    for (key, mut record, revision) in pgs {
        record.epoch = Epoch(raised(record.epoch.0));
        // Their changes are signed for the revisions that they replace.
        changes.transaction = std::mem::take(&mut changes.transaction).check(&key, revision);
        changes.put(&key, &record).await?;
    }
    let images = client.list::<ImageRecord>(keys::IMAGES).await?.entries;
    let removed = client.list::<RemovedImageRecord>(keys::REMOVED_IMAGES).await?.entries;
    let image_count = images.len() + removed.len();
    for (key, record, _) in images {
        changes.put(&key, &raised_image(record)).await?;
    }
    for (key, mut record, _) in removed {
        record.image = raised_image(record.image);
        changes.put(&key, &record).await?;
    }
    changes.put(keys::NEXT_POOL, &raised_next_pool(client).await?).await?;
    changes.send().await?;
    Ok((pg_count, image_count))
}

/// OSDs may have PGs of pools that the snapshot does not know.
async fn raised_next_pool(client: &ClusterClient) -> Result<NextPoolRecord, NodeError> {
    let counter = client.get::<NextPoolRecord>(keys::NEXT_POOL).await?.map_or(0, |(counter, _)| counter.next.0);
    let pools = client.list::<PoolRecord>(keys::POOLS).await?.entries;
    let beyond_all = pools.iter().map(|(_, pool, _)| pool.id.0.saturating_add(1)).fold(counter, u32::max);
    let seconds = (unix_ms() / 1_000).saturating_sub(POOL_SECONDS_START);
    let next = beyond_all.saturating_add(POOLS_RAISED_MIN).max(u32::try_from(seconds).unwrap_or(u32::MAX));
    Ok(NextPoolRecord { format: RECORD_FORMAT, next: PoolId(next) })
}

/// Fences that its writers have set since are lower than the next ones', and kept states of snapshots that the record
/// does not know are no state of the next ones: neither if it knows of no snapshot at all.
fn raised_image(mut image: ImageRecord) -> ImageRecord {
    image.writer_generation = raised(image.writer_generation);
    // Who has changed it since is not known.
    image.changer = None;
    let states = image.states.get_or_insert_default();
    states.newest = raised(states.newest);
    image.with_format()
}

/// Changes that are sent some at a time. No other process changes anything.
struct Changes<'a> {
    client: &'a ClusterClient,
    transaction: Transaction,
    count: usize,
}

impl Changes<'_> {
    async fn put(&mut self, key: &str, record: &impl Serialize) -> Result<(), NodeError> {
        self.transaction = std::mem::take(&mut self.transaction).put(key, record)?;
        self.count += 1;
        if self.count == CHANGES_MAX { self.send().await } else { Ok(()) }
    }

    async fn send(&mut self) -> Result<(), NodeError> {
        if std::mem::take(&mut self.count) > 0 {
            self.client.transact(&std::mem::take(&mut self.transaction)).await?;
        }
        Ok(())
    }
}
