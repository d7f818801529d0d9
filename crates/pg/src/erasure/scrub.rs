//! Scrub of an erasure-coded PG. Shards differ, so their versions and sizes are compared, and a
//! deep scrub computes parity again. A bad shard is rebuilt from good ones.

use std::collections::{BTreeMap, BTreeSet};

use atoll_ec::Code;
use atoll_types::{Mutation, ObjectName, OsdId, Transaction, Version};
use atoll_wire::{Message, ScrubFinding, ShardOf};

use super::backfill::add_part;
use super::fetch::{Fetch, Operation, Purpose, ShardParts};
use super::parts::Part;
use super::shape::Span;
use super::update::shard_of;
use crate::actions::{ObjectView, Token, WholeObject};
use crate::group::Pg;
use crate::invariants;
use crate::own_object::change;
use crate::scrub::verdict::{Verdict, describe};
use crate::scrub::{REPAIRS_MAX, Step};
use crate::submissions::Submission;

/// Why a scrub reads shards.
pub(crate) enum Examination {
    /// To rebuild a member's bad shard.
    Rebuild { tag: u64, bad: OsdId, shard: u8 },
    /// To compare parity with the data.
    Verify { tag: u64 },
}

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
pub(crate) fn judge_shards(
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
    let most = votes.iter().max_by_key(|(_, shards)| shards.len());
    let right = most.filter(|(_, shards)| shards.len() >= copies_needed).map(|(state, _)| *state);
    let is_healthy = |finding: &ScrubFinding| !matches!(finding, ScrubFinding::Present { bad_block_count, .. } if *bad_block_count > 0);
    let is_good = |finding: &ScrubFinding| right.is_some() && state_of(finding) == right && is_healthy(finding);
    let (good, bad): (Vec<_>, Vec<_>) = findings.iter().partition(|(_, finding)| is_good(finding));
    let names = |members: Vec<(&OsdId, &ScrubFinding)>| members.into_iter().map(|(osd, _)| *osd).collect();
    Verdict { good: names(good), bad: names(bad) }
}

impl Pg {
    /// All members have examined their shards of an object.
    pub(crate) fn compare_shards(
        &mut self,
        object: ObjectName,
        findings: &BTreeMap<OsdId, ScrubFinding>,
        view: &impl ObjectView,
    ) {
        let members = self.config.record.members.iter().copied().zip(self.config.record.shards.iter().copied());
        let shards: BTreeMap<OsdId, u8> = members.collect();
        let Verdict { good, bad } = judge_shards(findings, &shards, self.config.copies_needed());
        let parity_count = u32::from(self.erasure.as_ref().expect("the PG is erasure-coded").shape.parity);
        let Some(scrub) = &mut self.scrub else { return };
        let is_deep = scrub.is_deep();
        let Some(round) = scrub.round(&object) else { return };
        let right = good.first().and_then(|osd| whole_of(&findings[osd]));
        if bad.is_empty() {
            if let (true, Some(whole)) = (is_deep, right) {
                return self.verify(object, whole, view);
            }
            return self.with_scrub(view, |scrub, context| scrub.end_good_round(&object, context));
        }
        round.has_error = true;
        let is_writable = |osd: &&OsdId| findings.get(osd) != Some(&ScrubFinding::Unreadable);
        let next = bad.iter().find(is_writable).copied();
        let (Some(next), false) = (next.filter(|_| !good.is_empty()), round.repairs >= REPAIRS_MAX + parity_count)
        else {
            let what = if good.is_empty() { "too few shards agree" } else { "the bad shards cannot be repaired" };
            self.outbox.warn(format!("scrub of '{object}': {what}: {}", describe(findings)));
            return self.with_scrub(view, |scrub, _| scrub.end_round(&object, false));
        };
        round.repairs += 1;
        invariants::scrub_attempts_are_bounded(&object, round.repairs, REPAIRS_MAX + parity_count);
        self.outbox.warn(format!("scrub rebuilds the shard of '{object}' on {next}: {}", describe(findings)));
        match right {
            Some(whole) => self.rebuild_shard(object, whole, next, bad.into_iter().collect(), view),
            None => self.put_shard(object, next, vec![Mutation::Remove], Vec::new(), false, view),
        }
    }

