//! A socket address where the kernel can read it while an operation is in flight.

use std::mem;
use std::net::SocketAddr;

/// A socket address in the kernel's form, in a place that does not move with the value.
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
