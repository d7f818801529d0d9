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
use crate::replication::reads::{ReadPurpose, SpanAsker};

impl Pg {
    /// Answers the client whose write was ordered, if a client asked for it.
    pub(crate) fn reply_in_flight(&mut self, write: &InFlight, result: Result<(), Refusal>) {
        if let Some((client, request)) = write.client_request {
            self.reply_write(client, request.sequence, result);
        }
    }

    /// Tells since when a client's write was ordered, and which members were late with it.
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
            ReadPurpose::Client { client, sequence, object, request, times } => {
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
            (Err(ReadFailure::Corrupt { blocks }), _) => {
                let detail = format!("blocks {blocks:?} of '{object}'");
                (Err(Refusal::Corrupt { detail }), Bytes::new())
            }
        };
        self.outbox.reply_read(client, sequence, result, payload);
    }
}

/// What another member is told of a failure.
fn refusal(failure: ReadFailure) -> Refusal {
    match failure {
        ReadFailure::Refused(refusal) => refusal,
        ReadFailure::Corrupt { blocks } => Refusal::Corrupt { detail: format!("blocks {blocks:?}") },
    }
}
