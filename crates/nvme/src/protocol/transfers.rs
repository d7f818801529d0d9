//! Data that hosts send when they are told to, and how much of it at once.

use std::collections::{BTreeMap, VecDeque};

use bytes::{Bytes, BytesMut};

use super::pdu::{FatalError, Payload};

/// Data of a command, all of it.
pub(super) struct Received {
    pub data: Bytes,
    /// Whether every digest did fit.
    pub is_sound: bool,
}

struct Transfer {
    length_bytes: usize,
    is_granted: bool,
    received_bytes: usize,
    /// What came in pieces.
    pieces: BytesMut,
    is_sound: bool,
}

/// The transfers of a queue, by tag.
pub(super) struct Transfers {
    by_tag: BTreeMap<u16, Transfer>,
    waiting: VecDeque<u16>,
    granted_bytes: usize,
    granted_bytes_max: usize,
}

impl Transfers {
    pub fn new(granted_bytes_max: usize) -> Self {
        Transfers { by_tag: BTreeMap::new(), waiting: VecDeque::new(), granted_bytes: 0, granted_bytes_max }
    }

    /// A command has so many bytes of data, not zero.
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

    /// Whether data of this command has yet to come.
    pub fn is_awaited(&self, tag: u16) -> bool {
        self.by_tag.contains_key(&tag)
    }

    /// The next transfer that the host may begin: its tag and its length.
    pub fn grant(&mut self) -> Option<(u16, usize)> {
        let tag = *self.waiting.front()?;
        let transfer = self.by_tag.get_mut(&tag).expect("a transfer that waits is there");
        if self.granted_bytes > 0 && self.granted_bytes + transfer.length_bytes > self.granted_bytes_max {
            return None;
        }
        self.waiting.pop_front();
        transfer.is_granted = true;
        self.granted_bytes += transfer.length_bytes;
        Some((tag, transfer.length_bytes))
    }

    /// Whether a data PDU is the next of its transfer.
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
        let data = if is_one { payload.data } else { transfer.pieces.freeze() };
        Some(Received { data, is_sound: transfer.is_sound })
    }
}
