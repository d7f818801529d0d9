//! Writes that stores refuse again and again. Histories are compared after each refusal, since some members may
//! have writes that another one lacks; without an end to that, one request or one bad store would keep a PG
//! peering for ever.

use std::collections::BTreeMap;

use atoll_types::{OsdId, Refusal, RequestId, Version};

use crate::actions::ObjectView;
use crate::config::PgState;
use crate::group::Pg;

/// Refusals of the same write after which a store will not take it.
const REFUSALS_MAX: u32 = 5;
/// For how long a spare OSD is backfilled before a member that was left out.
const SPARE_FIRST_MS: u64 = 30_000;
/// Requests whose refusals are counted at once.
const REQUESTS_MAX: usize = 64;

/// Numbers of stores' refusals.
#[derive(Default)]
pub(crate) struct StoreRefusals {
    by_request: BTreeMap<RequestId, BTreeMap<OsdId, u32>>,
    /// Refusals of a member since it has taken a write.
    by_member: BTreeMap<OsdId, u32>,
}

impl StoreRefusals {
    /// Counts one, and returns how often this OSD has refused the request, or anything without taking a write since.
    fn count(&mut self, osd: OsdId, request: Option<RequestId>) -> u32 {
        let of_member = self.by_member.entry(osd).or_default();
        *of_member += 1;
        let Some(request) = request else { return *of_member };
        if self.by_request.len() >= REQUESTS_MAX && !self.by_request.contains_key(&request) {
            self.by_request.clear();
        }
        let of_request = self.by_request.entry(request).or_default().entry(osd).or_default();
        *of_request += 1;
        (*of_request).max(*of_member)
    }

    /// A member has taken a write.
    pub fn takes(&mut self, osd: OsdId) {
        if !self.by_member.is_empty() {
            self.by_member.remove(&osd);
        }
    }

    /// Why a request is not tried any more, if a store has refused it too often.
    pub fn verdict(&self, request: RequestId) -> Option<Refusal> {
        let refused = self.by_request.get(&request)?;
        let (osd, _) = refused.iter().find(|(_, count)| **count >= REFUSALS_MAX)?;
        Some(Refusal::Invalid {
            detail: format!("the store of {osd} does not take it; the log of {osd} says why"),
        })
    }

    /// A member is left out: requests that it refused may be tried without it.
    fn forget(&mut self, osd: OsdId) {
        self.by_member.remove(&osd);
        for refused in self.by_request.values_mut() {
            refused.remove(&osd);
        }
        self.by_request.retain(|_, refused| !refused.is_empty());
    }
}

impl Pg {
    /// This primary's store has refused a write.
    pub(crate) fn own_store_refused(&mut self, version: Version) {
        let mut in_flight = self.log.in_flight();
        let refused = in_flight.find(|write| write.version == version);
        let request = refused.and_then(|write| Some(write.client_request?.1));
        self.refusals.count(self.config.me, request);
    }

    /// The store does not move staged objects to their places. If that continues, the primary learns that it must
    /// continue without this copy, which counts again when they have moved.
    pub(crate) fn staging_refused(&mut self, view: &impl ObjectView) {
        let count = self.refusals.count(self.config.me, None);
        let leader = self.promises.asked_by().filter(|leader| *leader != self.config.me);
        if let Some(leader) = leader
            && count.is_multiple_of(REFUSALS_MAX)
            && self.promises.is_durable()
        {
            self.send_peer_info(leader, false, view);
        }
    }

    /// A member could not take sent data: the oldest write that it lacks, or a part of a backfill. A member that
    /// will not take it is left out, if there are enough others. While the PG peers, the missing writes are in the
    /// history of others, so that no request can be refused in its place: then another target OSD may take that
    /// place.
    pub(crate) fn member_refused(&mut self, osd: OsdId, now_ms: u64) {
        let mut in_flight = self.log.in_flight();
        let refused = in_flight.find(|write| write.missing.contains(&osd));
        let request = refused.and_then(|write| Some(write.client_request?.1));
        let count = self.refusals.count(osd, request);
        let others = self.config.record.members.iter().filter(|member| **member != osd);
        let are_enough = self.config.copies_on(others) >= self.config.policy.min_size as usize;
        let is_spare =
            |osd: &&OsdId| !self.config.record.members.contains(osd) && self.membership.is_reachable(**osd);
        let has_spare =
            self.config.state == PgState::Peering && self.config.target.iter().any(|osd| is_spare(&osd));
        if count >= REFUSALS_MAX && (are_enough || has_spare) {
            self.refusals.forget(osd);
            self.membership.note_incomplete(osd);
            if !are_enough {
                // Its copy is whole but for that. Until another is, it stays so.
                self.learners.postpone(osd, now_ms + SPARE_FIRST_MS);
            }
            let text =
                format!("{osd} has refused writes {count} times; the PG continues without it and backfills it");
            self.outbox.warn(text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_given_up_when_one_store_has_refused_it_often_enough() {
        let mut refusals = StoreRefusals::default();
        let request = RequestId { session: 1, sequence: 2 };
        for _ in 1..REFUSALS_MAX {
            refusals.count(OsdId(1), Some(request));
            refusals.takes(OsdId(1));
            refusals.count(OsdId(2), Some(request));
        }
        assert_eq!(refusals.verdict(request), None, "no store has refused it often enough");
        assert_eq!(refusals.count(OsdId(1), Some(request)), REFUSALS_MAX);
        assert!(matches!(refusals.verdict(request), Some(Refusal::Invalid { .. })));
        refusals.forget(OsdId(1));
        assert_eq!(refusals.verdict(request), None, "it may be done without that member");
        assert_eq!(refusals.count(OsdId(2), None), REFUSALS_MAX, "whatever it refuses");
        for session in 0..1000 {
            refusals.count(OsdId(3), Some(RequestId { session, sequence: 1 }));
        }
        assert!(refusals.by_request.len() <= REQUESTS_MAX);
    }
}
