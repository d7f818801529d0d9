//! Examination of one object: all members look at their copies, and the primary compares.

use std::collections::BTreeMap;

use atoll_types::{ObjectName, OsdId, Touched};
use atoll_wire::{Message, ScrubFinding};

use super::round::{Round, Step};
use super::verdict::{Verdict, describe, judge};
use super::{EXAMINATIONS_MAX, Effect, REPAIRS_MAX, Scrub};
use crate::actions::{Action, ObjectView};
use crate::context::Context;
use crate::invariants;

impl Scrub {
    pub(super) fn examine(&mut self, object: ObjectName, context: &mut Context<'_, impl ObjectView>) {
        let deep = self.report.is_deep;
        let Some(round) = self.rounds.get_mut(&object) else { return };
        invariants::examined_object_is_quiet(&object, context.log.writes(&object));
        round.examinations += 1;
        invariants::scrub_attempts_are_bounded(&object, round.examinations, EXAMINATIONS_MAX);
        let (token, since_ms) = (context.outbox.token(), context.view.now_ms());
        round.step = Step::Examining { tag: token.0, since_ms, findings: BTreeMap::new(), is_spoiled: false };
        context.outbox.push(Action::Scrub { token, object: object.clone(), deep });
        let (pg, epoch) = (context.config.id, context.config.record.epoch);
        for member in context.config.others() {
            let query = Message::ScrubQuery { pg, epoch, tag: token.0, object: object.clone(), deep };
            context.outbox.send(member, query);
        }
    }

    /// A member has examined its copy.
    pub(super) fn examined(
        &mut self,
        member: OsdId,
        tag: u64,
        finding: ScrubFinding,
        context: &mut Context<'_, impl ObjectView>,
    ) -> Effect {
        let Some((object, round)) = self.round_by_tag(tag) else { return Effect::Nothing };
        let object = object.clone();
        match &mut round.step {
            Step::Examining { findings, is_spoiled, .. } => {
                findings.insert(member, finding);
                if findings.len() < context.config.record.members.len() {
                    return Effect::Nothing;
                }
                let is_spoiled = *is_spoiled || findings.values().any(|finding| *finding == ScrubFinding::Busy);
                let findings = std::mem::take(findings);
                if is_spoiled {
                    self.examine_again(object, context)
                } else if context.config.policy.shape.is_some() {
                    self.compare_shards(object, &findings, context)
                } else {
                    self.compare(object, &findings, context)
                }
            }
            // That member could not read its copy.
            Step::Fetching { from, .. } if *from == member => self.examine_again(object, context),
            _ => Effect::Nothing,
        }
    }

    /// Examines an object again, or gives up.
    pub(super) fn examine_again(
        &mut self,
        object: ObjectName,
        context: &mut Context<'_, impl ObjectView>,
    ) -> Effect {
        let Some(round) = self.rounds.get_mut(&object) else { return Effect::Nothing };
        round.step = Step::Waiting { since_ms: context.view.now_ms() };
        if round.examinations == EXAMINATIONS_MAX {
            context.outbox.warn(format!("'{object}' could not be scrubbed in {EXAMINATIONS_MAX} attempts"));
            return self.end_round(&object, false);
        }
        Effect::StartWaiting
    }

    /// An object has been found good, perhaps after repairs.
    pub(super) fn end_good_round(
        &mut self,
        object: &ObjectName,
        context: &mut Context<'_, impl ObjectView>,
    ) -> Effect {
        if self.rounds.get(object).is_some_and(|round| round.has_error) {
            context.outbox.warn(format!("all copies of '{object}' are good again"));
        }
        self.end_round(object, true)
    }

    pub(super) fn end_round(&mut self, object: &ObjectName, is_good: bool) -> Effect {
        let Some(round) = self.rounds.remove(object) else { return Effect::Nothing };
        self.report.objects += 1;
        self.report.errors += u64::from(round.has_error);
        self.report.repaired += u64::from(round.has_error && is_good);
        Effect::StartWaiting
    }

    fn compare(
        &mut self,
        object: ObjectName,
        findings: &BTreeMap<OsdId, ScrubFinding>,
        context: &mut Context<'_, impl ObjectView>,
    ) -> Effect {
        let me = context.config.me;
        let Verdict { good, bad } = judge(findings, me);
        let Some(round) = self.rounds.get_mut(&object) else { return Effect::Nothing };
        if bad.is_empty() {
            return self.end_good_round(&object, context);
        }
        round.has_error = true;
        // A copy with unreadable metadata cannot be replaced.
        let is_writable = |osd: &OsdId| findings.get(osd) != Some(&ScrubFinding::Unreadable);
        let repairable: Vec<OsdId> = bad.iter().copied().filter(is_writable).collect();
        if good.is_empty() || repairable.is_empty() || round.repairs == REPAIRS_MAX {
            let what =
                if good.is_empty() { "no copy can be trusted" } else { "the bad copies cannot be repaired" };
            context.outbox.warn(format!("scrub of '{object}': {what}: {}", describe(findings)));
            return self.end_round(&object, false);
        }
        round.repairs += 1;
        invariants::scrub_attempts_are_bounded(&object, round.repairs, REPAIRS_MAX);
        if good.contains(&me) {
            round.read_good_copy(&object, repairable, context);
        } else if repairable.contains(&me) {
            round.fetch_good_copy(&object, good[0], context);
        } else {
            context.outbox.warn(format!("scrub of '{object}': {me} cannot read its copy: {}", describe(findings)));
            return self.end_round(&object, false);
        }
        let names: Vec<String> = good.iter().map(OsdId::to_string).collect();
        let text = format!("scrub repairs '{object}' from {}: {}", names.join(" or "), describe(findings));
        context.outbox.warn(text);
        Effect::Nothing
    }
}

impl Round {
    /// Reads this OSD's good copy, for the members with bad ones.
    fn read_good_copy(
        &mut self,
        object: &ObjectName,
        bad: Vec<OsdId>,
        context: &mut Context<'_, impl ObjectView>,
    ) {
        let token = context.outbox.token();
        self.step = Step::Reading { token, bad };
        let touched = Touched { whole: true, ..Touched::default() };
        let read = Action::ReadObject { token, object: object.clone(), touched, from: None, is_urgent: true };
        context.outbox.push(read);
    }

    /// Asks a member for its good copy.
    fn fetch_good_copy(&mut self, object: &ObjectName, from: OsdId, context: &mut Context<'_, impl ObjectView>) {
        let (pg, epoch, tag) = (context.config.id, context.config.record.epoch, context.outbox.token().0);
        self.step = Step::Fetching { tag, from, parts: Vec::new() };
        context.outbox.send(from, Message::ObjectWanted { pg, epoch, tag, object: object.clone() });
    }
}
