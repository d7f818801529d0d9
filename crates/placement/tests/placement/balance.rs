//! Guarantees of the balancer.

use std::collections::BTreeMap;

use atoll_placement::{Balance, balance, is_usable, target};
use atoll_types::records::{FailureDomain, PgTargetRecord, PoolRecord};
use atoll_types::{OsdId, PgId, PoolId};
use proptest::prelude::*;

use crate::{Osds, domains, failure_domain, osd, pgs, pool, tree};

type Pools = BTreeMap<PoolId, PoolRecord>;
type Wishes = BTreeMap<PgId, PgTargetRecord>;

fn pools(pools: impl IntoIterator<Item = PoolRecord>) -> Pools {
    pools.into_iter().map(|pool| (pool.id, pool)).collect()
}

fn apply(wishes: &Wishes, balance: &Balance) -> Wishes {
    let mut wishes = wishes.clone();
    for (pg, change) in &balance.changes {
        match change {
            Some(record) => drop(wishes.insert(*pg, record.clone())),
            None => drop(wishes.remove(pg)),
        }
    }
    wishes
}

fn members(pools: &Pools, osds: &Osds, wishes: &Wishes) -> BTreeMap<PgId, Vec<OsdId>> {
    let all = pools.values().flat_map(|pool| pgs(pool).map(move |pg| (pg, pool)));
    all.map(|(pg, pool)| (pg, target(pg, pool, osds, wishes.get(&pg)))).collect()
}

fn moved_copies(before: &BTreeMap<PgId, Vec<OsdId>>, after: &BTreeMap<PgId, Vec<OsdId>>) -> usize {
    let moved =
        |(pg, members): (&PgId, &Vec<OsdId>)| members.iter().filter(|member| !before[pg].contains(member)).count();
    after.iter().map(moved).sum()
}

/// How many PGs each OSD is a member of, and of how many it is the primary.
fn counts(members: &BTreeMap<PgId, Vec<OsdId>>) -> (BTreeMap<OsdId, f64>, BTreeMap<OsdId, f64>) {
    let (mut copies, mut primaries) = (BTreeMap::new(), BTreeMap::new());
    for members in members.values() {
        members.iter().for_each(|member| *copies.entry(*member).or_default() += 1.0);
        members.first().into_iter().for_each(|member| *primaries.entry(*member).or_default() += 1.0);
    }
    (copies, primaries)
}

/// Hosts with these numbers of OSDs, all of the same weight.
fn hosts(sizes: &[u32]) -> Osds {
    let mut osds = Osds::new();
    for (host, size) in sizes.iter().enumerate() {
        for _ in 0..*size {
            let id = osds.len() as u32;
            osds.insert(OsdId(id), osd(id, ["", "", &format!("h{host}")], 1.0));
        }
    }
    osds
}

#[test]
fn members_and_primaries_become_level() {
    let osds = hosts(&[2, 2, 2, 2, 2]);
    let pools = pools([pool(1, 3, 256, FailureDomain::Host), pool(2, 2, 64, FailureDomain::Host)]);
    let before = members(&pools, &osds, &Wishes::new());
    let proposal = balance(&pools, &osds, &Wishes::new(), usize::MAX);
    let after = members(&pools, &osds, &apply(&Wishes::new(), &proposal));
    let fair = f64::from(3 * 256 + 2 * 64) / 10.0;
    let (copies, primaries) = counts(&after);
    for (id, count) in &copies {
        assert!((count - fair).abs() <= fair * 0.05 + 1e-5, "{id} has {count} of {fair}");
    }
    for (id, count) in &primaries {
        assert!((count - 32.0).abs() <= 2.0, "{id} is the primary of {count} of 32");
    }
    // What was outside of the 5 % moved, and nothing else did.
    let (copies_before, _) = counts(&before);
    let over: f64 = copies_before.values().map(|count| (count - fair * 1.05).max(0.0).ceil()).sum();
    let under: f64 = copies_before.values().map(|count| (fair * 0.95 - count).max(0.0).ceil()).sum();
    let moved = moved_copies(&before, &after);
    assert!(moved as f64 <= over + under, "{moved} copies moved; {over} too many, {under} too few");
    assert!(moved > 0, "chance was not fair here");
    assert_eq!(moved, proposal.moved_copies);
}

