//! Unix sockets between processes of one host, in the abstract namespace (unix(7)): a name is that of its network
//! namespace, so a process of another host, or of a container with a network of its own, does not find it and takes
//! TCP. A name has no permissions, and whoever comes first has it. So the side that connects looks whose socket it is.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with, sockopt,
};

/// Connections that wait to be accepted; the kernel takes less if net.core.somaxconn says so.
const BACKLOG: i32 = 4096;

/// Bytes that a sender may have under way. The kernel's default of 208 KiB stops it several times in a payload of
/// 4 MiB, and each stop wakes both processes. More gains nothing.
const SEND_BUFFER_BYTES: usize = 1 << 20;

fn new_socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?)
}

/// Listens on a name.
pub(crate) fn listen_on(name: &str) -> io::Result<OwnedFd> {
    let socket = new_socket()?;
    bind(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
    listen(&socket, BACKLOG)?;
    // An accept of the ring waits only at a socket that would.
    rustix::io::ioctl_fionbio(&socket, false)?;
    Ok(socket)
}

/// Connects to a name, at once or not at all. A listener of another user than this process's or root is refused: it
/// may have taken the name to stand between the two.
pub(crate) fn connect_to(name: &str) -> io::Result<OwnedFd> {
    let socket = new_socket()?;
    connect(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
    let listener = peer_credentials(&socket)?.uid;
    if listener != 0 && listener != rustix::process::geteuid().as_raw() {
        return Err(io::Error::other(format!("the Unix socket '{name}' is of another user, {listener}")));
    }
    rustix::io::ioctl_fionbio(&socket, false)?;
    widen(&socket);
    Ok(socket)
}

/// Who is at the other end of a Unix socket. The process id is 0 if that process is in another namespace of processes,
/// which rustix has no value for.
pub(crate) fn peer_credentials(socket: &OwnedFd) -> io::Result<libc::ucred> {
    let mut credentials = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes, all of which any value of `ucred` may have.
    let result = unsafe {
        let value = (&raw mut credentials).cast();
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, value, &raw mut length)
    };
    if result == 0 { Ok(credentials) } else { Err(io::Error::last_os_error()) }
}

/// Lets more bytes be under way, as far as the system allows it.
pub(crate) fn widen(socket: &OwnedFd) {
    if sockopt::set_socket_send_buffer_size_force(socket, SEND_BUFFER_BYTES).is_err() {
        let _ = sockopt::set_socket_send_buffer_size(socket, SEND_BUFFER_BYTES);
    }
}
