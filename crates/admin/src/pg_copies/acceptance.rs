//! Resuming a PG from copies that do not count by themselves.

use std::collections::BTreeSet;

use atoll_cluster::{ClusterClient, ClusterMap, Transaction, keys};
use atoll_types::pg_copies::{Incompleteness, PgCopy, accepting};
use atoll_types::records::PgRecord;
use atoll_types::{OsdId, PgId, Version};
use serde::Serialize;

use super::{CopyStatus, Known, find, names, statuses};
use crate::error::AdminError;

/// A decision to resume a PG from some copies.
#[derive(Clone, Debug, Serialize)]
pub struct Acceptance {
    /// The PG.
    #[serde(serialize_with = "super::as_text")]
    pub pg: PgId,
    /// The OSDs whose copies it resumes from.
    pub accepted: Vec<OsdId>,
    /// Losses, certain or possible, a sentence each.
    pub losses: Vec<String>,
    /// The record that makes it so.
    #[serde(skip)]
    record: PgRecord,
    /// Revision of the record that it replaces.
    #[serde(skip)]
    revision: i64,
}

/// Returns true if a shard can be used with others.
pub(super) fn is_usable_shard(copy: &PgCopy) -> bool {
    copy.shard.is_some() && !copy.incomplete.is_some_and(Incompleteness::is_torn)
}

/// Returns the consequences of resuming a PG from the copies of these OSDs. Refused if that would give wrong data,
/// or if the PG can resume without.
pub fn plan(map: &ClusterMap, pg: PgId, told: &[PgCopy], from: &[OsdId]) -> Result<Acceptance, AdminError> {
    let (pool, record) = find(map, pg)?;
    let copies = statuses(map, pg, record, told);
    let known = Known { pg, pool, record, copies: &copies };
    refuse_unneeded(&known)?;
    let chosen = chosen(&known, told, from)?;
    if known.is_coded() {
        check_shards(&known, &chosen)?;
    } else if let [_, _, ..] = chosen[..] {
        return AdminError::refused(format!(
            "name one copy of {pg}: copies are not merged, and all others are overwritten with the accepted one"
        ));
    }
    let (_, revision) = map.pgs.get(&pg).ok_or(AdminError::NoSuchPg(pg))?;
    let losses = losses(map, &known, &chosen);
    let accepted = chosen.iter().map(|copy| copy.osd).collect();
    Ok(Acceptance { pg, accepted, losses, record: accepting(record, chosen), revision: *revision })
}

/// Resumes the PG, unless its record has changed since.
pub async fn accept(client: &ClusterClient, acceptance: &Acceptance) -> Result<(), AdminError> {
    let key = keys::pg(acceptance.pg);
    let change = Transaction::new().check(&key, acceptance.revision).put(&key, &acceptance.record)?;
    client.transact(&change).await?;
    Ok(())
}

impl Acceptance {
    /// Returns true if the PG has been active since the decision.
    pub async fn is_done(&self, client: &ClusterClient) -> Result<bool, AdminError> {
        let found = client.get::<PgRecord>(&keys::pg(self.pg)).await?;
        Ok(found.is_some_and(|(record, _)| record.activated_epoch >= self.record.epoch))
    }
}

/// Refuses a decision about a PG that serves, or will by itself; and no member may serve while it is made.
fn refuse_unneeded(known: &Known<'_>) -> Result<(), AdminError> {
    let pg = known.pg;
    if known.serves() || known.copies.iter().filter_map(|copy| copy.told.as_ref()).any(PgCopy::serves) {
        return AdminError::refused(format!("{pg} serves: there is nothing to accept"));
    }
    if known.has_source() {
        return AdminError::refused(format!(
            "{pg} resumes by itself, since enough {} are whole; 'atoll pg why {pg}' shows the reason for waiting",
            known.parts()
        ));
    }
    let silent = known.copies.iter().filter(|copy| copy.is_up && copy.told.is_none());
    let silent: Vec<&OsdId> =
        silent.filter(|copy| copy.is_member || copy.is_elector).map(|copy| &copy.osd).collect();
    if !silent.is_empty() {
        let one = names(silent);
        return AdminError::refused(format!(
            "{one} is up and does not report its copy: it might serve, or have a better {}. Stop it, or see \
             'atoll pg why {pg}' for why it is silent",
            known.part()
        ));
    }
    Ok(())
}

