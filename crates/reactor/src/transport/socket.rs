//! Sending and receiving by the socket itself.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::mem;
use std::os::fd::{AsRawFd, OwnedFd};

use bytes::{Buf, Bytes};
use io_uring::{opcode, types};
use rustix::net::{SendAncillaryBuffer, SendFlags, send, sendmsg};

use crate::connection::{Connection, ConnectionId, RECEIVE_BYTES_AT_ONCE, RECEIVE_BYTES_MIN};
use crate::reactor::{Operation, Reactor};

/// Sends up to this size are made without the ring, if the socket takes them at once.
const SEND_NOW_BYTES_MAX: usize = 256 << 10;

/// Most pieces in one send: below the kernel's limit of 1,024.
const SEND_PIECES_MAX: usize = 64;

/// Most pieces that are sent by one call without the ring.
const PIECES_NOW_MAX: usize = 16;

/// Sends as much of the first pieces as the socket takes at once, in one call, and takes it off the queue; returns
/// the number of bytes. An error counts as nothing sent: sending the rest meets it again.
fn send_now(socket: &OwnedFd, queue: &mut VecDeque<Bytes>) -> usize {
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let mut vectors = [IoSlice::new(&[]); PIECES_NOW_MAX];
    let count = queue.len().min(PIECES_NOW_MAX);
    vectors.iter_mut().zip(&*queue).for_each(|(vector, piece)| *vector = IoSlice::new(piece));
    let sent = match &vectors[..count] {
        [piece] => send(socket, piece, flags),
        pieces => sendmsg(socket, pieces, &mut SendAncillaryBuffer::default(), flags),
    };
    let sent = sent.unwrap_or(0);
    take_off(queue, sent);
    sent
}

/// Takes `bytes` bytes off the front of a queue.
fn take_off(queue: &mut VecDeque<Bytes>, mut bytes: usize) {
    while let Some(piece) = queue.front_mut() {
        if bytes < piece.len() {
            return piece.advance(bytes);
        }
        bytes -= piece.len();
        queue.pop_front();
    }
}

/// Bytes of several buffers and the message header that points to them.
pub(crate) struct GatheredSend {
    pieces: VecDeque<Bytes>,
    vectors: Box<[libc::iovec]>,
    header: Box<libc::msghdr>,
}

impl GatheredSend {
    /// Takes pieces off the front of `queue`.
    fn take_from(queue: &mut VecDeque<Bytes>) -> Self {
        let count = queue.len().min(SEND_PIECES_MAX);
        Self::new(queue.drain(..count).collect())
    }

    fn new(pieces: VecDeque<Bytes>) -> Self {
        let vector =
            |piece: &Bytes| libc::iovec { iov_base: piece.as_ptr().cast_mut().cast(), iov_len: piece.len() };
        let mut vectors: Box<[libc::iovec]> = pieces.iter().map(vector).collect();
        // SAFETY: msghdr is plain data for which all zeros is a valid value.
        let mut header: Box<libc::msghdr> = Box::new(unsafe { mem::zeroed() });
        header.msg_iov = vectors.as_mut_ptr();
        header.msg_iovlen = vectors.len();
        GatheredSend { pieces, vectors, header }
    }

    fn header(&self) -> *const libc::msghdr {
        debug_assert!(self.vectors.len() == self.pieces.len());
        &raw const *self.header
    }

    /// Returns the rest after `sent` bytes went out; `None` when that was all.
    pub fn rest(mut self, sent: usize) -> Option<Self> {
        take_off(&mut self.pieces, sent);
        (!self.pieces.is_empty()).then(|| Self::new(self.pieces))
    }
}

/// Returns the next send for the ring. Short sends are made here and now, because most of them go into the
/// socket's buffer at once: through the ring each would cost a turn of the loop for its completion.
fn next_send(connection: &mut Connection) -> Option<GatheredSend> {
    assert!(!connection.is_sending, "sends of one connection keep their order");
    if connection.to_send_bytes <= SEND_NOW_BYTES_MAX {
        while !connection.to_send.is_empty() {
            let sent = send_now(connection.socket.as_ref().expect("it has no carrier"), &mut connection.to_send);
            connection.to_send_bytes -= sent;
            if sent == 0 {
                break;
            }
        }
    }
    (!connection.to_send.is_empty()).then(|| GatheredSend::take_from(&mut connection.to_send))
}

impl Reactor {
    pub(super) fn send_by_socket(&mut self, id: ConnectionId) {
        let connection = self.connections.get_mut(&id).expect("the caller has looked it up");
        if !connection.is_sending
            && let Some(send) = next_send(connection)
        {
            self.start_send(id, send);
        }
    }

    pub(crate) fn start_send(&mut self, id: ConnectionId, send: GatheredSend) {
        let connection = self.connections.get_mut(&id).expect("the caller has looked it up");
        connection.is_sending = true;
        connection.operations += 1;
        let descriptor = types::Fd(connection.socket().as_raw_fd());
        let flags = (libc::MSG_NOSIGNAL | libc::MSG_WAITALL) as u32;
        let entry = opcode::SendMsg::new(descriptor, send.header()).flags(flags).build();
        self.submit(Operation::Send { connection: id, send }, entry);
    }

    pub(super) fn receive_by_socket(&mut self, id: ConnectionId) {
        let connection = self.connections.get_mut(&id).expect("the caller has looked it up");
        let descriptor = types::Fd(connection.socket().as_raw_fd());
        connection.is_receiving = true;
        connection.operations += 1;
        let mut received = mem::take(&mut connection.received);
        let entry = match received.long_run_room() {
            Some(room) => {
                let length = room.len().min(RECEIVE_BYTES_AT_ONCE) as u32;
                let receive = opcode::Recv::new(descriptor, room.as_mut_ptr(), length);
                receive.flags(libc::MSG_WAITALL).build()
            }
            None => {
                received.reserve(connection.receive_bytes);
                connection.receive_bytes = RECEIVE_BYTES_MIN;
                let room = received.spare_capacity_mut();
                let length = u32::try_from(room.len()).unwrap_or(u32::MAX);
                opcode::Recv::new(descriptor, room.as_mut_ptr().cast(), length).build()
            }
        };
        self.submit(Operation::Receive { connection: id, received }, entry);
    }
}
