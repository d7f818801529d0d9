//! PGs: their states, where objects are, and scrubs on demand.

use atoll_cluster::{ClusterClient, ClusterMap, MapWatch, keys};
pub use atoll_coordinator::PgStatus;
use atoll_coordinator::{statuses, unix_ms};
use atoll_types::records::{PgRecord, PgScrubRecord, PoolRecord, RECORD_FORMAT, ScrubRequestRecord};
use atoll_types::{ObjectName, OsdId, PgId};
use serde::{Serialize, Serializer};

use crate::error::AdminError;

/// Which PGs are asked for.
#[derive(Clone, Debug, Default)]
pub struct PgFilter {
    /// Only those of this pool.
    pub pool: Option<String>,
    /// Only those with this OSD as a member.
    pub osd: Option<OsdId>,
    /// Only those that are not active, lack a copy, or are to move.
    pub not_clean: bool,
}

async fn read_map(client: &ClusterClient) -> Result<ClusterMap, AdminError> {
    Ok(MapWatch::start(client).await?.map().clone())
}

fn find_pool<'a>(map: &'a ClusterMap, name: &str) -> Result<&'a PoolRecord, AdminError> {
    let found = map.pools.values().find(|pool| pool.name == name);
    found.ok_or_else(|| AdminError::NoSuchPool(name.to_owned()))
}

/// The PGs that a filter lets through.
pub async fn list(client: &ClusterClient, filter: &PgFilter) -> Result<Vec<PgStatus>, AdminError> {
    let map = read_map(client).await?;
    let pool = filter.pool.as_ref().map(|name| find_pool(&map, name)).transpose()?.map(|pool| pool.id);
    let wanted = statuses(&map)
        .into_iter()
        .filter(|status| pool.is_none_or(|pool| status.pg.pool == pool))
        .filter(|status| filter.osd.is_none_or(|osd| status.members.contains(&osd)))
        .filter(|status| !filter.not_clean || !status.is_clean());
    Ok(wanted.collect())
}

/// All about one PG.
#[derive(Clone, Debug, Serialize)]
pub struct PgDetails {
    /// Its status.
    #[serde(flatten)]
    pub status: PgStatus,
    /// Its members when it was last active.
    pub last_active_members: Vec<OsdId>,
    /// The shards that they held.
    pub last_active_shards: Vec<u8>,
    /// Its pool's name.
    pub pool: Option<String>,
    /// The members that the balancer wants.
    pub balancer_members: Option<Vec<OsdId>>,
    /// Result of the last scrub; none if there was none.
    pub scrub: Option<PgScrubRecord>,
    /// Members and targets with their hosts and whether they run.
    #[serde(skip)]
    pub osds: Vec<PgOsd>,
}

/// An OSD that a PG has to do with.
#[derive(Clone, Debug)]
pub struct PgOsd {
    /// Its number.
    pub id: OsdId,
    /// Its host; none if it was removed from the cluster.
    pub host: Option<String>,
    /// True if it runs.
    pub is_up: bool,
}

/// All about one PG.
pub async fn query(client: &ClusterClient, pg: PgId) -> Result<PgDetails, AdminError> {
    let map = read_map(client).await?;
    let status = statuses(&map).into_iter().find(|status| status.pg == pg);
    let (Some(status), Some((record, _))) = (status, map.pgs.get(&pg)) else {
        return Err(AdminError::NoSuchPg(pg));
    };
    let mut ids: Vec<OsdId> =
        [&status.members, &status.target, &record.last_active_members].into_iter().flatten().copied().collect();
    ids.sort();
    ids.dedup();
    let osd = |id: OsdId| PgOsd {
        id,
        host: map.osds.get(&id).map(|osd| osd.host.clone()),
        is_up: map.up.contains_key(&id),
    };
    Ok(PgDetails {
        last_active_members: record.last_active_members.clone(),
        last_active_shards: record.last_active_shards.clone(),
        pool: map.pools.get(&pg.pool).map(|pool| pool.name.clone()),
        scrub: client.get(&keys::pg_scrub(pg)).await?.map(|(record, _)| record),
        balancer_members: map.pg_targets.get(&pg).map(|target| target.members.clone()),
        osds: ids.into_iter().map(osd).collect(),
        status,
    })
}

/// Where an object is, or would be.
pub async fn map_object(client: &ClusterClient, object: &ObjectName, pool: &str) -> Result<PgStatus, AdminError> {
    let map = read_map(client).await?;
    let pool = find_pool(&map, pool)?;
    let pg = map.pg_of_object(pool, object);
    let status = statuses(&map).into_iter().find(|status| status.pg == pg);
    status.ok_or(AdminError::PgNotMade(pg))
}

