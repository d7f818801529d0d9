//! The first pools, made as soon as there are OSDs in enough failure domains.

use std::collections::BTreeMap;

use atoll_admin::pools::{POOL_DATA, POOL_IMAGES, POOL_OBJECTS};
use atoll_cluster::{ClusterClient, keys};
use atoll_placement::{Tree, first_record};
use atoll_types::records::{OsdRecord, PoolRecord, RECORD_FORMAT, Redundancy};
use atoll_types::{OsdId, PgId, PoolId};

use crate::data_dir::FirstPools;
use crate::error::NodeError;
use crate::first_records::ensure;

const PG_NUM: u32 = 32;

/// Returns true if the pools of every cluster are there.
pub(crate) async fn has_pools(state: &ClusterClient) -> Result<bool, NodeError> {
    // A host whose key service is away runs its OSDs all the same.
    let pools = state.without_guard().list::<PoolRecord>(keys::POOLS).await?.entries;
    let has = |name: &str| pools.iter().any(|(_, pool, _)| pool.name == name);
    Ok(has(POOL_IMAGES) && has(POOL_OBJECTS))
}

/// Makes the pools, or returns what is missing.
pub(crate) async fn make_pools(state: &ClusterClient, wanted: FirstPools) -> Result<Option<String>, NodeError> {
    let listing = state.list::<OsdRecord>(keys::OSDS).await?;
    let osds: BTreeMap<OsdId, OsdRecord> = listing.entries.into_iter().map(|(_, osd, _)| (osd.id, osd)).collect();
    let pools = first_pools(wanted);
    for pool in &pools {
        let (there, size) = (Tree::of_pool(pool, &osds).domain_count(), pool.redundancy.size());
        if there < size as usize {
            let kind = format!("{:?}s", wanted.failure_domain).to_lowercase().replace("osds", "OSDs");
            return Ok(Some(format!(
                "OSDs in {size} {kind} ({there} so far; join hosts with 'atoll cluster token create' here and 'atoll up \
                 --join' there)"
            )));
        }
    }
    for pool in &pools {
        make_pool(state, pool, &Tree::of_pool(pool, &osds)).await?;
    }
    Ok(None)
}

/// The pool for data comes first: gateways of other hosts start when the others are there, and must
/// find it then. It also needs the most OSDs.
fn first_pools(wanted: FirstPools) -> Vec<PoolRecord> {
    let copies = Redundancy::replicated(wanted.copies, None);
    let chosen = [(3, POOL_DATA, wanted.ec), (1, POOL_IMAGES, Some(copies)), (2, POOL_OBJECTS, Some(copies))];
    let pool = |(id, name, redundancy): (u32, &str, Option<Redundancy>)| {
        Some(PoolRecord {
            format: RECORD_FORMAT,
            id: PoolId(id),
            name: name.into(),
            redundancy: redundancy?,
            pg_num: PG_NUM,
            pg_num_first: 0,
            failure_domain: wanted.failure_domain,
            device_class: None,
        })
    };
    chosen.into_iter().filter_map(pool).collect()
}

/// Refuses a code that is chosen for a cluster that was made without it.
pub(crate) async fn refuse_other_code(state: &ClusterClient, wanted: Redundancy) -> Result<(), NodeError> {
    let pools = state.list::<PoolRecord>(keys::POOLS).await?.entries;
    let there = pools.iter().find(|(_, pool, _)| pool.name == POOL_DATA).map(|(_, pool, _)| pool.redundancy);
    let shape = |redundancy: &Redundancy| (redundancy.copies_needed(), redundancy.size());
    let (data, size) = shape(&wanted);
    let code = format!("{data}+{}", size - data);
    let why = match there {
        Some(there) if shape(&there) == shape(&wanted) => return Ok(()),
        Some(there) => format!(
            "this cluster has a pool '{POOL_DATA}' with another redundancy ({there}); leave the option out, or make a pool of \
             another name ('atoll pool create NAME --ec {code}') for 'atoll gateway run --data-pool'"
        ),
        None => format!(
            "this cluster was made without it; leave the option out, or make a pool with 'atoll pool create {POOL_DATA} \
             --ec {code}': the gateway takes it for the data of new buckets"
        ),
    };
    Err(NodeError::Invalid(format!("--ec {code} is for the first start, and {why}")))
}

async fn make_pool(state: &ClusterClient, pool: &PoolRecord, tree: &Tree) -> Result<(), NodeError> {
    for index in 0..pool.pg_num {
        let pg = PgId { pool: pool.id, index };
        if let Some(record) = first_record(tree.target(pg, None), pool) {
            ensure(state, &keys::pg(pg), &record).await?;
        }
    }
    ensure(state, &keys::pool(pool.id), pool).await
}

#[cfg(test)]
mod tests;
