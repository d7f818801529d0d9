//! The reason why a PG does not serve: each OSD's copy, the missing event, and the remedy.

mod acceptance;
mod advice;

use std::collections::{BTreeMap, BTreeSet};

use atoll_cluster::{ClusterClient, ClusterMap, MapWatch};
use atoll_types::pg_copies::PgCopy;
use atoll_types::records::{PgRecord, PoolRecord, Redundancy};
use atoll_types::{OsdId, PgId};
use serde::Serialize;

pub use self::acceptance::{Acceptance, accept, plan};
use crate::error::AdminError;

/// Why a PG does not serve, or that it does.
#[derive(Clone, Debug, Serialize)]
pub struct PgWhy {
    /// The PG.
    #[serde(serialize_with = "as_text")]
    pub pg: PgId,
    /// Its pool's name.
    pub pool: String,
    /// True if it serves.
    pub serves: bool,
    /// Reasons for waiting, a sentence each.
    pub waits_for: Vec<String>,
    /// Remedies, a sentence each.
    pub advice: Vec<String>,
    /// The command that resumes the PG from the best remaining copies, if nothing else helps.
    pub accept_command: Option<String>,
    /// Each OSD's copy.
    pub copies: Vec<CopyStatus>,
}

/// An OSD's copy of a PG.
#[derive(Clone, Debug, Serialize)]
pub struct CopyStatus {
    /// The OSD.
    pub osd: OsdId,
    /// Its host; none if it was removed from the cluster.
    pub host: Option<String>,
    /// True if it runs.
    pub is_up: bool,
    /// It orders writes.
    pub is_primary: bool,
    /// It is a member.
    pub is_member: bool,
    /// It was a member when the PG was last active: it has all acknowledged writes.
    pub is_elector: bool,
    /// The shard that it should hold, in an erasure-coded pool.
    pub listed_shard: Option<u8>,
    /// Its report; none if it does not answer, or has nothing.
    pub told: Option<PgCopy>,
}

impl CopyStatus {
    /// Returns true if the PG can resume from this copy.
    pub fn counts(&self) -> bool {
        let has_listed = |copy: &PgCopy| self.listed_shard.is_none() || copy.shard == self.listed_shard;
        self.told.as_ref().is_some_and(|copy| copy.incomplete.is_none() && has_listed(copy))
    }
}

fn as_text<S: serde::Serializer>(pg: &PgId, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(pg)
}

/// A PG with everything that is known of it.
#[derive(Clone, Copy)]
struct Known<'a> {
    pg: PgId,
    pool: &'a PoolRecord,
    record: &'a PgRecord,
    copies: &'a [CopyStatus],
}

impl Known<'_> {
    fn electors(&self) -> impl Iterator<Item = &CopyStatus> {
        self.copies.iter().filter(|copy| copy.is_elector)
    }

    fn needed(&self) -> usize {
        self.pool.redundancy.copies_needed() as usize
    }

    fn is_coded(&self) -> bool {
        matches!(self.pool.redundancy, Redundancy::Erasure { .. })
    }

    /// The number of copies, or of different shards.
    fn count<'a>(&self, copies: impl Iterator<Item = &'a CopyStatus>) -> usize {
        match self.is_coded() {
            false => copies.count(),
            true => copies.filter_map(|copy| copy.listed_shard).collect::<BTreeSet<u8>>().len(),
        }
    }

    fn serves(&self) -> bool {
        let primary = self.copies.iter().find(|copy| copy.is_primary);
        primary.and_then(|copy| copy.told.as_ref()).is_some_and(PgCopy::serves)
    }

    /// Returns true if there are enough copies for the PG to resume by itself.
    fn has_source(&self) -> bool {
        self.count(self.electors().filter(|copy| copy.counts())) >= self.needed()
    }

    /// Returns the name of one in this pool.
    fn part(&self) -> &'static str {
        if self.is_coded() { "shard" } else { "copy" }
    }

    /// Returns the name of several.
    fn parts(&self) -> &'static str {
        if self.is_coded() { "shards" } else { "copies" }
    }
}

/// Cluster state as it is now.
pub async fn read_map(client: &ClusterClient) -> Result<ClusterMap, AdminError> {
    Ok(MapWatch::start(client).await?.map().clone())
}

/// Returns the reason why a PG does not serve, from the reports of OSDs.
pub fn why(map: &ClusterMap, pg: PgId, told: &[PgCopy]) -> Result<PgWhy, AdminError> {
    let (pool, record) = find(map, pg)?;
    let copies = statuses(map, pg, record, told);
    let known = Known { pg, pool, record, copies: &copies };
    let advice = advice::of(&known);
    Ok(PgWhy {
        pg,
        pool: pool.name.clone(),
        serves: known.serves(),
        waits_for: advice.waits_for,
        advice: advice.advice,
        accept_command: advice.accept_command,
        copies,
    })
}

/// Returns all PGs that do not serve, from the reports of OSDs.
pub fn not_serving(map: &ClusterMap, told: &[PgCopy]) -> Result<Vec<PgWhy>, AdminError> {
    let mut of_pg: BTreeMap<&str, Vec<PgCopy>> = BTreeMap::new();
    for copy in told {
        of_pg.entry(&copy.pg).or_default().push(copy.clone());
    }
    let nothing = Vec::new();
    let all = map.pgs.keys().filter(|pg| map.pools.contains_key(&pg.pool));
    let all = all.map(|pg| why(map, *pg, of_pg.get(&pg.to_string()[..]).unwrap_or(&nothing)));
    let all: Vec<PgWhy> = all.collect::<Result<_, _>>()?;
    Ok(all.into_iter().filter(|why| !why.serves).collect())
}

fn find(map: &ClusterMap, pg: PgId) -> Result<(&PoolRecord, &PgRecord), AdminError> {
    let record = map.pgs.get(&pg).map(|(record, _)| record);
    map.pools.get(&pg.pool).zip(record).ok_or(AdminError::NoSuchPg(pg))
}

/// The OSDs that a PG has to do with, and those that have something of it.
fn statuses(map: &ClusterMap, pg: PgId, record: &PgRecord, told: &[PgCopy]) -> Vec<CopyStatus> {
    let electors = match record.activated_epoch.0 {
        0 => &record.members,
        _ => &record.last_active_members,
    };
    let told: Vec<&PgCopy> = told.iter().filter(|copy| copy.is_of(pg)).collect();
    let holders = told.iter().filter(|copy| !copy.is_empty()).map(|copy| copy.osd);
    let all: BTreeSet<OsdId> = record.members.iter().chain(electors).copied().chain(holders).collect();
    let status = |osd: OsdId| CopyStatus {
        osd,
        host: map.osds.get(&osd).map(|record| record.host.clone()),
        is_up: map.up.contains_key(&osd),
        is_primary: record.primary == osd,
        is_member: record.members.contains(&osd),
        is_elector: electors.contains(&osd),
        listed_shard: record.shard_of(osd),
        told: told.iter().find(|copy| copy.osd == osd).map(|copy| (*copy).clone()),
    };
    all.into_iter().map(status).collect()
}

/// OSDs by their names.
fn names<'a>(osds: impl IntoIterator<Item = &'a OsdId>) -> String {
    osds.into_iter().map(OsdId::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests;