/// A PG's scrub that was asked for; [`is_scrub_pending`] says when it is done.
#[derive(Clone, Debug)]
pub struct ScrubRequest {
    /// The PG.
    pub pg: PgId,
    /// Its members when it was asked for.
    members: Vec<OsdId>,
    /// Revision of the request.
    revision: i64,
}

/// Asks the primaries to scrub one PG, or all if `pg` is `None`.
pub async fn request_scrub(
    client: &ClusterClient,
    pg: Option<PgId>,
    is_deep: bool,
) -> Result<Vec<ScrubRequest>, AdminError> {
    let listing = client.list::<PgRecord>(keys::PGS).await?;
    let of_entry = |(key, record, _): (String, PgRecord, i64)| Some((keys::parse_pg(&key)?, record.members));
    let mut pgs: Vec<(PgId, Vec<OsdId>)> = listing.entries.into_iter().filter_map(of_entry).collect();
    if let Some(pg) = pg {
        pgs.retain(|(found, _)| *found == pg);
        if pgs.is_empty() {
            return Err(AdminError::NoSuchPg(pg));
        }
    }
    let request = ScrubRequestRecord { format: RECORD_FORMAT, is_deep, requested_unix_ms: unix_ms() };
    let mut requests = Vec::new();
    for (pg, members) in pgs {
        let revision = client.put(&keys::scrub_request(pg), &request).await?;
        requests.push(ScrubRequest { pg, members, revision });
    }
    Ok(requests)
}

impl ScrubRequest {
    /// The OSDs that were members when the scrub was asked for, and whose copies it has not examined, as far as the
    /// primary says.
    pub fn not_examined(&self, record: &PgScrubRecord) -> Vec<OsdId> {
        if record.members.is_empty() {
            return Vec::new();
        }
        self.members.iter().copied().filter(|member| !record.members.contains(member)).collect()
    }
}

/// Returns true if a scrub is still to be done. The primary deletes the request when it is.
pub async fn is_scrub_pending(client: &ClusterClient, request: &ScrubRequest) -> Result<bool, AdminError> {
    let found = client.get::<ScrubRequestRecord>(&keys::scrub_request(request.pg)).await?;
    Ok(found.is_some_and(|(_, revision)| revision == request.revision))
}

/// Result of the last scrub of a PG.
#[derive(Clone, Debug, Serialize)]
pub struct LastScrub {
    /// The PG.
    #[serde(serialize_with = "as_text")]
    pub pg: PgId,
    /// None if there was none.
    pub scrub: Option<PgScrubRecord>,
}

fn as_text<S: Serializer>(pg: &PgId, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(pg)
}

/// Returns the result of the last scrub of a PG, if there was one.
pub async fn last_scrub(client: &ClusterClient, pg: PgId) -> Result<LastScrub, AdminError> {
    if client.get::<PgRecord>(&keys::pg(pg)).await?.is_none() {
        return Err(AdminError::NoSuchPg(pg));
    }
    let scrub = client.get(&keys::pg_scrub(pg)).await?.map(|(record, _)| record);
    Ok(LastScrub { pg, scrub })
}

/// Returns the result of a completed scrub of a PG.
pub async fn scrub_result(client: &ClusterClient, pg: PgId) -> Result<PgScrubRecord, AdminError> {
    let found = client.get(&keys::pg_scrub(pg)).await?;
    let (record, _) = found.ok_or_else(|| AdminError::Refused(format!("the scrub of {pg} has left no record")))?;
    Ok(record)
}

#[cfg(test)]
mod tests {
    use atoll_types::PoolId;

    use super::*;

    /// A scrub that loses a member starts over without it, and finds nothing wrong with the others.
    #[test]
    fn members_that_a_scrub_lost_are_reported() {
        let osds = |numbers: &[u32]| numbers.iter().copied().map(OsdId).collect::<Vec<_>>();
        let pg = PgId { pool: PoolId(1), index: 0 };
        let request = ScrubRequest { pg, members: osds(&[0, 1, 2]), revision: 1 };
        let mut record = PgScrubRecord {
            format: RECORD_FORMAT,
            light_unix_ms: 1,
            deep_unix_ms: 1,
            osd: OsdId(0),
            is_deep: true,
            objects: 7,
            errors: 0,
            repaired: 0,
            unrepaired: 0,
            members: osds(&[2, 0, 1]),
        };
        assert!(request.not_examined(&record).is_empty());
        record.members = osds(&[0, 1, 3]);
        assert_eq!(request.not_examined(&record), [OsdId(2)]);
        // An OSD of an earlier release does not say.
        record.members.clear();
        assert!(request.not_examined(&record).is_empty());
    }
}
