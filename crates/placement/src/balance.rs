//! The balancer: straw2 spreads PGs as dice would, so some OSDs get more than their share of them,
//! and the fullest one says how full the cluster can get. The balancer names other members for as
//! few PGs as it takes to even that out.

use std::collections::BTreeMap;

use atoll_types::records::{OsdRecord, PgTargetRecord, PoolRecord, RECORD_FORMAT};
use atoll_types::{OsdId, PgId, PoolId};

use crate::invariants;
use crate::level::{Level, Moves};
use crate::tree::Tree;

/// Share of an OSD's fair number of PGs within which it is level; one PG at least.
const TOLERANCE: f64 = 0.05;

/// A proposal of the balancer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Balance {
    /// Targets to be set, or to be removed if `None`; unchanged ones are not named.
    pub changes: BTreeMap<PgId, Option<PgTargetRecord>>,
    /// Copies that move to another OSD.
    pub moved_copies: usize,
    /// PGs that only get another primary.
    pub moved_primaries: usize,
}

/// Proposes targets that level members and primaries over the OSDs, starting from the present targets, with at
/// most `moves_max` copies moved. Pools are levelled one after the other; the imbalance that whole PGs leave in
/// one is evened out in the next.
///
/// ```
/// use std::collections::BTreeMap;
///
/// // Without pools there is nothing to level.
/// let none = BTreeMap::new();
/// assert!(atoll_placement::balance(&none, &BTreeMap::new(), &BTreeMap::new(), 10).changes.is_empty());
/// ```
pub fn balance(
    pools: &BTreeMap<PoolId, PoolRecord>,
    osds: &BTreeMap<OsdId, OsdRecord>,
    present: &BTreeMap<PgId, PgTargetRecord>,
    moves_max: usize,
) -> Balance {
    let mut balance = Balance::default();
    let mut members = Carry::default();
    let mut primaries = Carry::default();
    for pool in pools.values() {
        let tree = Tree::of_pool(pool, osds);
        let mut plan = Plan::new(&tree, pool, present);
        let pg_count = plan.pgs.len() as f64;
        let shares: Vec<f64> = tree.fair_shares().iter().map(|share| share * pg_count).collect();
        let mut level = members.level(&tree, plan.member_counts(), &shares);
        balance.moved_copies +=
            level.run(&mut CopyMoves { plan: &mut plan }, moves_max.saturating_sub(balance.moved_copies));
        members.carry(&tree, &level);
        let shares = plan.fair_primaries();
        let mut level = primaries.level(&tree, plan.primary_counts(), &shares);
        balance.moved_primaries += level.run(&mut PrimaryMoves { plan: &mut plan }, usize::MAX);
        primaries.carry(&tree, &level);
        plan.check();
        plan.changes(pool.id, present, &mut balance.changes);
    }
    let exists = |pg: &PgId| pools.get(&pg.pool).is_some_and(|pool| pg.index < pool.pg_num);
    balance.changes.extend(present.keys().filter(|pg| !exists(pg)).map(|pg| (*pg, None)));
    invariants::targets_name_members_once(&balance);
    balance
}

/// PGs of OSDs, over all pools so far.
#[derive(Default)]
struct Carry {
    by_osd: BTreeMap<OsdId, Carried>,
}

#[derive(Clone, Copy, Default)]
struct Carried {
    /// PGs above the fair number.
    surplus: f64,
    /// Fair number of PGs.
    share: f64,
}

impl Carry {
    /// Adds a pool's shares; returns the distance of each OSD of its tree from its fair number in all.
    fn level(&mut self, tree: &Tree, counts: Vec<f64>, shares: &[f64]) -> Level {
        let mut level = Level { surplus: Vec::new(), tolerance: Vec::new() };
        for ((leaf, count), share) in tree.leaves.iter().zip(counts).zip(shares) {
            let carried = self.by_osd.entry(leaf.id).or_default();
            carried.share += share;
            level.surplus.push(carried.surplus + count - share);
            level.tolerance.push((carried.share * TOLERANCE).max(1.0));
        }
        level
    }

    fn carry(&mut self, tree: &Tree, level: &Level) {
        for (leaf, surplus) in tree.leaves.iter().zip(&level.surplus) {
            self.by_osd.entry(leaf.id).or_default().surplus = *surplus;
        }
    }
}

struct PlannedPg {
    /// Where the tree alone would put it.
    crush: Vec<usize>,
    /// The planned members, the primary first.
    members: Vec<usize>,
}

/// The PGs of one pool; OSDs are named by their position in the tree.
struct Plan<'a> {
    tree: &'a Tree,
    pgs: Vec<PlannedPg>,
    /// For each OSD, the PGs that have it as a member.
    held: Vec<Vec<usize>>,
}

