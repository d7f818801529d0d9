//! Invariants of this crate's results, a sentence and a check each. Records of cluster state may say anything and
//! are never asserted. docs/internals/invariants-osd.md lists them.

use std::collections::BTreeMap;

use atoll_types::PgId;

use crate::Balance;
use crate::tree::Tree;

/// A PG gets no more members than the pool wants copies, nor than there are failure domains.
pub(crate) fn members_are_no_more_than_copies(chosen: usize, copies: usize) {
    assert!(chosen <= copies, "{chosen} members were chosen for {copies} copies");
}

/// Members of a PG are distinct and in distinct failure domains.
pub(crate) fn members_stand_apart(tree: &Tree, chosen: &[usize]) {
    for (position, leaf) in chosen.iter().enumerate() {
        for other in &chosen[..position] {
            let (one, other) = (&tree.leaves[*leaf], &tree.leaves[*other]);
            assert!(!one.excludes(other), "{} and {} share a failure domain", one.id, other.id);
        }
    }
}

/// There are as many members as the pool wants, or no OSD that could be one more.
pub(crate) fn members_are_as_many_as_can_be(tree: &Tree, chosen: &[usize]) {
    let candidate = || (0..tree.leaves.len()).find(|leaf| tree.may_join(*leaf, chosen));
    if chosen.len() < tree.size {
        let candidate = candidate().map(|leaf| tree.leaves[leaf].id);
        assert!(candidate.is_none(), "{} of {} members, and {candidate:?} may join", chosen.len(), tree.size);
    }
}

/// Only OSDs with weight draw straws, and a straw is a number that is not above zero.
pub(crate) fn straw_is_drawn_by_weight(weight: f64, length: f64) {
    assert!(weight > 0.0 && length <= 0.0, "weight {weight} drew a straw of {length}");
}

/// Leaves of a tree are in the order of their OSDs' numbers, each once, so that they are found.
pub(crate) fn leaves_are_in_order(tree: &Tree) {
    assert!(tree.leaves.is_sorted_by(|one, next| one.id < next.id), "leaves are out of order");
}

/// Shares of OSDs add up to the copies of a PG, and none is above one.
pub(crate) fn shares_add_up(shares: &[f64], copies: usize) {
    const EPSILON: f64 = 1e-6;
    let sum: f64 = shares.iter().sum();
    let is_share = |share: &f64| (-EPSILON..=1.0 + EPSILON).contains(share);
    assert!(shares.iter().all(is_share), "a share is not between 0 and 1: {shares:?}");
    assert!(shares.is_empty() || (sum - copies as f64).abs() < EPSILON, "shares are {sum} of {copies} copies");
}

/// The balancer moves no more copies than it may, but for the chain that it had begun.
pub(crate) fn moves_are_bounded(made: usize, moves_max: usize, chain_max: usize) {
    assert!(made < moves_max.saturating_add(chain_max), "{made} copies move, {moves_max} may");
}

/// A move changes who holds a PG, not how many hold it: each of its members is noted as holding it, once.
pub(crate) fn holders_hold_their_pgs(held: &[Vec<usize>], members: &[&[usize]]) {
    let held_count: usize = held.iter().map(Vec::len).sum();
    let member_count: usize = members.iter().map(|members| members.len()).sum();
    assert!(held_count == member_count, "{held_count} copies are held, {member_count} have a holder");
    for (index, members) in members.iter().enumerate() {
        assert!(members.iter().all(|leaf| held[*leaf].contains(&index)), "PG {index} is not held by {members:?}");
    }
}

/// A target that is proposed names each member once.
pub(crate) fn targets_name_members_once(balance: &Balance) {
    let named = balance.changes.iter().filter_map(|(pg, change)| Some((pg, &change.as_ref()?.members)));
    let twice: BTreeMap<&PgId, _> =
        named.filter(|(_, members)| (1..members.len()).any(|at| members[..at].contains(&members[at]))).collect();
    assert!(twice.is_empty(), "targets name members twice: {twice:?}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::Leaf;
    use atoll_types::records::{PgTargetRecord, RECORD_FORMAT};
    use atoll_types::{OsdId, PoolId};

    /// Two OSDs in one failure domain, one in another.
    fn tree() -> Tree {
        let leaf = |id: u32, domain| Leaf::alone(OsdId(id), domain);
        Tree { leaves: vec![leaf(0, 0), leaf(1, 0), leaf(2, 1)], domain_weights: vec![2.0, 1.0], size: 2 }
    }

    #[test]
    fn what_holds_passes() {
        members_are_no_more_than_copies(2, 2);
        members_stand_apart(&tree(), &[0, 2]);
        members_are_as_many_as_can_be(&tree(), &[2, 1]);
        straw_is_drawn_by_weight(1.0, -0.5);
        leaves_are_in_order(&tree());
        shares_add_up(&[0.5, 0.5, 1.0], 2);
        moves_are_bounded(3, 1, 4);
        holders_hold_their_pgs(&[vec![0], vec![], vec![0]], &[&[0, 2]]);
        targets_name_members_once(&Balance::default());
    }

    #[test]
    #[should_panic(expected = "3 members were chosen for 2 copies")]
    fn too_many_members_are_noticed() {
        members_are_no_more_than_copies(3, 2);
    }

    #[test]
    #[should_panic(expected = "osd.1 and osd.0 share a failure domain")]
    fn members_in_one_domain_are_noticed() {
        members_stand_apart(&tree(), &[0, 1]);
    }

    #[test]
    #[should_panic(expected = "1 of 2 members")]
    fn a_member_that_was_left_out_is_noticed() {
        members_are_as_many_as_can_be(&tree(), &[2]);
    }

    #[test]
    #[should_panic(expected = "weight 0 drew")]
    fn a_straw_without_weight_is_noticed() {
        straw_is_drawn_by_weight(0.0, -1.0);
    }

    #[test]
    #[should_panic(expected = "out of order")]
    fn leaves_in_disorder_are_noticed() {
        let mut tree = tree();
        tree.leaves.swap(0, 2);
        leaves_are_in_order(&tree);
    }

    #[test]
    #[should_panic(expected = "shares are 1.5 of 2 copies")]
    fn shares_that_lack_something_are_noticed() {
        shares_add_up(&[0.5, 1.0], 2);
    }

    #[test]
    #[should_panic(expected = "9 copies move, 5 may")]
    fn too_many_moves_are_noticed() {
        moves_are_bounded(9, 5, 4);
    }

    #[test]
    #[should_panic(expected = "PG 0 is not held by")]
    fn a_holder_that_was_forgotten_is_noticed() {
        holders_hold_their_pgs(&[vec![0, 0], vec![], vec![]], &[&[0, 2]]);
    }

    #[test]
    #[should_panic(expected = "name members twice")]
    fn a_member_that_is_named_twice_is_noticed() {
        let pg = PgId { pool: PoolId(1), index: 0 };
        let target = PgTargetRecord { format: RECORD_FORMAT, members: vec![OsdId(1), OsdId(1)] };
        targets_name_members_once(&Balance { changes: [(pg, Some(target))].into(), ..Balance::default() });
    }
}