#[test]
fn a_domain_too_heavy_for_its_share_gets_one_copy_of_all_and_the_rest_is_level() {
    // Four of ten OSDs are on one host, but with three copies it can have a third at most.
    let osds = hosts(&[4, 2, 2, 2]);
    let pools = pools([pool(1, 3, 256, FailureDomain::Host)]);
    let after =
        members(&pools, &osds, &apply(&Wishes::new(), &balance(&pools, &osds, &Wishes::new(), usize::MAX)));
    let (copies, _) = counts(&after);
    for (id, count) in copies {
        let fair = if id.0 < 4 { 64.0 } else { 512.0 / 6.0 };
        assert!((count - fair).abs() <= fair * 0.05 + 1e-5, "{id} has {count} of {fair}");
    }
}

#[test]
fn moves_are_bounded_and_the_rest_follows() {
    let osds = hosts(&[1; 12]);
    let pools = pools([pool(1, 3, 512, FailureDomain::Host)]);
    let (mut wishes, mut rounds) = (Wishes::new(), 0);
    loop {
        let before = members(&pools, &osds, &wishes);
        let proposal = balance(&pools, &osds, &wishes, 4);
        wishes = apply(&wishes, &proposal);
        let moved = moved_copies(&before, &members(&pools, &osds, &wishes));
        // A chain of moves is not cut.
        assert!(moved <= 4 + 3, "{moved}");
        if proposal.changes.is_empty() {
            break;
        }
        rounds += 1;
        assert!(rounds < 100, "it comes to an end");
    }
    assert!(rounds > 1, "there was more to move than fits into one round");
}

#[test]
fn a_balanced_placement_stays() {
    let osds = hosts(&[1, 1, 1]);
    let pools = pools([pool(1, 3, 32, FailureDomain::Host)]);
    assert_eq!(balance(&pools, &osds, &Wishes::new(), usize::MAX).moved_copies, 0, "there is no choice");
    assert_eq!(balance(&Pools::new(), &osds, &Wishes::new(), usize::MAX), Balance::default());
    assert_eq!(balance(&pools, &Osds::new(), &Wishes::new(), usize::MAX), Balance::default());
}

#[test]
fn an_unlevel_pool_is_made_good_by_the_next() {
    // 64 pools of one PG each: alone each is level within one PG.
    let osds = hosts(&[1; 8]);
    let pools = pools((1..=64).map(|id| pool(id, 1, 1, FailureDomain::Host)));
    let after =
        members(&pools, &osds, &apply(&Wishes::new(), &balance(&pools, &osds, &Wishes::new(), usize::MAX)));
    let (copies, _) = counts(&after);
    assert_eq!(copies.len(), 8);
    assert!(copies.values().all(|count| (count - 8.0).abs() <= 1.0), "{copies:?}");
}

