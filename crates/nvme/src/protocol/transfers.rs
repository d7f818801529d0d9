//! Data that hosts send on request, and its amount at one time.

use std::collections::{BTreeMap, VecDeque};

use bytes::{Bytes, BytesMut};

use super::pdu::{FatalError, Payload};

/// Data of a command, all of it.
pub(super) struct Received {
    pub data: Bytes,
    /// True if every digest matched.
    pub is_sound: bool,
}

struct Transfer {
    length_bytes: usize,
    is_granted: bool,
    received_bytes: usize,
    /// Data that came in pieces.
    pieces: BytesMut,
    is_sound: bool,
}

/// The transfers of a queue, by tag.
pub(super) struct Transfers {
    by_tag: BTreeMap<u16, Transfer>,
    waiting: VecDeque<u16>,
    granted_bytes: usize,
    granted_bytes_max: usize,
    /// Room of the shell beyond the granted bytes.
    room_bytes: usize,
    /// Bytes of all granted transfers that have ended.
    finished_bytes: u64,
}

impl Transfers {
    pub fn new(granted_bytes_max: usize) -> Self {
        Transfers {
            by_tag: BTreeMap::new(),
            waiting: VecDeque::new(),
            granted_bytes: 0,
            granted_bytes_max,
            room_bytes: 0,
            finished_bytes: 0,
        }
    }

    /// Expects `length_bytes` bytes of data for a command, not zero.
    pub fn expect(&mut self, tag: u16, length_bytes: usize) {
        let transfer = Transfer {
            length_bytes,
            is_granted: false,
            received_bytes: 0,
            pieces: BytesMut::new(),
            is_sound: true,
        };
        self.by_tag.insert(tag, transfer);
        self.waiting.push_back(tag);
    }

    /// Returns true if data of this command has yet to come.
    pub fn is_awaited(&self, tag: u16) -> bool {
        self.by_tag.contains_key(&tag)
    }

    /// The length of the transfer that would be next within the limit of the queue.
    fn next_bytes(&self) -> Option<(u16, usize)> {
        let tag = *self.waiting.front()?;
        let length_bytes = self.by_tag.get(&tag).expect("a transfer that waits is there").length_bytes;
        let is_within = self.granted_bytes == 0 || self.granted_bytes + length_bytes <= self.granted_bytes_max;
        is_within.then_some((tag, length_bytes))
    }

    /// How much more room is needed for the next transfer; 0 if none is waiting for it.
    pub fn needed_room_bytes(&self) -> usize {
        self.next_bytes().map_or(0, |(_, length_bytes)| length_bytes.saturating_sub(self.room_bytes))
    }

    /// Bytes of all transfers that were granted and have ended.
    pub fn finished_bytes(&self) -> u64 {
        self.finished_bytes
    }

    /// There is more room.
    pub fn add_room(&mut self, bytes: usize) {
        self.room_bytes += bytes;
    }

    /// The next transfer that the host may begin: its tag and its length.
    pub fn grant(&mut self) -> Option<(u16, usize)> {
        let (tag, length_bytes) =
            self.next_bytes().filter(|(_, length_bytes)| *length_bytes <= self.room_bytes)?;
        self.waiting.pop_front();
        self.by_tag.get_mut(&tag).expect("it waits").is_granted = true;
        self.granted_bytes += length_bytes;
        self.room_bytes -= length_bytes;
        Some((tag, length_bytes))
    }

    /// Checks that a data PDU is the next of its transfer.
    pub fn check(&self, tag: u16, offset: u32, data_bytes: usize, is_last: bool) -> Result<(), FatalError> {
        let transfer = self.by_tag.get(&tag).filter(|transfer| transfer.is_granted);
        let transfer = transfer.ok_or(FatalError::InvalidHeaderField(10))?;
        let end = offset as usize + data_bytes;
        if offset as usize != transfer.received_bytes || end > transfer.length_bytes || data_bytes == 0 {
            return Err(FatalError::DataOutOfRange);
        }
        if is_last != (end == transfer.length_bytes) {
            return Err(FatalError::InvalidHeaderField(1));
        }
        Ok(())
    }

    /// Adds a data PDU that was checked; returns all data when it was the last.
    pub fn receive(&mut self, tag: u16, payload: Payload) -> Option<Received> {
        let transfer = self.by_tag.get_mut(&tag).expect("the data PDU was checked");
        transfer.is_sound &= payload.is_sound;
        transfer.received_bytes += payload.data.len();
        let is_whole = transfer.received_bytes == transfer.length_bytes;
        let is_one = payload.data.len() == transfer.length_bytes;
        if !is_one {
            transfer.pieces.reserve(transfer.length_bytes - transfer.pieces.len());
            transfer.pieces.extend_from_slice(&payload.data);
        }
        if !is_whole {
            return None;
        }
        let transfer = self.by_tag.remove(&tag).expect("it was just there");
        self.granted_bytes -= transfer.length_bytes;
        self.finished_bytes += transfer.length_bytes as u64;
        let data = if is_one { payload.data } else { transfer.pieces.freeze() };
        Some(Received { data, is_sound: transfer.is_sound })
    }
}