impl<'a> Plan<'a> {
    fn new(tree: &'a Tree, pool: &PoolRecord, present: &BTreeMap<PgId, PgTargetRecord>) -> Self {
        let pg = |index| {
            let pg = PgId { pool: pool.id, index };
            let crush = tree.chosen(pg, None);
            let members = present.get(&pg).map_or_else(|| crush.clone(), |wish| tree.chosen(pg, Some(wish)));
            PlannedPg { crush, members }
        };
        let pgs: Vec<PlannedPg> = (0..pool.pg_num).map(pg).collect();
        let mut held = vec![Vec::new(); tree.leaves.len()];
        for (index, pg) in pgs.iter().enumerate() {
            pg.members.iter().for_each(|leaf| held[*leaf].push(index));
        }
        Plan { tree, pgs, held }
    }

    /// Checks the invariants of a plan after all its moves.
    fn check(&self) {
        for pg in &self.pgs {
            invariants::members_stand_apart(self.tree, &pg.members);
        }
        if cfg!(debug_assertions) {
            let members: Vec<&[usize]> = self.pgs.iter().map(|pg| &*pg.members).collect();
            invariants::holders_hold_their_pgs(&self.held, &members);
        }
    }

    fn member_counts(&self) -> Vec<f64> {
        self.held.iter().map(|pgs| pgs.len() as f64).collect()
    }

    fn primary_counts(&self) -> Vec<f64> {
        let mut counts = vec![0.0; self.held.len()];
        self.pgs.iter().filter_map(|pg| pg.members.first()).for_each(|leaf| counts[*leaf] += 1.0);
        counts
    }

    /// Every member of a PG should be primary as often as the others.
    fn fair_primaries(&self) -> Vec<f64> {
        let mut shares = vec![0.0; self.held.len()];
        for pg in &self.pgs {
            pg.members.iter().for_each(|leaf| shares[*leaf] += 1.0 / pg.members.len() as f64);
        }
        shares
    }

    fn changes(
        &self,
        pool: PoolId,
        present: &BTreeMap<PgId, PgTargetRecord>,
        changes: &mut BTreeMap<PgId, Option<PgTargetRecord>>,
    ) {
        for (index, planned) in (0..).zip(&self.pgs) {
            let pg = PgId { pool, index };
            let members = planned.members.iter().map(|leaf| self.tree.leaves[*leaf].id).collect();
            let wanted =
                (planned.members != planned.crush).then_some(PgTargetRecord { format: RECORD_FORMAT, members });
            let is_present = present.get(&pg).map(|record| &record.members);
            if is_present != wanted.as_ref().map(|record| &record.members) {
                changes.insert(pg, wanted);
            }
        }
    }
}

/// Moves copies.
struct CopyMoves<'a, 'b> {
    plan: &'b mut Plan<'a>,
}

impl Moves for CopyMoves<'_, '_> {
    fn find(&self, from: usize, to: usize) -> Option<usize> {
        let is_open = |index: &&usize| {
            let others = self.plan.pgs[**index].members.iter().filter(|leaf| **leaf != from);
            others.into_iter().all(|leaf| !self.plan.tree.leaves[to].excludes(&self.plan.tree.leaves[*leaf]))
        };
        // A copy that goes back to where the tree wants it needs no record any more, and one that is
        // elsewhere already needs no further one. The primary moves last.
        let preference = |index: &&usize| {
            let pg = &self.plan.pgs[**index];
            let record = match (pg.crush.contains(&from), pg.crush.contains(&to)) {
                (false, true) => 0,
                (false, false) => 1,
                (true, _) => 2,
            };
            (record, pg.members.first() == Some(&from), **index)
        };
        self.plan.held[from].iter().filter(is_open).min_by_key(preference).copied()
    }

    fn apply(&mut self, index: usize, from: usize, to: usize) {
        let pg = &mut self.plan.pgs[index];
        pg.members.iter_mut().filter(|leaf| **leaf == from).for_each(|leaf| *leaf = to);
        self.plan.held[from].retain(|held| *held != index);
        self.plan.held[to].push(index);
    }
}

/// Makes another member the primary.
struct PrimaryMoves<'a, 'b> {
    plan: &'b mut Plan<'a>,
}

impl Moves for PrimaryMoves<'_, '_> {
    fn find(&self, from: usize, to: usize) -> Option<usize> {
        let is_open = |index: &&usize| {
            let members = &self.plan.pgs[**index].members;
            members.first() == Some(&from) && members.contains(&to)
        };
        // PGs that have a record anyway first.
        let preference = |index: &&usize| {
            let pg = &self.plan.pgs[**index];
            (pg.members == pg.crush, **index)
        };
        self.plan.held[from].iter().filter(is_open).min_by_key(preference).copied()
    }

    fn apply(&mut self, index: usize, _from: usize, to: usize) {
        let members = &mut self.plan.pgs[index].members;
        let position = members.iter().position(|leaf| *leaf == to).expect("only members become primaries");
        members.swap(0, position);
    }
}
