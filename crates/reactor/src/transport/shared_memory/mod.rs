//! Shared memory between two processes of one host: two rings of bytes, one for each direction.
//!
//! A loop that is awake looks at its rings in every turn, so two loops that are busy move bytes without any system
//! call. Before a loop sleeps it announces that in the memory, and a peer that then brings awaited bytes or room
//! writes to its doorbell, an eventfd that the loop's ring watches, or epoll if the loop is a guest.

mod memory;
mod opening;
mod ring;

use std::collections::VecDeque;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use atoll_buffers::Received;
use atoll_types::transports::Transport;
use bytes::{Buf, Bytes};
use rustix::event::{EventfdFlags, eventfd};

use super::{Awaited, Carrier};
use memory::SharedMemory;
use ring::{Consumer, Producer, RING_BYTES, RING_WORDS_BYTES, Ring};

pub(crate) use opening::Opening;

/// Most connections of one loop that are carried by shared memory; others have their socket.
const CARRIED_MAX: usize = 64;

/// The words of both rings come first.
const BYTES_AT: usize = 4096;
/// Bytes of memory that a connection shares.
const SHARED_BYTES: usize = BYTES_AT + 2 * RING_BYTES;

/// Side of a connection: each produces the bytes that the other consumes.
#[derive(Clone, Copy)]
enum Side {
    Connecting,
    Accepting,
}

/// Eventfd with which peers wake a loop that sleeps.
pub(crate) struct Doorbell(OwnedFd);

impl Doorbell {
    /// A new one, and a second descriptor of it for the loop's ring.
    pub fn create() -> io::Result<(Self, OwnedFd)> {
        let descriptor = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let twin = descriptor.as_fd().try_clone_to_owned()?;
        Ok((Doorbell(descriptor), twin))
    }

    fn ring(&self) {
        // A count at its limit has woken the loop already; what else a peer passes as its doorbell is its own affair.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }
}

/// One side of a connection over shared memory.
pub(crate) struct SharedRings {
    outgoing: Producer,
    incoming: Consumer,
    peer: Doorbell,
}

impl SharedRings {
    fn new(memory: SharedMemory, side: Side, peer: Doorbell) -> Self {
        let memory = Arc::new(memory);
        let ring =
            |number| Ring::new(Arc::clone(&memory), number * RING_WORDS_BYTES, BYTES_AT + number * RING_BYTES);
        let (outgoing, incoming) = match side {
            Side::Connecting => (ring(0), ring(1)),
            Side::Accepting => (ring(1), ring(0)),
        };
        SharedRings { outgoing: Producer::new(outgoing), incoming: Consumer::new(incoming), peer }
    }

    /// Moves `count` bytes, which are there, to the end of the short ones.
    fn take(&mut self, received: &mut Received, count: usize) -> io::Result<()> {
        received.reserve(count);
        let end = received.len() + count;
        self.incoming.take(&mut received.spare_capacity_mut()[..count], || self.peer.ring())?;
        // SAFETY: so many bytes have been written behind the old end, in room that was reserved.
        unsafe { received.set_len(end) };
        Ok(())
    }

    /// Takes bytes that are there to the long run, as far as it wants them. Gives their number.
    fn take_to_long_run(&mut self, received: &mut Received, available: usize) -> io::Result<usize> {
        let Some(room) = received.long_run_room() else { return Ok(0) };
        let count = room.len().min(available);
        // SAFETY: the same bytes; what is written to them is initialised.
        let room = unsafe { &mut *(&raw mut room[..count] as *mut [MaybeUninit<u8>]) };
        self.incoming.take(room, || self.peer.ring())?;
        received.advance_long_run(count);
        Ok(count)
    }
}

impl Carrier for SharedRings {
    fn transport(&self) -> Transport {
        Transport::SharedMemory
    }

    fn send(&mut self, queue: &mut VecDeque<Bytes>) -> io::Result<usize> {
        let queued: usize = queue.iter().map(Bytes::len).sum();
        if !self.outgoing.has_room_for(queued)? {
            return Ok(0);
        }
        let mut sent = 0;
        while let Some(piece) = queue.front_mut() {
            let pushed = self.outgoing.push(piece, || self.peer.ring())?;
            sent += pushed;
            piece.advance(pushed);
            if !piece.is_empty() {
                break;
            }
            queue.pop_front();
        }
        self.outgoing.publish(|| self.peer.ring())?;
        Ok(sent)
    }

    fn receive(&mut self, received: &mut Received, bytes_max: usize) -> io::Result<usize> {
        let awaited = received.long_run_room().map_or(1, |room| room.len());
        let available = self.incoming.available_of(awaited)?;
        let of_run = self.take_to_long_run(received, available)?;
        // What follows a long run that is not there yet belongs to the run.
        let short = if received.long_run_room().is_none() { (available - of_run).min(bytes_max) } else { 0 };
        self.take(received, short)?;
        Ok(of_run + short)
    }

    fn has_come(&mut self, awaited: Awaited) -> bool {
        let has_bytes = awaited.bytes > 0 && !matches!(self.incoming.available_of(awaited.bytes), Ok(0));
        let has_room = awaited.room > 0 && self.outgoing.has_room_for(awaited.room).unwrap_or(true);
        has_bytes || has_room
    }

    fn fall_asleep(&mut self, awaited: Awaited) {
        self.incoming.await_bytes(awaited.bytes);
        self.outgoing.await_room(awaited.room);
    }

    fn awake(&mut self) {
        self.incoming.await_bytes(0);
        self.outgoing.await_room(0);
    }
}
