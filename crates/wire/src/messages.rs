//! The messages: one table, from which come the enum, its encoding, its property tests and the table of
//! docs (protocol.md, "Messages").
//!
//! The control segment holds the kind, one byte, and the fields in the order of their declaration. The data
//! of a request, a reply or a transaction travels as the frame's payload.

use atoll_codec::{CodecError, Reader, Writer};
use atoll_types::kinds;
use atoll_types::{
    Epoch, LogEntry, ObjectName, OsdId, PgId, ReadOutcome, ReadRequest, Refusal, RequestId, Room,
    SharedTransaction, TraceContext, Transaction, Version, WriteRequest,
};
use bytes::Bytes;

use crate::frame::{Frame, PayloadSeal};
use crate::scrub_finding::ScrubFinding;
use shapes::{
    Log, Members, ObjectList, OptionalName, Payload, ReadResult, ShardNumber, SpanIds, Write, WriteResult,
};

mod shapes;

#[cfg(test)]
use samples::Sample;

kinds! {
    /// Everything that one Atoll process says to another once the handshake is done.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub enum Message("message kind") {
        /// Client to primary.
        1 => Read {
            /// Names the request; the answer repeats its sequence.
            id: RequestId,
            /// The object's PG.
            pg: PgId,
            /// The epoch under which the client believes this OSD to be the primary.
            epoch: Epoch,
            /// The object.
            object: ObjectName,
            /// The objects and ranges to read.
            request: ReadRequest,
        },
        /// Client to primary.
        2 => Write {
            /// Names the request; a retry has the same id.
            id: RequestId,
            /// Every request of this session with a lower sequence has been answered, so nothing
            /// about them needs to be remembered. Only requests to this PG count.
            answered_below: u64,
            /// The newest write of the PG that the client knew of when it first sent the request: in the
            /// history no copy of the request can stand before it.
            known: Version,
            /// The object's PG.
            pg: PgId,
            /// The epoch under which the client believes this OSD to be the primary.
            epoch: Epoch,
            /// The object, range and data to write.
            request: WriteRequest as Write,
        },
        /// Primary to client.
        3 => ReadReply {
            /// The request's sequence.
            sequence: u64,
            /// True if the request said that the reader opens seals: the frame then does not check sealed data.
            opens_seals: bool,
            /// The data or the reason for a refusal.
            result: Result<ReadOutcome, Refusal> as ReadResult,
            /// The data of [`ReadOutcome::Data`].
            payload: Bytes as Payload,
        },
        /// Primary to client: the write is durable on all members, or was refused.
        4 => WriteReply {
            /// The request's sequence.
            sequence: u64,
            /// The PG that the answer is of.
            pg: PgId,
            /// The newest write of the PG that all members have; zero if this OSD does not know it.
            committed: Version,
            /// The result or the reason for a refusal.
            result: Result<(), Refusal> as WriteResult,
        },
        /// Primary to member: apply this next write of the PG.
        5 (members) => Replicate {
            /// The primary's epoch.
            epoch: Epoch,
            /// The write; its one log entry follows the member's head.
            transaction: SharedTransaction,
            /// All members have everything up to here, so no primary will roll that back.
            committed: Version,
            /// The client has the answers to all requests of the write's session with a lower sequence.
            answered_below: u64,
        },
        /// Member to primary: the PG's history up to `version` is durable here.
        6 (members) => ReplicateAck {
            /// The PG.
            pg: PgId,
            /// The epoch of the message acknowledged.
            epoch: Epoch,
            /// The version acknowledged.
            version: Version,
            /// Kinds of client operations that this member's space allows.
            room: Room,
        },
        /// Primary to a member or a learner: promise to ignore lower epochs, and send your state.
        7 (members) => PeerQuery {
            /// The PG.
            pg: PgId,
            /// The primary's epoch.
            epoch: Epoch,
            /// The last epoch that became active.
            active_epoch: Epoch,
            /// The members of its configuration. Each has promised that epoch, unless it has lost its
            /// device; one of them may still hold leases.
            active_members: Vec<OsdId> as Members,
            /// The primary also wants the newest entries of the receiver's log.
            wants_log: bool,
            /// In an erasure-coded PG, the shard that the receiver holds as a member.
            shard: Option<u8> as ShardNumber,
            /// The epoch in which an operator has accepted the receiver's copy; 0 if none has.
            accepted_epoch: Epoch,
            /// The head that this copy had then.
            accepted_head: Version,
            /// The newest epoch in which members know the PG to have been active elsewhere. It is beyond the last active
            /// one if cluster state was put back from an older snapshot; 0 if they know of none.
            elsewhere_epoch: Epoch,
        },
        /// Answer to [`Message::PeerQuery`]: the promise is durable, no other primary may serve reads any more by
        /// this member's lease, and this is my state. A member that could not take a write says it unasked.
        8 (members) => PeerInfo {
            /// The PG.
            pg: PgId,
            /// The epoch promised.
            epoch: Epoch,
            /// Version of the newest write in this member's history.
            head: Version,
            /// Sequence of the newest write that this member knows all members to have had; 0 if it knows none.
            committed_sequence: u64,
            /// The first epoch that this member promised since it started.
            since_epoch: Epoch,
            /// True if the objects match the history.
            is_complete: bool,
            /// The newest entries of the log, oldest first, if they were wanted.
            log: Vec<LogEntry> as Log,
            /// In an erasure-coded PG, the shard that the objects here are of.
            shard: Option<u8> as ShardNumber,
            /// An object whose old data, which a [`Message::Overwrite`] replaces, this member could not read, so
            /// that it could not take the write.
            unreadable: Option<ObjectName> as OptionalName,
            /// The epoch in which the PG was active elsewhere when this OSD deleted its copy; 0 if it has not.
            elsewhere_epoch: Epoch,
        },
        /// Brings a lagging member, or a learner, up to date: a part of the state of one object, or log entries.
        10 (members) => PeerPush {
            /// The new epoch.
            epoch: Epoch,
            /// Names the series; repeated in the answer.
            tag: u64,
            /// The object's state.
            transaction: Transaction,
        },
        /// Answer to each [`Message::PeerPush`]: it is durable, send the next.
        11 (members) => PeerPushed {
            /// The PG.
            pg: PgId,
            /// The epoch of the series.
            epoch: Epoch,
            /// The series.
            tag: u64,
        },
        /// Primary to member: send your copy of these blocks; mine is damaged.
        12 (members) => CopyRead {
            /// The PG.
            pg: PgId,
            /// The primary's epoch.
            epoch: Epoch,
            /// Repeated in the answer.
            tag: u64,
            /// The object.
            object: ObjectName,
            /// Offset in bytes, a multiple of the block size.
            offset: u64,
            /// Length in bytes.
            length: u32,
            /// True if the answer should name the blocks that could be overwritten in place.
            asks_in_place: bool,
            /// A [`Message::Overwrite`] of the same blocks is to follow, for which they may be kept.
            keeps: bool,
        },
        /// Answer to [`Message::CopyRead`].
        13 (members) => CopyReply {
            /// The PG.
            pg: PgId,
            /// The epoch of the question.
            epoch: Epoch,
            /// The question's tag.
            tag: u64,
            /// The data or the reason for a refusal.
            result: Result<ReadOutcome, Refusal> as ReadResult,
            /// If that was asked, a bit for each of the first 32 blocks, the lowest first: a small write of
            /// it would stay in place, and so need no space.
            in_place: u32,
            /// The data.
            payload: Bytes as Payload,
        },
        /// Asks whether the peer is alive.
        14 => Ping {
            /// Repeated in the answer.
            tag: u64,
        },
        /// Answer to [`Message::Ping`].
        15 => Pong {
            /// The question's tag.
            tag: u64,
            /// Kinds of client operations that this OSD's space allows.
            room: Room,
        },
        /// Member to a former primary: I have promised a higher epoch to another primary, so leases of mine that
        /// you hold are void for this PG.
        16 (members) => Fenced {
            /// The PG.
            pg: PgId,
            /// The epoch promised.
            epoch: Epoch,
        },
        /// Answer to [`Message::Fenced`]: I serve nothing under lower epochs any more.
        17 (members) => FencedAck {
            /// The PG.
            pg: PgId,
            /// The epoch of the question.
            epoch: Epoch,
        },
        /// Primary to a learner: list your objects and their versions.
        18 (members) => ObjectsQuery {
            /// The PG.
            pg: PgId,
            /// The primary's epoch.
            epoch: Epoch,
            /// Names the series; repeated in the answer.
            tag: u64,
            /// Only objects behind this one.
            after: Option<ObjectName> as OptionalName,
        },
        /// Answer to [`Message::ObjectsQuery`].
        19 (members) => ObjectsReply {
            /// The PG.
            pg: PgId,
            /// The epoch of the question.
            epoch: Epoch,
            /// The question's tag.
            tag: u64,
            /// Objects in the order of their names, with the versions of their last changes; at most
            /// [`atoll_types::limits::OBJECTS_LISTED_MAX`].
            objects: Vec<(ObjectName, Version)> as ObjectList,
            /// True if there are more behind the last.
            more: bool,
        },
        /// Primary to member: examine your copy of an object, to be compared with the others.
        20 (members) => ScrubQuery {
            /// The PG.
            pg: PgId,
            /// The primary's epoch.
            epoch: Epoch,
            /// Repeated in the answer.
            tag: u64,
            /// The object.
            object: ObjectName,
            /// True if data is to be read.
            deep: bool,
        },
        /// Answer to [`Message::ScrubQuery`]; or to [`Message::ObjectWanted`] if the object cannot be
        /// read.
        21 (members) => ScrubReply {
            /// The PG.
            pg: PgId,
            /// The epoch of the question.
            epoch: Epoch,
            /// The question's tag.
            tag: u64,
            /// The member's finding.
            finding: ScrubFinding,
        },
        /// Primary to a member with a good copy of an object: send me all of it, because mine is bad.
        22 (members) => ObjectWanted {
            /// The PG.
            pg: PgId,
            /// The primary's epoch.
            epoch: Epoch,
            /// Repeated in the answer.
            tag: u64,
            /// The object.
            object: ObjectName,
        },
        /// Answer to [`Message::ObjectWanted`]: a part of the object. The last one sets its version, or
        /// removes it.
        23 (members) => ObjectPart {
            /// The epoch of the question.
            epoch: Epoch,
            /// The question's tag.
            tag: u64,
            /// The part.
            transaction: Transaction,
        },
        /// Primary of an erasure-coded PG to a member, while it peers: roll back everything newer. The
        /// answer is [`Message::PeerInfo`].
        24 (members) => RollBack {
            /// The PG.
            pg: PgId,
            /// The primary's epoch.
            epoch: Epoch,
            /// The newest write that stays.
            head: Version,
        },
        /// Primary of an erasure-coded PG to a member: all members have everything up to here, so the
        /// pre-images can be deleted.
        25 (members) => Committed {
            /// The PG.
            pg: PgId,
            /// The primary's epoch.
            epoch: Epoch,
            /// The newest write that all have.
            version: Version,
        },
        /// Client to primary, or primary to member: the next message of this connection, a [`Message::Read`],
        /// [`Message::Write`], [`Message::Replicate`] or [`Message::Overwrite`], is a part of this span, which is
        /// exported.
        26 => Traced {
            /// The span of the sender.
            span: TraceContext as SpanIds,
        },
        /// Primary of an erasure-coded PG to a member: as [`Message::Replicate`], but the member itself reads the
        /// replaced data, and adds it to the pre-image.
        27 (members) => Overwrite {
            /// The primary's epoch.
            epoch: Epoch,
            /// The write; its one log entry follows the member's head.
            transaction: SharedTransaction,
            /// All members have everything up to here, so no primary will roll that back.
            committed: Version,
            /// The client has the answers to all requests of the write's session with a lower sequence.
            answered_below: u64,
            /// Offset of the replaced data in the shard, in bytes.
            offset: u64,
            /// Its length in bytes.
            length: u32,
            /// The tag under which the member has answered a [`Message::CopyRead`] of it; 0: it was not asked.
            tag: u64,
            /// True if the payload and the seals are the difference of the new ones from the old ones (exclusive
            /// or).
            is_difference: bool,
        },
        /// A primary that serves nothing to an elector: cluster state does not answer my proposals, so do not wait
        /// for me.
        28 (members) => Undecided {
            /// The PG.
            pg: PgId,
            /// The epoch in force as the primary knows it.
            epoch: Epoch,
        },
    }
}

