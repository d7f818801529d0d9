//! Health problems of the cluster, their age and their remedies.

use std::collections::{BTreeMap, BTreeSet};

use atoll_types::coordination::FULL_PERCENT_DEFAULT;
pub use atoll_types::events::Severity;
use atoll_types::records::{ClusterFlag, OsdEndsRecord, OsdUsageRecord, PeerRole, PgScrubRecord};
use atoll_types::size::format_size;
use atoll_types::{OsdId, PgId};
use serde::Serialize;

use crate::pgs::{PgAvailability, PgStatus, absent, pgs_by_osd, statuses};
use crate::words::{are, count, has, its, pgs_are, takes, uses, wants, was};
use crate::{View, refused_changes, track_down, upkeep};

/// Time for which PGs may peer, in milliseconds, until that counts as not serving.
const MOMENTS_MS: u64 = 10_000;
/// Failures of an OSD within the last hour that are reported.
const FAILURES_OF_NOTE: usize = 4;

/// Something that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// Always the same for the same kind of problem.
    pub code: &'static str,
    /// How bad it is.
    pub severity: Severity,
    /// Description of the problem, in one line.
    pub summary: String,
    /// The OSDs, PGs or pools that it is about.
    pub subjects: Vec<String>,
    /// The remedy.
    pub action: String,
    /// Unix time when it was first seen, in milliseconds; none if the coordinator has not yet.
    pub since_unix_ms: Option<u64>,
}

/// The state of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum HealthStatus {
    /// Nothing is wrong.
    Ok,
    /// The worst problem is a warning.
    Warning,
    /// The worst problem is an error.
    Error,
}

/// All that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Health {
    /// The severity of the worst problem.
    pub status: HealthStatus,
    /// The problems, the worst first.
    pub problems: Vec<Problem>,
}

impl Health {
    fn new(mut problems: Vec<Problem>) -> Health {
        problems.sort_by_key(|problem| (std::cmp::Reverse(problem.severity), problem.code));
        let status = match problems.first().map(|problem| problem.severity) {
            Some(Severity::Error) => HealthStatus::Error,
            Some(Severity::Warning) => HealthStatus::Warning,
            Some(Severity::Note) | None => HealthStatus::Ok,
        };
        Health { status, problems }
    }

    /// The same with more problems.
    pub fn and(self, more: Vec<Problem>) -> Health {
        Health::new(self.problems.into_iter().chain(more).collect())
    }

    /// The health of a cluster on one host that is stopped.
    pub fn stopped(error: &str) -> Health {
        Health::new(vec![Problem {
            code: "NOT_RUNNING",
            severity: Severity::Error,
            summary: error.into(),
            subjects: Vec::new(),
            action: "'atoll up' starts it; no process of it runs, so nothing is served until then".into(),
            since_unix_ms: None,
        }])
    }

    /// The health of a cluster whose state cannot be read.
    pub fn unreachable(error: &str) -> Health {
        Health::new(vec![Problem {
            code: "STATE_UNREACHABLE",
            severity: Severity::Error,
            summary: format!("cluster state cannot be read: {error}"),
            subjects: Vec::new(),
            action:
                "check that etcd, or the embedded server of 'atoll up', runs and can be reached from here. Where \
                 OSDs run, I/O of their clients continues, but nothing can be opened, moved or repaired"
                    .into(),
            since_unix_ms: None,
        }])
    }
}

/// Returns the health of the cluster.
pub fn evaluate(view: &View, now_unix_ms: u64) -> Health {
    let pgs = statuses(&view.map);
    let mut problems = Vec::new();
    osds(view, now_unix_ms, &mut problems);
    ends(view, now_unix_ms, &mut problems);
    space(view, &mut problems);
    pg_problems(view, &pgs, now_unix_ms, &mut problems);
    cluster(view, &mut problems);
    problems.extend(refused(view, now_unix_ms));
    backups(view, &mut problems);
    problems
        .extend(view.state_size.as_ref().and_then(|size| upkeep::problem(size, view.settings.etcd_quota_bytes)));
    for problem in &mut problems {
        problem.since_unix_ms =
            problem.since_unix_ms.or_else(|| view.notes.problem_since_unix_ms.get(problem.code).copied());
    }
    Health::new(problems)
}

