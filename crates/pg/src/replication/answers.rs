//! Answers to clients, and to other members that read this OSD's copy.

use atoll_types::{ReadRequest, Refusal};
use atoll_wire::Message;
use bytes::Bytes;

use crate::actions::{Action, ClientId, ObjectView, ReadAnswer, ReadFailure, Token};
use crate::group::Pg;
use crate::invariants;
use crate::replication::copy_reads::CopyRead;
use crate::replication::log::InFlight;
use crate::replication::reads::ReadPurpose;

impl Pg {
    /// Answers the client whose write was ordered, if a client asked for it.
    pub(crate) fn reply_in_flight(&mut self, write: &InFlight, result: Result<(), Refusal>) {
        if let Some((client, request)) = write.client_request {
            self.reply_write(client, request.sequence, result);
        }
    }

    pub(crate) fn reply_write(&mut self, client: ClientId, sequence: u64, result: Result<(), Refusal>) {
        if result.is_ok() {
            invariants::write_is_acknowledged_while_active(self.config.is_active());
        }
        self.outbox.push(Action::Reply { client, message: Message::WriteReply { sequence, result } });
    }

    /// The store has answered a read.
    pub fn read_done(&mut self, token: Token, answer: ReadAnswer, view: &impl ObjectView) {
        match self.reads.answered(token) {
            ReadPurpose::Shard { tag } => {
                let answer = answer.map_err(|failure| match failure {
                    ReadFailure::Refused(refusal) => refusal,
                    ReadFailure::Corrupt { blocks } => Refusal::Corrupt { detail: format!("blocks {blocks:?}") },
                });
                self.shard_read(tag, answer, view);
            }
            ReadPurpose::Client { client, sequence, object, request } => match (answer, request) {
                (Ok((outcome, payload)), _) => self.outbox.reply_read(client, sequence, Ok(outcome), payload),
                (Err(ReadFailure::Refused(refusal)), _) => {
                    self.outbox.reply_read(client, sequence, Err(refusal), Bytes::new());
                }
                (Err(ReadFailure::Corrupt { blocks }), ReadRequest::Data { offset, length }) => {
                    let text = format!(
                        "pg {}: blocks {blocks:?} of '{object}' are damaged on {}; reading another copy",
                        self.config.id, self.config.me
                    );
                    self.outbox.push(Action::Warn { text });
                    let copies_left = self.config.others();
                    let epoch = self.config.record.epoch;
                    let read = CopyRead {
                        epoch,
                        client,
                        sequence,
                        object,
                        offset,
                        length,
                        damaged_blocks: blocks,
                        copies_left,
                    };
                    self.read_next_copy(read);
                }
                (Err(ReadFailure::Corrupt { blocks }), _) => {
                    let detail = format!("blocks {blocks:?} of '{object}'");
                    self.outbox.reply_read(client, sequence, Err(Refusal::Corrupt { detail }), Bytes::new());
                }
            },
            ReadPurpose::Copy { primary, epoch, tag } => {
                let (result, payload) = match answer {
                    Ok((outcome, payload)) => (Ok(outcome), payload),
                    Err(ReadFailure::Refused(refusal)) => (Err(refusal), Bytes::new()),
                    Err(ReadFailure::Corrupt { blocks }) => {
                        (Err(Refusal::Corrupt { detail: format!("blocks {blocks:?}") }), Bytes::new())
                    }
                };
                self.outbox.send(primary, Message::CopyReply { pg: self.config.id, epoch, tag, result, payload });
            }
        }
    }
}
