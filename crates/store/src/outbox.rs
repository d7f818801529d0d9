//! Requests of the store to its shell: to its devices, each with its reason, and events. Components put them in;
//! [`crate::Store`] hands them out.

use std::collections::VecDeque;

use atoll_pending::Pending;

use crate::disk::{Device, DiskOperation, DiskRequest};
use crate::event::StoreEvent;

/// Part of a read that one disk request brings.
#[derive(Clone, Copy)]
pub(crate) struct ReadPiece {
    pub read_id: u64,
    pub first: usize,
    pub count: usize,
}

/// Part of a scrub that one disk request brings.
#[derive(Clone, Copy)]
pub(crate) struct ScrubPiece {
    pub scrub_id: u64,
    pub first: usize,
    pub count: usize,
}

/// Why a disk request was made.
#[derive(Clone, Copy)]
pub(crate) enum Purpose {
    Read(ReadPiece),
    Scrub(ScrubPiece),
    /// Data of a large write.
    Data {
        number: u64,
    },
    Wal {
        sequence: u64,
    },
    /// A metadata page.
    Page {
        number: u32,
        /// The first reading brought other data than the written one.
        is_again: bool,
    },
    /// Free blocks are given back.
    Discard,
    /// A superblock that notes damage.
    DamageNote,
    /// Something that the checkpoint does.
    Checkpoint,
}

/// Requests and events that were not taken yet, and requests that are not complete.
pub(crate) struct Outbox {
    requests: VecDeque<DiskRequest>,
    purposes: Pending<Purpose>,
    events: VecDeque<StoreEvent>,
    newest_id: u64,
}

impl Outbox {
    pub fn new() -> Self {
        Outbox { requests: VecDeque::new(), purposes: Pending::default(), events: VecDeque::new(), newest_id: 1 }
    }

    /// An id that was never used before.
    pub fn next_id(&mut self) -> u64 {
        self.newest_id += 1;
        self.newest_id
    }

    /// Makes a request to the data device.
    pub fn request(&mut self, purpose: Purpose, operation: DiskOperation) -> u64 {
        self.request_on(Device::Data, purpose, operation)
    }

    /// Makes a request to a device.
    pub fn request_on(&mut self, device: Device, purpose: Purpose, operation: DiskOperation) -> u64 {
        let id = self.next_id();
        self.purposes.insert(id, purpose);
        self.requests.push_back(DiskRequest { id, device, operation });
        id
    }

    /// A request is complete. Returns why it was made.
    pub fn completed(&mut self, id: u64) -> Purpose {
        self.purposes.remove(id).expect("completions belong to requests")
    }

    pub fn tell(&mut self, event: StoreEvent) {
        self.events.push_back(event);
    }

    pub fn take_request(&mut self) -> Option<DiskRequest> {
        self.requests.pop_front()
    }

    pub fn take_event(&mut self) -> Option<StoreEvent> {
        self.events.pop_front()
    }

    /// Requests that are not complete, and why they were made.
    pub fn purposes(&self) -> impl Iterator<Item = (u64, Purpose)> {
        self.purposes.iter().map(|(id, purpose)| (id, *purpose))
    }
}
