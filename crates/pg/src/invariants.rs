//! Invariants of a PG, a sentence each. A failed check is a defect of this crate, so it panics, in release builds
//! too. Bytes from disks, peers and clients are never checked here: those are errors. docs/reference/protocol.md
//! names the check beside each rule, docs/internals/invariants.md says where each is asserted. The simulator
//! checks invariants that no single member can see.

use std::collections::BTreeSet;

use crate::config::Configuration;
use atoll_types::records::PgRecord;
use atoll_types::{Epoch, ObjectName, OsdId, PgId, Version};

// ---- replication --------------------------------------------------------------------------------

/// A write's sequence follows the newest write of the history.
pub(crate) fn write_follows_history(last_sequence: u64, version: Version) {
    assert!(
        version.sequence == last_sequence + 1,
        "write_follows_history: {version} behind sequence {last_sequence}"
    );
}

/// Writes in flight have consecutive sequences, and epochs that do not fall.
pub(crate) fn writes_in_flight_are_contiguous(last: Option<Version>, version: Version) {
    let follows = |last: Version| last.sequence + 1 == version.sequence && last.epoch <= version.epoch;
    assert!(last.is_none_or(follows), "writes_in_flight_are_contiguous: {version} behind {last:?}");
}

/// No more writes are in flight than the limit says.
pub(crate) fn writes_in_flight_are_bounded(in_flight: usize, max: usize) {
    assert!(in_flight < max, "writes_in_flight_are_bounded: {in_flight} are, of {max}");
}

/// A write is ordered only while the primary is active and the view shows all writes before it.
pub(crate) fn write_is_ordered_while_active(is_active: bool, view_is_current: bool) {
    assert!(is_active && view_is_current, "write_is_ordered_while_active: {is_active}, {view_is_current}");
}

/// An object does not change while it is copied to a learner.
pub(crate) fn object_stays_while_it_is_copied(object: &ObjectName, is_copied: bool) {
    assert!(!is_copied, "object_stays_while_it_is_copied: a write of '{object}' is ordered");
}

/// A write is answered after every member has made it durable.
pub(crate) fn write_is_answered_when_durable(version: Version, missing: &[OsdId]) {
    assert!(missing.is_empty(), "write_is_answered_when_durable: {version} is missing on {missing:?}");
}

/// No write is acknowledged while the PG is not active.
pub(crate) fn write_is_acknowledged_while_active(is_active: bool) {
    assert!(is_active, "write_is_acknowledged_while_active");
}

/// When all members share one history, the primary's head covers every write that was in flight.
pub(crate) fn head_covers_what_was_ordered(head: Version, ordered: Version) {
    assert!(ordered <= head, "head_covers_what_was_ordered: {ordered} beyond {head}");
}

/// A client's read begins, and a refusal is given, only at an active primary that holds leases of
/// all other members.
pub(crate) fn read_begins_under_leases(holds_leases: bool) {
    assert!(holds_leases, "read_begins_under_leases");
}

/// No more requests wait than the limit says.
pub(crate) fn waiting_requests_are_bounded(waiting: usize, max: usize) {
    assert!(waiting < max, "waiting_requests_are_bounded: {waiting} do, of {max}");
}

/// Only outcomes are remembered that a client may still ask for.
pub(crate) fn outcomes_are_still_wanted(first_remembered: Option<u64>, answered_below: u64) {
    assert!(
        first_remembered.is_none_or(|first| first >= answered_below),
        "outcomes_are_still_wanted: {first_remembered:?} below {answered_below}"
    );
}

/// When a PG becomes active, the known outcomes of requests reach to the end of its history.
pub(crate) fn outcomes_follow_the_history(followed: Version, last_sequence: u64) {
    assert!(
        followed.sequence == last_sequence,
        "outcomes_follow_the_history: up to {followed}, and it ends at {last_sequence}"
    );
}

// ---- membership and peering ---------------------------------------------------------------------

