//! Scrub of an erasure-coded PG. Shards differ, so their versions and sizes are compared, and a
//! deep scrub computes parity again. A bad shard is rebuilt from good ones.

use std::collections::{BTreeMap, BTreeSet};

use atoll_types::{Mutation, ObjectName, OsdId, Transaction, Version};
use atoll_wire::{Message, ScrubFinding, ShardOf};

use super::round::Step;
use super::verdict::{Verdict, describe};
use super::{Effect, REPAIRS_MAX, Scrub};
use crate::actions::{ObjectView, Token, WholeObject};
use crate::context::Context;
use crate::erasure::{Examination, Examined, Fetch, Span};
use crate::invariants;
use crate::own_object::change;
use crate::submissions::Submission;

/// The state of an object by one shard.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum State {
    Absent,
    Present { version: Version, shard_bytes: u64, shard_of: Option<ShardOf> },
}

fn state_of(finding: &ScrubFinding) -> Option<State> {
    match finding {
        ScrubFinding::Absent => Some(State::Absent),
        ScrubFinding::Present { version, size_bytes, shard_of, .. } => {
            Some(State::Present { version: *version, shard_bytes: *size_bytes, shard_of: *shard_of })
        }
        ScrubFinding::Unreadable | ScrubFinding::Busy => None,
    }
}

/// Which shards of an object are good: those without damage, in the state that most shards agree
/// on, if enough agree to give the object back.
fn judge_shards(
    findings: &BTreeMap<OsdId, ScrubFinding>,
    shards: &BTreeMap<OsdId, u8>,
    copies_needed: usize,
) -> Verdict {
    let mut votes: BTreeMap<State, BTreeSet<u8>> = BTreeMap::new();
    for (osd, finding) in findings {
        if let (Some(state), Some(shard)) = (state_of(finding), shards.get(osd)) {
            votes.entry(state).or_default().insert(*shard);
        }
    }
    // An object that can be rebuilt is not removed because more members lack it: nobody knows then what is right.
    let is_enough = |(_, shards): &(&State, &BTreeSet<u8>)| shards.len() >= copies_needed;
    let is_there = votes.iter().filter(is_enough).any(|(state, _)| *state != State::Absent);
    let most = votes.iter().max_by_key(|(_, shards)| shards.len()).filter(is_enough);
    let right = most.map(|(state, _)| *state).filter(|state| *state != State::Absent || !is_there);
    let is_healthy = |finding: &ScrubFinding| !matches!(finding, ScrubFinding::Present { bad_block_count, .. } if *bad_block_count > 0);
    let is_good = |finding: &ScrubFinding| right.is_some() && state_of(finding) == right && is_healthy(finding);
    let (good, bad): (Vec<_>, Vec<_>) = findings.iter().partition(|(_, finding)| is_good(finding));
    let names = |members: Vec<(&OsdId, &ScrubFinding)>| members.into_iter().map(|(osd, _)| *osd).collect();
    Verdict { good: names(good), bad: names(bad) }
}

impl Scrub {
    /// All members have examined their shards of an object.
    pub(super) fn compare_shards(
        &mut self,
        object: ObjectName,
        findings: &BTreeMap<OsdId, ScrubFinding>,
        context: &mut Context<'_, impl ObjectView>,
    ) -> Effect {
        let record = &context.config.record;
        let shards = record.members.iter().copied().zip(record.shards.iter().copied()).collect();
        let Verdict { good, bad } = judge_shards(findings, &shards, context.config.copies_needed());
        let repairs_max = REPAIRS_MAX + u32::from(context.config.shape().parity);
        let is_deep = self.report.is_deep;
        let Some(round) = self.rounds.get_mut(&object) else { return Effect::Nothing };
        let right = good.first().and_then(|osd| whole_of(&findings[osd]));
        if bad.is_empty() {
            return match right {
                Some(whole) if is_deep => self.verify(object, whole, context),
                _ => self.end_good_round(&object, context),
            };
        }
        round.has_error = true;
        let is_writable = |osd: &&OsdId| findings.get(osd) != Some(&ScrubFinding::Unreadable);
        let next = bad.iter().find(is_writable).copied();
        let (Some(next), false) = (next.filter(|_| !good.is_empty()), round.repairs >= repairs_max) else {
            let what = if good.is_empty() { "too few shards agree" } else { "the bad shards cannot be repaired" };
            context.outbox.warn(format!("scrub of '{object}': {what}: {}", describe(findings)));
            return self.end_round(&object, false);
        };
        round.repairs += 1;
        invariants::scrub_attempts_are_bounded(&object, round.repairs, repairs_max);
        context.outbox.warn(format!("scrub rebuilds the shard of '{object}' on {next}: {}", describe(findings)));
        match right {
            Some(whole) => self.rebuild_shard(object, whole, next, bad.into_iter().collect(), context),
            None => self.put_shard(next, change(context.config.id, object, vec![Mutation::Remove]), context),
        }
    }