    fn set_scrub_step(&mut self, object: &ObjectName, step: Step) {
        if let Some(scrub) = &mut self.scrub {
            scrub.set_step(object, step);
        }
    }

    fn rebuild_shard(
        &mut self,
        object: ObjectName,
        whole: WholeObject,
        bad: OsdId,
        excluded: BTreeSet<OsdId>,
        view: &impl ObjectView,
    ) {
        let (Token(tag), shape) =
            (self.outbox.token(), self.erasure.as_ref().expect("the PG is erasure-coded").shape);
        let shard = self.config.record.shard_of(bad).expect("members hold shards");
        self.set_scrub_step(&object, Step::Computing { tag });
        let span = Span { start: 0, end: shape.shard_bytes(whole.object_bytes) };
        let wanted = if span.end > 0 { BTreeMap::from([(shard, span)]) } else { BTreeMap::new() };
        let mut fetch = Fetch::new(whole, wanted);
        fetch.excluded = excluded;
        self.examine_shards(object, fetch, Examination::Rebuild { tag, bad, shard }, view);
    }

    fn verify(&mut self, object: ObjectName, whole: WholeObject, view: &impl ObjectView) {
        let (Token(tag), shape) =
            (self.outbox.token(), self.erasure.as_ref().expect("the PG is erasure-coded").shape);
        let span = Span { start: 0, end: shape.shard_bytes(whole.object_bytes) };
        let held = (0..shape.shards()).filter(|shard| self.holder(*shard, &BTreeSet::new()).is_some());
        let wanted: BTreeMap<u8, Span> = held.map(|shard| (shard, span)).collect();
        if wanted.len() <= usize::from(shape.data) || span.end == 0 {
            return self.with_scrub(view, |scrub, context| scrub.end_good_round(&object, context));
        }
        self.set_scrub_step(&object, Step::Computing { tag });
        self.examine_shards(object, Fetch::new(whole, wanted), Examination::Verify { tag }, view);
    }

    fn examine_shards(&mut self, object: ObjectName, fetch: Fetch, what: Examination, view: &impl ObjectView) {
        // No lock is needed: the scrub holds writes of the object back.
        let lock = Span { start: 0, end: 0 };
        let purpose = Purpose::Examine(what);
        self.begin_operation(Operation { object, lock, is_write: false, fetch, purpose }, view);
    }

    /// The shards that an examination reads have come, or cannot.
    pub(super) fn continue_examination(
        &mut self,
        examination: Examination,
        object: ObjectName,
        fetch: Fetch,
        result: Result<ShardParts, String>,
        view: &impl ObjectView,
    ) {
        let (Examination::Rebuild { tag, .. } | Examination::Verify { tag }) = examination;
        if !self.scrub.as_mut().is_some_and(|scrub| scrub.is_computing(&object, tag)) {
            return;
        }
        let parts = match result {
            Ok(parts) => parts,
            Err(cause) => {
                self.outbox.warn(format!("scrub of '{object}': {cause}"));
                return self.with_scrub(view, |scrub, _| scrub.end_round(&object, false));
            }
        };
        match examination {
            Examination::Rebuild { bad, shard, .. } => {
                let erasure = self.erasure.as_ref().expect("the PG is erasure-coded");
                let whole = fetch.whole;
                let mut mutations =
                    vec![Mutation::Remove, shard_of(erasure.shape, whole.object_bytes, whole.seal_shape)];
                let mut payload = Vec::new();
                if let Some((span, part)) = parts.get(&shard) {
                    add_part(*span, part, whole.seal_shape, true, &mut mutations, &mut payload);
                }
                mutations.push(Mutation::SetVersion { version: whole.version });
                self.put_shard(object, bad, mutations, payload, whole.seal_shape.is_some(), view);
            }
            Examination::Verify { .. } if fetch.has_found_damage => {
                self.with_scrub(view, |scrub, context| scrub.examine_again(object, context));
            }
            Examination::Verify { .. } => self.verified(object, &fetch, &parts, view),
        }
    }