/// Requests that wait for moments are a warning; for longer, or everywhere, something is not served.
fn waiting(view: &View, code: &str, number: usize, all_pgs: usize, now_unix_ms: u64) -> (Severity, &'static str) {
    let since = view.notes.problem_since_unix_ms.get(code);
    let lasts = since.is_some_and(|since| now_unix_ms.saturating_sub(*since) > MOMENTS_MS);
    match lasts || number >= all_pgs {
        true => (
            Severity::Error,
            "requests wait until they serve: 'atoll pg why' names them, and 'atoll pg why PGID' shows the reason \
             and the remedy",
        ),
        false => (
            Severity::Warning,
            "this takes moments after a change; if it stays, 'atoll pg why PGID' shows the reason and the remedy",
        ),
    }
}

/// The problem of changes that were refused within the last day.
fn refused(view: &View, now_unix_ms: u64) -> Option<Problem> {
    let note = refused_changes::note(view.notes.refused_changes.as_ref(), &[], now_unix_ms)?;
    Some(Problem {
        code: "CHANGES_OF_PGS_REFUSED",
        severity: Severity::Warning,
        summary: format!("{} changes of PGs were refused: no member has signed them, and no host that decides", note.count),
        subjects: vec![note.last],
        action: "a host has written records of PGs that are not its own: find it ('atoll events', and the log of cluster \
                 state), and take its rights with 'atoll host revoke'. The PGs are as they were before"
            .into(),
        since_unix_ms: None,
    })
}

/// Hosts whose keys exist once.
fn backups(view: &View, problems: &mut Vec<Problem>) {
    let clients = view.map.authorized_keys.values().filter(|key| key.role == PeerRole::Client);
    let hosts = clients.filter_map(|key| key.name.split_once('@').map(|(_, host)| host.to_owned()));
    let without: BTreeSet<String> = hosts.filter(|host| !view.key_backups.contains(host)).collect();
    add(
        problems,
        "KEYS_NOT_BACKED_UP",
        Severity::Note,
        without.into_iter().collect(),
        |number| format!("the keys of {} exist once", count(number, "host")),
        "'atoll key backup FILE' on each, and keep the files apart from the devices: without keys/kms.json no data can \
         ever be read",
    );
}

/// The times at which the present problems were first seen, for the coordinator's notes.
pub(crate) fn since(health: &Health, now_unix_ms: u64) -> BTreeMap<String, u64> {
    let seen = |problem: &Problem| (problem.code.to_owned(), problem.since_unix_ms.unwrap_or(now_unix_ms));
    health.problems.iter().map(seen).collect()
}

/// Adds a problem if it has subjects.
fn add(
    problems: &mut Vec<Problem>,
    code: &'static str,
    severity: Severity,
    subjects: Vec<String>,
    summary: impl Fn(usize) -> String,
    action: &str,
) {
    if !subjects.is_empty() {
        problems.push(Problem {
            code,
            severity,
            summary: summary(subjects.len()),
            subjects,
            action: action.into(),
            since_unix_ms: None,
        });
    }
}

fn names(osds: impl IntoIterator<Item = OsdId>) -> Vec<String> {
    osds.into_iter().map(|osd| osd.to_string()).collect()
}

