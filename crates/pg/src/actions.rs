//! Actions of a PG for its shell, and the view of the store that the shell gives it.

use atoll_types::records::PgRecord;
use atoll_types::{
    Condition, Epoch, LogEntry, Mutation, ObjectName, OsdId, PgId, ReadOutcome, ReadRequest, Refusal, RequestId,
    SharedTransaction, Touched, Transaction, Version,
};
use atoll_wire::Message;
use bytes::Bytes;

use crate::progress::Reached;
use crate::scrub::ScrubReport;

/// Identifies an action in the shell's answer to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Token(pub u64);

/// Identifies a client connection of the shell; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClientId(pub u64);

/// Sender of a write, and its client's knowledge.
#[derive(Clone, Copy, Debug)]
pub struct Sender {
    /// The connection.
    pub client: ClientId,
    /// The request.
    pub id: RequestId,
    /// The client has the answers to its requests to this PG below this number.
    pub answered_below: u64,
    /// The newest write of the PG that the client knew of when it first sent the request.
    pub known: Version,
    /// The newest epoch that it knew when it sent this copy of it.
    pub epoch: Epoch,
}

/// Metadata that a PG is about to look at in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// Metadata for a read.
    Read {
        /// The object.
        object: ObjectName,
        /// The read.
        request: ReadRequest,
    },
    /// Metadata for a write's conditions, checks and mutations.
    Write {
        /// The object.
        object: ObjectName,
        /// Conditions of the write.
        conditions: Vec<Condition>,
        /// Mutations of the write.
        mutations: Vec<Mutation>,
    },
}

/// Missing parts of an object of a learner.
#[derive(Clone, Debug)]
pub struct ObjectParts {
    /// Transactions for the learner, in order. The last one of an object, and no other, sets the
    /// version, unless it only removes the object.
    pub transactions: Vec<Transaction>,
    /// Byte at which the next part begins, if there is one. Then `transactions` holds one.
    pub next: Option<u64>,
}