/// The copies that are named.
fn chosen(known: &Known<'_>, told: &[PgCopy], from: &[OsdId]) -> Result<Vec<PgCopy>, AdminError> {
    let pg = known.pg;
    let wanted: BTreeSet<OsdId> = from.iter().copied().collect();
    let find = |osd: &OsdId| {
        let copy = told.iter().find(|copy| copy.osd == *osd && copy.is_of(pg));
        copy.cloned().ok_or_else(|| {
            AdminError::Refused(format!(
                "{osd} reports nothing about {pg}: it is down, has no {} of it, or its host's admin server does \
                 not answer",
                known.part()
            ))
        })
    };
    wanted.iter().map(find).collect()
}

/// Shards of different times give wrong bytes together, so there must be enough of one time.
fn check_shards(known: &Known<'_>, chosen: &[PgCopy]) -> Result<(), AdminError> {
    let needed = known.needed();
    for copy in chosen {
        let osd = copy.osd;
        if !is_usable_shard(copy) {
            return AdminError::refused(format!(
                "the objects of {osd} are of several shards or times, and would give wrong data with others: a shard \
                 whose backfill has not ended is of no use"
            ));
        }
        if let Some(other) = chosen.iter().find(|other| other.osd != osd && other.shard == copy.shard) {
            return AdminError::refused(format!("{osd} and {} hold the same shard: name one of them", other.osd));
        }
    }
    if chosen.len() < needed {
        return AdminError::refused(format!(
            "{} of the {needed} shards that it takes are named; any {needed} different ones give the data",
            chosen.len()
        ));
    }
    let Some(end) = end_of(needed, chosen) else {
        return AdminError::refused(format!(
            "the named shards end with different writes in the same place, so {needed} of them have no state in common. \
             Name {needed} that end with the same write, or can go back to it"
        ));
    };
    match chosen.iter().find(|copy| copy.head > end && !goes_back_to(copy, end)) {
        None => Ok(()),
        Some(copy) => AdminError::refused(format!(
            "{} has writes up to {} that cannot be undone, and fewer than {needed} of the named shards have \
             them: with shards of different times the data would be wrong. Name {needed} that end with the same \
             write, or can go back to it",
            copy.osd, copy.head
        )),
    }
}

/// Returns true if a copy has the write with which another one ends, as far as their ends show. Another write in the same
/// place is of another history.
fn has_reached(copy: &PgCopy, end: Version) -> bool {
    copy.head == end || copy.head > end && copy.head.sequence > end.sequence
}

/// Returns true if a copy ends with a write, or can undo all writes after it.
pub(super) fn goes_back_to(copy: &PgCopy, end: Version) -> bool {
    let is_undoable = copy.committed_sequence.max(copy.rolls_back_to) <= end.sequence;
    has_reached(copy, end) && (copy.head == end || is_undoable)
}

/// The newest end of a copy that as many of them have reached as it takes. `None` if there is none.
fn end_of(needed: usize, copies: &[PgCopy]) -> Option<Version> {
    let have_reached = |end: &Version| copies.iter().filter(|copy| has_reached(copy, *end)).count();
    copies.iter().map(|copy| copy.head).filter(|end| have_reached(end) >= needed).max()
}

/// Returns the losses if a PG resumes from these copies.
fn losses(map: &ClusterMap, known: &Known<'_>, chosen: &[PgCopy]) -> Vec<String> {
    let end = end_of(known.needed(), chosen).unwrap_or_default();
    let mut losses: Vec<String> = chosen.iter().flat_map(|copy| of_chosen(known, copy)).collect();
    losses.extend(chosen.iter().filter(|copy| copy.head > end).map(|copy| undone(copy, end)));
    let is_chosen = |osd: OsdId| chosen.iter().any(|copy| copy.osd == osd);
    let others = || known.copies.iter().filter(|copy| !is_chosen(copy.osd));
    losses.extend(others().filter_map(|copy| of_other(copy, end)));
    losses.extend(of_moved(map, known));
    let acknowledged = known.copies.iter().filter_map(|copy| copy.told.as_ref());
    let acknowledged = acknowledged.map(|copy| copy.committed_sequence).max().unwrap_or_default();
    if acknowledged > end.sequence {
        losses.push(format!(
            "of the writes that are lost, those up to {acknowledged} were acknowledged for certain"
        ));
    }
    losses
}

fn of_chosen(known: &Known<'_>, copy: &PgCopy) -> Vec<String> {
    let osd = copy.osd;
    if copy.is_empty() {
        return vec![format!("{osd} has nothing: all objects of {} are lost", known.pg)];
    }
    match copy.incomplete {
        None => Vec::new(),
        Some(why @ Incompleteness::Torn) => vec![format!(
            "{osd}: {why}. The affected objects are unknown: they read as absent or with old data, and deletes \
             may be undone"
        )],
        Some(why) => {
            vec![format!("{osd}: {why}. Its newest write is {}; later acknowledged writes are lost", copy.head)]
        }
    }
}

