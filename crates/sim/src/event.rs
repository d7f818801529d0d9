//! Events of a simulated world, each at one OSD.

use atoll_pg::{ClientId, Lookup, ReadFailure, Token};
use atoll_types::records::PgRecord;
use atoll_types::{ObjectName, PgId, ReadOutcome, ReadRequest, Version};
use atoll_wire::{Message, ScrubFinding};
use bytes::Bytes;

pub type ReadResult = Result<(ReadOutcome, Bytes), ReadFailure>;

/// A change of a PG's record by compare-and-swap.
pub struct Swap {
    pub expected: PgRecord,
    pub record: PgRecord,
    pub split_off: Option<PgRecord>,
}

pub enum Event {
    PeerMessage {
        from: usize,
        to: usize,
        generation: u64,
        message: Message,
    },
    PeerUp {
        at: usize,
        other: usize,
        generation: u64,
    },
    PeerDown {
        at: usize,
        other: usize,
        generation: u64,
    },
    Request {
        conn: ClientId,
        to: usize,
        incarnation: u64,
        message: Message,
    },
    Answer {
        conn: ClientId,
        message: Message,
    },
    Commit {
        at: usize,
        incarnation: u64,
    },
    Loaded {
        at: usize,
        incarnation: u64,
        pg: PgId,
        token: Token,
        lookup: Lookup,
    },
    Listed {
        at: usize,
        incarnation: u64,
        pg: PgId,
        token: Token,
        objects: Vec<(ObjectName, Version)>,
        more: bool,
    },
    ReadDone {
        at: usize,
        incarnation: u64,
        pg: PgId,
        token: Token,
        answer: ReadResult,
        /// The store looks at the object again before it answers, as when blocks changed while they were read.
        looks_again: Option<(ObjectName, ReadRequest)>,
    },
    Scrubbed {
        at: usize,
        incarnation: u64,
        pg: PgId,
        token: Token,
        finding: ScrubFinding,
    },
    BackfillRead {
        at: usize,
        incarnation: u64,
        pg: PgId,
        token: Token,
        result: Result<atoll_pg::ObjectParts, String>,
    },
    MayCopy {
        at: usize,
        incarnation: u64,
        pg: PgId,
    },
    Record {
        at: usize,
        incarnation: u64,
        pg: PgId,
        record: PgRecord,
    },
    Target {
        at: usize,
        incarnation: u64,
    },
    Swap {
        at: usize,
        pg: PgId,
        swap: Box<Swap>,
    },
    DiskDone {
        at: usize,
        incarnation: u64,
        id: u64,
    },
    Tick {
        at: usize,
        incarnation: u64,
    },
    Run {
        at: usize,
    },
    Restart {
        at: usize,
    },
    Room {
        at: usize,
        out_of_room: bool,
    },
    Emptied {
        at: usize,
    },
    /// An operator looks at a PG that stands still.
    Operator {
        pg: PgId,
    },
    Fault,
    Quiet,
    ClientWakes {
        session: usize,
    },
    ClientRetries {
        op: usize,
        attempt: u32,
    },
}

impl Event {
    /// Returns true if the world is not settled while this event is ahead.
    pub fn may_unsettle(&self) -> bool {
        use Event::{Operator, PeerDown, PeerMessage, PeerUp, Request};
        match self {
            PeerMessage { message, .. } => !matches!(message, Message::Ping { .. } | Message::Pong { .. }),
            Request { .. } | PeerUp { .. } | PeerDown { .. } | Operator { .. } => true,
            _ => false,
        }
    }

    /// The OSD whose process handles it.
    pub fn process(&self) -> Option<usize> {
        use Event::*;
        match self {
            PeerMessage { to: at, .. }
            | Request { to: at, .. }
            | PeerUp { at, .. }
            | PeerDown { at, .. }
            | Commit { at, .. }
            | Loaded { at, .. }
            | Listed { at, .. }
            | ReadDone { at, .. }
            | Scrubbed { at, .. }
            | MayCopy { at, .. }
            | BackfillRead { at, .. }
            | Record { at, .. }
            | Target { at, .. }
            | DiskDone { at, .. }
            | Tick { at, .. }
            | Run { at }
            | Room { at, .. } => Some(*at),
            Answer { .. } | Operator { .. } | Swap { .. } | Restart { .. } | Fault | Quiet => None,
            Emptied { .. } | ClientWakes { .. } | ClientRetries { .. } => None,
        }
    }
}
