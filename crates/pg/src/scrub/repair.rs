//! Repair: a bad copy of an object is replaced by a good one.

use atoll_types::{Mutation, ObjectName, OsdId, PgId, Transaction};
use atoll_wire::Message;

use super::round::Step;
use super::{Effect, ROUNDS_MAX, Scrub};
use crate::actions::{ObjectParts, ObjectView, Token};
use crate::context::Context;
use crate::own_object::{change, own_change};
use crate::staging::{Note, staged_name};

/// A good copy of an object, on its way to a bad one.
pub(super) struct Series {
    pub first: Vec<Transaction>,
    /// Follows when `first` is durable. Until then the bad copy is as it was.
    pub then: Vec<Transaction>,
}

impl Series {
    /// Several parts are staged, so a copy that gets only some of them still counts.
    fn new(pg: PgId, object: &ObjectName, place: usize, mut parts: Vec<Transaction>) -> Self {
        if parts.len() == 1 {
            return Series { first: parts, then: Vec::new() };
        }
        let staged = staged_name(pg, place);
        parts.iter_mut().for_each(|part| part.object = staged.clone());
        parts.insert(0, own_change(pg, vec![Note::Coming { count: ROUNDS_MAX as u32 }.set()]));
        let take = vec![Mutation::ClonePreImage { copy: object.clone() }, Mutation::Remove];
        Series { first: parts, then: vec![change(pg, staged, take)] }
    }
}

impl Scrub {
    /// This OSD's good copy has been read. `None` if that was not for this scrub.
    pub(super) fn read_done(
        &mut self,
        token: Token,
        result: &Result<ObjectParts, String>,
        context: &mut Context<'_, impl ObjectView>,
    ) -> Option<Effect> {
        let (object, round) = self.round_by_tag(token.0)?;
        let (object, Step::Reading { bad, .. }) = (object.clone(), &mut round.step) else { return None };
        let bad = std::mem::take(bad);
        match result {
            Ok(parts) => {
                let parts = parts.transactions.clone();
                let Series { first, then } = Series::new(context.config.id, &object, round.place, parts);
                let tag = token.0;
                for member in &bad {
                    send_all(*member, tag, &first, context);
                }
                let parts_left = bad.into_iter().map(|member| (member, first.len())).collect();
                round.step = Step::Sending { tag, parts_left, then };
                Some(Effect::StartWaiting)
            }
            Err(cause) => {
                context.outbox.warn(format!("cannot read '{object}' to repair another copy of it: {cause}"));
                Some(self.end_round(&object, false))
            }
        }
    }

    /// A member has made a part durable. `None` if that was not for this scrub.
    pub(super) fn pushed(
        &mut self,
        from: OsdId,
        tag: u64,
        context: &mut Context<'_, impl ObjectView>,
    ) -> Option<Effect> {
        let (object, round) = self.round_by_tag(tag)?;
        let (object, Step::Sending { parts_left, then, .. }) = (object.clone(), &mut round.step) else {
            return None;
        };
        if let Some(left) = parts_left.get_mut(&from) {
            *left = left.saturating_sub(1);
        }
        if parts_left.values().any(|left| *left > 0) {
            return Some(Effect::Nothing);
        }
        let then = std::mem::take(then);
        if then.is_empty() {
            return Some(self.examine_again(object, context));
        }
        for (member, left) in parts_left {
            *left = then.len();
            send_all(*member, tag, &then, context);
        }
        Some(Effect::StartWaiting)
    }

    /// A part of a good copy has come. Nothing is written before all parts are here, so a failure
    /// in between leaves this copy as it is.
    pub(super) fn part_came(
        &mut self,
        sender: OsdId,
        tag: u64,
        part: Transaction,
        context: &mut Context<'_, impl ObjectView>,
    ) -> Effect {
        let Some((object, round)) = self.round_by_tag(tag) else { return Effect::Nothing };
        let Step::Fetching { from, parts, .. } = &mut round.step else { return Effect::Nothing };
        let is_right = part.pg == context.config.id && part.object == *object && part.log.is_empty();
        if *from != sender || !is_right {
            return Effect::Nothing;
        }
        let is_last = part.mutations[..] == [Mutation::Remove]
            || matches!(part.mutations.last(), Some(Mutation::SetVersion { .. }));
        parts.push(part);
        if !is_last {
            return Effect::Nothing;
        }
        let (parts, Token(tag)) = (std::mem::take(parts), context.outbox.token());
        let Series { first, then } = Series::new(context.config.id, object, round.place, parts);
        round.step = Step::Rewriting { tag, then };
        Effect::RewriteOwnCopy { tag, parts: first }
    }

    /// The change of this primary's copy is durable: the rest follows, or the copy is examined again.
    pub(super) fn rewritten(&mut self, tag: u64, context: &mut Context<'_, impl ObjectView>) -> Effect {
        let Some((object, round)) = self.round_by_tag(tag) else { return Effect::Nothing };
        let object = object.clone();
        match &mut round.step {
            Step::Rewriting { then, .. } if !then.is_empty() => {
                Effect::RewriteOwnCopy { tag, parts: std::mem::take(then) }
            }
            _ => self.examine_again(object, context),
        }
    }

    /// The store refused a part of a good copy, so this primary's copy is as it was.
    pub(super) fn rewrite_refused(&mut self, tag: u64, context: &mut Context<'_, impl ObjectView>) -> Effect {
        let Some((object, _)) = self.round_by_tag(tag) else { return Effect::Nothing };
        let object = object.clone();
        self.examine_again(object, context)
    }
}

fn send_all(member: OsdId, tag: u64, transactions: &[Transaction], context: &mut Context<'_, impl ObjectView>) {
    let epoch = context.config.record.epoch;
    for transaction in transactions {
        let transaction = transaction.clone();
        context.outbox.send(member, Message::PeerPush { epoch, tag, transaction });
    }
}
