//! Repair: a bad copy of an object is replaced by a good one.

use atoll_types::{Mutation, OsdId, PgId, Transaction, Version};
use atoll_wire::Message;

use super::round::Step;
use super::{Effect, Scrub};
use crate::actions::{ObjectParts, ObjectView, Token};
use crate::context::Context;
use crate::own_object::{own_change, set_complete, set_incomplete};

/// The parts of an object, framed by the mark that the copy is incomplete: a member that gets only
/// some of them is backfilled before it counts.
pub(super) fn series(pg: PgId, mut parts: Vec<Transaction>) -> Vec<Transaction> {
    if parts.len() == 1 {
        return parts;
    }
    if let Some(first) = parts.first_mut() {
        first.mutations.insert(0, Mutation::SetVersion { version: Version::default() });
    }
    parts.insert(0, own_change(pg, vec![set_incomplete()]));
    parts.push(own_change(pg, vec![set_complete()]));
    parts
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
                let series = series(context.config.id, parts.transactions.clone());
                let parts_left = bad.iter().map(|member| (*member, series.len())).collect();
                round.step = Step::Sending { tag: token.0, parts_left };
                let (epoch, tag) = (context.config.record.epoch, token.0);
                for member in bad {
                    for transaction in series.clone() {
                        context.outbox.send(member, Message::PeerPush { epoch, tag, transaction });
                    }
                }
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
        let (object, Step::Sending { parts_left, .. }) = (object.clone(), &mut round.step) else { return None };
        if let Some(left) = parts_left.get_mut(&from) {
            *left = left.saturating_sub(1);
        }
        if parts_left.values().all(|left| *left == 0) {
            return Some(self.examine_again(object, context));
        }
        Some(Effect::Nothing)
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
        round.step = Step::Rewriting { tag };
        Effect::RewriteOwnCopy { tag, parts }
    }

    /// All parts of this primary's copy are durable, or none: it is examined again.
    pub(super) fn rewritten(&mut self, tag: u64, context: &mut Context<'_, impl ObjectView>) -> Effect {
        let Some((object, _)) = self.round_by_tag(tag) else { return Effect::Nothing };
        let object = object.clone();
        self.examine_again(object, context)
    }
}
