//! What a placement group asks of its shell, and what it may look at.

use atoll_base::records::PgRecord;
use atoll_base::{
    Condition, LogEntry, Mutation, ObjectName, OsdId, PgId, ReadOutcome, ReadRequest, Refusal, Touched,
    Transaction, Version,
};
use atoll_wire::Message;
use bytes::Bytes;

use crate::scrub::ScrubReport;

/// Names something that the group asked for, in the answer to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Token(pub u64);

/// Names a client connection of the shell; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClientId(pub u64);

/// What a group is about to look at in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// What a read looks at.
    Read {
        /// The object.
        object: ObjectName,
        /// What to read.
        request: ReadRequest,
    },
    /// What a write's conditions, checks and mutations look at.
    Write {
        /// The object.
        object: ObjectName,
        /// What must hold.
        conditions: Vec<Condition>,
        /// What is to be changed.
        mutations: Vec<Mutation>,
    },
}

/// What a lagging member lacks of an object, or a part of it.
#[derive(Clone, Debug)]
pub struct ObjectParts {
    /// What brings the member level, in order. The last transaction of an object, and no other, says
    /// of what version it is, unless all that it does is to remove it.
    pub transactions: Vec<Transaction>,
    /// Where the next part begins. Then there is one transaction.
    pub next: Option<u64>,
}

/// What the shell must do.
#[derive(Debug)]
pub enum Action {
    /// Submit to the store; answer with [`crate::Pg::committed`] or [`crate::Pg::submit_failed`].
    /// Submissions of one group keep their order.
    Submit {
        /// Repeated in the answer.
        token: Token,
        /// What to submit.
        transaction: Transaction,
    },
    /// Bring into memory what the group is about to look at; answer with [`crate::Pg::loaded`].
    Load {
        /// Repeated in the answer.
        token: Token,
        /// What to bring.
        lookup: Lookup,
    },
    /// Read from the store; answer with [`crate::Pg::read_done`]. What is read is the state at the
    /// time of this action. The view has said that it is loaded.
    Read {
        /// Repeated in the answer.
        token: Token,
        /// The object.
        object: ObjectName,
        /// What to read.
        request: ReadRequest,
    },
    /// List objects of the group but its own one, with the versions of their last changes, in
    /// order and at most [`atoll_base::limits::OBJECTS_LISTED_MAX`]; answer with
    /// [`crate::Pg::objects_listed`].
    ListObjects {
        /// Repeated in the answer.
        token: Token,
        /// Only objects behind this one.
        after: Option<ObjectName>,
    },
    /// Read what a lagging member lacks of an object, as transactions that bring it level; answer
    /// with [`crate::Pg::sync_ready`]. Nothing need be loaded: the shell loads what it reads.
    ReadForSync {
        /// Repeated in the answer.
        token: Token,
        /// The object.
        object: ObjectName,
        /// What it lacks.
        touched: Touched,
        /// Read only a part, from this byte on; otherwise everything at once.
        from: Option<u64>,
        /// Clients wait for it: it yields to nothing. Otherwise the shell has just asked for it, by
        /// [`crate::Pg::copy_next`], or it is a further part.
        is_urgent: bool,
    },
    /// Examine this OSD's copy of an object, a deep scrub with its data; answer with
    /// [`crate::Pg::scrubbed`]. What counts is the state at the time of this action or later.
    Scrub {
        /// Repeated in the answer.
        token: Token,
        /// The object.
        object: ObjectName,
        /// Whether to read its data.
        deep: bool,
    },
    /// A scrub of the whole group has come to its end.
    ScrubDone {
        /// What it found.
        report: ScrubReport,
    },
    /// Send to another member, over a connection that keeps the order of messages.
    Send {
        /// The member.
        to: OsdId,
        /// The message.
        message: Message,
    },
    /// Answer a client.
    Reply {
        /// The client.
        client: ClientId,
        /// The message.
        message: Message,
    },
    /// Change the group's record by compare-and-swap against the record with `expected`. The
    /// outcome comes as [`crate::Pg::set_record`]; a failure needs no answer, a tick tries again.
    Propose {
        /// The record as this member knows it.
        expected: PgRecord,
        /// The new record.
        record: PgRecord,
        /// A group that comes into being with it, and its first record: both or neither.
        split_off: Option<Box<(PgId, PgRecord)>>,
    },
    /// A part of an object has been read from members to fill an OSD of an erasure-coded group, or will
    /// not be.
    ReadToFill {
        /// The object was begun by [`crate::Pg::copy_next`], and this is its first part.
        begins: bool,
        /// Bytes that members have read.
        bytes: u64,
    },
    /// Nobody will take back what is no newer: the log need not say any more how.
    ForgetUndo {
        /// The newest such write.
        through: Version,
    },
    /// Tell the operator.
    Warn {
        /// What is wrong and what follows from it.
        text: String,
    },
}