/// Returns the loss of an accepted copy that goes back to an earlier write.
fn undone(copy: &PgCopy, end: Version) -> String {
    let count = copy.head.sequence.saturating_sub(end.sequence);
    let (osd, head) = (copy.osd, copy.head);
    format!(
        "{osd} undoes its writes after {end}, up to {head}: {count} writes are lost, which too few others have"
    )
}

/// Returns a warning about later copies of a PG that has moved since the snapshot that was restored: members do not know the
/// copies that count, and cluster state does not know OSDs that were added since.
fn of_moved(map: &ClusterMap, known: &Known<'_>) -> Option<String> {
    let reported = known.copies.iter().filter_map(|copy| copy.told.as_ref());
    let is_moved = reported.map(|copy| copy.incomplete).any(|why| why == Some(Incompleteness::Deleted));
    let down: Vec<&OsdId> = map.osds.keys().filter(|osd| !map.up.contains_key(osd)).collect();
    let others = if down.is_empty() { String::new() } else { format!(", or {}, which is down,", names(down)) };
    is_moved.then(|| {
        format!(
            "the PG has moved since the snapshot that was restored. An OSD that was added since{others} may have \
             a later copy, which is lost then: bring it back first"
        )
    })
}

/// Returns the loss of a copy that is not accepted.
fn of_other(copy: &CopyStatus, end: Version) -> Option<String> {
    let osd = copy.osd;
    match &copy.told {
        Some(told) if told.head > end => {
            let count = told.head.sequence.saturating_sub(end.sequence).max(1);
            Some(format!(
                "{osd} has writes after {end}, up to {}: {count} writes are lost, and its copy is replaced",
                told.head
            ))
        }
        Some(_) => None,
        None if copy.is_elector || copy.is_member => {
            Some(format!("{osd} is down: data that only it has is lost, and its copy is replaced when it returns"))
        }
        None => None,
    }
}

#[cfg(test)]
mod tests {
    use atoll_types::Epoch;

    use super::super::tests::{OLD, PG, TORN, copies, copy, map, osd, shards};
    use super::*;

    fn refusal(map: &ClusterMap, told: &[PgCopy], from: &[u32]) -> String {
        let from: Vec<OsdId> = from.iter().copied().map(OsdId).collect();
        plan(map, PG, told, &from).unwrap_err().to_string()
    }

    fn planned(map: &ClusterMap, told: &[PgCopy], from: &[u32]) -> Acceptance {
        let from: Vec<OsdId> = from.iter().copied().map(OsdId).collect();
        plan(map, PG, told, &from).unwrap()
    }

    #[test]
    fn unacceptable_copies_are_refused() {
        let two = map(copies(2), 2, &[0, 1]);
        let old = [copy(0, 9, OLD, None), copy(1, 7, OLD, None)];
        assert!(refusal(&two, &old, &[0, 1]).contains("not merged"));
        assert!(refusal(&two, &old, &[5]).contains("osd.5 reports nothing"));
        assert!(refusal(&two, &old[..1], &[0]).contains("osd.1 is up and does not report"));
        assert!(refusal(&two, &[copy(0, 9, None, None), old[1].clone()], &[1]).contains("resumes by itself"));
        let serving = PgCopy { state: "active".into(), ..copy(0, 9, OLD, None) };
        assert!(refusal(&two, &[serving, old[1].clone()], &[1]).contains("serves"));

        let three = map(shards(), 3, &[0, 1, 2]);
        let told = |incomplete, shard| {
            [copy(0, 9, OLD, Some(0)), copy(1, 9, incomplete, shard), copy(2, 12, None, Some(2))]
        };
        assert!(refusal(&three, &told(OLD, Some(1)), &[0]).contains("1 of the 2 shards"));
        assert!(refusal(&three, &told(TORN, Some(1)), &[0, 1]).contains("wrong data"));
        assert!(refusal(&three, &told(OLD, None), &[0, 1]).contains("wrong data"));
        assert!(refusal(&three, &told(OLD, Some(0)), &[0, 1]).contains("same shard"));
        assert!(refusal(&three, &told(OLD, Some(1)), &[1, 2]).contains("would be wrong"));
        // It does not know that its newest writes were committed, and has forgotten what was before.
        let unaware = PgCopy { committed_sequence: 9, rolls_back_to: 12, ..copy(2, 12, None, Some(2)) };
        let reported = [copy(0, 9, OLD, Some(0)), copy(1, 9, OLD, Some(1)), unaware];
        assert!(refusal(&three, &reported, &[1, 2]).contains("would be wrong"));
        let undoing = PgCopy { committed_sequence: 9, rolls_back_to: 9, ..copy(2, 12, None, Some(2)) };
        planned(&three, &[reported[0].clone(), reported[1].clone(), undoing], &[1, 2]);
        // Another write in the same place.
        let other = Version { epoch: Epoch(6), sequence: 9 };
        let diverged = PgCopy { head: other, ..copy(2, 9, OLD, Some(2)) };
        let reported = [copy(0, 9, OLD, Some(0)), copy(1, 9, OLD, Some(1)), diverged];
        assert!(refusal(&three, &reported, &[1, 2]).contains("no state in common"));
        assert!(refusal(&three, &reported, &[0, 1, 2]).contains("would be wrong"));
        planned(&three, &reported, &[0, 1]);
    }

