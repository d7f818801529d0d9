//! The members that a PG should have.

use std::collections::BTreeMap;

use atoll_types::mix;
use atoll_types::records::{OsdRecord, PgRecord, PgTargetRecord, PoolRecord, RECORD_FORMAT, Redundancy};
use atoll_types::{Epoch, OsdId, PgId};

use crate::invariants;
use crate::straw2::straw;
use crate::tree::Tree;

/// Returns the members that a PG should have now, the primary first: the balancer's choice, or else that of the
/// CRUSH tree. Fewer than the pool's size if there are too few failure domains.
///
/// ```
/// use std::collections::BTreeMap;
///
/// use atoll_types::records::{FailureDomain, OsdRecord, PoolRecord, RECORD_FORMAT, Redundancy};
/// use atoll_types::{OsdId, PgId, PoolId};
///
/// let osd = |id: u32| OsdRecord {
///     format: RECORD_FORMAT,
///     id: OsdId(id),
///     host: format!("host{}", id % 3),
///     public_key: String::new(),
///     weight: 1.0,
///     device_class: "ssd".into(),
///     device_bytes: 1 << 40,
///     rack: String::new(),
///     zone: String::new(),
///     is_out: false,
///     store_id: String::new(),
/// };
/// let osds: BTreeMap<OsdId, OsdRecord> = (0..6).map(|id| (OsdId(id), osd(id))).collect();
/// let pool = PoolRecord {
///     format: RECORD_FORMAT,
///     id: PoolId(1),
///     name: "images".into(),
///     redundancy: Redundancy::replicated(3, None),
///     pg_num: 64,
///     pg_num_first: 64,
///     failure_domain: FailureDomain::Host,
///     device_class: None,
/// };
/// let members = atoll_placement::target(PgId { pool: pool.id, index: 7 }, &pool, &osds, None);
/// let hosts: std::collections::BTreeSet<&str> = members.iter().map(|id| &*osds[id].host).collect();
/// assert_eq!((members.len(), hosts.len()), (3, 3));
/// ```
pub fn target(
    pg: PgId,
    pool: &PoolRecord,
    osds: &BTreeMap<OsdId, OsdRecord>,
    wanted: Option<&PgTargetRecord>,
) -> Vec<OsdId> {
    Tree::of_pool(pool, osds).target(pg, wanted)
}

/// The first record of a new PG of a pool; none if there is no OSD for it.
///
/// ```
/// # use atoll_types::records::{FailureDomain, PoolRecord, RECORD_FORMAT, Redundancy};
/// # use atoll_types::{Epoch, OsdId, PoolId};
/// # let pool = PoolRecord {
/// #     format: RECORD_FORMAT,
/// #     id: PoolId(1),
/// #     name: "images".into(),
/// #     redundancy: Redundancy::replicated(2, None),
/// #     pg_num: 64,
/// #     pg_num_first: 64,
/// #     failure_domain: FailureDomain::Host,
/// #     device_class: None,
/// # };
/// let record = atoll_placement::first_record(vec![OsdId(4), OsdId(1)], &pool).expect("there are OSDs");
/// assert_eq!((record.primary, record.epoch), (OsdId(4), Epoch(1)));
/// assert!(atoll_placement::first_record(Vec::new(), &pool).is_none());
/// ```
pub fn first_record(members: Vec<OsdId>, pool: &PoolRecord) -> Option<PgRecord> {
    let shards = match pool.redundancy {
        Redundancy::Replicated { .. } => Vec::new(),
        Redundancy::Erasure { .. } => (0..members.len() as u8).collect(),
    };
    Some(PgRecord {
        format: RECORD_FORMAT,
        epoch: Epoch(1),
        primary: *members.first()?,
        activated_epoch: Epoch(0),
        last_active_members: Vec::new(),
        pg_num: 0,
        shards,
        last_active_shards: Vec::new(),
        accepted: None,
        members,
    })
}

impl Tree {
    /// As [`target`], for many PGs of one pool.
    pub fn target(&self, pg: PgId, wanted: Option<&PgTargetRecord>) -> Vec<OsdId> {
        self.chosen(pg, wanted).into_iter().map(|leaf| self.leaves[leaf].id).collect()
    }

    /// Positions of the leaves of [`Self::target`].
    pub(crate) fn chosen(&self, pg: PgId, wanted: Option<&PgTargetRecord>) -> Vec<usize> {
        let mut chosen: Vec<usize> = Vec::with_capacity(self.copies());
        // If a target cannot be fulfilled any more, the rest of it holds, so that only what is gone moves.
        for leaf in wanted.iter().flat_map(|wanted| &wanted.members).filter_map(|id| self.position(*id)) {
            if chosen.len() < self.size && self.may_join(leaf, &chosen) {
                chosen.push(leaf);
            }
        }
        if chosen.len() < self.copies() {
            let key = mix(u64::from(pg.pool.0) << 32 | u64::from(pg.index));
            let length = |leaf: &crate::tree::Leaf| straw(key, u64::from(leaf.id.0), leaf.weight);
            let straws: Vec<f64> = self.leaves.iter().map(length).collect();
            while chosen.len() < self.size {
                let candidates = (0..self.leaves.len()).filter(|leaf| self.may_join(*leaf, &chosen));
                let Some(best) = candidates.max_by(|one, other| straws[*one].total_cmp(&straws[*other])) else {
                    break;
                };
                chosen.push(best);
            }
        }
        invariants::members_are_no_more_than_copies(chosen.len(), self.copies());
        if cfg!(debug_assertions) {
            invariants::members_stand_apart(self, &chosen);
            invariants::members_are_as_many_as_can_be(self, &chosen);
        }
        chosen
    }

    /// Returns true if a leaf may hold a copy beside the chosen ones.
    pub(crate) fn may_join(&self, leaf: usize, chosen: &[usize]) -> bool {
        chosen.iter().all(|other| !self.leaves[leaf].excludes(&self.leaves[*other]))
    }
}
