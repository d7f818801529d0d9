//! The largest packet that gets through to a responder and back, found by trying.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::sockopt;

use super::protocol::{DATAGRAM_BYTES_MAX, TOKEN_BYTES, Token};
use crate::request::Stop;

/// Headers of IP and UDP.
const HEADER_BYTES_V4: u32 = 20 + 8;
const HEADER_BYTES_V6: u32 = 40 + 8;
/// Size that every IPv4 path must carry, and that is too small for Atoll.
const BYTES_MIN: u32 = 576;
/// The loopback interface's is the largest that there is.
const BYTES_MAX: u32 = DATAGRAM_BYTES_MAX as u32 - 1;
/// A packet may be lost for other reasons.
const TRIES: u32 = 3;
const ANSWER_TIMEOUT: Duration = Duration::from_millis(250);

/// Why no larger packet gets through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LimitedBy {
    /// This host's own interface takes no larger one.
    Interface,
    /// It takes larger ones, which do not arrive or whose answers do not.
    Path,
}

/// The largest packet that gets through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PathMtu {
    pub bytes: u32,
    pub limited_by: LimitedBy,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Answered,
    TooLargeHere,
    Lost,
}

/// Sets "don't fragment", independently of the kernel's view of the path.
pub(super) fn forbid_fragments(socket: &UdpSocket) -> io::Result<()> {
    let set = if socket.local_addr()?.is_ipv4() {
        sockopt::set_ip_mtu_discover(socket.as_fd(), sockopt::Ipv4PathMtuDiscovery::PROBE)
    } else {
        sockopt::set_ipv6_mtu_discover(socket.as_fd(), sockopt::Ipv6PathMtuDiscovery::PROBE)
    };
    Ok(set?)
}

/// Returns the kernel's path MTU of a connection.
pub(super) fn believed_bytes(stream: &std::net::TcpStream) -> io::Result<u32> {
    let is_v4 = stream.peer_addr()?.is_ipv4();
    Ok(if is_v4 { sockopt::ip_mtu(stream.as_fd())? } else { sockopt::ipv6_mtu(stream.as_fd())? })
}

/// Finds the largest packet by halving the range. Nothing if not even the smallest is answered.
pub(super) fn find(peer: SocketAddr, token: &Token, stop: &Stop) -> io::Result<Option<PathMtu>> {
    search(|bytes| if stop.is_set() { Ok(Outcome::Lost) } else { probe(peer, token, bytes) })
}

fn search(mut probe: impl FnMut(u32) -> io::Result<Outcome>) -> io::Result<Option<PathMtu>> {
    if probe(BYTES_MIN)? != Outcome::Answered {
        return Ok(None);
    }
    let (mut through, mut not_through) = (BYTES_MIN, BYTES_MAX + 1);
    let mut limited_by = LimitedBy::Interface;
    while not_through - through > 1 {
        let bytes = through.midpoint(not_through);
        match probe(bytes)? {
            Outcome::Answered => {
                through = bytes;
                continue;
            }
            Outcome::TooLargeHere => limited_by = LimitedBy::Interface,
            Outcome::Lost => limited_by = LimitedBy::Path,
        }
        not_through = bytes;
    }
    Ok(Some(PathMtu { bytes: through, limited_by }))
}

/// Sends packets of this size until one comes back.
fn probe(peer: SocketAddr, token: &Token, bytes: u32) -> io::Result<Outcome> {
    let (any, header_bytes): (SocketAddr, u32) = if peer.is_ipv4() {
        (([0, 0, 0, 0], 0).into(), HEADER_BYTES_V4)
    } else {
        (([0_u16; 8], 0).into(), HEADER_BYTES_V6)
    };
    // One for each: a router's word on an earlier packet must not pass for this host's on the next.
    let socket = UdpSocket::bind(any)?;
    socket.connect(peer)?;
    forbid_fragments(&socket)?;
    let mut datagram = vec![0; (bytes - header_bytes) as usize];
    datagram[..TOKEN_BYTES].copy_from_slice(token);
    let is_too_large = |error: &io::Error| Errno::from_io_error(error) == Some(Errno::MSGSIZE);
    for number in 0..TRIES {
        datagram[TOKEN_BYTES] = number as u8;
        match socket.send(&datagram) {
            Ok(_) => {}
            Err(error) if is_too_large(&error) && number == 0 => return Ok(Outcome::TooLargeHere),
            // What came back on an earlier try, such as that it is too large on the way.
            Err(error) if number > 0 && is_too_large(&error) => return Ok(Outcome::Lost),
            Err(error) => return Err(error),
        }
        if receive(&socket, &datagram)? {
            return Ok(Outcome::Answered);
        }
    }
    Ok(Outcome::Lost)
}

/// Waits for the same datagram, or one of an earlier try.
fn receive(socket: &UdpSocket, sent: &[u8]) -> io::Result<bool> {
    let mut buffer = vec![0; sent.len() + 1];
    let until = Instant::now() + ANSWER_TIMEOUT;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(false);
        }
        socket.set_read_timeout(Some(left))?;
        match socket.recv(&mut buffer) {
            Ok(length) if length == sent.len() => return Ok(true),
            Ok(_) => {}
            // A time-out, or a router's word that it does not fit.
            Err(_) => return Ok(false),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(interface: u32, path: u32) -> Option<PathMtu> {
        let outcome = |bytes| {
            Ok(match bytes {
                bytes if bytes > interface => Outcome::TooLargeHere,
                bytes if bytes > path => Outcome::Lost,
                _ => Outcome::Answered,
            })
        };
        search(outcome).unwrap()
    }

    #[test]
    fn the_largest_path_mtu_and_its_limit_are_found() {
        let of = |bytes, limited_by| Some(PathMtu { bytes, limited_by });
        assert_eq!(found(1500, 9000), of(1500, LimitedBy::Interface));
        assert_eq!(found(9000, 9000), of(9000, LimitedBy::Interface));
        assert_eq!(found(9000, 1500), of(1500, LimitedBy::Path));
        assert_eq!(found(9000, 8999), of(8999, LimitedBy::Path));
        assert_eq!(found(BYTES_MAX, BYTES_MAX), of(BYTES_MAX, LimitedBy::Interface));
        assert_eq!(found(9000, 100), None);
    }
}
