//! The first pools, made as soon as there are OSDs in enough failure domains.

use std::collections::BTreeSet;

use atoll_base::records::{FailureDomain, OsdRecord, PgRecord, PoolRecord, RECORD_FORMAT, Redundancy};
use atoll_base::{Epoch, PgId, PoolId};
use atoll_cluster::{ClusterClient, keys};
use atoll_placement::target_set;

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
    let osds: Vec<OsdRecord> = listing.entries.into_iter().map(|(_, osd, _)| osd).collect();
    let domains: BTreeSet<String> = osds
        .iter()
        .filter(|osd| osd.weight > 0.0 && !osd.is_out)
        .map(|osd| match wanted.failure_domain {
            FailureDomain::Osd => osd.id.to_string(),
            FailureDomain::Host => osd.host.clone(),
            FailureDomain::Rack => osd.rack.clone(),
            FailureDomain::Zone => osd.zone.clone(),
        })
        .collect();
    let (there, copies) = (domains.len(), wanted.copies);
    if there < copies as usize {
        let kind = format!("{:?}s", wanted.failure_domain).to_lowercase().replace("osds", "OSDs");
        return Ok(Some(format!(
            "OSDs in {copies} {kind} ({there} so far; join hosts with 'atoll cluster token create' here and 'atoll up \
             --join' there)"
        )));
    }
    for (number, name) in [(1, POOL_IMAGES), (2, POOL_OBJECTS)] {
        make_pool(state, PoolId(number), name, wanted, &osds).await?;
    }
    Ok(None)
}

async fn make_pool(
    state: &ClusterClient,
    id: PoolId,
    name: &str,
    wanted: FirstPools,
    osds: &[OsdRecord],
) -> Result<(), SupervisorError> {
    let pool = PoolRecord {
        format: RECORD_FORMAT,
        id,
        name: name.into(),
        // More than half, as Ceph has it: one of three may fail while writes go on.
        redundancy: Redundancy::Replicated { size: wanted.copies, min_size: wanted.copies - wanted.copies / 2 },
        pg_num: PG_NUM,
        failure_domain: wanted.failure_domain,
        device_class: None,
    };
    for index in 0..pool.pg_num {
        let pg = PgId { pool: id, index };
        let members = target_set(pg, wanted.copies, pool.failure_domain, osds)?;
        let record = PgRecord {
            format: RECORD_FORMAT,
            epoch: Epoch(1),
            primary: members[0],
            activated_epoch: Epoch(0),
            last_active_members: Vec::new(),
            members,
        };
        ensure(state, &keys::pg(pg), &record).await?;
    }
    ensure(state, &keys::pool(id), &pool).await
}
