//! The PGs as their records and the presence of OSDs show them.

use std::collections::{BTreeMap, BTreeSet};

use atoll_cluster::ClusterMap;
use atoll_placement::{Tree, first_record};
use atoll_types::records::{PgRecord, PoolRecord, Redundancy};
use atoll_types::{Epoch, OsdId, PgId, PoolId};
use serde::Serialize;

/// Availability of a PG.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PgAvailability {
    /// It serves.
    Active,
    /// Its members agree on their history after a change.
    Peering,
    /// It cannot serve: its primary is down, or fewer copies or shards are up than the pool's
    /// `min_size`.
    Inactive,
}

/// The state of a PG. It serialises as scripts see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PgStatus {
    /// The PG.
    #[serde(serialize_with = "as_text")]
    pub pg: PgId,
    /// Its availability.
    pub state: PgAvailability,
    /// The members in force.
    pub members: Vec<OsdId>,
    /// In an erasure-coded pool the shard that each of them holds.
    pub shards: Vec<u8>,
    /// Members that are not running.
    pub members_down: Vec<OsdId>,
    /// The members that it should have.
    pub target: Vec<OsdId>,
    /// The member that orders writes.
    pub primary: OsdId,
    /// Generation of the configuration in force.
    pub epoch: Epoch,
    /// The last one that was active.
    pub activated_epoch: Epoch,
    /// It has fewer copies or shards than the pool wants.
    pub is_undersized: bool,
    /// Some copies or shards are missing: a member is down, or there are too few members.
    pub is_degraded: bool,
    /// No copy or shard that is up can be spared: with one less, data could not be read. Pools that
    /// have none to spare by plan do not count.
    #[serde(skip)]
    pub has_none_to_spare: bool,
    /// It has other members than it should have, and is to move.
    pub is_misplaced: bool,
}

fn as_text<S: serde::Serializer>(pg: &PgId, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(pg)
}

impl PgStatus {
    /// It serves, with all its copies, where it should be.
    pub fn is_clean(&self) -> bool {
        self.state == PgAvailability::Active && !self.is_degraded && !self.is_misplaced
    }
}

/// The status of all PGs that have records.
pub fn statuses(map: &ClusterMap) -> Vec<PgStatus> {
    let trees: BTreeMap<PoolId, Tree> =
        map.pools.values().map(|pool| (pool.id, Tree::of_pool(pool, &map.osds))).collect();
    let pgs = map.pgs.iter().filter_map(|(pg, (record, _))| {
        let target = trees.get(&pg.pool)?.target(*pg, map.pg_targets.get(pg));
        Some(status(map, *pg, record, map.pools.get(&pg.pool)?, target))
    });
    pgs.collect()
}

fn status(map: &ClusterMap, pg: PgId, record: &PgRecord, pool: &PoolRecord, target: Vec<OsdId>) -> PgStatus {
    let (size, min_size) = (pool.redundancy.size() as usize, pool.redundancy.min_size() as usize);
    let needed = pool.redundancy.copies_needed() as usize;
    let is_up = |osd: &OsdId| map.up.contains_key(osd);
    let members_down: Vec<OsdId> = record.members.iter().filter(|osd| !is_up(osd)).copied().collect();
    let parts_up = part_count(record, pool, is_up);
    let state = if !is_up(&record.primary) || parts_up < min_size {
        PgAvailability::Inactive
    } else if record.activated_epoch < record.epoch {
        PgAvailability::Peering
    } else {
        PgAvailability::Active
    };
    let is_undersized = part_count(record, pool, |_| true) < size;
    PgStatus {
        pg,
        state,
        is_undersized,
        is_degraded: is_undersized || !members_down.is_empty(),
        has_none_to_spare: parts_up <= needed && needed < size,
        is_misplaced: sorted(&record.members) != sorted(&target),
        members: record.members.clone(),
        shards: record.shards.clone(),
        members_down,
        target,
        primary: record.primary,
        epoch: record.epoch,
        activated_epoch: record.activated_epoch,
    }
}

/// How many copies some of the members have, or how many different shards: while one moves, two
/// members hold it.
fn part_count(record: &PgRecord, pool: &PoolRecord, is_counted: impl Fn(&OsdId) -> bool) -> usize {
    let counted = record.members.iter().filter(|osd| is_counted(osd));
    match pool.redundancy {
        Redundancy::Replicated { .. } => counted.count(),
        Redundancy::Erasure { .. } => {
            counted.filter_map(|osd| record.shard_of(*osd)).collect::<BTreeSet<_>>().len()
        }
    }
}

fn sorted(members: &[OsdId]) -> Vec<OsdId> {
    let mut members = members.to_vec();
    members.sort_unstable();
    members
}

/// Returns true if every PG exists, serves, has all its members up, and is on its targets. Only then is the
/// balancer's next step worth knowing.
pub fn is_settled(map: &ClusterMap) -> bool {
    let is_whole = |pool: &PoolRecord| absent(map, pool).next().is_none() && map.pg_num(pool) == pool.pg_num;
    map.pools.values().all(is_whole) && statuses(map).iter().all(PgStatus::is_clean)
}

/// First records of the PGs that have none; PGs that could not serve are left out, until
/// there are OSDs for them: those of an erasure-coded pool need `min_size` shards, others a copy.
pub fn missing_pgs(map: &ClusterMap) -> Vec<(PgId, PgRecord)> {
    let of_pool = |pool: &PoolRecord| {
        // The others come into being when PGs are split.
        let missing: Vec<PgId> = absent(map, pool).filter(|pg| pg.index < pool.pg_num_first()).collect();
        if missing.is_empty() {
            return Vec::new();
        }
        let tree = Tree::of_pool(pool, &map.osds);
        let members_least = match pool.redundancy {
            Redundancy::Replicated { .. } => 1,
            Redundancy::Erasure { min_size, .. } => min_size as usize,
        };
        let record = |pg| {
            let members = tree.target(pg, map.pg_targets.get(&pg));
            if members.len() < members_least {
                return None;
            }
            Some((pg, first_record(members, pool)?))
        };
        missing.into_iter().filter_map(record).collect()
    };
    map.pools.values().flat_map(of_pool).collect()
}

/// PGs of a pool that have no record.
pub(crate) fn absent(map: &ClusterMap, pool: &PoolRecord) -> impl Iterator<Item = PgId> {
    let all = (0..pool.pg_num).map(|index| PgId { pool: pool.id, index });
    all.filter(|pg| !map.pgs.contains_key(pg))
}

/// How many PGs each OSD is a member of, and of how many it is the primary.
pub fn pgs_by_osd(map: &ClusterMap) -> BTreeMap<OsdId, (usize, usize)> {
    let mut counts = BTreeMap::<OsdId, (usize, usize)>::new();
    for (record, _) in map.pgs.values() {
        record.members.iter().for_each(|member| counts.entry(*member).or_default().0 += 1);
        counts.entry(record.primary).or_default().1 += 1;
    }
    counts
}
