//! Reads that have no answer yet, of this OSD's store and of other copies.

use std::collections::BTreeMap;

use atoll_types::{Epoch, ObjectName, OsdId, ReadRequest};

use super::copy_reads::CopyRead;
use crate::actions::{ClientId, Token};
use crate::progress::ReadTimes;

/// Why the store is read.
pub(crate) enum ReadPurpose {
    Client {
        client: ClientId,
        sequence: u64,
        object: ObjectName,
        request: ReadRequest,
        times: ReadTimes,
    },
    /// For an operation on shards, at this primary.
    Shard {
        tag: u64,
    },
    /// For a primary whose own copy is damaged.
    Copy {
        primary: OsdId,
        epoch: Epoch,
        tag: u64,
    },
}

/// Reads under way.
#[derive(Default)]
pub(crate) struct Reads {
    purposes: BTreeMap<Token, ReadPurpose>,
    /// Reads that wait for a load.
    loading: BTreeMap<Token, (ReadPurpose, ObjectName, ReadRequest)>,
    /// Reads of other copies, by tag.
    of_copies: BTreeMap<u64, CopyRead>,
}

impl Reads {
    pub fn begin(&mut self, token: Token, purpose: ReadPurpose) {
        self.purposes.insert(token, purpose);
    }

    /// The purpose of a read that the store has answered.
    pub fn answered(&mut self, token: Token) -> ReadPurpose {
        self.purposes.remove(&token).expect("answers belong to reads")
    }

    /// When a client's read that the store has not answered had come to what.
    pub fn of_client(&self, client: ClientId, sequence: u64) -> Option<ReadTimes> {
        self.purposes.values().find_map(|purpose| match purpose {
            ReadPurpose::Client { client: of, sequence: number, times, .. } => {
                (*of == client && *number == sequence).then_some(*times)
            }
            _ => None,
        })
    }

    /// Whether a client's read waits for another copy.
    pub fn is_of_copy(&self, client: ClientId, sequence: u64) -> bool {
        self.of_copies.values().any(|read| read.client == client && read.sequence == sequence)
    }

    pub fn begin_after_load(
        &mut self,
        token: Token,
        purpose: ReadPurpose,
        object: ObjectName,
        request: ReadRequest,
    ) {
        self.loading.insert(token, (purpose, object, request));
    }

    /// A load is done: takes the read that waits for it, if there is one.
    pub fn loaded(&mut self, token: Token) -> Option<(ReadPurpose, ObjectName, ReadRequest)> {
        self.loading.remove(&token)
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
