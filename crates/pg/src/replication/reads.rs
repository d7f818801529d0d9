//! Reads that have no answer yet, of this OSD's store and of other copies.

use std::collections::BTreeMap;

use atoll_pending::Pending;
use atoll_types::{Epoch, Mutation, ObjectName, OsdId, PgId, ReadRequest, Version};

use super::copy_reads::CopyRead;
use crate::actions::{ClientId, Lookup, ObjectView, Token};
use crate::progress::ReadTimes;

/// Why the store is read.
pub(crate) enum ReadPurpose {
    Client {
        client: ClientId,
        sequence: u64,
        object: ObjectName,
        request: ReadRequest,
        times: ReadTimes,
        /// The newest write that the store had when it began.
        began_at: Version,
    },
    /// A [`SpanRead`].
    Span {
        asker: SpanAsker,
        /// Which blocks could be overwritten in place, if that was asked.
        in_place: u32,
    },
}

/// Requester of a span of this copy.
pub(crate) enum SpanAsker {
    /// An operation on shards, at this primary.
    Operation { tag: u64 },
    /// A primary whose own copy is damaged, or that has an operation on shards. If `keeps`, a write of the
    /// same span follows.
    Primary { primary: OsdId, epoch: Epoch, tag: u64, keeps: bool },
    /// A write of the history that replaces it, at a member.
    Write { version: Version },
}

/// A read of a span of this copy, for another member or for an operation on shards.
pub(crate) struct SpanRead {
    pub asker: SpanAsker,
    pub object: ObjectName,
    pub offset: u64,
    pub length: u32,
    /// True if the answer should name the blocks that could be overwritten in place.
    pub asks_in_place: bool,
}

impl SpanRead {
    pub fn request(&self) -> ReadRequest {
        ReadRequest::checked_data(self.offset, self.length)
    }

    /// Writes also look at whether blocks are shared.
    fn mutations(&self) -> Vec<Mutation> {
        vec![Mutation::Write { offset: self.offset, length: self.length, seals: None }]
    }

    /// Returns its metadata that is not in memory.
    pub fn missing(&self, pg: PgId, view: &impl ObjectView) -> Option<Lookup> {
        let request = self.request();
        if !view.is_read_loaded(pg, &self.object, &request) {
            return Some(Lookup::Read { object: self.object.clone(), request });
        }
        let mutations = if self.asks_in_place { self.mutations() } else { return None };
        let is_loaded = view.is_write_loaded(pg, &self.object, &[], &mutations);
        (!is_loaded).then(|| Lookup::Write { object: self.object.clone(), conditions: Vec::new(), mutations })
    }
}

/// Reads under way.
#[derive(Default)]
pub(crate) struct Reads {
    purposes: Pending<ReadPurpose>,
    /// Reads that wait for a load.
    loading: BTreeMap<Token, SpanRead>,
    /// Reads that wait until the view shows everything that came before them.
    waiting: Vec<SpanRead>,
    /// Reads of other copies, by tag.
    of_copies: BTreeMap<u64, CopyRead>,
}

impl Reads {
    pub fn begin(&mut self, token: Token, purpose: ReadPurpose) {
        self.purposes.insert(token.0, purpose);
    }

    /// The purpose of a read that the store has answered.
    pub fn answered(&mut self, token: Token) -> ReadPurpose {
        self.purposes.remove(token.0).expect("answers belong to reads")
    }

    /// Returns the times of a client's read that the store has not answered.
    pub fn of_client(&self, client: ClientId, sequence: u64) -> Option<ReadTimes> {
        self.purposes.iter().find_map(|(_, purpose)| match purpose {
            ReadPurpose::Client { client: of, sequence: number, times, .. } => {
                (*of == client && *number == sequence).then_some(*times)
            }
            _ => None,
        })
    }

    /// Returns true if a client's read waits for another copy.
    pub fn is_of_copy(&self, client: ClientId, sequence: u64) -> bool {
        self.of_copies.values().any(|read| read.client == client && read.sequence == sequence)
    }

    pub fn begin_after_load(&mut self, token: Token, read: SpanRead) {
        self.loading.insert(token, read);
    }

    /// A load is done: takes the read that waits for it, if there is one.
    pub fn loaded(&mut self, token: Token) -> Option<SpanRead> {
        self.loading.remove(&token)
    }

    pub fn begin_later(&mut self, read: SpanRead) {
        self.waiting.push(read);
    }

    pub fn take_waiting(&mut self) -> Vec<SpanRead> {
        std::mem::take(&mut self.waiting)
    }

    /// Returns true if some wait for the view.
    pub fn are_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Another member was asked for its copy.
    pub(super) fn begin_of_copy(&mut self, tag: u64, read: CopyRead) {
        self.of_copies.insert(tag, read);
    }

    /// Takes the read of a copy that a member has answered. A restarted process uses tags again,
    /// but not epochs.
    pub(super) fn of_copy_answered(&mut self, tag: u64, epoch: Epoch) -> Option<CopyRead> {
        let is_asked = self.of_copies.get(&tag).is_some_and(|read| read.epoch == epoch);
        if is_asked { self.of_copies.remove(&tag) } else { None }
    }

    /// Takes the reads that a member was asked for.
    pub(super) fn take_asked_of(&mut self, member: OsdId) -> Vec<CopyRead> {
        let asked = self.of_copies.extract_if(.., |_, read| read.copies_left.last() == Some(&member));
        asked.map(|(_, read)| read).collect()
    }
}
