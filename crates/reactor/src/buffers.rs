//! Memory that the kernel uses while an operation is in flight. Each type owns what its pointers
//! point to, in places that do not move with the value.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::mem;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use bytes::{Buf, Bytes};
use rustix::net::{SendAncillaryBuffer, SendFlags, send, sendmsg};

/// Most pieces in one send: below the kernel's limit of 1,024.
const SEND_PIECES_MAX: usize = 64;

/// Most pieces that are sent by one call without the ring.
const PIECES_NOW_MAX: usize = 16;

/// Sends what the socket takes at once of the first pieces, in one call, and takes it off the queue; returns the
/// number of bytes. An error counts as nothing sent: sending the rest meets it again.
pub(crate) fn send_now(socket: &OwnedFd, queue: &mut VecDeque<Bytes>) -> usize {
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

/// Takes so many bytes off the front of a queue.
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
    pub fn take_from(queue: &mut VecDeque<Bytes>) -> Self {
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

    pub fn header(&self) -> *const libc::msghdr {
        debug_assert!(self.vectors.len() == self.pieces.len());
        &raw const *self.header
    }

    /// What is left to send after `sent` bytes went out; `None` when that was all.
    pub fn rest(mut self, sent: usize) -> Option<Self> {
        take_off(&mut self.pieces, sent);
        (!self.pieces.is_empty()).then(|| Self::new(self.pieces))
    }
}

/// A socket address in the kernel's form.
pub(crate) struct RawAddress {
    storage: Box<libc::sockaddr_storage>,
    length: libc::socklen_t,
}

impl RawAddress {
    pub fn new(address: &SocketAddr) -> Self {
        // SAFETY: sockaddr_storage is plain data for which all zeros is a valid value.
        let mut storage: Box<libc::sockaddr_storage> = Box::new(unsafe { mem::zeroed() });
        let length = match address {
            SocketAddr::V4(address) => {
                let raw = libc::sockaddr_in {
                    sin_family: libc::AF_INET as libc::sa_family_t,
                    sin_port: address.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(address.ip().octets()) },
                    sin_zero: [0; 8],
                };
                // SAFETY: sockaddr_storage is large and aligned enough for every socket address.
                unsafe { (&raw mut *storage).cast::<libc::sockaddr_in>().write(raw) };
                mem::size_of::<libc::sockaddr_in>()
            }
            SocketAddr::V6(address) => {
                let raw = libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as libc::sa_family_t,
                    sin6_port: address.port().to_be(),
                    sin6_flowinfo: address.flowinfo(),
                    sin6_addr: libc::in6_addr { s6_addr: address.ip().octets() },
                    sin6_scope_id: address.scope_id(),
                };
                // SAFETY: as above.
                unsafe { (&raw mut *storage).cast::<libc::sockaddr_in6>().write(raw) };
                mem::size_of::<libc::sockaddr_in6>()
            }
        };
        RawAddress { storage, length: length as libc::socklen_t }
    }

    pub fn pointer(&self) -> *const libc::sockaddr {
        (&raw const *self.storage).cast()
    }

    pub fn length(&self) -> libc::socklen_t {
        self.length
    }
}