/// What a shard says of the object that it is one of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WholeObject {
    /// Size of the whole object, in bytes.
    pub object_bytes: u64,
    /// Version of its last change.
    pub version: Version,
    /// Bytes of data per seal and length of a seal, if the object has seals.
    pub seal_shape: Option<(u32, u16)>,
}

/// Why a read from the store failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadFailure {
    /// A definite answer for the client.
    Refused(Refusal),
    /// Blocks of this copy are damaged; another copy may have them.
    Corrupt {
        /// The object's blocks.
        blocks: Vec<u32>,
    },
}

/// What a read from the store found: the outcome and the payload.
pub type ReadAnswer = Result<(ReadOutcome, Bytes), ReadFailure>;

/// The store of this member, as changed by everything submitted so far.
///
/// Not all of it is in memory. [`ObjectView::object_exists`], [`ObjectView::omap_value`],
/// [`ObjectView::check_write`] and [`ObjectView::matches_checks`] are called only for what the view
/// says is loaded; for anything else the group asks for [`Action::Load`] first. What is loaded
/// stays so until the shell has taken all actions of the group, so that a read finds what the view
/// promised; then it may be evicted at any time.
pub trait ObjectView {
    /// Whether everything that a read looks at is in memory now.
    fn is_read_loaded(&self, pg: PgId, object: &ObjectName, request: &ReadRequest) -> bool;

    /// Whether everything that a write looks at is in memory now: whether the object exists, what
    /// the conditions ask for (fences in the group's own object included), and what
    /// [`ObjectView::check_write`] needs.
    fn is_write_loaded(
        &self,
        pg: PgId,
        object: &ObjectName,
        conditions: &[Condition],
        mutations: &[Mutation],
    ) -> bool;

    /// Whether the object exists.
    fn object_exists(&self, pg: PgId, object: &ObjectName) -> bool;

    /// In an erasure-coded group, the whole object that an object is a shard of, if it exists.
    fn whole_object(&self, pg: PgId, object: &ObjectName) -> Option<WholeObject>;

    /// Value of an omap entry.
    fn omap_value(&self, pg: PgId, object: &ObjectName, key: &[u8]) -> Option<Bytes>;

    /// Version of the newest write.
    fn head(&self, pg: PgId) -> Version;

    /// The newest log entries, oldest first.
    fn log(&self, pg: PgId) -> Vec<LogEntry>;

    /// Whether a write could be done now: alignment, sizes, and space on every one of `members`.
    fn check_write(
        &self,
        pg: PgId,
        members: &[OsdId],
        object: &ObjectName,
        mutations: &[Mutation],
        payload_bytes: usize,
    ) -> Result<(), Refusal>;

    /// Of how many groups of its pool a group is one, by the splits that this OSD's copy has seen.
    fn pg_num(&self, pg: PgId) -> Option<u32>;

    /// Whether a submission of the group would be taken at once. The primary starts no write
    /// without it.
    fn has_room(&self, pg: PgId) -> bool;

    /// Milliseconds of this OSD's monotonic clock, read since the event that is being handled came
    /// in.
    fn now_ms(&self) -> u64;

    /// Until when another member helps no other primary (see [`crate::Leases`]).
    fn lease_held_until_ms(&self, peer: OsdId) -> u64;

    /// Until when this OSD is bound to a peer or, without one, to whomever it has forgotten.
    fn lease_granted_until_ms(&self, peer: Option<OsdId>) -> u64;

    /// Whether data read from another copy is what this copy's checks say it must be.
    fn matches_checks(&self, pg: PgId, object: &ObjectName, offset: u64, data: &[u8]) -> bool;
}