fn osds(view: &View, now_unix_ms: u64, problems: &mut Vec<Problem>) {
    let is_waited_for = |osd: &&OsdId| view.map.osds.contains_key(osd) && !view.map.up.contains_key(osd);
    let failed = view.osd_failures.iter().filter(|(osd, _)| is_waited_for(osd));
    add(
        problems,
        "OSD_CANNOT_START",
        Severity::Warning,
        failed.map(|(osd, failure)| format!("{osd}: {}", failure.reason)).collect(),
        |number| format!("{} cannot start", count(number, "OSD")),
        "follow the reason; 'atoll up' tries again every few seconds",
    );
    let map = &view.map;
    let down = track_down(map, &view.notes.down_since_unix_ms, now_unix_ms);
    let down_in = |osd: &&OsdId| map.osds.get(osd).is_some_and(|record| !record.is_out);
    let first = problems.len();
    add(
        problems,
        "OSD_DOWN",
        Severity::Warning,
        names(down.keys().filter(down_in).copied()),
        |number| format!("{} {} down", count(number, "OSD"), are(number)),
        &format!(
            "start it again ('atoll up' does so by itself; see log/osd.N.log); {}",
            match view.settings.osd_down_out_seconds {
                0 => "it is not marked out by itself ('atoll settings')".into(),
                seconds => format!("after {seconds} s it is marked out and its data is copied to others"),
            }
        ),
    );
    if let Some(problem) = problems.get_mut(first) {
        let since = view.notes.down_since_unix_ms.iter().filter(|(osd, _)| down_in(osd) && down.contains_key(osd));
        problem.since_unix_ms = since.map(|(_, since)| *since).min();
    }
    let failures = view.notes.failures_unix_ms.iter().filter(|(_, failures)| failures.len() >= FAILURES_OF_NOTE);
    add(
        problems,
        "OSD_FLAPPING",
        Severity::Warning,
        failures.map(|(osd, failures)| format!("{osd} ({} times)", failures.len())).collect(),
        |number| format!("{} failed again and again within the last hour", count(number, "OSD")),
        "see log/osd.N.log, its device and its network; 'atoll osd out N' leaves it out",
    );
    let is_out = |osd: &&OsdId| map.osds.get(osd).is_some_and(|record| record.is_out);
    add(
        problems,
        "OSD_AUTO_OUT",
        Severity::Warning,
        names(view.auto_out.keys().filter(is_out).copied()),
        |number| format!("{} {} down for too long and marked out", count(number, "OSD"), was(number)),
        "start it, and it is marked in again; if its device is lost: 'atoll osd rm N --lost'",
    );
    add(
        problems,
        "OSD_OUT",
        Severity::Note,
        names(map.osds.keys().filter(|osd| is_out(osd) && !view.auto_out.contains_key(osd)).copied()),
        |number| format!("{} {} out by an operator's wish", count(number, "OSD"), are(number)),
        "its PGs move to others ('atoll osd ls' counts them); 'atoll osd in N' marks it in again, 'atoll osd rm N' \
         removes it when nothing is left on it",
    );
    let damaged = |(osd, usage): (&OsdId, &OsdUsageRecord)| {
        (usage.corrupt_block_count > 0).then(|| format!("{osd} ({})", usage.corrupt_block_count))
    };
    add(
        problems,
        "OSD_DAMAGED_BLOCKS",
        Severity::Warning,
        members(view).filter_map(damaged).collect(),
        |number| format!("{} met damaged blocks since {} start", count(number, "OSD"), its(number)),
        "their data was read from other OSDs and written again; look at the device ('smartctl -a'), and replace it if \
         the number grows",
    );
}

/// OSDs that ended by themselves within a day: they are started again, and all looks well.
fn ends(view: &View, now_unix_ms: u64, problems: &mut Vec<Problem>) {
    let is_recent =
        |(osd, ends): &(&OsdId, &OsdEndsRecord)| view.map.osds.contains_key(osd) && ends.is_recent(now_unix_ms);
    let told = |(osd, ends): (&OsdId, &OsdEndsRecord)| {
        format!("{osd} ended {}: {}", count(ends.count as usize, "time"), ends.reason)
    };
    let subjects: Vec<String> = view.osd_ends.iter().filter(is_recent).map(told).collect();
    let summary = subjects.first().cloned().unwrap_or_default();
    add(
        problems,
        "OSD_ENDED",
        Severity::Warning,
        subjects,
        |number| match number {
            1 => summary.clone(),
            _ => format!("{number} OSDs ended by themselves, such as {summary}"),
        },
        "look at its log and its device ('smartctl -a'); if it ends again and again, replace the device ('atoll \
         osd rm N --lost'). This is reported for a day after the last time",
    );
}

/// Returns the last reports of OSDs of the cluster; records of removed OSDs do not count.
fn members(view: &View) -> impl Iterator<Item = (&OsdId, &OsdUsageRecord)> {
    view.usage.iter().filter(|(osd, _)| view.map.osds.contains_key(osd))
}

