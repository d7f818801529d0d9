//! The messages. A request's payload and a reply's payload travel as the frame's payload.

use atoll_base::{
    Epoch, LogEntry, ObjectName, OsdId, PgId, ReadOutcome, ReadRequest, Refusal, RequestId, Transaction, Version,
    WriteRequest,
};
use bytes::Bytes;

use crate::scrub_finding::ScrubFinding;

/// Everything that one Atoll process says to another once the handshake is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// Client to primary.
    Read {
        /// Names the request; the answer repeats its sequence.
        id: RequestId,
        /// The object's placement group.
        pg: PgId,
        /// The epoch under which the client believes this OSD to be the primary.
        epoch: Epoch,
        /// The object.
        object: ObjectName,
        /// What to read.
        request: ReadRequest,
    },
    /// Client to primary.
    Write {
        /// Names the request; a retry has the same id.
        id: RequestId,
        /// Every request of this session with a lower sequence has been answered, so nothing
        /// about them needs to be remembered.
        answered_below: u64,
        /// The object's placement group.
        pg: PgId,
        /// The epoch under which the client believes this OSD to be the primary.
        epoch: Epoch,
        /// What to write.
        request: WriteRequest,
    },
    /// Primary to client.
    ReadReply {
        /// The request's sequence.
        sequence: u64,
        /// What was found.
        result: Result<ReadOutcome, Refusal>,
        /// The data of [`ReadOutcome::Data`].
        payload: Bytes,
    },
    /// Primary to client: the write is durable on all members, or was refused.
    WriteReply {
        /// The request's sequence.
        sequence: u64,
        /// Whether it was done.
        result: Result<(), Refusal>,
    },
    /// Primary to member: apply this next write of the group.
    Replicate {
        /// The primary's epoch.
        epoch: Epoch,
        /// The write; its one log entry follows the member's head.
        transaction: Transaction,
        /// All members have everything up to here, so nobody will take that back.
        committed: Version,
    },
    /// Member to primary: the group's history up to `version` is durable here.
    ReplicateAck {
        /// The group.
        pg: PgId,
        /// The epoch of the message acknowledged.
        epoch: Epoch,
        /// The version acknowledged.
        version: Version,
        /// Whether this member refuses new data for lack of space.
        is_full: bool,
    },
    /// Primary to a member or to one that shall become a member: promise to ignore lower epochs,
    /// and say what you have.
    PeerQuery {
        /// The group.
        pg: PgId,
        /// The primary's epoch.
        epoch: Epoch,
        /// The last epoch that became active.
        active_epoch: Epoch,
        /// The members of its configuration. Each has promised that epoch, unless it has lost its
        /// device; one of them may still hold leases.
        active_members: Vec<OsdId>,
        /// The primary also wants the newest entries of the receiver's log.
        wants_log: bool,
        /// In an erasure-coded group, the shard that the receiver holds as a member.
        shard: Option<u8>,
    },
    /// Answer to [`Message::PeerQuery`]: the promise is durable, no other primary may serve reads
    /// any more on this member's word, and this is what I have. A member that could not take a
    /// write says it unasked.
    PeerInfo {
        /// The group.
        pg: PgId,
        /// The epoch promised.
        epoch: Epoch,
        /// Version of the newest write in this member's history.
        head: Version,
        /// Whether the objects are what the history says.
        is_complete: bool,
        /// The newest entries of the log, oldest first, if they were wanted.
        log: Vec<LogEntry>,
        /// In an erasure-coded group, the shard that the objects here are of.
        shard: Option<u8>,
    },
    /// Primary of an erasure-coded group to a member, while it peers: take back everything newer. The
    /// answer is [`Message::PeerInfo`].
    RollBack {
        /// The group.
        pg: PgId,
        /// The primary's epoch.
        epoch: Epoch,
        /// The newest write that stays.
        head: Version,
    },
    /// Primary of an erasure-coded group to a member: all members have everything up to here, so what
    /// it would take to undo it can go.
    Committed {
        /// The group.
        pg: PgId,
        /// The primary's epoch.
        epoch: Epoch,
        /// The newest write that all have.
        version: Version,
    },
    /// Member to a former primary: I have promised a higher epoch to another primary, so what
    /// leases of mine you hold are void for this group.
    Fenced {
        /// The group.
        pg: PgId,
        /// The epoch promised.
        epoch: Epoch,
    },
    /// Answer to [`Message::Fenced`]: I serve nothing under lower epochs any more.
    FencedAck {
        /// The group.
        pg: PgId,
        /// The epoch of the question.
        epoch: Epoch,
    },
    /// Brings a lagging member, or one that shall become a member, level: a part of the state of one object, or log entries.
    PeerSync {
        /// The new epoch.
        epoch: Epoch,
        /// Names the series; repeated in the answer.
        tag: u64,
        /// The object's state.
        transaction: Transaction,
    },
    /// Answer to each [`Message::PeerSync`]: it is durable, send the next.
    PeerSynced {
        /// The group.
        pg: PgId,
        /// The epoch of the series.
        epoch: Epoch,
        /// The series.
        tag: u64,
    },
    /// Primary to one that shall become a member: which objects do you have, and of what version?
    ObjectsQuery {
        /// The group.
        pg: PgId,
        /// The primary's epoch.
        epoch: Epoch,
        /// Names the series; repeated in the answer.
        tag: u64,
        /// Only objects behind this one.
        after: Option<ObjectName>,
    },
    /// Answer to [`Message::ObjectsQuery`].
    ObjectsReply {
        /// The group.
        pg: PgId,
        /// The epoch of the question.
        epoch: Epoch,
        /// The question's tag.
        tag: u64,
        /// Objects in the order of their names, with the versions of their last changes; at most
        /// [`atoll_base::limits::OBJECTS_LISTED_MAX`].
        objects: Vec<(ObjectName, Version)>,
        /// Whether there are more behind the last.
        more: bool,
    },
    /// Primary to member: send your copy of these blocks; mine is damaged.
    CopyRead {
        /// The group.
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
    },
    /// Answer to [`Message::CopyRead`].
    CopyReply {
        /// The group.
        pg: PgId,
        /// The epoch of the question.
        epoch: Epoch,
        /// The question's tag.
        tag: u64,
        /// What was found.
        result: Result<ReadOutcome, Refusal>,
        /// The data.
        payload: Bytes,
    },
    /// Primary to member: examine your copy of an object, to be compared with the others.
    ScrubQuery {
        /// The group.
        pg: PgId,
        /// The primary's epoch.
        epoch: Epoch,
        /// Repeated in the answer.
        tag: u64,
        /// The object.
        object: ObjectName,
        /// Whether to read its data.
        deep: bool,
    },
    /// Answer to [`Message::ScrubQuery`]; or to [`Message::ObjectWanted`] if the object cannot be
    /// read.
    ScrubReply {
        /// The group.
        pg: PgId,
        /// The epoch of the question.
        epoch: Epoch,
        /// The question's tag.
        tag: u64,
        /// What was found.
        finding: ScrubFinding,
    },
    /// Primary to a member with a good copy of an object: send me all of it, because mine is bad.
    ObjectWanted {
        /// The group.
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
    ObjectPart {
        /// The epoch of the question.
        epoch: Epoch,
        /// The question's tag.
        tag: u64,
        /// The part.
        transaction: Transaction,
    },
    /// Asks whether the peer is alive.
    Ping {
        /// Repeated in the answer.
        tag: u64,
    },
    /// Answer to [`Message::Ping`].
    Pong {
        /// The question's tag.
        tag: u64,
        /// Whether this OSD refuses new data for lack of space.
        is_full: bool,
    },
}

impl Message {
    /// The group that a message between members is about.
    pub fn pg(&self) -> Option<PgId> {
        match self {
            Message::Replicate { transaction, .. }
            | Message::PeerSync { transaction, .. }
            | Message::ObjectPart { transaction, .. } => Some(transaction.pg),
            Message::ReplicateAck { pg, .. }
            | Message::PeerQuery { pg, .. }
            | Message::PeerInfo { pg, .. }
            | Message::RollBack { pg, .. }
            | Message::Committed { pg, .. }
            | Message::PeerSynced { pg, .. }
            | Message::Fenced { pg, .. }
            | Message::FencedAck { pg, .. }
            | Message::ObjectsQuery { pg, .. }
            | Message::ObjectsReply { pg, .. }
            | Message::CopyRead { pg, .. }
            | Message::CopyReply { pg, .. }
            | Message::ScrubQuery { pg, .. }
            | Message::ScrubReply { pg, .. }
            | Message::ObjectWanted { pg, .. } => Some(*pg),
            _ => None,
        }
    }
}