    fn rebuild_shard(
        &mut self,
        object: ObjectName,
        whole: WholeObject,
        bad: OsdId,
        excluded: BTreeSet<OsdId>,
        context: &mut Context<'_, impl ObjectView>,
    ) -> Effect {
        let Token(tag) = context.outbox.token();
        let shard = context.config.record.shard_of(bad).expect("members hold shards");
        self.set_step(&object, Step::Computing { tag });
        let span = Span { start: 0, end: context.config.shape().shard_bytes(whole.object_bytes) };
        let wanted = if span.end > 0 { BTreeMap::from([(shard, span)]) } else { BTreeMap::new() };
        let mut fetch = Fetch::new(whole, wanted);
        fetch.excluded = excluded;
        Effect::ReadShards { object, fetch, what: Examination::Rebuild { tag, bad, shard } }
    }

    /// Reads the shards of all members, to compare parity with the data.
    fn verify(
        &mut self,
        object: ObjectName,
        whole: WholeObject,
        context: &mut Context<'_, impl ObjectView>,
    ) -> Effect {
        let (Token(tag), shape) = (context.outbox.token(), context.config.shape());
        let span = Span { start: 0, end: shape.shard_bytes(whole.object_bytes) };
        let held = (0..shape.shards()).filter(|shard| context.config.holder(*shard, |_| true).is_some());
        let wanted: BTreeMap<u8, Span> = held.map(|shard| (shard, span)).collect();
        if wanted.len() <= usize::from(shape.data) || span.end == 0 {
            return self.end_good_round(&object, context);
        }
        self.set_step(&object, Step::Computing { tag });
        Effect::ReadShards { object, fetch: Fetch::new(whole, wanted), what: Examination::Verify { tag } }
    }

    /// The shards that an examination reads have come, or cannot.
    pub fn shards_examined(
        &mut self,
        object: ObjectName,
        tag: u64,
        whole: WholeObject,
        examined: Result<Examined, String>,
        context: &mut Context<'_, impl ObjectView>,
    ) -> Effect {
        let step = self.rounds.get(&object).map(|round| &round.step);
        if !matches!(step, Some(Step::Computing { tag: of }) if *of == tag) {
            return Effect::Nothing;
        }
        match examined {
            Ok(Examined::Rebuilt { bad, mutations, payload }) => {
                let shard = Transaction {
                    payload: payload.into(),
                    payload_sealed: whole.seal_shape.is_some(),
                    ..change(context.config.id, object, mutations)
                };
                self.put_shard(bad, shard, context)
            }
            Ok(Examined::Damaged) => self.examine_again(object, context),
            Ok(Examined::Fits) => self.end_good_round(&object, context),
            Ok(Examined::DoesNotFit { culprit }) => self.shards_do_not_fit(object, whole, culprit, context),
            Err(cause) => {
                context.outbox.warn(format!("scrub of '{object}': {cause}"));
                self.end_round(&object, false)
            }
        }
    }

