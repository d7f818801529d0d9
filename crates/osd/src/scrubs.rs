//! When placement groups are scrubbed: on a schedule, while clients leave room for it, and when
//! somebody asks. One group at a time per OSD.
//!
//! What was scrubbed when is in cluster state, because it must survive a change of primary. The
//! times at which a group is due are fixed, a period apart and at an offset that its name gives, so
//! that groups are spread over the period and restarts put nothing off.

use std::time::{SystemTime, UNIX_EPOCH};

use atoll_base::records::{ClusterFlag, PgScrubRecord, RECORD_FORMAT};
use atoll_base::{ObjectName, PgId, PoolId, crc32c};
use atoll_pg::{PgState, ScrubReport, Token};
use atoll_store::{ObjectKey, ScrubError, ScrubResult};
use atoll_wire::{ScrubFinding, ShardOf};

use crate::control::ControlRequest;
use crate::daemon::Osd;

const DAY_MS: u64 = 24 * 60 * 60 * 1_000;
/// How often a group has a light scrub.
const LIGHT_PERIOD_MS: u64 = DAY_MS;
/// How often it has a deep one.
const DEEP_PERIOD_MS: u64 = 7 * DAY_MS;
/// So many requests of clients in a second leave no room for a scrub that is not long overdue.
const BUSY_REQUESTS_PER_SECOND: u64 = 200;

/// The scrubs of this OSD.
pub(crate) struct Scrubs {
    /// The clock at the start: what has no record yet counts as scrubbed then.
    started_unix_ms: u64,
    /// The scrub under way that this OSD leads, with its start and the request that it answers.
    current: Option<Current>,
    requests_this_second: u64,
}

struct Current {
    pg: PgId,
    started_unix_ms: u64,
    request_revision: Option<i64>,
}

fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

impl Scrubs {
    pub fn new() -> Self {
        Scrubs { started_unix_ms: unix_ms(), current: None, requests_this_second: 0 }
    }

    /// A pool was removed, and its groups with it.
    pub fn forget_pool(&mut self, pool: PoolId) {
        self.current.take_if(|current| current.pg.pool == pool);
    }

    pub fn client_request(&mut self) {
        self.requests_this_second += 1;
    }
}

/// By how much a scrub is overdue, if it is: the first due time after the last scrub has passed.
fn overdue_ms(pg: PgId, period_ms: u64, last_unix_ms: u64, now_unix_ms: u64) -> Option<u64> {
    let name = [pg.pool.0.to_le_bytes(), pg.index.to_le_bytes()].concat();
    let offset_ms = u64::from(crc32c(&name)) % period_ms;
    let due_ms = ((last_unix_ms + offset_ms) / period_ms + 1) * period_ms - offset_ms;
    now_unix_ms.checked_sub(due_ms)
}

impl Osd {
    /// Once a second: starts the next scrub if there is none and one is due.
    pub(crate) fn look_after_scrubs(&mut self) {
        let requests = std::mem::take(&mut self.scrubs.requests_this_second);
        if let Some(current) = &self.scrubs.current {
            if self.pgs.get(&current.pg).is_some_and(|group| group.is_scrubbing()) {
                return;
            }
            // Its group's configuration has changed: it begins anew when it can.
            self.scrubs.current = None;
        }
        let is_busy = requests >= BUSY_REQUESTS_PER_SECOND;
        let next = self.asked_for().or_else(|| self.most_overdue(is_busy));
        self.start_scrub(next);
    }

    /// A scrub that somebody has asked for, and the request.
    fn asked_for(&self) -> Option<(PgId, bool, Option<i64>)> {
        let asked = self.map.scrub_requests.iter();
        let mut asked = asked.map(|(pg, (request, revision))| (*pg, request.is_deep, Some(*revision)));
        asked.find(|(pg, ..)| self.may_scrub(*pg))
    }

    fn start_scrub(&mut self, next: Option<(PgId, bool, Option<i64>)>) {
        let Some((pg, is_deep, request_revision)) = next else { return };
        let mut has_started = false;
        self.with_group(pg, |group, _| has_started = group.start_scrub(is_deep));
        if has_started {
            tracing::info!("pg {pg}: {} begins", if is_deep { "deep scrub" } else { "scrub" });
            let started_unix_ms = unix_ms();
            self.scrubs.current = Some(Current { pg, started_unix_ms, request_revision });
        }
    }

    fn may_scrub(&self, pg: PgId) -> bool {
        let is_ready =
            |group: &atoll_pg::Pg| *group.state() == PgState::Active && group.learners().next().is_none();
        self.pgs.get(&pg).is_some_and(is_ready)
    }