/// Actions of the shell.
#[derive(Debug)]
pub enum Action {
    /// Submit to the store; answer with [`crate::Pg::committed`] or [`crate::Pg::submit_failed`].
    /// Submissions of one PG keep their order.
    Submit {
        /// Repeated in the answer.
        token: Token,
        /// The transaction to submit.
        transaction: SharedTransaction,
    },
    /// Load metadata that the PG is about to look at; answer with [`crate::Pg::loaded`].
    Load {
        /// Repeated in the answer.
        token: Token,
        /// The metadata to load.
        lookup: Lookup,
    },
    /// Read from the store, as it is at the time of this action; answer with
    /// [`crate::Pg::read_done`]. The view has said that the metadata is loaded.
    Read {
        /// Repeated in the answer.
        token: Token,
        /// The object.
        object: ObjectName,
        /// The read.
        request: ReadRequest,
    },
    /// List objects of the PG except its own object, in order, with the versions of their last
    /// changes, at most [`atoll_types::limits::OBJECTS_LISTED_MAX`]; answer with
    /// [`crate::Pg::objects_listed`].
    ListObjects {
        /// Repeated in the answer.
        token: Token,
        /// Only objects after this one.
        after: Option<ObjectName>,
    },
    /// Read the parts of an object that a learner lacks, as transactions for it; answer with
    /// [`crate::Pg::object_read`]. The shell loads the needed metadata.
    ReadObject {
        /// Repeated in the answer.
        token: Token,
        /// The object.
        object: ObjectName,
        /// The parts of the object that differ.
        touched: Touched,
        /// Read only a part, from this byte on; `None` for everything at once.
        from: Option<u64>,
        /// Clients wait for it, so it is not paced. Otherwise the shell has just asked for it, by
        /// [`crate::Pg::backfill_next`], or it is a further part.
        is_urgent: bool,
    },
    /// Examine this OSD's copy of an object, as it is at the time of this action or later; answer
    /// with [`crate::Pg::scrubbed`].
    Scrub {
        /// Repeated in the answer.
        token: Token,
        /// The object.
        object: ObjectName,
        /// True if its data is to be read and compared with its checksums.
        deep: bool,
    },
    /// A scrub of the whole PG has ended.
    ScrubDone {
        /// The result.
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
    /// A client's read that is answered next took long to be read, or its metadata to be loaded, or it is traced.
    ReadTookLong {
        /// The client.
        client: ClientId,
        /// The request's sequence.
        sequence: u64,
        /// Stages that it reached, in the order of time.
        reached: Vec<Reached>,
    },
    /// A client's write that is answered next is durable on all members now: on those that it was sent to, or on
    /// those of a PG that has peered meanwhile.
    Durable {
        /// The client.
        client: ClientId,
        /// The request's sequence.
        sequence: u64,
        /// When it was ordered, in microseconds of the view's clock.
        ordered_us: u64,
        /// The members that were late, or all if the write is traced, and when each had it durable.
        late: Vec<(OsdId, u64)>,
    },
    /// Change the PG's record by compare-and-swap against the record with `expected`. The
    /// outcome comes as [`crate::Pg::set_record`]; a failure needs no answer, a tick tries again.
    Propose {
        /// The record as this member knows it.
        expected: Box<PgRecord>,
        /// The new record.
        record: Box<PgRecord>,
        /// The PG that is split off and its first record, to be written in the same transaction.
        split_off: Option<Box<(PgId, PgRecord)>>,
    },
    /// For the pacing of backfill: a part of an object was read from members to backfill an OSD of
    /// an erasure-coded PG, or its read was given up.
    ReadForBackfill {
        /// This is the first part of an object that [`crate::Pg::backfill_next`] began.
        begins: bool,
        /// Bytes that members have read; 0 if the read was given up.
        bytes: u64,
    },
    /// All members have these writes, so none of them will be rolled back: the log may forget their
    /// pre-images.
    ForgetPreImages {
        /// The newest of these writes.
        through: Version,
    },
    /// Inform the operator.
    Warn {
        /// The problem and its consequences.
        text: String,
    },
}

/// The object that a shard belongs to, as the shard's metadata describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WholeObject {
    /// Size of the whole object, in bytes.
    pub object_bytes: u64,
    /// Version of its last change.
    pub version: Version,
    /// Bytes of data per seal and bytes of a seal, if the object has seals.
    pub seal_shape: Option<(u32, u16)>,
}

/// Result of a look at the store for a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Examined {
    /// True if its object exists.
    pub exists: bool,
    /// Refusal for reasons other than its conditions.
    pub check: Result<(), Refusal>,
}

/// Why a read from the store failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadFailure {
    /// A definite answer for the client.
    Refused(Refusal),
    /// Metadata was not in memory after all, and is now.
    WasCold,
    /// Blocks of this copy are damaged; another copy may have them.
    Corrupt {
        /// Numbers of the damaged blocks in the object.
        blocks: Vec<u32>,
    },
}

/// The answer to a read: the outcome and the payload.
pub type ReadAnswer = Result<(ReadOutcome, Bytes), ReadFailure>;

/// This OSD's store, with everything that the shell has submitted so far, durable or not.
///
/// Not all metadata is in memory. [`ObjectView::object_exists`], [`ObjectView::omap_value`],
/// [`ObjectView::check_write`] and [`ObjectView::matches_checks`] are called only for loaded metadata; for
/// anything else the PG asks for [`Action::Load`] first. The shell evicts nothing before it has taken all actions
/// of the PG, because they rely on the view.
///
/// Data from clients, peers and disks decides the lookups, so no lookup may panic: an impossible one is a refusal.
/// Metadata that is damaged is [`Refusal::Corrupt`]; metadata that is only not in memory is [`Refusal::Busy`],
/// never damage.
pub trait ObjectView {
    /// Returns true if all metadata for a read is in memory now.
    fn is_read_loaded(&self, pg: PgId, object: &ObjectName, request: &ReadRequest) -> bool;

