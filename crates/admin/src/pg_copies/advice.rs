//! The reason why a PG does not serve, and the remedy.

use atoll_types::pg_copies::PgCopy;
use atoll_types::{OsdId, Version};

use super::acceptance::{goes_back_to, is_usable_shard};
use super::{CopyStatus, Known, names};

/// Reasons and remedies for a PG.
#[derive(Default)]
pub(super) struct Advice {
    pub waits_for: Vec<String>,
    pub advice: Vec<String>,
    pub accept_command: Option<String>,
}

pub(super) fn of(known: &Known<'_>) -> Advice {
    if known.serves() {
        return Advice::default();
    }
    if known.has_source() { with_source(known) } else { without_source(known) }
}

/// Enough copies are whole: the PG resumes by itself, if it has min_size of them.
fn with_source(known: &Known<'_>) -> Advice {
    let members = known.copies.iter().filter(|copy| copy.is_member && copy.counts());
    let (whole, min_size) = (known.count(members), known.pool.redundancy.min_size() as usize);
    let mut waits_for: Vec<String> = Vec::new();
    let mut advice = Vec::new();
    if whole < min_size {
        waits_for.push(format!(
            "{whole} {} of the {min_size} that the pool's min_size asks for are whole; others are backfilled first",
            known.parts()
        ));
        advice.push(format!(
            "start OSDs that are down, or add others: it serves when they are backfilled. If there are none, lower \
             min_size: atoll pool set {} min_size {}",
            known.pool.name,
            whole.max(known.needed())
        ));
    }
    let primary = known.copies.iter().find(|copy| copy.is_primary);
    match primary {
        Some(CopyStatus { told: Some(copy), .. }) => {
            waits_for.extend(copy.waits_for.iter().map(|what| format!("{}: {what}", copy.osd)));
        }
        Some(copy) if !copy.is_up => waits_for.push(format!("its primary {} is down", copy.osd)),
        Some(copy) => waits_for.push(format!("its primary {} does not report the reason", copy.osd)),
        None => {}
    }
    if advice.is_empty() {
        advice.push(format!(
            "this takes moments after a change. If it stays, look again, and at the log of {}",
            known.record.primary
        ));
    }
    Advice { waits_for, advice, accept_command: None }
}

/// Too few copies are whole: an operator has to bring some back, or to decide.
fn without_source(known: &Known<'_>) -> Advice {
    let electors: Vec<&CopyStatus> = known.electors().collect();
    let counting = known.count(electors.iter().copied().filter(|copy| copy.counts()));
    let mut waits_for = vec![format!(
        "{counting} {} of those that were members when it was last active {} whole; it takes {}",
        if counting == 1 { known.part() } else { known.parts() },
        if counting == 1 { "is" } else { "are" },
        known.needed()
    )];
    let mut advice = Vec::new();
    for copy in &electors {
        waits_for.extend(missing(copy));
    }
    let down: Vec<&OsdId> = electors.iter().filter(|copy| !copy.is_up).map(|copy| &copy.osd).collect();
    if !down.is_empty() {
        advice.push(format!("start {}: acknowledged writes may be there ('atoll osd ls')", names(down.clone())));
    }
    let silent: Vec<&OsdId> =
        electors.iter().filter(|copy| copy.is_up && copy.told.is_none()).map(|c| &c.osd).collect();
    if !silent.is_empty() {
        advice.push(format!("find out why {} do not report: see their logs", names(silent)));
    }
    let accept_command = best(known).map(|osds| {
        let from = osds.iter().map(|osd| format!(" --from {osd}"));
        format!("atoll pg accept {}{}", known.pg, from.collect::<String>())
    });
    advice.push(match (&accept_command, down.is_empty()) {
        (Some(command), true) => {
            format!("if no better copy can be brought back, resume the PG from the remaining ones: {command}")
        }
        (Some(command), false) => {
            format!("if they are permanently lost, resume the PG from the remaining ones: {command}")
        }
        (None, _) => "bring OSDs back: the running ones do not have enough to resume from".into(),
    });
    Advice { waits_for, advice, accept_command }
}

/// Why a copy that should have everything does not count.
fn missing(copy: &CopyStatus) -> Option<String> {
    let osd = copy.osd;
    match &copy.told {
        _ if copy.counts() => None,
        Some(PgCopy { incomplete: Some(why), .. }) => Some(format!("{osd} is incomplete: {why}")),
        Some(told) => {
            let held =
                told.shard.map_or("objects of several shards, or none".into(), |shard| format!("shard {shard}"));
            Some(format!("{osd} holds {held}, and not the shard that is listed"))
        }
        None if copy.is_up => Some(format!("{osd} is up and does not report its copy")),
        None => Some(format!("{osd} is down")),
    }
}

/// The copies from which most is left: as few as it takes.
fn best(known: &Known<'_>) -> Option<Vec<OsdId>> {
    let told = known.copies.iter().filter_map(|copy| copy.told.as_ref());
    if !known.is_coded() {
        // What is whole at an earlier time is better than what is torn at a later one.
        let quality = |copy: &&PgCopy| {
            let is_torn = copy.incomplete.is_some_and(|why| why.is_torn());
            (!copy.is_empty(), copy.incomplete.is_none(), !is_torn, copy.head)
        };
        return told.max_by_key(quality).map(|copy| vec![copy.osd]);
    }
    let mut shards: Vec<&PgCopy> = told.filter(|copy| is_usable_shard(copy)).collect();
    shards.sort_by_key(|copy| std::cmp::Reverse((copy.head, copy.incomplete.is_none())));
    let mut ends: Vec<Version> = shards.iter().map(|copy| copy.head).collect();
    ends.dedup();
    // The newest write with which enough shards end, or to which they can go back.
    ends.into_iter().find_map(|end| {
        let able = shards.iter().copied().filter(|copy| goes_back_to(copy, end));
        // Those that have nothing to undo first.
        let (at_end, after): (Vec<&PgCopy>, Vec<&PgCopy>) = able.partition(|copy| copy.head == end);
        let mut chosen: Vec<&PgCopy> = Vec::new();
        for copy in at_end.into_iter().chain(after) {
            if chosen.iter().all(|other| other.shard != copy.shard) {
                chosen.push(copy);
            }
        }
        (chosen.len() >= known.needed()).then(|| chosen.iter().map(|copy| copy.osd).collect())
    })
}