fn is_sealed_data(result: &Result<ReadOutcome, Refusal>) -> bool {
    matches!(result, Ok(ReadOutcome::Data { seals: Some(seals), .. }) if seals.are_of_ciphertext())
}

/// The messages of one frame: one or more; only the last can have a payload.
pub struct Messages {
    reader: Reader,
    payload: Bytes,
    seal: PayloadSeal,
}

impl Messages {
    /// The messages of a frame, which has at least one.
    pub fn new(frame: Frame) -> Self {
        let Frame { control, payload, seal } = frame;
        Messages { reader: Reader::new(control), payload, seal }
    }

    /// Returns true if all were taken.
    pub fn is_empty(&self) -> bool {
        self.reader.remaining() == 0
    }

    /// Takes the next message. Everything in it is within the limits.
    pub fn take(&mut self) -> Result<Message, CodecError> {
        let mut message = Message::decode_kind(&mut self.reader)?;
        if self.is_empty() {
            message.put_payload(std::mem::take(&mut self.payload), self.seal)?;
        }
        Ok(message)
    }
}

impl Message {
    /// Returns the message's payload and its protection.
    pub fn payload(&self) -> (Bytes, PayloadSeal) {
        let sealed_if = |is_sealed| if is_sealed { PayloadSeal::Sealed } else { PayloadSeal::None };
        match self {
            Message::Write { request, .. } => (request.payload.clone(), sealed_if(request.payload_sealed)),
            Message::Replicate { transaction, .. } | Message::Overwrite { transaction, .. } => {
                (transaction.payload.clone(), sealed_if(transaction.payload_sealed))
            }
            Message::PeerPush { transaction, .. } | Message::ObjectPart { transaction, .. } => {
                (transaction.payload.clone(), sealed_if(transaction.payload_sealed))
            }
            Message::ReadReply { result, payload, opens_seals: true, .. } if is_sealed_data(result) => {
                (payload.clone(), PayloadSeal::OpenedByReceiver)
            }
            Message::ReadReply { result, payload, .. } | Message::CopyReply { result, payload, .. } => {
                (payload.clone(), sealed_if(is_sealed_data(result)))
            }
            _ => (Bytes::new(), PayloadSeal::None),
        }
    }

