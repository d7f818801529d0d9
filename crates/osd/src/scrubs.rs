//! When PGs are scrubbed: on a schedule, while clients leave room for it, and when
//! an operator asks. One PG at a time per OSD.
//!
//! Cluster state has the times of scrubs, because they must survive a change of primary. The times at which a PG
//! is due are fixed, a period apart and at an offset that its name gives, so that PGs are spread over the period
//! and restarts put nothing off.

use std::time::{SystemTime, UNIX_EPOCH};

use atoll_codec::crc32c;
use atoll_pg::{Pg, PgState, ScrubReport};
use atoll_store::{ScrubError, ScrubResult};
use atoll_types::records::{ClusterFlag, PgScrubRecord, RECORD_FORMAT};
use atoll_types::{OsdId, PgId, PoolId};
use atoll_wire::ScrubFinding;

use crate::context::Context;
use crate::control::ControlRequest;
use crate::invariants;
use crate::pgs::Pgs;

const DAY_MS: u64 = 24 * 60 * 60 * 1_000;
/// How often a PG has a light scrub.
const LIGHT_PERIOD_MS: u64 = DAY_MS;
/// How often it has a deep one.
const DEEP_PERIOD_MS: u64 = 7 * DAY_MS;
/// Clients' requests in a second that leave no room for a scrub that is not long overdue.
const BUSY_REQUESTS_PER_SECOND: u64 = 200;

/// The scrubs of this OSD.
pub(crate) struct Scrubs {
    /// The clock at the start: PGs without a record count as scrubbed then.
    started_unix_ms: u64,
    /// The scrub under way that this OSD leads.
    current: Option<Current>,
    requests_this_second: u64,
}

/// A scrub that is to begin.
pub(crate) struct Wanted {
    pub pg: PgId,
    pub is_deep: bool,
    /// The request that it answers, if an operator has asked for it.
    request_revision: Option<i64>,
}

struct Current {
    wanted: Wanted,
    started_unix_ms: u64,
}

fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

impl Scrubs {
    pub fn new() -> Self {
        Scrubs { started_unix_ms: unix_ms(), current: None, requests_this_second: 0 }
    }

    /// A pool was removed, and its PGs with it.
    pub fn forget_pool(&mut self, pool: PoolId) {
        self.current.take_if(|current| current.wanted.pg.pool == pool);
    }

    pub fn client_request(&mut self) {
        self.requests_this_second += 1;
    }
}

/// When the last scrub began. One that has a time to come was led by an OSD whose clock was ahead: its time is not
/// known, and until then there would be no other.
fn last_unix_ms(recorded: Option<u64>, started_unix_ms: u64, now_unix_ms: u64) -> u64 {
    match recorded.filter(|at| *at > 0) {
        Some(at) if at > now_unix_ms => 0,
        Some(at) => at,
        None => started_unix_ms.min(now_unix_ms),
    }
}

/// By how much a scrub is overdue, if it is: the first due time after the last scrub has passed.
fn overdue_ms(pg: PgId, period_ms: u64, last_unix_ms: u64, now_unix_ms: u64) -> Option<u64> {
    let name = [pg.pool.0.to_le_bytes(), pg.index.to_le_bytes()].concat();
    let offset_ms = u64::from(crc32c(&name)) % period_ms;
    let due_ms = ((last_unix_ms + offset_ms) / period_ms + 1) * period_ms - offset_ms;
    now_unix_ms.checked_sub(due_ms)
}

impl Scrubs {
    /// Once a second: the next scrub, if there is none and one is due.
    pub fn next(&mut self, context: &Context, pgs: &Pgs) -> Option<Wanted> {
        let requests = std::mem::take(&mut self.requests_this_second);
        if let Some(current) = &self.current {
            if pgs.get(current.wanted.pg).is_some_and(|pg| pg.is_scrubbing()) {
                return None;
            }
            // Its PG's configuration has changed: it begins anew when it can.
            self.current = None;
        }
        let is_busy = requests >= BUSY_REQUESTS_PER_SECOND;
        self.asked_for(context, pgs).or_else(|| self.most_overdue(context, pgs, is_busy))
    }

    /// A scrub that an operator has asked for.
    pub fn asked_for(&self, context: &Context, pgs: &Pgs) -> Option<Wanted> {
        let asked = context.map.scrub_requests.iter();
        let mut asked = asked.map(|(pg, (request, revision))| Wanted {
            pg: *pg,
            is_deep: request.is_deep,
            request_revision: Some(*revision),
        });
        asked.find(|wanted| may_scrub(pgs, wanted.pg))
    }

    /// A scrub has begun.
    pub fn started(&mut self, wanted: Wanted) {
        invariants::one_scrub_at_a_time(self.current.is_some());
        tracing::info!("pg {}: {} begins", wanted.pg, if wanted.is_deep { "deep scrub" } else { "scrub" });
        self.current = Some(Current { wanted, started_unix_ms: unix_ms() });
    }