    /// The group here whose scheduled scrub is longest overdue, and whether it is a deep one.
    fn most_overdue(&self, is_busy: bool) -> Option<(PgId, bool, Option<i64>)> {
        let flags = &self.map.flags.flags;
        if flags.contains_key(&ClusterFlag::NoScrub) {
            return None;
        }
        let may_be_deep = !flags.contains_key(&ClusterFlag::NoDeepScrub);
        let (now, started) = (unix_ms(), self.scrubs.started_unix_ms);
        let groups = self.pgs.keys().copied().filter(|pg| self.may_scrub(*pg));
        let due = groups.flat_map(|pg| {
            let record = self.map.pg_scrubs.get(&pg);
            let last = |time: fn(&PgScrubRecord) -> u64| record.map(time).filter(|at| *at > 0).unwrap_or(started);
            let deep = overdue_ms(pg, DEEP_PERIOD_MS, last(|record| record.deep_unix_ms), now);
            let light = overdue_ms(pg, LIGHT_PERIOD_MS, last(|record| record.light_unix_ms), now);
            let deep = deep.filter(|_| may_be_deep).map(|by| (by, DEEP_PERIOD_MS, pg, true));
            [deep, light.map(|by| (by, LIGHT_PERIOD_MS, pg, false))]
        });
        let may_start = |(by_ms, period_ms, ..): &(u64, u64, PgId, bool)| !is_busy || *by_ms >= period_ms / 2;
        let next = due.flatten().filter(may_start).max_by_key(|(by_ms, _, _, is_deep)| (*is_deep, *by_ms));
        next.map(|(_, _, pg, is_deep)| (pg, is_deep, None))
    }

    /// A group that this OSD leads has been scrubbed.
    pub(crate) fn scrub_done(&mut self, pg: PgId, report: ScrubReport) {
        let Some(current) = self.scrubs.current.take_if(|current| current.pg == pg) else { return };
        let what = if report.is_deep { "deep scrub" } else { "scrub" };
        let ScrubReport { objects, errors, repaired, .. } = report;
        if errors > 0 {
            tracing::warn!("pg {pg}: {what} of {objects} objects: {errors} with bad copies, {repaired} repaired");
        } else {
            tracing::info!("pg {pg}: {what} of {objects} objects found nothing wrong");
        }
        let before = self.map.pg_scrubs.get(&pg);
        let deep_before = before.map_or(0, |record| record.deep_unix_ms);
        // A light scrub does not see damaged blocks, so what a deep one has found stands.
        let unrepaired_before = before.filter(|_| !report.is_deep).map_or(0, |record| record.unrepaired);
        let record = PgScrubRecord {
            format: RECORD_FORMAT,
            light_unix_ms: current.started_unix_ms,
            deep_unix_ms: if report.is_deep { current.started_unix_ms } else { deep_before },
            osd: self.config.id,
            is_deep: report.is_deep,
            objects,
            errors,
            repaired,
            unrepaired: unrepaired_before.max(errors - repaired),
        };
        let request_revision = current.request_revision;
        // The control thread ends only with the process.
        let _ = self.control.requests.send(ControlRequest::Scrubbed { pg, record, request_revision });
        // The request is answered, though cluster state does not say so yet.
        if self.map.scrub_requests.get(&pg).map(|(_, revision)| *revision) == request_revision {
            self.map.scrub_requests.remove(&pg);
        }
        self.start_scrub(self.asked_for());
    }

    pub(crate) fn start_object_scrub(&mut self, pg: PgId, token: Token, object: ObjectName, deep: bool) {
        let id = self.store.scrub(ObjectKey { pg, name: object }, deep);
        self.object_scrubs.insert(id, (pg, token));
    }

    pub(crate) fn object_scrubbed(&mut self, id: u64, result: Result<ScrubResult, ScrubError>) {
        let (pg, token) = self.object_scrubs.remove(&id).expect("results belong to scrubs");
        let finding = match result {
            Ok(found) => ScrubFinding::Present {
                version: found.version,
                size_bytes: found.size_bytes,
                digest: found.digest,
                bad_block_count: found.bad_blocks.len() as u32,
                shard_of: found.whole_bytes.map(|object_bytes| {
                    let (seal_unit_bytes, seal_bytes) = found.seal_shape.unwrap_or_default();
                    ShardOf { object_bytes, seal_unit_bytes, seal_bytes }
                }),
            },
            Err(ScrubError::NoSuchObject) => ScrubFinding::Absent,
            Err(ScrubError::DamagedMetadata { detail }) => {
                tracing::warn!("pg {pg}: scrub: {detail}");
                ScrubFinding::Unreadable
            }
            Err(ScrubError::Busy) => ScrubFinding::Busy,
        };
        self.with_group(pg, |group, view| group.scrubbed(token, finding, view));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_base::PoolId;

    #[test]
    fn every_group_is_due_once_in_a_period_and_not_all_at_once() {
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
