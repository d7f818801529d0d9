//! One connection.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use atoll_buffers::{BlockBuffer, LongRun};

use crate::credits::Credits;
use crate::error::FabricError;
use crate::fabric::ListenerId;
use crate::memory::{MessageBuffer, Referred};
use crate::message::Reference;
use crate::sys::{Endpoint, Region};

/// A message that has arrived and is not taken yet.
pub struct Arrived {
    pub buffer: MessageBuffer,
    /// The bytes of the stream in it that are not taken yet.
    pub from: usize,
    pub end: usize,
    /// The reference that follows them.
    pub reference: Option<Reference>,
}

/// Where a read goes.
pub enum ReadTarget {
    /// Into the buffer that the receiver waits for.
    LongRun(LongRun),
    /// Into a buffer from which it is copied, because the receiver waits for less.
    Aside(BlockBuffer),
}

impl ReadTarget {
    pub fn buffer(&self) -> &BlockBuffer {
        match self {
            ReadTarget::LongRun(long_run) => long_run.buffer(),
            ReadTarget::Aside(buffer) => buffer,
        }
    }

    /// Where the next bytes go.
    pub fn room(&mut self) -> &mut [u8] {
        match self {
            ReadTarget::LongRun(long_run) => long_run.room(),
            ReadTarget::Aside(buffer) => buffer.as_mut_slice(),
        }
    }
}

/// A read of the peer's memory, until the receiver has its bytes.
pub struct Read {
    pub target: ReadTarget,
    pub length: usize,
    /// The registration of the target, where there has to be one.
    pub _region: Option<Arc<Region>>,
    /// Where it goes at first if the target cannot be registered.
    pub aside: Option<MessageBuffer>,
}

#[derive(Default)]
pub enum Reading {
    #[default]
    Nothing,
    UnderWay,
    /// There was no room for one.
    Blocked,
    Done(Read),
}

/// Stages of a link.
#[derive(PartialEq, Eq)]
pub enum Stage {
    /// Not connected yet; accepted by this listener, or by this side.
    Opening(Option<ListenerId>, Instant),
    Open,
    /// Its user has gone: the queue is sent until then.
    Finishing(Instant),
}

pub struct Link {
    pub device: usize,
    /// Away when the link has failed.
    pub endpoint: Option<Endpoint>,
    pub peer: SocketAddr,
    pub stage: Stage,
    pub token_of_peer: u64,
    pub own_token: u64,
    pub credits: Credits,
    /// Receives of its own that are posted, where devices share none.
    pub posted: u32,
    /// A message that is made and could not be sent yet.
    pub to_send: Option<(MessageBuffer, usize)>,
    /// Bytes at the front of the queue that are copied though they are many.
    pub copied_bytes: usize,
    /// A piece waits until the peer has read others.
    pub is_waiting: bool,
    /// Operations under way, by their contexts.
    pub operations: Vec<u64>,
    /// Sends among them.
    pub sends: u32,
    /// Pieces offered to the peer for reading and not yet acknowledged.
    pub referred: VecDeque<Referred>,
    pub referred_bytes: usize,
    /// References of the peer that are read and not acknowledged.
    pub done: u32,
    pub arrived: VecDeque<Arrived>,
    pub reading: Reading,
    /// Bytes of the front reference that are read.
    pub read_bytes: usize,
    /// The peer has closed the link; arrived bytes are still delivered.
    pub is_ended: bool,
    pub failure: Option<FabricError>,
}

impl Link {
    pub fn is_open(&self) -> bool {
        self.endpoint.is_some() && !matches!(self.stage, Stage::Opening(..))
    }

    /// Returns true if nothing is left to be sent or to be read by the peer.
    pub fn is_sent(&self) -> bool {
        self.to_send.is_none() && self.sends == 0 && self.referred.is_empty()
    }

    /// Returns true if [`crate::Fabric::receive`] has something to do or to report.
    pub fn has_news(&self) -> bool {
        match self.reading {
            Reading::UnderWay | Reading::Blocked => self.failure.is_some(),
            Reading::Done(_) => true,
            Reading::Nothing => !self.arrived.is_empty() || self.is_ended || self.failure.is_some(),
        }
    }
}
