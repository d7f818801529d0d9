//! The status of pools, and waiting for their PGs.

use std::time::{Duration, Instant};

use atoll_cluster::{ClusterClient, keys};
use atoll_types::PoolId;
use atoll_types::records::{OsdUsageRecord, PgRecord, PoolRecord};
use serde::Serialize;

use crate::error::AdminError;

/// The pool of images that name no other.
pub const POOL_IMAGES: &str = "images";
/// The pool of bucket indexes, and of objects unless another is chosen.
pub const POOL_OBJECTS: &str = "objects";
/// The pool of object data, if it is erasure-coded.
pub const POOL_DATA: &str = "data";

/// How long to wait for a pool's new PGs, which the coordinator creates or their primaries split off.
const PATIENCE: Duration = Duration::from_secs(20);
const POLL_PAUSE: Duration = Duration::from_millis(100);

/// A pool and its status.
#[derive(Clone, Debug, Serialize)]
pub struct PoolStatus {
    /// The pool.
    #[serde(flatten)]
    pub pool: PoolRecord,
    /// Space that a byte takes on all devices together.
    pub space_factor: f64,
    /// Bytes that its objects take on all devices together; none if an OSD does not know its part.
    pub used_bytes: Option<u64>,
    /// The same without copies and parity, as it is while all of them are there.
    pub stored_bytes: Option<u64>,
    /// How many of its PGs there are.
    #[serde(skip)]
    pub pgs_made: usize,
}

impl PoolStatus {
    fn new(pool: PoolRecord, pgs_made: usize) -> Self {
        let space_factor = pool.redundancy.space_factor();
        PoolStatus { space_factor, pool, used_bytes: None, stored_bytes: None, pgs_made }
    }

    fn with_space(self, used_bytes: Option<u64>) -> Self {
        let stored_bytes = used_bytes.map(|used_bytes| stored_bytes(used_bytes, &self.pool));
        PoolStatus { used_bytes, stored_bytes, ..self }
    }
}

/// Bytes that a pool's objects take on all OSDs that have said something; none if one of these does not know.
pub fn used_bytes<'a>(usage: impl IntoIterator<Item = &'a OsdUsageRecord>, pool: PoolId) -> Option<u64> {
    let of_osd = |usage: &OsdUsageRecord| Some(usage.pools.as_ref()?.get(&pool).map_or(0, |pool| pool.used_bytes));
    usage.into_iter().map(of_osd).sum()
}

/// Returns the stored bytes of a pool whose objects take `used_bytes` on all devices.
pub fn stored_bytes(used_bytes: u64, pool: &PoolRecord) -> u64 {
    (used_bytes as f64 / pool.redundancy.space_factor()).round() as u64
}

/// All pools.
pub async fn list(client: &ClusterClient) -> Result<Vec<PoolStatus>, AdminError> {
    let pgs = client.list::<PgRecord>(keys::PGS).await?.entries;
    let pools = client.list_usable::<PoolRecord>(keys::POOLS).await?.entries;
    let usage = client.list::<OsdUsageRecord>(keys::OSD_USAGE).await?.entries;
    let status = |pool: PoolRecord| {
        let used_bytes = used_bytes(usage.iter().map(|(_, record, _)| record), pool.id);
        let made =
            pgs.iter().filter_map(|(key, _, _)| keys::parse_pg(key)).filter(|pg| pg.pool == pool.id).count();
        PoolStatus::new(pool, made).with_space(used_bytes)
    };
    Ok(pools.into_iter().map(|(_, pool, _)| status(pool)).collect())
}

/// Returns true if the NBD server and the gateway find this pool by its name.
pub fn is_built_in(name: &str) -> bool {
    [POOL_IMAGES, POOL_OBJECTS].contains(&name)
}

/// The first pools have numbers of their own, which another one would take.
pub(crate) async fn refuse_before_first_pools(client: &ClusterClient) -> Result<(), AdminError> {
    let pools = client.list::<PoolRecord>(keys::POOLS).await?.entries;
    let exists = |name: &str| pools.iter().any(|(_, pool, _)| pool.name == name);
    match [POOL_IMAGES, POOL_OBJECTS].into_iter().find(|name| !exists(name)) {
        None => Ok(()),
        Some(missing) => AdminError::refused(format!(
            "the pool '{missing}' is made first, as soon as OSDs of enough hosts have joined ('atoll up' shows \
             the missing ones)"
        )),
    }
}

/// Waits for a while until all PGs of a pool are there; the status says how many are.
pub async fn wait_for_pgs(client: &ClusterClient, pool: PoolRecord) -> Result<PoolStatus, AdminError> {
    let all = pool.pg_num as usize;
    wait_for(client, pool, all).await
}

/// The same until `pgs_least` PGs are there.
pub(crate) async fn wait_for(
    client: &ClusterClient,
    pool: PoolRecord,
    pgs_least: usize,
) -> Result<PoolStatus, AdminError> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let made = client.list_raw(&keys::pgs_of_pool(pool.id)).await?.entries.len();
        if made >= pgs_least || Instant::now() > deadline {
            return Ok(PoolStatus::new(pool, made));
        }
        tokio::time::sleep(POLL_PAUSE).await;
    }
}
