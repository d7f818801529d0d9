//! Effects of events of its shards on the PG: reads and writes of clients that continue, parts for learners,
//! examinations of a scrub, and the steps of a roll back.

use atoll_types::pg_copies::Incompleteness;
use atoll_types::{ObjectName, ReadOutcome, Refusal, Transaction, Version};
use atoll_wire::Message;
use bytes::Bytes;

use super::Erasure;
use super::fetch::{Asked, Operation, Purpose, ShardParts};
use crate::actions::{ObjectParts, ObjectView, Token};
use crate::context::Context;
use crate::group::Pg;
use crate::replication::reads::{SpanAsker, SpanRead};

/// Effect of shards on the PG after an event.
pub(crate) enum Effect {
    Nothing,
    /// Members, perhaps this one, are to be asked for spans of an object's shards.
    Ask {
        object: ObjectName,
        asked: Vec<Asked>,
    },
    /// The old bytes of a write have come, so that it can be ordered. Of this object a shard was
    /// found to be damaged.
    OrderReady {
        damaged: Option<ObjectName>,
    },
    /// An operation is over: it has its shards, or too few good ones are left.
    End {
        operation: Box<Operation>,
        result: Result<ShardParts, String>,
    },
    /// A part of a learner's shard needs no other shards, or this copy does not have it.
    PartRead {
        token: Token,
        part: Result<ObjectParts, String>,
    },
    /// This undoes the newest write of the history.
    Undo {
        version: Version,
        undo: Transaction,
    },
    /// All writes are rolled back, but perhaps not durably.
    RolledBack,
    /// This copy cannot be rolled back, so it does not count any more.
    CannotRollBack,
}

impl Pg {
    /// Passes an event to the components of an erasure-coded PG, and carries out its effect.
    pub(crate) fn with_erasure<V: ObjectView>(
        &mut self,
        view: &V,
        event: impl FnOnce(&mut Erasure, &mut Context<'_, V>) -> Effect,
    ) {
        let Pg { erasure: Some(erasure), config, log, peering, outbox, .. } = self else { return };
        let mut context = Context { config, log, peering, outbox, view };
        match event(erasure, &mut context) {
            Effect::Nothing => {}
            Effect::Ask { object, asked } => {
                asked.into_iter().for_each(|asked| self.ask_for_shard(asked, object.clone(), view));
            }
            Effect::OrderReady { damaged } => {
                self.order_ready(view);
                damaged.into_iter().for_each(|object| self.repair_for_backfill(object));
            }
            Effect::End { operation, result } => self.end_operation(*operation, result, view),
            Effect::PartRead { token, part } => self.object_read(token, part, view),
            Effect::Undo { version, undo } => self.undo(version, undo),
            Effect::RolledBack => self.rolled_back(view),
            Effect::CannotRollBack => self.note_incomplete_here(Incompleteness::CannotRollBack, view),
        }
    }

    fn ask_for_shard(&mut self, asked: Asked, object: ObjectName, view: &impl ObjectView) {
        let Token(tag) = self.outbox.token();
        let Asked { osd, span, asks_in_place, keeps, .. } = asked;
        let (offset, length) = (span.start, span.length() as u32);
        self.erasure.as_mut().expect("the PG is erasure-coded").asked.insert(tag, asked);
        if osd == self.config.me {
            let asker = SpanAsker::Operation { tag };
            return self.read_span(SpanRead { asker, object, offset, length, asks_in_place }, view);
        }
        let (pg, epoch) = (self.config.id, self.config.record.epoch);
        self.outbox.send(osd, Message::CopyRead { pg, epoch, tag, object, offset, length, asks_in_place, keeps });
    }

    /// A member has answered. False if it was asked for something else.
    pub(crate) fn shard_read(
        &mut self,
        tag: u64,
        answer: Result<(ReadOutcome, Bytes), Refusal>,
        in_place: u32,
        view: &impl ObjectView,
    ) -> bool {
        let asked = self.erasure.as_mut().and_then(|erasure| erasure.asked.remove(&tag));
        let Some(asked) = asked else { return false };
        self.with_erasure(view, |erasure, context| erasure.answered((tag, asked), answer, in_place, context));
        true
    }

    fn end_operation(&mut self, operation: Operation, result: Result<ShardParts, String>, view: &impl ObjectView) {
        let Operation { object, fetch, purpose, .. } = operation;
        let damaged = fetch.has_found_damage.then(|| object.clone());
        match purpose {
            Purpose::Read(read) => self.answer_read(read, object, fetch.whole, result, view),
            Purpose::Write(write) => {
                let Err(detail) = result else { unreachable!("a write with its old bytes is ordered") };
                self.reply_write(write.client, write.id.sequence, Err(Refusal::Corrupt { detail }));
            }
            Purpose::ShardBackfill(backfill) => {
                let (token, shape) = (backfill.request.token, self.erasure().shape);
                let part = backfill.answer(object, &fetch.whole, result, shape, self.config.id, &mut self.outbox);
                self.object_read(token, part, view);
            }
            Purpose::Examine(what) => {
                let (whole, tag) = (fetch.whole, what.tag());
                let examined = result.map(|parts| self.erasure().examined(what, &fetch, &parts));
                self.with_scrub(view, |scrub, context| {
                    scrub.shards_examined(object, tag, whole, examined, context)
                });
            }
        }
        self.start_waiting(view);
        damaged.into_iter().for_each(|object| self.repair_for_backfill(object));
    }
}
