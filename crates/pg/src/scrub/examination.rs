//! Examination of one object: all members look at their copies, and the primary compares.

use std::collections::BTreeMap;

use atoll_types::{Epoch, ObjectName, OsdId, Touched};
use atoll_wire::{Message, ScrubFinding};

use super::round::Step;
use super::{EXAMINATIONS_MAX, REPAIRS_MAX};
use crate::actions::{Action, ObjectView, Token};
use crate::group::Pg;
use crate::invariants;
use crate::primary_requests::{PrimaryRequest, Wanted};
use crate::scrub::verdict::{Verdict, describe, judge};

impl Pg {
    pub(super) fn examine(&mut self, object: ObjectName, view: &impl ObjectView) {
        let token = self.outbox.token();
        let Some(scrub) = &mut self.scrub else { return };
        let Some(round) = scrub.rounds.get_mut(&object) else { return };
        invariants::examined_object_is_quiet(&object, self.log.writes(&object));
        round.examinations += 1;
        invariants::scrub_attempts_are_bounded(&object, round.examinations, EXAMINATIONS_MAX);
        let findings = BTreeMap::new();
        round.step = Step::Examining { tag: token.0, since_ms: view.now_ms(), findings, is_spoiled: false };
        let deep = scrub.report.is_deep;
        self.outbox.push(Action::Scrub { token, object: object.clone(), deep });
        let (pg, epoch) = (self.config.id, self.config.record.epoch);
        for member in self.config.others() {
            self.outbox
                .send(member, Message::ScrubQuery { pg, epoch, tag: token.0, object: object.clone(), deep });
        }
    }

    /// This OSD's copy has been examined, for a scrub of its own or of another primary.
    pub fn scrubbed(&mut self, token: Token, finding: ScrubFinding, view: &impl ObjectView) {
        if let Some(PrimaryRequest { primary, epoch, tag }) = self.primary_requests.answered(token, Wanted::Scrub)
        {
            return self.outbox.send(primary, Message::ScrubReply { pg: self.config.id, epoch, tag, finding });
        }
        self.examined(self.config.me, token.0, finding, view);
    }

    /// A primary wants this OSD's copy to be examined.
    pub(crate) fn scrub_asked(&mut self, from: OsdId, epoch: Epoch, tag: u64, object: ObjectName, deep: bool) {
        if epoch == self.promises.epoch() {
            let token = self.outbox.token();
            self.primary_requests.begin(token, Wanted::Scrub, PrimaryRequest { primary: from, epoch, tag });
            self.outbox.push(Action::Scrub { token, object, deep });
        }
    }

    pub(crate) fn scrub_reply(
        &mut self,
        from: OsdId,
        epoch: Epoch,
        tag: u64,
        finding: ScrubFinding,
        view: &impl ObjectView,
    ) {
        if self.config.is_primary() && epoch == self.config.record.epoch {
            self.examined(from, tag, finding, view);
        }
    }

    pub(super) fn examined(&mut self, member: OsdId, tag: u64, finding: ScrubFinding, view: &impl ObjectView) {
        let members = self.config.record.members.len();
        let Some(scrub) = &mut self.scrub else { return };
        let Some((object, round)) = scrub.round_by_tag(tag) else { return };
        let object = object.clone();
        match &mut round.step {
            Step::Examining { findings, is_spoiled, .. } => {
                findings.insert(member, finding);
                if findings.len() < members {
                    return;
                }
                let is_spoiled = *is_spoiled || findings.values().any(|finding| *finding == ScrubFinding::Busy);
                let findings = std::mem::take(findings);
                if is_spoiled {
                    self.examine_again(object, view);
                } else {
                    self.compare(object, &findings, view);
                }
            }
            // That member could not read its copy.
            Step::Fetching { from, .. } if *from == member => self.examine_again(object, view),
            _ => {}
        }
    }

    /// Examines an object again, or gives up.
    pub(crate) fn examine_again(&mut self, object: ObjectName, view: &impl ObjectView) {
        let Some(round) = self.scrub.as_mut().and_then(|scrub| scrub.rounds.get_mut(&object)) else { return };
        round.step = Step::Waiting { since_ms: view.now_ms() };
        if round.examinations == EXAMINATIONS_MAX {
            self.outbox.warn(format!("'{object}' could not be scrubbed in {EXAMINATIONS_MAX} attempts"));
            self.end_round(&object, false, view);
        }
        self.start_waiting(view);
    }