fn space(view: &View, problems: &mut Vec<Problem>) {
    let described = |(osd, usage): (&OsdId, &OsdUsageRecord)| {
        format!("{osd} ({} of {})", format_size(usage.used_bytes), format_size(usage.total_bytes))
    };
    add(
        problems,
        "OSD_FULL",
        Severity::Error,
        members(view).filter(|(_, usage)| usage.is_full && !usage.is_file_system_full).map(described).collect(),
        |number| format!("{} {} full: PGs with data there take no new data", count(number, "OSD"), are(number)),
        "delete data, add OSDs ('atoll osd create', 'atoll osd add'), or lower its weight ('atoll osd \
         reweight'); existing data can be overwritten and trimmed, and 'atoll settings set full_percent 97' \
         gives some room for a while",
    );
    add(
        problems,
        "OSD_FILE_SYSTEM_FULL",
        Severity::Error,
        members(view).filter(|(_, usage)| usage.is_file_system_full).map(described).collect(),
        |number| {
            format!(
                "{} {} no new data: the file system under {} device file is almost full",
                count(number, "OSD"),
                takes(number),
                its(number)
            )
        },
        "free space on that file system ('df -h' on the OSD's host), or give the OSD a device of its own; device files \
         are sparse, and it has less room than they may grow by",
    );
    let full_percent = view.settings.full_percent;
    if full_percent > FULL_PERCENT_DEFAULT {
        problems.push(Problem {
            code: "FULL_PERCENT_RAISED",
            severity: Severity::Warning,
            summary: format!("OSDs are filled up to {full_percent} %, and not to {FULL_PERCENT_DEFAULT} %"),
            subjects: Vec::new(),
            since_unix_ms: None,
            action: format!(
                "delete data or add OSDs, then 'atoll settings set full_percent {FULL_PERCENT_DEFAULT}': the \
                 remaining space may not suffice for recovery"
            ),
        });
    }
    let limit_percent = view.settings.near_full_percent;
    let is_near = |usage: &OsdUsageRecord| {
        u128::from(usage.used_bytes) * 100 >= u128::from(usage.total_bytes) * u128::from(limit_percent)
            && usage.total_bytes > 0
    };
    add(
        problems,
        "OSD_NEAR_FULL",
        Severity::Warning,
        members(view).filter(|(_, usage)| !usage.is_full && is_near(usage)).map(described).collect(),
        |number| {
            format!(
                "{} {} more than {limit_percent} % of {} space",
                count(number, "OSD"),
                uses(number),
                its(number)
            )
        },
        "add OSDs, or delete data, before it is full; if only one is so full, 'atoll osd reweight' it",
    );
}

fn pg_problems(view: &View, pgs: &[PgStatus], now_unix_ms: u64, problems: &mut Vec<Problem>) {
    availability(view, pgs, now_unix_ms, problems);
    reported_states(view, pgs, now_unix_ms, problems);
    redundancy(pgs, problems);
    damage(view, problems);
    missing(view, problems);
}

/// Returns the PGs that meet a condition.
fn those(pgs: &[PgStatus], holds: impl Fn(&PgStatus) -> bool) -> Vec<String> {
    pgs.iter().filter(|pg| holds(pg)).map(|pg| pg.pg.to_string()).collect()
}

fn availability(view: &View, pgs: &[PgStatus], now_unix_ms: u64, problems: &mut Vec<Problem>) {
    add(
        problems,
        "PG_INACTIVE",
        Severity::Error,
        those(pgs, |pg| pg.state == PgAvailability::Inactive),
        |number| format!("{} cannot serve: too few of their copies or shards are up", count(number, "PG")),
        "start the OSDs that are down; reads and writes wait until then. 'atoll pg why PGID' shows the reason, \
         and the remedy if an OSD is permanently lost",
    );
    let peering = those(pgs, |pg| pg.state == PgAvailability::Peering);
    let (severity, action) = waiting(view, "PG_PEERING", peering.len(), pgs.len(), now_unix_ms);
    add(
        problems,
        "PG_PEERING",
        severity,
        peering,
        |number| format!("{} {} peering: requests wait", count(number, "PG"), are(number)),
        action,
    );
}