    /// Returns true if all metadata for a write is in memory now: the object's existence, that of its conditions
    /// (fences in the PG's own object included), and that of [`ObjectView::check_write`].
    fn is_write_loaded(
        &self,
        pg: PgId,
        object: &ObjectName,
        conditions: &[Condition],
        mutations: &[Mutation],
    ) -> bool;

    /// Examines a write once: [`ObjectView::object_exists`] and [`ObjectView::check_write`] together. `None`
    /// unless [`ObjectView::is_write_loaded`].
    fn examine_write(
        &self,
        pg: PgId,
        members: &[OsdId],
        object: &ObjectName,
        conditions: &[Condition],
        mutations: &[Mutation],
        payload_bytes: usize,
    ) -> Option<Examined> {
        let is_loaded = self.is_write_loaded(pg, object, conditions, mutations);
        is_loaded.then(|| match self.object_exists(pg, object) {
            Ok(exists) => {
                Examined { exists, check: self.check_write(pg, members, object, mutations, payload_bytes) }
            }
            Err(refusal) => Examined { exists: false, check: Err(refusal) },
        })
    }

    /// Returns true if the object exists.
    fn object_exists(&self, pg: PgId, object: &ObjectName) -> Result<bool, Refusal>;

    /// In an erasure-coded PG: the whole object that this OSD's shard belongs to, if it exists.
    fn whole_object(&self, pg: PgId, object: &ObjectName) -> Result<Option<WholeObject>, Refusal>;

    /// Value of an omap entry.
    fn omap_value(&self, pg: PgId, object: &ObjectName, key: &[u8]) -> Result<Option<Bytes>, Refusal>;

    /// Version of the newest write.
    fn head(&self, pg: PgId) -> Version;

    /// The newest log entries, oldest first.
    fn log(&self, pg: PgId) -> Vec<LogEntry>;

    /// Checks if a write could be done now: alignment, sizes, and space here and on every one of `members`. Space
    /// is checked last.
    fn check_write(
        &self,
        pg: PgId,
        members: &[OsdId],
        object: &ObjectName,
        mutations: &[Mutation],
        payload_bytes: usize,
    ) -> Result<(), Refusal>;

    /// Returns true if an OSD, perhaps this one, takes no new data.
    fn is_full(&self, osd: OsdId) -> bool;

    /// Which blocks of a range small writes would overwrite in place, so that they need no space: a bit
    /// for each of the first 32, the lowest first.
    fn blocks_in_place(&self, pg: PgId, object: &ObjectName, offset: u64, length: u32) -> u32;

    /// The pool's number of PGs by the splits that this OSD's copy has applied.
    fn pg_num(&self, pg: PgId) -> Option<u32>;

    /// Returns true if the store would take a submission at once. Otherwise the primary starts no write.
    fn has_room(&self, pg: PgId) -> bool;

    /// Milliseconds of this OSD's monotonic clock, read after the current event came in.
    fn now_ms(&self) -> u64;

    /// The same in microseconds. It decides nothing: it is for reports of slow operations.
    fn now_us(&self) -> u64;

    /// Returns true if all stages of a client's request are to be reported, for any duration.
    fn is_traced(&self, _client: ClientId, _sequence: u64) -> bool {
        false
    }

    /// Until when another member's lease binds it to this OSD (see [`crate::Leases`]).
    fn lease_held_until_ms(&self, peer: OsdId) -> u64;

    /// Until when this OSD's lease binds it to a peer. Without a peer: until when leases may bind
    /// it that it granted before it started.
    fn lease_granted_until_ms(&self, peer: Option<OsdId>) -> u64;

    /// Returns true if data of another copy fits this copy's checksums.
    fn matches_checks(&self, pg: PgId, object: &ObjectName, offset: u64, data: &[u8]) -> bool;
}