    /// An object has been found good, perhaps after repairs.
    pub(crate) fn end_good_round(&mut self, object: &ObjectName, view: &impl ObjectView) {
        let has_error =
            self.scrub.as_mut().and_then(|scrub| scrub.round(object)).is_some_and(|round| round.has_error);
        if has_error {
            self.outbox.warn(format!("all copies of '{object}' are good again"));
        }
        self.end_round(object, true, view);
    }

    pub(crate) fn set_step(&mut self, object: &ObjectName, step: Step) {
        if let Some(round) = self.scrub.as_mut().and_then(|scrub| scrub.round(object)) {
            round.step = step;
        }
    }

    pub(crate) fn set_error(&mut self, object: &ObjectName) {
        if let Some(round) = self.scrub.as_mut().and_then(|scrub| scrub.round(object)) {
            round.has_error = true;
        }
    }

    /// Whether an object's shards are being read under this tag.
    pub(crate) fn is_computing(&mut self, object: &ObjectName, tag: u64) -> bool {
        let round = self.scrub.as_mut().and_then(|scrub| scrub.round(object));
        round.is_some_and(|round| matches!(round.step, Step::Computing { tag: of } if of == tag))
    }

    pub(crate) fn end_round(&mut self, object: &ObjectName, is_good: bool, view: &impl ObjectView) {
        let Some(scrub) = &mut self.scrub else { return };
        let Some(round) = scrub.rounds.remove(object) else { return };
        scrub.report.objects += 1;
        scrub.report.errors += u64::from(round.has_error);
        scrub.report.repaired += u64::from(round.has_error && is_good);
        self.start_waiting(view);
    }

    pub(super) fn compare(
        &mut self,
        object: ObjectName,
        findings: &BTreeMap<OsdId, ScrubFinding>,
        view: &impl ObjectView,
    ) {
        if self.erasure.is_some() {
            return self.compare_shards(object, findings, view);
        }
        let token = self.outbox.token();
        let me = self.config.me;
        let Verdict { good, bad } = judge(findings, me);
        let Some(round) = self.scrub.as_mut().and_then(|scrub| scrub.rounds.get_mut(&object)) else { return };
        if bad.is_empty() {
            return self.end_good_round(&object, view);
        }
        round.has_error = true;
        // A copy with unreadable metadata cannot be replaced.
        let is_writable = |osd: &OsdId| findings.get(osd) != Some(&ScrubFinding::Unreadable);
        let repairable: Vec<OsdId> = bad.iter().copied().filter(is_writable).collect();
        if good.is_empty() || repairable.is_empty() || round.repairs == REPAIRS_MAX {
            let what =
                if good.is_empty() { "no copy can be trusted" } else { "the bad copies cannot be repaired" };
            self.outbox.warn(format!("scrub of '{object}': {what}: {}", describe(findings)));
            return self.end_round(&object, false, view);
        }
        round.repairs += 1;
        invariants::scrub_attempts_are_bounded(&object, round.repairs, REPAIRS_MAX);
        if good.contains(&me) {
            round.step = Step::Reading { token, bad: repairable };
            let touched = Touched { whole: true, ..Touched::default() };
            let read = Action::ReadObject { token, object: object.clone(), touched, from: None, is_urgent: true };
            self.outbox.push(read);
        } else if repairable.contains(&me) {
            let (pg, epoch, tag, from) = (self.config.id, self.config.record.epoch, token.0, good[0]);
            round.step = Step::Fetching { tag, from, parts: Vec::new() };
            self.outbox.send(from, Message::ObjectWanted { pg, epoch, tag, object: object.clone() });
        } else {
            self.outbox.warn(format!("scrub of '{object}': {me} cannot read its copy: {}", describe(findings)));
            return self.end_round(&object, false, view);
        }
        let names: Vec<String> = good.iter().map(OsdId::to_string).collect();
        let text = format!("scrub repairs '{object}' from {}: {}", names.join(" or "), describe(findings));
        self.outbox.warn(text);
    }
}
