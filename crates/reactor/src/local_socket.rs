//! Unix sockets between processes of one host, in the abstract namespace (unix(7)): a name is that of its network
//! namespace, so a process of another host, or of a container with a network of its own, does not find it and takes
//! TCP. A name has no permissions, and belongs to the first that binds it. So the connecting side checks the
//! owner of the socket.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use rustix::fs::{fstat, fstatfs};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with, sockopt,
};

/// Connections that wait to be accepted; the kernel takes less if net.core.somaxconn says so.
const BACKLOG: i32 = 4096;

/// Bytes that a sender may have under way. The kernel's default of 208 KiB stops it several times in a payload of
/// 4 MiB, and each stop wakes both processes. More gains nothing.
const SEND_BUFFER_BYTES: usize = 1 << 20;

/// The option that gives a descriptor of the process at the other end (Linux 6.5), which libc does not name yet.
const SO_PEERPIDFD: libc::c_int = 77;
/// File system of process descriptors since each process has a number of its own there (PID_FS_MAGIC, Linux 6.9).
const PID_FILE_SYSTEM: i64 = 0x5049_4446;

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

/// A process at the other end of a Unix socket that is in another namespace of processes and so has no number
/// here. Two equal values are one process; where the kernel does not distinguish processes, they are one
/// connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForeignProcess {
    /// True if the number is that of a process, not of a connection.
    is_process: bool,
    number: u64,
}

/// Returns the credentials of the process at the other end of a Unix socket. The process id is 0 if that process
/// is in another namespace of processes, which rustix has no value for.
pub(crate) fn peer_credentials(socket: &OwnedFd) -> io::Result<libc::ucred> {
    socket_option(socket, libc::SO_PEERCRED, libc::ucred { pid: 0, uid: 0, gid: 0 })
}

/// The process that connected a Unix socket, if its process id is 0. Linux 6.9 and later number processes for good.
pub(crate) fn foreign_process(socket: &OwnedFd) -> io::Result<ForeignProcess> {
    if let Some(number) = process_number(socket) {
        return Ok(ForeignProcess { is_process: true, number });
    }
    Ok(ForeignProcess { is_process: false, number: fstat(socket)?.st_ino })
}

fn process_number(socket: &OwnedFd) -> Option<u64> {
    let descriptor: RawFd = socket_option(socket, SO_PEERPIDFD, -1).ok()?;
    if descriptor < 0 {
        return None;
    }
    // SAFETY: the kernel has made the descriptor for this call, and nobody else knows it.
    let process = unsafe { OwnedFd::from_raw_fd(descriptor) };
    let is_numbered = fstatfs(&process).is_ok_and(|file_system| file_system.f_type == PID_FILE_SYSTEM);
    fstat(&process).ok().filter(|_| is_numbered).map(|found| found.st_ino)
}

/// Reads an option whose value is plain numbers.
fn socket_option<T: Copy>(socket: &OwnedFd, option: libc::c_int, mut value: T) -> io::Result<T> {
    let mut length = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes, all of which any such value may have.
    let result = unsafe {
        let value = (&raw mut value).cast();
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, option, value, &raw mut length)
    };
    if result == 0 { Ok(value) } else { Err(io::Error::last_os_error()) }
}

/// Lets more bytes be under way, as far as the system allows it.
pub(crate) fn widen(socket: &OwnedFd) {
    if sockopt::set_socket_send_buffer_size_force(socket, SEND_BUFFER_BYTES).is_err() {
        let _ = sockopt::set_socket_send_buffer_size(socket, SEND_BUFFER_BYTES);
    }
}