    fn shards_do_not_fit(
        &mut self,
        object: ObjectName,
        whole: WholeObject,
        culprit: Option<u8>,
        context: &mut Context<'_, impl ObjectView>,
    ) -> Effect {
        if let Some(round) = self.rounds.get_mut(&object) {
            round.has_error = true;
        }
        match culprit.and_then(|shard| context.config.holder(shard, |_| true)) {
            Some(osd) => {
                context.outbox.warn(format!(
                    "scrub of '{object}': the shard on {osd} does not fit the others, and is rebuilt"
                ));
                self.rebuild_shard(object, whole, osd, BTreeSet::from([osd]), context)
            }
            None => {
                context.outbox.warn(format!(
                    "scrub of '{object}': parity does not fit the data, and which shard is wrong is unknown"
                ));
                self.end_round(&object, false)
            }
        }
    }

    /// Replaces a member's shard, or this OSD's own.
    fn put_shard(&mut self, osd: OsdId, shard: Transaction, context: &mut Context<'_, impl ObjectView>) -> Effect {
        let (Token(tag), object) = (context.outbox.token(), shard.object.clone());
        if osd == context.config.me {
            self.set_step(&object, Step::Rewriting { tag, then: Vec::new() });
            context.outbox.submit(Submission::RewriteOwnCopy { tag, is_last: true }, shard);
        } else {
            self.set_step(
                &object,
                Step::Sending { tag, parts_left: BTreeMap::from([(osd, 1)]), then: Vec::new() },
            );
            let epoch = context.config.record.epoch;
            context.outbox.send(osd, Message::PeerPush { epoch, tag, transaction: shard });
        }
        Effect::RestartWrites { object }
    }

    fn set_step(&mut self, object: &ObjectName, step: Step) {
        if let Some(round) = self.rounds.get_mut(object) {
            round.step = step;
        }
    }
}

fn whole_of(finding: &ScrubFinding) -> Option<WholeObject> {
    let ScrubFinding::Present { version, size_bytes, shard_of, .. } = finding else { return None };
    let ShardOf { object_bytes, seal_unit_bytes, seal_bytes } =
        shard_of.unwrap_or(ShardOf { object_bytes: *size_bytes, seal_unit_bytes: 0, seal_bytes: 0 });
    let seal_shape = (seal_unit_bytes > 0).then_some((seal_unit_bytes, seal_bytes));
    Some(WholeObject { object_bytes, version: *version, seal_shape })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ScrubFinding::{Absent, Unreadable};
    use atoll_types::Epoch;

    fn shard(sequence: u64, size_bytes: u64, bad_block_count: u32) -> ScrubFinding {
        let version = Version { epoch: Epoch(1), sequence };
        ScrubFinding::Present {
            version,
            size_bytes,
            digest: size_bytes ^ sequence,
            bad_block_count,
            shard_of: None,
        }
    }

    /// The members with good shards, of a code with two data shards; member n holds shard n.
    fn good(findings: &[ScrubFinding]) -> Vec<u32> {
        let shards = (0..findings.len() as u32).map(|number| (OsdId(number), number as u8)).collect();
        let findings = (0..).map(OsdId).zip(findings.iter().cloned()).collect();
        judge_shards(&findings, &shards, 2).good.iter().map(|osd| osd.0).collect()
    }

    #[test]
    fn shards_are_good_if_enough_of_them_agree() {
        assert_eq!(good(&[shard(5, 8, 0), shard(5, 8, 0), shard(5, 8, 0)]), [0, 1, 2]);
        assert_eq!(good(&[shard(4, 8, 0), shard(5, 8, 0), shard(5, 8, 0)]), [1, 2]);
        // Too short or too long, damaged, unreadable, or not there.
        assert_eq!(good(&[shard(5, 8, 0), shard(5, 8, 0), shard(5, 4, 0)]), [0, 1]);
        assert_eq!(good(&[shard(5, 8, 0), shard(5, 8, 1), shard(5, 12, 0)]), [0]);
        assert_eq!(good(&[Unreadable, shard(5, 8, 0), shard(5, 8, 0), Absent]), [1, 2]);
        assert_eq!(good(&[shard(5, 8, 0), Absent, Absent]), [1, 2]);
        assert_eq!(good(&[shard(5, 8, 0), shard(4, 8, 0), Absent]), [0u32; 0]);
        assert_eq!(good(&[shard(5, 8, 0), shard(5, 8, 0), Absent, Absent, Absent]), [0u32; 0]);
    }
}
