//! Guarantees of `target`.

use atoll_placement::{Tree, is_usable, target};
use atoll_types::OsdId;
use atoll_types::records::{FailureDomain, PgTargetRecord};
use proptest::prelude::*;

use crate::{Osds, domain, domains, failure_domain, osd, pgs, pool, tree};

/// How many members of `after` were not members before.
fn moved(before: &[OsdId], after: &[OsdId]) -> Vec<OsdId> {
    after.iter().filter(|member| !before.contains(member)).copied().collect()
}

fn targets(osds: &Osds, size: u32, level: FailureDomain) -> Vec<Vec<OsdId>> {
    let pool = pool(1, size, 256, level);
    pgs(&pool).map(|pg| target(pg, &pool, osds, None)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn copies_sit_in_different_domains_on_usable_osds(
        osds in tree(),
        size in 0_u32..6,
        level in failure_domain(),
        class in prop::sample::select(vec![None, Some("ssd".to_owned()), Some("tape".to_owned())]),
    ) {
        let mut pool = pool(1, size, 64, level);
        pool.device_class = class;
        let usable: Vec<OsdId> = osds.values().filter(|osd| is_usable(osd, &pool)).map(|osd| osd.id).collect();
        let available = domains(&usable, &osds, level).len();
        for pg in pgs(&pool) {
            let members = target(pg, &pool, &osds, None);
            prop_assert_eq!(members.len(), available.min(size as usize), "as many as there can be");
            prop_assert_eq!(domains(&members, &osds, level).len(), members.len());
            for member in &members {
                let osd = &osds[member];
                prop_assert!(!osd.is_out && osd.weight > 0.0);
                prop_assert!(pool.device_class.as_ref().is_none_or(|class| *class == osd.device_class));
            }
        }
    }

    #[test]
    fn one_osd_more_or_less_changes_at_most_one_member(osds in tree(), size in 1_u32..4, level in failure_domain()) {
        let Some(gone) = osds.values().find(|osd| osd.weight > 0.0 && !osd.is_out).cloned() else { return Ok(()) };
        let mut fewer = osds.clone();
        fewer.get_mut(&gone.id).unwrap().is_out = true;
        for (with, without) in targets(&osds, size, level).iter().zip(targets(&fewer, size, level)) {
            // Seen from both sides: it goes out, it comes in.
            prop_assert!(moved(&without, with).iter().all(|member| *member == gone.id));
            prop_assert!(moved(with, &without).len() <= 1);
            if !with.contains(&gone.id) {
                prop_assert_eq!(with, &without);
            }
        }
    }

    #[test]
    fn another_weight_moves_only_to_or_from_that_osd(osds in tree(), size in 1_u32..4, level in failure_domain()) {
        let Some(changed) = osds.values().find(|osd| osd.weight > 0.0 && !osd.is_out).cloned() else { return Ok(()) };
        for factor in [0.5, 2.0] {
            let mut other = osds.clone();
            other.get_mut(&changed.id).unwrap().weight *= factor;
            for (before, after) in targets(&osds, size, level).iter().zip(targets(&other, size, level)) {
                let (came, went) = (moved(before, &after), moved(&after, before));
                if factor > 1.0 {
                    prop_assert!(came.iter().all(|member| *member == changed.id));
                } else {
                    prop_assert!(went.iter().all(|member| *member == changed.id));
                }
            }
        }
    }

    #[test]
    fn a_wish_holds_as_far_as_it_can(osds in tree(), size in 1_u32..4, level in failure_domain(), wish in prop::collection::vec(0_u32..60, 0..6)) {
        let pool = pool(1, size, 8, level);
        let wanted = PgTargetRecord { format: 1, members: wish.into_iter().map(OsdId).collect() };
        for pg in pgs(&pool) {
            let members = target(pg, &pool, &osds, Some(&wanted));
            prop_assert_eq!(members.len(), Tree::of_pool(&pool, &osds).copies());
            prop_assert_eq!(domains(&members, &osds, level).len(), members.len());
            prop_assert!(members.iter().all(|member| is_usable(&osds[member], &pool)));
            if wanted.members.len() == members.len()
                && wanted.members.iter().all(|id| osds.get(id).is_some_and(|osd| is_usable(osd, &pool)))
                && domains(&wanted.members, &osds, level).len() == members.len()
            {
                prop_assert_eq!(&members, &wanted.members);
            }
        }
    }
}

#[test]
fn only_out_osds_of_a_wish_are_replaced() {
    let mut osds: Osds = (0..8).map(|id| (OsdId(id), osd(id, ["", "", &format!("h{id}")], 1.0))).collect();
    let pool = pool(1, 3, 64, FailureDomain::Host);
    for pg in pgs(&pool) {
        let wanted = PgTargetRecord { format: 1, members: vec![OsdId(7), OsdId(2), OsdId(5)] };
        osds.get_mut(&OsdId(2)).unwrap().is_out = true;
        let members = target(pg, &pool, &osds, Some(&wanted));
        assert_eq!(members[..2], [OsdId(7), OsdId(5)]);
        assert_eq!(members.len(), 3);
    }
}

#[test]
fn shares_follow_weights_at_every_level() {
    // Twelve hosts of two OSDs in six racks of three zones; one rack and one OSD weigh double.
    let mut osds = Osds::new();
    for id in 0..24_u32 {
        let weight = if id / 4 == 0 || id == 23 { 2.0 } else { 1.0 };
        let place = [format!("z{}", id / 8), format!("r{}", id / 4), format!("h{}", id / 2)];
        osds.insert(OsdId(id), osd(id, [&place[0], &place[1], &place[2]], weight));
    }
    let total: f64 = osds.values().map(|osd| osd.weight).sum();
    let pool = pool(1, 1, 1 << 15, FailureDomain::Rack);
    let mut counts = [0.0; 24];
    pgs(&pool).for_each(|pg| counts[target(pg, &pool, &osds, None)[0].0 as usize] += 1.0);
    for osd in osds.values() {
        let (share, fair) = (counts[osd.id.0 as usize] / f64::from(pool.pg_num), osd.weight / total);
        assert!((share / fair - 1.0).abs() < 0.12, "{}: {share} instead of {fair}", osd.id);
    }
    for level in [FailureDomain::Zone, FailureDomain::Rack, FailureDomain::Host] {
        let mut by_domain = std::collections::BTreeMap::<String, (f64, f64)>::new();
        for osd in osds.values() {
            let sums = by_domain.entry(domain(osd, level)).or_default();
            sums.0 += counts[osd.id.0 as usize] / f64::from(pool.pg_num);
            sums.1 += osd.weight / total;
        }
        for (name, (share, fair)) in by_domain {
            assert!((share / fair - 1.0).abs() < 0.08, "{name}: {share} instead of {fair}");
        }
    }
}

#[test]
fn growth_moves_its_share_and_no_more() {
    let mut osds: Osds = (0..9).map(|id| (OsdId(id), osd(id, ["", "", &format!("h{id}")], 1.0))).collect();
    let before = targets(&osds, 3, FailureDomain::Host);
    osds.insert(OsdId(9), osd(9, ["", "", "h9"], 1.0));
    let after = targets(&osds, 3, FailureDomain::Host);
    let count: usize = before.iter().zip(&after).map(|(old, new)| moved(old, new).len()).sum();
    // A tenth of 3 * 256 copies.
    assert!((50..105).contains(&count), "{count} copies moved");
}

#[test]
fn osds_without_a_location_share_one_rack_and_one_zone() {
    let mut osds: Osds = (0..4).map(|id| (OsdId(id), osd(id, ["", "", &format!("h{id}")], 1.0))).collect();
    for level in [FailureDomain::Rack, FailureDomain::Zone] {
        let pool = pool(1, 3, 4, level);
        assert!(pgs(&pool).all(|pg| target(pg, &pool, &osds, None).len() == 1));
    }
    osds.get_mut(&OsdId(3)).unwrap().rack = "default".into();
    let pool = pool(1, 3, 4, FailureDomain::Rack);
    assert!(pgs(&pool).all(|pg| target(pg, &pool, &osds, None).len() == 1));
}

#[test]
fn racks_of_one_name_in_two_zones_are_two_and_a_host_never_holds_two_copies() {
    let place = |zone, rack, host| [zone, rack, host];
    let mut osds = Osds::new();
    osds.insert(OsdId(0), osd(0, place("a", "r", "h0"), 1.0));
    osds.insert(OsdId(1), osd(1, place("b", "r", "h1"), 1.0));
    let pool = pool(1, 2, 32, FailureDomain::Rack);
    assert!(pgs(&pool).all(|pg| target(pg, &pool, &osds, None).len() == 2));
    osds.get_mut(&OsdId(1)).unwrap().host = "h0".into();
    assert!(pgs(&pool).all(|pg| target(pg, &pool, &osds, None).len() == 1));
}