    /// The PG here whose scheduled scrub is longest overdue, and whether it is a deep one.
    fn most_overdue(&self, context: &Context, pgs: &Pgs, is_busy: bool) -> Option<Wanted> {
        let flags = &context.map.flags.flags;
        if flags.contains_key(&ClusterFlag::NoScrub) {
            return None;
        }
        let may_be_deep = !flags.contains_key(&ClusterFlag::NoDeepScrub);
        let (now, started) = (unix_ms(), self.started_unix_ms);
        let due = pgs.ids().filter(|pg| may_scrub(pgs, *pg)).flat_map(|pg| {
            let record = context.map.pg_scrubs.get(&pg);
            let last = |time: fn(&PgScrubRecord) -> u64| last_unix_ms(record.map(time), started, now);
            let deep = overdue_ms(pg, DEEP_PERIOD_MS, last(|record| record.deep_unix_ms), now);
            let light = overdue_ms(pg, LIGHT_PERIOD_MS, last(|record| record.light_unix_ms), now);
            let deep = deep.filter(|_| may_be_deep).map(|by| (by, DEEP_PERIOD_MS, pg, true));
            [deep, light.map(|by| (by, LIGHT_PERIOD_MS, pg, false))]
        });
        let may_start = |(by_ms, period_ms, ..): &(u64, u64, PgId, bool)| !is_busy || *by_ms >= period_ms / 2;
        let next = due.flatten().filter(may_start).max_by_key(|(by_ms, _, _, is_deep)| (*is_deep, *by_ms));
        next.map(|(_, _, pg, is_deep)| Wanted { pg, is_deep, request_revision: None })
    }

    /// A PG that this OSD leads has been scrubbed, on these members. False if it is not the one that this OSD began with.
    pub fn done(&mut self, context: &mut Context, pg: PgId, members: Vec<OsdId>, report: ScrubReport) -> bool {
        let Some(current) = self.current.take_if(|current| current.wanted.pg == pg) else { return false };
        let what = if report.is_deep { "deep scrub" } else { "scrub" };
        let ScrubReport { objects, errors, repaired, .. } = report;
        if errors > 0 {
            tracing::warn!("pg {pg}: {what} of {objects} objects: {errors} with bad copies, {repaired} repaired");
        } else {
            tracing::info!("pg {pg}: {what} of {objects} objects found nothing wrong");
        }
        let before = context.map.pg_scrubs.get(&pg);
        let deep_before = before.map_or(0, |record| record.deep_unix_ms);
        // A light scrub does not see damaged blocks, so what a deep one has found stands.
        let unrepaired_before = before.filter(|_| !report.is_deep).map_or(0, |record| record.unrepaired);
        let record = PgScrubRecord {
            format: RECORD_FORMAT,
            light_unix_ms: current.started_unix_ms,
            deep_unix_ms: if report.is_deep { current.started_unix_ms } else { deep_before },
            osd: context.me(),
            is_deep: report.is_deep,
            objects,
            errors,
            repaired,
            unrepaired: unrepaired_before.max(errors - repaired),
            members,
        };
        let request_revision = current.wanted.request_revision;
        context.ask_control(ControlRequest::Scrubbed { pg, record, request_revision });
        // The request is answered, though cluster state does not say so yet.
        if context.map.scrub_requests.get(&pg).map(|(_, revision)| *revision) == request_revision {
            context.map.scrub_requests.remove(&pg);
        }
        true
    }
}

fn may_scrub(pgs: &Pgs, pg: PgId) -> bool {
    let is_ready = |pg: &Pg| *pg.state() == PgState::Active && pg.learners().next().is_none();
    pgs.get(pg).is_some_and(is_ready)
}

/// Returns a member's finding about its copy of an object. Damage is logged.
pub(crate) fn finding(pg: PgId, result: Result<ScrubResult, ScrubError>) -> ScrubFinding {
    if let Err(ScrubError::DamagedMetadata { detail }) = &result {
        tracing::warn!("pg {pg}: scrub: {detail}");
    }
    atoll_storage::finding(result)
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_types::PoolId;

    #[test]
    fn a_scrub_by_a_clock_that_was_ahead_puts_no_scrub_off() {
        let (now, pg) = (1_700_000_000_000, PgId { pool: PoolId(1), index: 0 });
        for recorded in [now + 1, now + 3_650 * DAY_MS, u64::MAX] {
            assert!(overdue_ms(pg, DAY_MS, last_unix_ms(Some(recorded), now, now), now).is_some(), "{recorded}");
        }
        assert_eq!(last_unix_ms(Some(now - 5), now - 9, now), now - 5);
        assert_eq!(last_unix_ms(Some(0), now - 9, now), now - 9, "there was none");
        assert_eq!(last_unix_ms(None, now + 9, now), now, "the clock was ahead at the start");
    }

    #[test]
    fn every_pg_is_due_once_in_a_period_and_not_all_at_once() {
        let start = 1_700_000_000_000;
        let due_at = |index: u32| {
            let pg = PgId { pool: PoolId(1), index };
            let hours = (0..=24).map(|hour| start + hour * DAY_MS / 24);
            let due = hours.filter(|now| overdue_ms(pg, DAY_MS, start, *now).is_some()).min();
            let due = due.expect("within a day");
            assert_eq!(overdue_ms(pg, DAY_MS, due, due), None, "not again at once");
            assert!(overdue_ms(pg, DAY_MS, due, due + DAY_MS).is_some());
            (due - start) / (DAY_MS / 24)
        };
        let hours: std::collections::BTreeSet<u64> = (0..256).map(due_at).collect();
        assert!(hours.len() >= 20, "{hours:?}");
    }
}