/// Copies or shards that are missing, down, or elsewhere than planned.
fn redundancy(pgs: &[PgStatus], problems: &mut Vec<Problem>) {
    let is_short = |pg: &PgStatus| pg.state != PgAvailability::Inactive;
    add(
        problems,
        "PG_UNDERSIZED",
        Severity::Warning,
        those(pgs, |pg| is_short(pg) && pg.is_undersized),
        |number| format!("{} {} fewer copies or shards than the pool wants", count(number, "PG"), has(number)),
        "they are made by themselves where there is a failure domain for them; if it stays, add OSDs or hosts, or \
         choose a smaller size or failure domain ('atoll pool set')",
    );
    add(
        problems,
        "PG_NONE_TO_SPARE",
        Severity::Warning,
        those(pgs, |pg| is_short(pg) && pg.has_none_to_spare),
        |number| {
            format!(
                "{} {} no copy or shard to spare: with one OSD less, data is out of reach",
                count(number, "PG"),
                has(number)
            )
        },
        "start the OSDs that are down ('atoll osd ls'), or add others, before anything else",
    );
    add(
        problems,
        "PG_DEGRADED",
        Severity::Warning,
        those(pgs, |pg| is_short(pg) && !pg.is_undersized && pg.is_degraded),
        |number| format!("{} {} a member that is down", count(number, "PG"), has(number)),
        "see OSD_DOWN",
    );
    add(
        problems,
        "PG_MISPLACED",
        Severity::Note,
        those(pgs, |pg| pg.is_misplaced && !pg.is_degraded),
        |number| format!("{} {} to move to other OSDs", count(number, "PG"), are(number)),
        "nothing: data moves by itself, with nothing missing meanwhile",
    );
}

fn damage(view: &View, problems: &mut Vec<Problem>) {
    let is_damaged = |(pg, scrub): (&PgId, &PgScrubRecord)| {
        (scrub.unrepaired > 0).then(|| format!("{pg} ({} of {} objects)", scrub.unrepaired, scrub.objects))
    };
    add(
        problems,
        "PG_DAMAGED",
        Severity::Error,
        view.map.pg_scrubs.iter().filter_map(is_damaged).collect(),
        |number| {
            format!("{} {} bad copies or shards that a scrub could not repair", count(number, "PG"), has(number))
        },
        "the log of the primary names the objects and each member's copy ('atoll pg query' names the OSDs); \
         replace the device with the damage, or restore the object, then 'atoll pg scrub --deep' again",
    );
}

/// Primaries report more than records: a PG may not serve although its record does not show it. The count is that
/// of PGs whose records make an OSD the primary and that it does not report as active.
fn reported_states(view: &View, pgs: &[PgStatus], now_unix_ms: u64, problems: &mut Vec<Problem>) {
    let by_record = pgs.iter().filter(|pg| pg.state != PgAvailability::Active).count();
    let counts = pgs_by_osd(&view.map);
    let running = members(view).filter(|(osd, _)| view.map.up.contains_key(osd));
    let active = |usage: &OsdUsageRecord| -> u32 {
        let states = usage.primary_pg_states.iter();
        states.filter(|(state, _)| state.starts_with("active")).map(|(_, count)| count).sum()
    };
    let not_active = |(osd, usage): (&OsdId, &OsdUsageRecord)| {
        let (_, primaries) = counts.get(osd).copied().unwrap_or_default();
        (osd.to_string(), (primaries as u32).saturating_sub(active(usage)))
    };
    let reports: Vec<(String, u32)> = running.map(not_active).filter(|(_, number)| *number > 0).collect();
    let reported: u32 = reports.iter().map(|(_, number)| number).sum();
    if reported as usize > by_record {
        let subjects = reports.into_iter().map(|(osd, number)| format!("{osd} ({number})")).collect();
        let (severity, action) = waiting(view, "PG_NOT_ACTIVE", reported as usize, pgs.len(), now_unix_ms);
        add(
            problems,
            "PG_NOT_ACTIVE",
            severity,
            subjects,
            |_| format!("{} not active, as their primaries say", pgs_are(reported as usize)),
            action,
        );
    }
}