    #[test]
    fn shards_that_can_go_back_to_one_write_are_accepted_with_the_loss() {
        let three = map(shards(), 3, &[0, 1, 2]);
        let undoing = PgCopy { committed_sequence: 9, rolls_back_to: 9, ..copy(2, 12, OLD, Some(2)) };
        let told = [copy(1, 9, OLD, Some(1)), undoing, copy(0, 4, TORN, None)];
        let command = super::super::why(&three, PG, &told).unwrap().accept_command;
        assert_eq!(command.as_deref(), Some("atoll pg accept 1.0 --from osd.1 --from osd.2"));
        let plan = planned(&three, &told, &[1, 2]);
        assert!(plan.losses.iter().any(|loss| loss.contains("osd.2 undoes its writes after")), "{plan:?}");
        assert!(plan.losses.iter().any(|loss| loss.contains("3 writes are lost")), "{plan:?}");
        // It has forgotten what was before one of its writes.
        let unable = PgCopy { rolls_back_to: 11, ..told[1].clone() };
        let told = [told[0].clone(), unable, told[2].clone()];
        assert_eq!(super::super::why(&three, PG, &told).unwrap().accept_command, None);
        assert!(refusal(&three, &told, &[1, 2]).contains("would be wrong"));
    }

    #[test]
    fn osds_that_may_have_a_later_copy_of_a_moved_pg_are_named() {
        let mut three = map(copies(2), 2, &[0, 1, 4]);
        let told = [
            copy(0, 0, Some(Incompleteness::Deleted), None),
            copy(1, 0, Some(Incompleteness::Deleted), None),
            copy(4, 9, None, None),
        ];
        let losses = planned(&three, &told, &[4]).losses;
        assert!(losses.len() == 1 && losses[0].contains("OSD that was added since may have"), "{losses:?}");
        for id in [0, 1, 4, 5] {
            three.osds.insert(OsdId(id), osd(id));
        }
        let plan = planned(&three, &told, &[4]);
        assert!(plan.losses[0].contains("or osd.5, which is down, may have a later copy"), "{plan:?}");
        assert_eq!(
            super::super::why(&three, PG, &told).unwrap().accept_command.as_deref(),
            Some("atoll pg accept 1.0 --from osd.4")
        );
    }

    #[test]
    fn losses_are_named() {
        let two = map(copies(2), 2, &[0]);
        let plan = planned(&two, &[copy(0, 9, OLD, None)], &[0]);
        assert!(plan.losses[0].contains("older copy") && plan.losses[1].contains("osd.1 is down"), "{plan:?}");
        assert_eq!(plan.record.accepted.as_ref().unwrap().copies[0].osd, OsdId(0));

        let three = map(shards(), 3, &[0, 1, 2]);
        let told = [copy(0, 9, OLD, Some(0)), copy(1, 9, OLD, Some(1)), copy(2, 12, None, Some(2))];
        let plan = planned(&three, &told, &[0, 1]);
        assert!(plan.losses.iter().any(|loss| loss.contains("3 writes are lost")), "{plan:?}");
        assert!(plan.losses.iter().any(|loss| loss.contains("up to 12 were acknowledged")), "{plan:?}");
        assert_eq!((plan.record.epoch.0, &plan.record.shards[..]), (7, &[0, 1][..]));

        let empty = copy(0, 0, Some(Incompleteness::LacksPromise), None);
        let empty = PgCopy { head: Version::default(), ..empty };
        assert!(planned(&two, &[empty], &[0]).losses[0].contains("all objects of 1.0 are lost"));
        assert!(
            planned(&two, &[copy(0, 9, TORN, None)], &[0]).losses[0].contains("The affected objects are unknown")
        );
    }
}