#[test]
fn stale_wishes_are_removed() {
    let mut osds = hosts(&[1; 6]);
    let pool = pool(1, 2, 64, FailureDomain::Host);
    let pools = pools([pool.clone()]);
    let record = |members: Vec<OsdId>| PgTargetRecord { format: 1, members };
    let pg = |index| PgId { pool: PoolId(1), index };
    let of_tree = target(pg(0), &pool, &osds, None);
    let level = apply(&Wishes::new(), &balance(&pools, &osds, &Wishes::new(), usize::MAX));
    let mut wishes = level.clone();
    wishes.insert(pg(64), record(vec![OsdId(0), OsdId(1)]));
    wishes.insert(PgId { pool: PoolId(9), index: 0 }, record(vec![OsdId(0), OsdId(1)]));
    if !level.contains_key(&pg(0)) {
        wishes.insert(pg(0), record(of_tree));
    }
    let proposal = balance(&pools, &osds, &wishes, usize::MAX);
    assert_eq!(apply(&wishes, &proposal), level, "no such PG, no such pool, what the tree says anyway");
    osds.get_mut(&OsdId(3)).unwrap().is_out = true;
    let wishes = apply(&level, &balance(&pools, &osds, &level, usize::MAX));
    assert!(wishes.values().all(|wish| !wish.members.contains(&OsdId(3))), "{wishes:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn proposals_are_legal_better_and_final(
        osds in tree(),
        size in 1_u32..4,
        level in failure_domain(),
        second in failure_domain(),
        stale in prop::collection::btree_map(0_u32..80, prop::collection::vec(0_u32..40, 0..4), 0..8),
    ) {
        let mut other = pool(2, 2, 32, second);
        other.device_class = Some("ssd".into());
        let pools = pools([pool(1, size, 64, level), other]);
        let wishes: Wishes = stale
            .into_iter()
            .map(|(index, members)| {
                let members = members.into_iter().map(OsdId).collect();
                (PgId { pool: PoolId(1), index }, PgTargetRecord { format: 1, members })
            })
            .collect();
        let before = members(&pools, &osds, &wishes);
        let proposal = balance(&pools, &osds, &wishes, usize::MAX);
        let wished = apply(&wishes, &proposal);
        let after = members(&pools, &osds, &wished);
        for (pg, members) in &after {
            let pool = &pools[&pg.pool];
            prop_assert_eq!(members.len(), before[pg].len());
            prop_assert_eq!(domains(members, &osds, pool.failure_domain).len(), members.len());
            prop_assert!(members.iter().all(|member| is_usable(&osds[member], pool)));
        }
        for (pg, wish) in &wished {
            prop_assert_eq!(&after[pg], &wish.members, "a wish says what will be");
            prop_assert_ne!(&target(*pg, &pools[&pg.pool], &osds, None), &wish.members, "and not what is anyway");
        }
        prop_assert!(moved_copies(&before, &after) <= proposal.moved_copies);
        let again = balance(&pools, &osds, &wished, usize::MAX);
        prop_assert_eq!(again, Balance::default(), "once is enough");
    }

    #[test]
    fn one_pool_becomes_level_within_five_percent_or_one_pg(osds in tree(), size in 1_u32..4, level in failure_domain()) {
        let pool = pool(1, size, 128, level);
        let pools = pools([pool.clone()]);
        let after = members(&pools, &osds, &apply(&Wishes::new(), &balance(&pools, &osds, &Wishes::new(), usize::MAX)));
        let (copies, primaries) = counts(&after);
        let fair = fair_shares(&osds, &pool, after.values().next().map_or(0, Vec::len));
        for (id, share) in fair {
            let count = copies.get(&id).copied().unwrap_or_default();
            prop_assert!((count - share).abs() <= (share * 0.05).max(1.0) + 1e-5, "{} has {} of {}", id, count, share);
            let fair_primaries = count / after.values().next().map_or(1, Vec::len).max(1) as f64;
            let count = primaries.get(&id).copied().unwrap_or_default();
            prop_assert!((count - fair_primaries).abs() <= (fair_primaries * 0.05).max(1.0) + 1e-5, "{} is the primary of {} of {}", id, count, fair_primaries);
        }
    }
}

/// By weight, while no domain has more than one copy of every PG; found by filling step by step,
/// unlike in the balancer.
fn fair_shares(osds: &Osds, pool: &PoolRecord, copies: usize) -> BTreeMap<OsdId, f64> {
    let usable: Vec<_> = osds.values().filter(|osd| is_usable(osd, pool)).collect();
    let mut weights = BTreeMap::<String, f64>::new();
    for osd in &usable {
        *weights.entry(crate::domain(osd, pool.failure_domain)).or_default() += osd.weight;
    }
    let share = |factor: f64| -> f64 { weights.values().map(|weight| (weight * factor).min(1.0)).sum() };
    let (mut low, mut high) = (0.0, 1e6);
    for _ in 0..200 {
        let middle = f64::midpoint(low, high);
        if share(middle) < copies as f64 { low = middle } else { high = middle }
    }
    let pg_num = f64::from(pool.pg_num);
    usable
        .iter()
        .map(|osd| {
            let weight = weights[&crate::domain(osd, pool.failure_domain)];
            (osd.id, pg_num * (weight * high).min(1.0) * osd.weight / weight)
        })
        .collect()
}
