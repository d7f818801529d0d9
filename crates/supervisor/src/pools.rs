//! The first pools, made as soon as there are OSDs in enough failure domains.

use std::collections::BTreeMap;

use atoll_base::records::{OsdRecord, PoolRecord, RECORD_FORMAT, Redundancy};
use atoll_base::{OsdId, PgId, PoolId};
use atoll_cluster::{ClusterClient, keys};
use atoll_placement::{Tree, first_record};

use crate::bootstrap::{POOL_IMAGES, POOL_OBJECTS, ensure};
use crate::data_dir::FirstPools;
use crate::error::SupervisorError;

const PG_NUM: u32 = 32;

/// Whether both pools are there.
pub(crate) async fn has_pools(state: &ClusterClient) -> Result<bool, SupervisorError> {
    let pools = state.list::<PoolRecord>(keys::POOLS).await?.entries;
    let has = |name: &str| pools.iter().any(|(_, pool, _)| pool.name == name);
    Ok(has(POOL_IMAGES) && has(POOL_OBJECTS))
}

/// Makes the pools, or says what is missing.
pub(crate) async fn make_pools(
    state: &ClusterClient,
    wanted: FirstPools,
) -> Result<Option<String>, SupervisorError> {
    let listing = state.list::<OsdRecord>(keys::OSDS).await?;
    let osds: BTreeMap<OsdId, OsdRecord> = listing.entries.into_iter().map(|(_, osd, _)| (osd.id, osd)).collect();
    for (number, name) in [(1, POOL_IMAGES), (2, POOL_OBJECTS)] {
        let pool = first_pool(PoolId(number), name, wanted);
        let tree = Tree::of_pool(&pool, &osds);
        let (there, copies) = (tree.domain_count(), wanted.copies);
        if there < copies as usize {
            let kind = format!("{:?}s", wanted.failure_domain).to_lowercase().replace("osds", "OSDs");
            return Ok(Some(format!(
                "OSDs in {copies} {kind} ({there} so far; join hosts with 'atoll cluster token create' here and 'atoll \
                 up --join' there)"
            )));
        }
        make_pool(state, &pool, &tree).await?;
    }
    Ok(None)
}

fn first_pool(id: PoolId, name: &str, wanted: FirstPools) -> PoolRecord {
    PoolRecord {
        format: RECORD_FORMAT,
        id,
        name: name.into(),
        // More than half, as Ceph has it: one of three may fail while writes go on.
        redundancy: Redundancy::Replicated { size: wanted.copies, min_size: wanted.copies - wanted.copies / 2 },
        pg_num: PG_NUM,
        pg_num_first: 0,
        failure_domain: wanted.failure_domain,
        device_class: None,
    }
}

async fn make_pool(state: &ClusterClient, pool: &PoolRecord, tree: &Tree) -> Result<(), SupervisorError> {
    for index in 0..pool.pg_num {
        let pg = PgId { pool: pool.id, index };
        if let Some(record) = first_record(tree.target(pg, None), pool) {
            ensure(state, &keys::pg(pg), &record).await?;
        }
    }
    ensure(state, &keys::pool(pool.id), pool).await
}