    /// Sets the payload that came beside the control segment: the inverse of [`Message::payload`]. Only an answer
    /// to a reader that opens seals may come without a check.
    fn put_payload(&mut self, received: Bytes, seal: PayloadSeal) -> Result<(), CodecError> {
        match self {
            Message::Write { request, .. } => {
                request.payload = received;
                request.payload_sealed = seal == PayloadSeal::Sealed;
            }
            Message::Replicate { transaction, .. } | Message::Overwrite { transaction, .. } => {
                transaction.put_payload(received);
            }
            Message::PeerPush { transaction, .. } | Message::ObjectPart { transaction, .. } => {
                transaction.payload = received;
            }
            Message::ReadReply { payload, .. } | Message::CopyReply { payload, .. } => *payload = received,
            _ => {}
        }
        let (payload, expected) = self.payload();
        if seal == PayloadSeal::OpenedByReceiver && expected != seal {
            return Err(CodecError::Invalid {
                what: "bytes of a payload without a check",
                value: payload.len() as u64,
            });
        }
        Ok(())
    }

    /// Appends the fields of the control segment.
    pub fn encode(&self, writer: &mut Writer) {
        self.encode_kind(writer);
    }

    /// The PG that a message between members is about.
    pub fn pg(&self) -> Option<PgId> {
        match self {
            Message::Replicate { transaction, .. } | Message::Overwrite { transaction, .. } => {
                Some(transaction.pg)
            }
            Message::PeerPush { transaction, .. } | Message::ObjectPart { transaction, .. } => {
                Some(transaction.pg)
            }
            Message::ReplicateAck { pg, .. }
            | Message::PeerQuery { pg, .. }
            | Message::PeerInfo { pg, .. }
            | Message::RollBack { pg, .. }
            | Message::Committed { pg, .. }
            | Message::PeerPushed { pg, .. }
            | Message::Fenced { pg, .. }
            | Message::FencedAck { pg, .. }
            | Message::ObjectsQuery { pg, .. }
            | Message::ObjectsReply { pg, .. }
            | Message::CopyRead { pg, .. }
            | Message::CopyReply { pg, .. }
            | Message::ScrubQuery { pg, .. }
            | Message::ScrubReply { pg, .. }
            | Message::ObjectWanted { pg, .. }
            | Message::Undecided { pg, .. } => Some(*pg),
            _ => None,
        }
    }
}

#[cfg(test)]
fn encode(message: &Message) -> Bytes {
    let mut writer = Writer::default();
    message.encode(&mut writer);
    writer.finish()
}

/// The message of a frame that has only one.
#[cfg(test)]
fn decode(frame: Frame) -> Result<Message, CodecError> {
    let mut messages = Messages::new(frame);
    let message = messages.take()?;
    messages.reader.finish()?;
    Ok(message)
}

#[cfg(test)]
mod known_answers;
#[cfg(test)]
mod samples;
#[cfg(test)]
mod tests;