/// Members differ, the primary is one of them, and each holds one shard of the code.
pub(crate) fn record_is_well_formed(record: &PgRecord, shards: Option<u8>) {
    let members: BTreeSet<OsdId> = record.members.iter().copied().collect();
    assert!(members.len() == record.members.len(), "record_is_well_formed: members twice in {record:?}");
    assert!(members.contains(&record.primary), "record_is_well_formed: the primary is no member of {record:?}");
    let of_code = match shards {
        None => record.shards.is_empty(),
        Some(count) => {
            record.shards.len() == record.members.len() && record.shards.iter().all(|shard| *shard < count)
        }
    };
    assert!(of_code, "record_is_well_formed: shards in {record:?}");
}

/// A new configuration has a higher epoch than the one in force and the one promised.
pub(crate) fn proposal_raises_the_epoch(proposed: Epoch, in_force: Epoch, promised: Epoch) {
    assert!(
        proposed > in_force && proposed > promised,
        "proposal_raises_the_epoch: {proposed:?} after {in_force:?}, promised {promised:?}"
    );
}

/// A new configuration has enough electors to hold everything that was acknowledged.
pub(crate) fn proposal_keeps_what_was_acknowledged(config: &Configuration, members: &[OsdId]) {
    let electors = members.iter().filter(|osd| config.electors().contains(osd));
    assert!(
        config.copies_on(electors) >= config.copies_needed(),
        "proposal_keeps_what_was_acknowledged: {members:?} after {:?}",
        config.record
    );
}

/// A new configuration adds only electors and learners that are complete.
pub(crate) fn proposal_adds_only_complete_copies(
    config: &Configuration,
    members: &[OsdId],
    is_ready: impl Fn(OsdId) -> bool,
) {
    for osd in members {
        let had_copy = config.record.members.contains(osd) || config.electors().contains(osd);
        assert!(had_copy || is_ready(*osd), "proposal_adds_only_complete_copies: {osd} after {:?}", config.record);
    }
}

/// A primary peers only under an epoch that it proposed itself since it started.
pub(crate) fn primary_peers_under_its_own_epoch(proposed: Option<Epoch>, epoch: Epoch) {
    assert!(proposed == Some(epoch), "primary_peers_under_its_own_epoch: {proposed:?}, {epoch:?}");
}

/// While a PG peers, no elector has a newer history than the one that leads.
pub(crate) fn newest_elector_leads<'a>(
    config: &Configuration,
    own: Version,
    heads: impl Iterator<Item = (&'a OsdId, &'a Version)>,
) {
    for (osd, head) in heads.filter(|(osd, _)| config.electors().contains(osd)) {
        assert!(*head <= own, "newest_elector_leads: {osd} has {head}, the primary {own}");
    }
}

/// A primary that peers hands over to an elector only.
pub(crate) fn elector_takes_over(config: &Configuration, osd: OsdId) {
    assert!(config.electors().contains(&osd), "elector_takes_over: {osd} after {:?}", config.record);
}

/// While a PG peers, members catch up one after the other.
pub(crate) fn members_catch_up_one_by_one(osd: OsdId, others_catch_up: bool) {
    assert!(!others_catch_up, "members_catch_up_one_by_one: {osd}");
}

/// Before a PG serves, every member has the primary's head.
pub(crate) fn members_share_one_head<'a>(own: Version, heads: impl Iterator<Item = Option<&'a Version>>) {
    for head in heads {
        assert!(head == Some(&own), "members_share_one_head: {head:?}, the primary has {own}");
    }
}

/// No write is rolled back that is known to be committed.
pub(crate) fn committed_writes_stay(committed_sequence: u64, head: Version) {
    assert!(
        committed_sequence <= head.sequence,
        "committed_writes_stay: {committed_sequence} is, and the history is to end with {head}"
    );
}

/// A primary serves only after its roll back is durable.
pub(crate) fn nothing_is_rolled_back_while_serving(is_rolling_back: bool) {
    assert!(!is_rolling_back, "nothing_is_rolled_back_while_serving");
}

/// No two writes that can be rolled back have pre-image clones of one name.
pub(crate) fn pre_image_clone_is_new(name: &ObjectName, is_kept: bool) {
    assert!(!is_kept, "pre_image_clone_is_new: '{name}'");
}

/// A PG serves with at least min_size copies, or shards.
pub(crate) fn enough_members_serve(config: &Configuration) {
    assert!(config.may_serve(), "enough_members_serve: {:?}", config.record);
}