    fn verified(&mut self, object: ObjectName, fetch: &Fetch, parts: &ShardParts, view: &impl ObjectView) {
        let erasure = self.erasure.as_ref().expect("the PG is erasure-coded");
        if fits(&erasure.code, parts, None) {
            return self.with_scrub(view, |scrub, context| scrub.end_good_round(&object, context));
        }
        let culprits: Vec<u8> = match parts.len() > usize::from(erasure.shape.data) + 1 {
            true => parts.keys().copied().filter(|shard| fits(&erasure.code, parts, Some(*shard))).collect(),
            // With one shard more than it takes, it is unknown which one is wrong.
            false => Vec::new(),
        };
        self.scrub.iter_mut().for_each(|scrub| scrub.set_error(&object));
        let culprit = match culprits[..] {
            [shard] => self.holder(shard, &BTreeSet::new()),
            _ => None,
        };
        match culprit {
            Some(osd) => {
                self.outbox.warn(format!(
                    "scrub of '{object}': the shard on {osd} does not fit the others, and is rebuilt"
                ));
                self.rebuild_shard(object, fetch.whole, osd, BTreeSet::from([osd]), view);
            }
            None => {
                self.outbox.warn(format!(
                    "scrub of '{object}': parity does not fit the data, and which shard is wrong is unknown"
                ));
                self.with_scrub(view, |scrub, _| scrub.end_round(&object, false));
            }
        }
    }

    /// Replaces a member's shard, or this OSD's own.
    fn put_shard(
        &mut self,
        object: ObjectName,
        osd: OsdId,
        mutations: Vec<Mutation>,
        payload: Vec<u8>,
        payload_sealed: bool,
        view: &impl ObjectView,
    ) {
        let Token(tag) = self.outbox.token();
        self.restart_writes(&object);
        let transaction = Transaction {
            payload: payload.into(),
            payload_sealed,
            ..change(self.config.id, object.clone(), mutations)
        };
        if osd == self.config.me {
            self.set_scrub_step(&object, Step::Rewriting { tag });
            self.submit(Submission::RewriteOwnCopy { tag, is_last: true, is_whole: true }, transaction);
        } else {
            self.set_scrub_step(&object, Step::Sending { tag, parts_left: BTreeMap::from([(osd, 1)]) });
            self.outbox.send(osd, Message::PeerPush { epoch: self.config.record.epoch, tag, transaction });
        }
        self.start_waiting(view);
    }
}

fn whole_of(finding: &ScrubFinding) -> Option<WholeObject> {
    let ScrubFinding::Present { version, size_bytes, shard_of, .. } = finding else { return None };
    let ShardOf { object_bytes, seal_unit_bytes, seal_bytes } =
        shard_of.unwrap_or(ShardOf { object_bytes: *size_bytes, seal_unit_bytes: 0, seal_bytes: 0 });
    let seal_shape = (seal_unit_bytes > 0).then_some((seal_unit_bytes, seal_bytes));
    Some(WholeObject { object_bytes, version: *version, seal_shape })
}

/// Whether all shards, except `but`, fit together.
fn fits(code: &Code, parts: &ShardParts, but: Option<u8>) -> bool {
    let used: Vec<(u8, &Part)> =
        parts.iter().filter(|(shard, _)| Some(**shard) != but).map(|(shard, (_, part))| (*shard, part)).collect();
    let (sources, checked) = used.split_at(code.data_shards().min(used.len()));
    let agrees = |pick: fn(&Part) -> &bytes::Bytes| {
        let there: Vec<(usize, &[u8])> =
            sources.iter().map(|(shard, part)| (usize::from(*shard), &pick(part)[..])).collect();
        let numbers: Vec<usize> = checked.iter().map(|(shard, _)| usize::from(*shard)).collect();
        let mut output: Vec<Vec<u8>> = checked.iter().map(|(_, part)| vec![0; pick(part).len()]).collect();
        let mut slices: Vec<&mut [u8]> = output.iter_mut().map(|bytes| &mut bytes[..]).collect();
        let is_done = code.reconstruct(&there, &numbers, &mut slices).is_ok();
        is_done && output.iter().zip(checked).all(|(computed, (_, part))| computed[..] == pick(part)[..])
    };
    agrees(|part| &part.data) && agrees(|part| &part.seals)
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
    }
}
