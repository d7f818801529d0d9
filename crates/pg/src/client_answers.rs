//! Answers to clients, and to other members that read this OSD's copy.

use atoll_base::{ReadOutcome, ReadRequest, Refusal};
use atoll_wire::Message;
use bytes::Bytes;

use crate::actions::{Action, ClientId, ObjectView, ReadAnswer, ReadFailure, Token};
use crate::copies::CopyRead;
use crate::group::{InFlight, Pg, ReadPurpose};

impl Pg {
    /// Answers whoever asked for a write that was ordered.
    pub(crate) fn reply_write(&mut self, write: &InFlight, result: Result<(), Refusal>) {
        if let Some((client, request)) = write.asker {
            self.reply_written(client, request.sequence, result);
        }
    }

    pub(crate) fn reply_written(&mut self, client: ClientId, sequence: u64, result: Result<(), Refusal>) {
        self.actions.push_back(Action::Reply { client, message: Message::WriteReply { sequence, result } });
    }

    pub(crate) fn reply_read(
        &mut self,
        client: ClientId,
        sequence: u64,
        result: Result<ReadOutcome, Refusal>,
        payload: Bytes,
    ) {
        let message = Message::ReadReply { sequence, result, payload };
        self.actions.push_back(Action::Reply { client, message });
    }

    /// The store has answered a read.
    pub fn read_done(&mut self, token: Token, answer: ReadAnswer, view: &impl ObjectView) {
        match self.reads.remove(&token).expect("answers belong to reads") {
            ReadPurpose::Shard { tag } => {
                let answer = answer.map_err(|failure| match failure {
                    ReadFailure::Refused(refusal) => refusal,
                    ReadFailure::Corrupt { blocks } => Refusal::Corrupt { detail: format!("blocks {blocks:?}") },
                });
                self.shard_read(tag, answer, view);
            }
            ReadPurpose::Client { client, sequence, object, request } => match (answer, request) {
                (Ok((outcome, payload)), _) => self.reply_read(client, sequence, Ok(outcome), payload),
                (Err(ReadFailure::Refused(refusal)), _) => {
                    self.reply_read(client, sequence, Err(refusal), Bytes::new());
                }
                (Err(ReadFailure::Corrupt { blocks }), ReadRequest::Data { offset, length }) => {
                    let text = format!(
                        "pg {}: blocks {blocks:?} of '{object}' are damaged on {}; reading another copy",
                        self.id, self.me
                    );
                    self.actions.push_back(Action::Warn { text });
                    let copies_left = self.others();
                    let epoch = self.record.epoch;
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
                    self.reply_read(client, sequence, Err(Refusal::Corrupt { detail }), Bytes::new());
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
                self.send(primary, Message::CopyReply { pg: self.id, epoch, tag, result, payload });
            }
        }
    }
}