/// The primary of an erasure-coded PG holds the shard that the record lists.
pub(crate) fn primary_holds_the_listed_shard(held: Option<u8>, listed: Option<u8>) {
    assert!(held == listed, "primary_holds_the_listed_shard: {held:?}, not {listed:?}");
}

/// The shell has loaded a PG's own object, which holds the promise, before it makes the PG.
pub(crate) fn own_object_is_loaded(pg: PgId, is_loaded: bool) {
    assert!(is_loaded, "own_object_is_loaded: {pg}");
}

/// Each promise is of a higher epoch than the one before.
pub(crate) fn promises_only_rise(promised: Epoch, epoch: Epoch) {
    assert!(epoch > promised, "promises_only_rise: {epoch:?} after {promised:?}");
}

/// A copy follows an operator's decision with its first promise of that epoch or a later one: never again, and
/// never after it has continued without the decision.
pub(crate) fn decision_is_followed_once(promised: Epoch, decided: Epoch) {
    assert!(decided > promised, "decision_is_followed_once: {decided:?}, promised {promised:?}");
}

/// The history of an accepted shard stays, since other shards are compared by it.
pub(crate) fn shards_keep_their_history(is_shard: bool) {
    assert!(!is_shard, "shards_keep_their_history");
}

/// A primary is answered only when the promise is durable and no lease binds this OSD to another.
pub(crate) fn answer_rests_on_a_durable_promise(is_durable: bool, is_bound: bool) {
    assert!(is_durable && !is_bound, "answer_rests_on_a_durable_promise: {is_durable}, bound {is_bound}");
}

/// A primary is answered only when the copy matches its history.
pub(crate) fn answer_rests_on_a_finished_copy(moves_objects: bool) {
    assert!(!moves_objects, "answer_rests_on_a_finished_copy");
}

/// A lease binds for longer than it is relied on, though clocks differ in rate by a tenth.
pub(crate) fn lease_binds_longer_than_it_is_relied_on(granted_ms: u64, held_ms: u64) {
    assert!(held_ms * 10 <= granted_ms * 9, "lease_binds_longer_than_it_is_relied_on: {granted_ms}, {held_ms}");
}

// ---- backfill, split, scrub, stray copies -------------------------------------------------------

/// Parts of an object for a staged member go to the object's other name.
pub(crate) fn staged_parts_change_no_object(object: &ObjectName, staged: Option<&ObjectName>) {
    assert!(staged.is_some_and(|staged| staged != object), "staged_parts_change_no_object: {object}, {staged:?}");
}

/// An OSD heeds a backfill only under the epoch that it promised last.
pub(crate) fn backfill_is_of_the_promised_epoch(promised: Epoch, epoch: Epoch) {
    assert!(epoch == promised, "backfill_is_of_the_promised_epoch: {epoch:?}, promised {promised:?}");
}

/// An object is copied to a learner once at a time.
pub(crate) fn object_is_copied_once(object: &ObjectName, was_on_its_way: bool) {
    assert!(!was_on_its_way, "object_is_copied_once: '{object}'");
}

/// The next part of an object is read when the one before is durable at the learner.
pub(crate) fn object_is_read_part_by_part(object: &ObjectName, is_being_read: bool) {
    assert!(!is_being_read, "object_is_read_part_by_part: '{object}'");
}

/// No two learners get the same shard.
pub(crate) fn learners_get_different_shards(shard: u8, mut others: impl Iterator<Item = u8>) {
    assert!(others.all(|other| other != shard), "learners_get_different_shards: {shard}");
}

/// A learner hears that it is complete when it lacks nothing.
pub(crate) fn complete_learner_lacks_nothing(osd: OsdId, lacks_any: bool) {
    assert!(!lacks_any, "complete_learner_lacks_nothing: {osd}");
}

/// A split is ordered while no write is in flight.
pub(crate) fn split_is_ordered_alone(has_none_in_flight: bool) {
    assert!(has_none_in_flight, "split_is_ordered_alone");
}

/// A split is put into cluster state when all members have it.
pub(crate) fn split_is_proposed_when_all_have_it(is_active: bool, is_in_flight: bool) {
    assert!(is_active && !is_in_flight, "split_is_proposed_when_all_have_it: {is_active}, {is_in_flight}");
}

