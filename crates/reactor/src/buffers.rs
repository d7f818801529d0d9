//! Memory that the kernel uses while an operation is in flight. Each type owns what its pointers
//! point to, in places that do not move with the value.

use std::collections::VecDeque;
use std::mem;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};

use bytes::{Buf, Bytes};

/// Most pieces in one send: below the kernel's limit of 1,024.
const SEND_PIECES_MAX: usize = 64;

/// Sends what the socket takes at once; returns the number of bytes. An error counts as nothing sent:
/// sending the rest meets it again.
pub(crate) fn send_now(socket: &OwnedFd, bytes: &[u8]) -> usize {
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    // SAFETY: the pointer and the length are those of a slice that outlives the call.
    let sent = unsafe { libc::send(socket.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags) };
    usize::try_from(sent).unwrap_or(0)
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
    pub fn rest(mut self, mut sent: usize) -> Option<Self> {
        while let Some(piece) = self.pieces.front_mut() {
            if sent < piece.len() {
                piece.advance(sent);
                return Some(Self::new(self.pieces));
            }
            sent -= piece.len();
            self.pieces.pop_front();
        }
        None
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