fn missing(view: &View, problems: &mut Vec<Problem>) {
    let (mut subjects, mut splitting, mut forgotten) = (Vec::new(), Vec::new(), Vec::new());
    for pool in view.map.pools.values() {
        let pg_num = view.map.pg_num(pool);
        if pg_num > pool.pg_num {
            forgotten.push(format!("pool '{}' ({} of {pg_num})", pool.name, pool.pg_num));
        }
        let pgs: Vec<PgId> = absent(&view.map, pool).collect();
        let are_split_off = pgs.iter().all(|pg| pg.index >= pool.pg_num_first());
        if !pgs.is_empty() {
            let list = if are_split_off { &mut splitting } else { &mut subjects };
            list.push(format!("pool '{}' ({} of {})", pool.name, pgs.len(), pool.pg_num));
        }
    }
    add(
        problems,
        "PG_SPLITTING",
        Severity::Note,
        splitting,
        |number| format!("{} {} PGs that are still to be split off", count(number, "pool"), has(number)),
        "each PG is split within moments when it is active; if this stays, look for problems of these PGs",
    );
    add(
        problems,
        "POOL_PG_NUM",
        Severity::Warning,
        forgotten,
        |number| {
            format!("{} {} fewer PGs in the record than the PGs were split to", count(number, "pool"), has(number))
        },
        "cluster state was put back from a snapshot before the last split. Their data is found; set the number again, so \
         that all PGs are split: 'atoll pool set NAME pg_num NUMBER'",
    );
    add(
        problems,
        "PG_MISSING",
        Severity::Error,
        subjects,
        |number| format!("{} {} PGs that were not made yet", count(number, "pool"), has(number)),
        "the coordinator makes them within seconds; if it stays, there are no OSDs for them, in, with weight and of the \
         pool's class (an erasure-coded pool needs as many failure domains as its min_size: 'atoll pool ls')",
    );
}

fn cluster(view: &View, problems: &mut Vec<Problem>) {
    if view.coordinator.is_none() && !view.map.up.is_empty() {
        problems.push(Problem {
            code: "NO_COORDINATOR",
            // Nothing is served less well while one is elected, which happens at every start.
            severity: Severity::Note,
            summary: "no OSD coordinates the cluster".into(),
            subjects: Vec::new(),
            action: "another takes over within 15 s; if none does, look for 'coordinator' in the logs of the OSDs"
                .into(),
            since_unix_ms: None,
        });
    }
    let flags: Vec<String> = view.map.flags.flags.keys().map(|flag| flag_name(*flag).to_owned()).collect();
    let since = view.map.flags.flags.values().min().copied();
    let first = problems.len();
    add(
        problems,
        "FLAGS_SET",
        Severity::Warning,
        flags,
        |number| format!("{} {} set", count(number, "flag"), are(number)),
        "'atoll flag ls' lists the suspended actions; 'atoll flag unset FLAG' when the work is done",
    );
    if let Some(problem) = problems.get_mut(first) {
        problem.since_unix_ms = since;
    }
    let hopeless = view.map.pools.values().filter_map(|pool| {
        let (size, parts) = (pool.redundancy.size(), pool.redundancy.part_name());
        let domains = atoll_placement::Tree::of_pool(pool, &view.map.osds).domain_count();
        let domain = format!("{:?}s", pool.failure_domain).to_lowercase();
        (domains < size as usize).then(|| format!("pool '{}' ({size} {parts}, {domains} {domain})", pool.name))
    });
    add(
        problems,
        "POOL_TOO_FEW_DOMAINS",
        Severity::Warning,
        hopeless.collect(),
        |number| {
            format!("{} {} more copies or shards than there are places for", count(number, "pool"), wants(number))
        },
        "add OSDs in other failure domains, or choose a smaller failure domain, or a smaller size of a replicated pool \
         ('atoll pool set')",
    );
}

/// A flag as operators write it.
pub fn flag_name(flag: ClusterFlag) -> &'static str {
    match flag {
        ClusterFlag::NoOut => "noout",
        ClusterFlag::NoBackfill => "nobackfill",
        ClusterFlag::NoRebalance => "norebalance",
        ClusterFlag::NoScrub => "noscrub",
        ClusterFlag::NoDeepScrub => "nodeepscrub",
    }
}
