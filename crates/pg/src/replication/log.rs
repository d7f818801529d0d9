//! The end of the history at this member, how far all members are known to have it, and at the primary
//! the writes that not all have.

use std::collections::VecDeque;

use atoll_types::limits::PG_IN_FLIGHT_MAX;
use atoll_types::{Epoch, LogEntry, ObjectName, OsdId, ReadRequest, RequestId, Touched, Version};

use super::conflicts::read_sees;
use crate::actions::{ClientId, ObjectView};
use crate::erasure::Span;
use crate::invariants;

/// Acknowledgements and reads that take longer are noted.
pub(crate) const LATE_US: u64 = 20_000;

/// A write that not all members have made durable yet.
pub(crate) struct InFlight {
    pub version: Version,
    pub object: ObjectName,
    pub touched: Touched,
    /// The object did not exist before.
    pub creates: bool,
    /// The client's connection and request; `None` if the PG itself wrote.
    pub client_request: Option<(ClientId, RequestId)>,
    /// Members, this one included, that have not acknowledged yet.
    pub missing: Vec<OsdId>,
    /// In an erasure-coded PG: the span of the shards that it writes.
    pub span: Option<Span>,
    /// When it was ordered, in microseconds.
    pub ordered_us: u64,
    /// Members whose acknowledgements took long, or all if it is traced, with their times in microseconds.
    pub late: Vec<(OsdId, u64)>,
}

impl InFlight {
    /// Returns true if a read would show this write.
    fn shows_in(&self, object: &ObjectName, read: &ReadRequest) -> bool {
        self.object == *object && (self.creates || read_sees(read, &self.touched))
    }
}

/// The end of the history, and the writes in flight.
pub(crate) struct Log {
    /// Sequence of the newest write submitted to the store.
    last_sequence: u64,
    /// Sequence of the newest write that all members are known to have had.
    committed_sequence: u64,
    /// Writes that not all members have, by version.
    in_flight: VecDeque<InFlight>,
}

impl Log {
    /// The log of a copy whose newest write has this version. Its entries have the committed sequence.
    pub fn new(head: Version, entries: &[LogEntry]) -> Self {
        let mut log = Log { last_sequence: head.sequence, committed_sequence: 0, in_flight: VecDeque::new() };
        entries.iter().for_each(|entry| log.note_committed(entry.committed_sequence));
        log
    }

    pub fn last_sequence(&self) -> u64 {
        self.last_sequence
    }

    /// Sequence of the newest write of this history that all members are known to have had.
    pub fn committed_sequence(&self) -> u64 {
        self.committed_sequence
    }

    /// Notes that all members have the writes up to this sequence. One beyond this copy's end counts as its
    /// end.
    pub fn note_committed(&mut self, sequence: u64) {
        self.committed_sequence = self.committed_sequence.max(sequence.min(self.last_sequence));
    }

    /// The history ends here now: an entry was appended, or the store refused later ones.
    pub fn ends_at(&mut self, sequence: u64) {
        self.last_sequence = sequence;
    }

    /// The history is cut off here. Later writes are of another history, which is unknown yet: a copy that an
    /// operator has accepted may lack committed writes.
    pub fn cut(&mut self, sequence: u64) {
        self.last_sequence = sequence;
        self.committed_sequence = self.committed_sequence.min(sequence);
    }

    /// The version of the next write.
    pub fn next_version(&self, epoch: Epoch) -> Version {
        Version { epoch, sequence: self.last_sequence + 1 }
    }

    /// Appends a write. It is submitted and sent next.
    pub fn order(&mut self, write: InFlight) {
        invariants::write_follows_history(self.last_sequence, write.version);
        invariants::writes_in_flight_are_contiguous(self.in_flight.back().map(|last| last.version), write.version);
        invariants::writes_in_flight_are_bounded(self.in_flight.len(), PG_IN_FLIGHT_MAX);
        self.in_flight.push_back(write);
    }

    pub fn is_full(&self) -> bool {
        self.in_flight.len() >= PG_IN_FLIGHT_MAX
    }

    pub fn has_none_in_flight(&self) -> bool {
        self.in_flight.is_empty()
    }

    /// Writes that not all members have, oldest first.
    pub fn in_flight(&self) -> impl Iterator<Item = &InFlight> {
        self.in_flight.iter()
    }

    /// Returns true if a write of an object is in flight.
    pub fn writes(&self, object: &ObjectName) -> bool {
        self.in_flight.iter().any(|write| write.object == *object)
    }

    /// Returns true if a read would show a write in flight.
    pub fn shows_in(&self, object: &ObjectName, read: &ReadRequest) -> bool {
        self.in_flight.iter().any(|write| write.shows_in(object, read))
    }

    /// The newest write, under the epoch in force.
    pub fn newest(&self, epoch: Epoch) -> Version {
        Version { epoch, sequence: self.last_sequence }
    }

    /// The newest write that all members have.
    pub fn newest_committed(&self, epoch: Epoch) -> Version {
        Version { epoch, sequence: self.committed_sequence }
    }

    /// A member has everything up to `version` durable.
    pub fn acknowledge(&mut self, member: OsdId, version: Version, view: &impl ObjectView) {
        let now_us = view.now_us();
        let is_traced = |write: &InFlight| {
            write.client_request.is_some_and(|(client, request)| view.is_traced(client, request.sequence))
        };
        for write in self.in_flight.iter_mut().take_while(|write| write.version <= version) {
            let Some(index) = write.missing.iter().position(|missing| *missing == member) else { continue };
            write.missing.swap_remove(index);
            if now_us >= write.ordered_us + LATE_US || is_traced(write) {
                write.late.push((member, now_us));
            }
        }
    }

    /// Takes the oldest write, if all members have it.
    pub fn pop_committed(&mut self) -> Option<InFlight> {
        let write = self.in_flight.pop_front_if(|write| write.missing.is_empty())?;
        self.note_committed(write.version.sequence);
        Some(write)
    }

    /// Takes all writes: another primary continues the history, or all members share it.
    pub fn take_in_flight(&mut self) -> VecDeque<InFlight> {
        std::mem::take(&mut self.in_flight)
    }

    /// Takes a write that the store refused, and all writes after it.
    pub fn take_from(&mut self, version: Version) -> VecDeque<InFlight> {
        let first = self.in_flight.partition_point(|write| write.version < version);
        self.in_flight.split_off(first)
    }

    /// Redirects the answer to a write in flight to another connection. False if it is not in
    /// flight.
    pub fn take_over(&mut self, client: ClientId, id: RequestId) -> bool {
        let mut client_requests = self.in_flight.iter_mut().filter_map(|write| write.client_request.as_mut());
        let client_request = client_requests.find(|(_, request)| *request == id);
        client_request.map(|client_request| client_request.0 = client).is_some()
    }
}