/// Only an active primary scrubs, and none whose store has refused a write.
pub(crate) fn scrub_runs_while_active(is_active: bool, is_whole: bool) {
    assert!(is_active && is_whole, "scrub_runs_while_active: {is_active}, whole: {is_whole}");
}

/// An object is examined while no write of it is in flight.
pub(crate) fn examined_object_is_quiet(object: &ObjectName, is_written: bool) {
    assert!(!is_written, "examined_object_is_quiet: '{object}'");
}

/// No more objects are examined or repaired at once than the limit says.
pub(crate) fn scrub_rounds_are_bounded(rounds: usize, max: usize) {
    assert!(rounds <= max, "scrub_rounds_are_bounded: {rounds} of {max}");
}

/// An object is examined and repaired no more often than the limits say.
pub(crate) fn scrub_attempts_are_bounded(object: &ObjectName, attempts: u32, max: u32) {
    assert!(attempts <= max, "scrub_attempts_are_bounded: {attempts} of {max} for '{object}'");
}

/// A copy is deleted only on an OSD that is neither a member, nor an elector, nor a target.
pub(crate) fn only_stray_copies_are_deleted(config: &Configuration) {
    let record = &config.record;
    let is_used = [&record.members, &record.last_active_members, &config.target]
        .iter()
        .any(|osds| osds.contains(&config.me));
    assert!(!is_used, "only_stray_copies_are_deleted: {} in {record:?}", config.me);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use atoll_types::{PgId, PoolId};

    use super::*;
    use crate::config::{PgState, PoolPolicy};

    fn version(sequence: u64) -> Version {
        Version { epoch: Epoch(1), sequence }
    }

    fn config(members: &[u32]) -> Configuration {
        let members: Vec<OsdId> = members.iter().copied().map(OsdId).collect();
        let record = PgRecord {
            format: atoll_types::records::RECORD_FORMAT,
            epoch: Epoch(3),
            primary: members[0],
            last_active_members: members.clone(),
            activated_epoch: Epoch(3),
            pg_num: 0,
            shards: Vec::new(),
            last_active_shards: Vec::new(),
            accepted: None,
            members,
        };
        let policy =
            PoolPolicy { pg_num: 1, pg_num_first: 1, size: 3, min_size: 2, may_backfill: true, shape: None };
        let id = PgId { pool: PoolId(1), index: 0 };
        let (target, state) = (record.members.clone(), PgState::Active);
        Configuration { id, me: OsdId(1), policy, target, state, record, pg_num_noted: 0, elsewhere: Epoch(0) }
    }

    type Violation<'a> = (&'a str, Box<dyn Fn() + 'a>);

    /// The check of its name catches each deliberate violation.
    #[test]
    fn every_violation_is_caught() {
        let object = ObjectName::new("object").unwrap();
        let one = config(&[1]);
        let twice = config(&[1, 1]).record;
        let mut foreign = config(&[1, 2]).record;
        foreign.primary = OsdId(3);
        let mut without_shards = config(&[1, 2]).record;
        without_shards.shards = vec![0, 5];
        let violations: Vec<Violation> = vec![
            ("write_follows_history", Box::new(|| write_follows_history(4, version(6)))),
            ("write_follows_history", Box::new(|| write_follows_history(4, version(4)))),
            (
                "writes_in_flight_are_contiguous",
                Box::new(|| writes_in_flight_are_contiguous(Some(version(4)), version(6))),
            ),
            (
                "writes_in_flight_are_contiguous",
                Box::new(|| {
                    let newer = Version { epoch: Epoch(2), sequence: 4 };
                    writes_in_flight_are_contiguous(Some(newer), version(5));
                }),
            ),
            ("writes_in_flight_are_bounded", Box::new(|| writes_in_flight_are_bounded(256, 256))),
            ("write_is_ordered_while_active", Box::new(|| write_is_ordered_while_active(false, true))),
            ("write_is_ordered_while_active", Box::new(|| write_is_ordered_while_active(true, false))),
            ("object_stays_while_it_is_copied", Box::new(|| object_stays_while_it_is_copied(&object, true))),
            (
                "write_is_answered_when_durable",
                Box::new(|| write_is_answered_when_durable(version(1), &[OsdId(2)])),
            ),
            ("write_is_acknowledged_while_active", Box::new(|| write_is_acknowledged_while_active(false))),
            ("head_covers_what_was_ordered", Box::new(|| head_covers_what_was_ordered(version(4), version(5)))),
            ("read_begins_under_leases", Box::new(|| read_begins_under_leases(false))),
            ("waiting_requests_are_bounded", Box::new(|| waiting_requests_are_bounded(4096, 4096))),
            ("outcomes_are_still_wanted", Box::new(|| outcomes_are_still_wanted(Some(3), 4))),
            ("outcomes_follow_the_history", Box::new(|| outcomes_follow_the_history(version(3), 4))),
            ("record_is_well_formed", Box::new(|| record_is_well_formed(&twice, None))),
            ("record_is_well_formed", Box::new(|| record_is_well_formed(&foreign, None))),
            ("record_is_well_formed", Box::new(|| record_is_well_formed(&without_shards, Some(3)))),
            ("record_is_well_formed", Box::new(|| record_is_well_formed(&without_shards, None))),
            ("proposal_raises_the_epoch", Box::new(|| proposal_raises_the_epoch(Epoch(3), Epoch(3), Epoch(0)))),
            ("proposal_raises_the_epoch", Box::new(|| proposal_raises_the_epoch(Epoch(4), Epoch(3), Epoch(4)))),
            (
                "proposal_keeps_what_was_acknowledged",
                Box::new(|| proposal_keeps_what_was_acknowledged(&one, &[OsdId(2)])),
            ),
            (
                "proposal_adds_only_complete_copies",
                Box::new(|| proposal_adds_only_complete_copies(&one, &[OsdId(1), OsdId(2)], |_| false)),
            ),
            (
                "primary_peers_under_its_own_epoch",
                Box::new(|| primary_peers_under_its_own_epoch(Some(Epoch(2)), Epoch(3))),
            ),
            (
                "members_share_one_head",
                Box::new(|| members_share_one_head(version(4), [Some(&version(3))].into_iter())),
            ),
            ("members_share_one_head", Box::new(|| members_share_one_head(version(4), [None].into_iter()))),
            (
                "newest_elector_leads",
                Box::new(|| newest_elector_leads(&one, version(4), [(&OsdId(1), &version(5))].into_iter())),
            ),
            ("elector_takes_over", Box::new(|| elector_takes_over(&one, OsdId(2)))),
            (
                "backfill_is_of_the_promised_epoch",
                Box::new(|| backfill_is_of_the_promised_epoch(Epoch(4), Epoch(3))),
            ),
            ("pre_image_clone_is_new", Box::new(|| pre_image_clone_is_new(&object, true))),
            ("members_catch_up_one_by_one", Box::new(|| members_catch_up_one_by_one(OsdId(2), true))),
            (
                "lease_binds_longer_than_it_is_relied_on",
                Box::new(|| lease_binds_longer_than_it_is_relied_on(1_000, 901)),
            ),
            ("committed_writes_stay", Box::new(|| committed_writes_stay(5, version(4)))),
            ("nothing_is_rolled_back_while_serving", Box::new(|| nothing_is_rolled_back_while_serving(true))),
            ("enough_members_serve", Box::new(|| enough_members_serve(&one))),
            ("primary_holds_the_listed_shard", Box::new(|| primary_holds_the_listed_shard(Some(3), Some(2)))),
            ("decision_is_followed_once", Box::new(|| decision_is_followed_once(Epoch(3), Epoch(3)))),
            ("shards_keep_their_history", Box::new(|| shards_keep_their_history(true))),
            ("promises_only_rise", Box::new(|| promises_only_rise(Epoch(3), Epoch(3)))),
            ("answer_rests_on_a_durable_promise", Box::new(|| answer_rests_on_a_durable_promise(false, false))),
            ("answer_rests_on_a_durable_promise", Box::new(|| answer_rests_on_a_durable_promise(true, true))),
            ("answer_rests_on_a_finished_copy", Box::new(|| answer_rests_on_a_finished_copy(true))),
            ("staged_parts_change_no_object", Box::new(|| staged_parts_change_no_object(&object, None))),
            ("object_is_copied_once", Box::new(|| object_is_copied_once(&object, true))),
            ("object_is_read_part_by_part", Box::new(|| object_is_read_part_by_part(&object, true))),
            ("learners_get_different_shards", Box::new(|| learners_get_different_shards(1, [0, 1].into_iter()))),
            ("complete_learner_lacks_nothing", Box::new(|| complete_learner_lacks_nothing(OsdId(2), true))),
            ("split_is_ordered_alone", Box::new(|| split_is_ordered_alone(false))),
            ("split_is_proposed_when_all_have_it", Box::new(|| split_is_proposed_when_all_have_it(true, true))),
            ("split_is_proposed_when_all_have_it", Box::new(|| split_is_proposed_when_all_have_it(false, false))),
            ("scrub_attempts_are_bounded", Box::new(|| scrub_attempts_are_bounded(&object, 4, 3))),
            ("scrub_runs_while_active", Box::new(|| scrub_runs_while_active(false, true))),
            ("scrub_runs_while_active", Box::new(|| scrub_runs_while_active(true, false))),
            ("examined_object_is_quiet", Box::new(|| examined_object_is_quiet(&object, true))),
            ("scrub_rounds_are_bounded", Box::new(|| scrub_rounds_are_bounded(5, 4))),
            ("only_stray_copies_are_deleted", Box::new(|| only_stray_copies_are_deleted(&one))),
            ("own_object_is_loaded", Box::new(|| own_object_is_loaded(one.id, false))),
        ];
        for (name, violation) in violations {
            let panic = catch_unwind(AssertUnwindSafe(violation)).expect_err(name);
            let text = panic.downcast_ref::<String>().map_or_else(
                || panic.downcast_ref::<&str>().map(|text| (*text).to_owned()).unwrap_or_default(),
                Clone::clone,
            );
            assert!(text.starts_with(name), "{name} says {text}");
        }
    }

    /// The files of a row of docs/internals/invariants.md are relative to the workspace or to this
    /// crate.
    fn source(file: &str) -> String {
        let here = env!("CARGO_MANIFEST_DIR");
        let found = [format!("{here}/../../{file}"), format!("{here}/src/{file}")].into_iter();
        found.filter_map(|path| std::fs::read_to_string(path).ok()).next().unwrap_or_default()
    }

    /// The words between backquotes.
    fn quoted(text: &str) -> Vec<&str> {
        text.split('`').skip(1).step_by(2).collect()
    }

    /// Checks, with the files that the page names for each.
    fn documented() -> BTreeMap<String, Vec<String>> {
        let page = source("docs/internals/invariants.md");
        let rows = page.lines().filter(|line| line.starts_with('|'));
        let rows = rows.map(|line| quoted(line).into_iter().map(str::to_owned).collect::<Vec<_>>());
        rows.filter(|row| row.len() > 1).map(|row| (row[0].clone(), row[1..].to_vec())).collect()
    }

    #[test]
    fn every_check_is_documented_and_violated() {
        let (documented, code) = (documented(), include_str!("invariants.rs"));
        let checks = code.lines().filter_map(|line| line.strip_prefix("pub(crate) fn "));
        for check in checks.map(|line| line.split(['(', '<']).next().unwrap()) {
            assert!(documented.contains_key(check), "docs/internals/invariants.md lacks '{check}'");
            assert!(code.contains(&format!("\"{check}\",")), "no violation of '{check}' is tried");
        }
    }

    #[test]
    fn documented_checks_exist() {
        let documented = documented();
        assert!(documented.len() > 50, "{} checks", documented.len());
        for (check, files) in &documented {
            for file in files {
                let source = source(file);
                let is_there = [format!("{check}("), format!("{check}<")].iter().any(|name| source.contains(name));
                assert!(is_there, "'{check}' is not in {file}");
            }
        }
        for name in quoted(&source("docs/reference/protocol.md")) {
            if let Some(check) = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')) {
                assert!(documented.contains_key(check), "docs/internals/invariants.md lacks '{check}'");
            }
        }
    }
}
