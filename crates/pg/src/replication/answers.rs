//! Answers to clients, and to other members that read this OSD's copy.

use atoll_types::{ObjectName, ReadRequest, Refusal, Version};
use atoll_wire::Message;
use bytes::Bytes;

use crate::actions::{Action, ClientId, ObjectView, ReadAnswer, ReadFailure, Token};
use crate::group::Pg;
use crate::invariants;
use crate::progress::DEVICE;
use crate::replication::copy_reads::CopyRead;
use crate::replication::log::InFlight;
use crate::replication::queue::{Waiting, WaitingRequest};
use crate::replication::reads::{ReadPurpose, SpanAsker};

impl Pg {
    /// Answers the client whose write was ordered, if a client asked for it.
    pub(crate) fn reply_in_flight(&mut self, write: &InFlight, result: Result<(), Refusal>) {
        if let Some((client, request)) = write.client_request {
            self.reply_write(client, request.sequence, result);
        }
    }

    /// Reports when a client's write was ordered, and the members that were late with it.
    pub(crate) fn tell_durable(&mut self, write: &mut InFlight) {
        if let Some((client, request)) = write.client_request {
            let (sequence, ordered_us, late) =
                (request.sequence, write.ordered_us, std::mem::take(&mut write.late));
            self.outbox.push(Action::Durable { client, sequence, ordered_us, late });
        }
    }

    pub(crate) fn reply_write(&mut self, client: ClientId, sequence: u64, result: Result<(), Refusal>) {
        if result.is_ok() {
            invariants::write_is_acknowledged_while_active(self.config.is_active());
        }
        // While an answer may still change, so may what all members have.
        let may_change = !self.config.is_active() || result.as_ref().is_err_and(Refusal::is_retryable);
        let committed = if may_change { Version::default() } else { self.newest_committed() };
        let message = Message::WriteReply { sequence, pg: self.config.id, committed, result };
        self.outbox.push(Action::Reply { client, message });
    }

    /// The store has answered a read.
    pub fn read_done(&mut self, token: Token, answer: ReadAnswer, view: &impl ObjectView) {
        match self.reads.answered(token) {
            ReadPurpose::Client { client, sequence, object, request, began_at, .. }
                if self.has_gone(&object, &request, view) || self.is_read_again(&object, &answer, began_at) =>
            {
                let waiting = Waiting::Read(request);
                self.enqueue(WaitingRequest::new(client, sequence, object, waiting), view);
            }
            ReadPurpose::Client { client, sequence, object, request, times, .. } => {
                self.tell_read((client, sequence), &times, DEVICE, view);
                self.client_read_done((client, sequence), object, &request, answer);
            }
            ReadPurpose::Span { asker: SpanAsker::Operation { tag }, in_place } => {
                self.shard_read(tag, answer.map_err(refusal), in_place, view);
            }
            ReadPurpose::Span { asker: SpanAsker::Write { version }, .. } => {
                self.replaced_bytes_came(version, answer.map_err(refusal));
            }
            ReadPurpose::Span { asker: SpanAsker::Primary { primary, epoch, tag, keeps }, in_place } => {
                if let (true, Ok(answer)) = (keeps, &answer) {
                    self.keep_for_write(epoch, tag, answer);
                }
                let (result, payload) = match answer {
                    Ok((outcome, payload)) => (Ok(outcome), payload),
                    Err(failure) => (Err(refusal(failure)), Bytes::new()),
                };
                let pg = self.config.id;
                self.outbox.send(primary, Message::CopyReply { pg, epoch, tag, result, in_place, payload });
            }
        }
    }

    /// Returns true if a split has moved the object of a read since it began: it may have found objects of the new
    /// PG, or nothing.
    pub(crate) fn has_gone(&self, object: &ObjectName, request: &ReadRequest, view: &impl ObjectView) -> bool {
        let pg_num_here = self.config.pg_num_here(view);
        match request {
            ReadRequest::ObjectList { pg_num, .. } => pg_num.is_some_and(|pg_num| pg_num != pg_num_here),
            _ => !self.config.has_place_for(object, pg_num_here),
        }
    }

    /// Returns true if the store has looked at an object again since the read began, and has found a later write
    /// that may not be committed. Or it could not look at it at all.
    fn is_read_again(&self, object: &ObjectName, answer: &ReadAnswer, began_at: Version) -> bool {
        let version = match answer {
            Err(ReadFailure::WasCold) => return true,
            // A removal in flight may have been found.
            Err(ReadFailure::Refused(Refusal::NoSuchObject)) => {
                let has_changed = self.config.record.epoch != began_at.epoch || !self.config.is_active();
                return has_changed || self.log.writes(object);
            }
            Err(_) => return false,
            Ok((outcome, _)) => outcome.version(),
        };
        version.is_some_and(|version| version.epoch > began_at.epoch || version.sequence > began_at.sequence)
    }

    fn client_read_done(
        &mut self,
        (client, sequence): (ClientId, u64),
        object: ObjectName,
        request: &ReadRequest,
        answer: ReadAnswer,
    ) {
        let (result, payload) = match (answer, request) {
            (Ok((outcome, payload)), _) => (Ok(outcome), payload),
            (Err(ReadFailure::Refused(refusal)), _) => (Err(refusal), Bytes::new()),
            (Err(ReadFailure::Corrupt { blocks }), ReadRequest::Data { offset, length, .. }) => {
                let me = self.config.me;
                let text = format!("blocks {blocks:?} of '{object}' are damaged on {me}; reading another copy");
                self.outbox.warn(text);
                let read = CopyRead {
                    epoch: self.config.record.epoch,
                    client,
                    sequence,
                    object,
                    offset: *offset,
                    length: *length,
                    damaged_blocks: blocks,
                    copies_left: self.config.others(),
                };
                return self.reads.ask_next(read, &self.membership, &self.config, &mut self.outbox);
            }
            (Err(failure), _) => (Err(refusal(failure)), Bytes::new()),
        };
        self.outbox.reply_read(client, sequence, result, payload);
    }
}

/// Returns the refusal of a failure for another member.
fn refusal(failure: ReadFailure) -> Refusal {
    match failure {
        ReadFailure::Refused(refusal) => refusal,
        ReadFailure::WasCold => Refusal::Busy,
        ReadFailure::Corrupt { blocks } => Refusal::Corrupt { detail: format!("blocks {blocks:?}") },
    }
}
