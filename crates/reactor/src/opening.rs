//! Opening connections: listening, connecting, and setting sockets up.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::PermissionsExt;

use io_uring::{opcode, types};

use crate::connection::{Connection, ConnectionId, ListenAddress, ListenerId, PeerAddress};
use crate::local_socket;
use crate::raw_address::RawAddress;
use crate::reactor::{Event, Operation, Reactor};

/// Mode of a Unix socket that has a name: only its owner may connect.
const SOCKET_MODE: u32 = 0o600;

impl Reactor {
    /// Listens; returns the listener and the address with the port that was chosen.
    pub fn listen(&mut self, address: &ListenAddress) -> io::Result<(ListenerId, ListenAddress)> {
        let (socket, address): (OwnedFd, ListenAddress) = match address {
            ListenAddress::Tcp(address) => {
                let listener = std::net::TcpListener::bind(address)?;
                let address = ListenAddress::Tcp(listener.local_addr()?);
                (listener.into(), address)
            }
            ListenAddress::Unix(path) => {
                let listener = std::os::unix::net::UnixListener::bind(path)?;
                std::fs::set_permissions(path, std::fs::Permissions::from_mode(SOCKET_MODE))?;
                (listener.into(), ListenAddress::Unix(path.clone()))
            }
        };
        Ok((self.add_listener(socket), address))
    }

    /// Listens on an abstract Unix socket of this name, for processes of this host; see [`Reactor::connect_local`].
    pub fn listen_local(&mut self, name: &str) -> io::Result<ListenerId> {
        Ok(self.add_listener(local_socket::listen_on(name)?))
    }

    pub(crate) fn add_listener(&mut self, socket: OwnedFd) -> ListenerId {
        let id = ListenerId(self.next_id());
        let descriptor = socket.as_raw_fd();
        self.listeners.insert(id, socket);
        self.arm_accept(id, descriptor);
        id
    }

    pub(crate) fn arm_accept(&mut self, listener: ListenerId, descriptor: RawFd) {
        let entry = opcode::AcceptMulti::new(types::Fd(descriptor)).flags(libc::SOCK_CLOEXEC).build();
        self.submit(Operation::Accept { listener }, entry);
    }

    /// Begins to connect to a TCP address.
    pub fn connect(&mut self, address: SocketAddr) -> io::Result<ConnectionId> {
        let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        // SAFETY: socket takes no pointers; its result is checked before it is used.
        let descriptor = unsafe { libc::socket(family, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just made and nobody else owns it.
        let socket = unsafe { OwnedFd::from_raw_fd(descriptor) };
        prepare_socket(&socket, PeerAddress::Host(address.ip()));
        let id = ConnectionId(self.next_id());
        let mut connection = Connection::new(socket, false);
        connection.operations = 1;
        self.connections.insert(id, connection);
        let raw = RawAddress::new(&address);
        let entry = opcode::Connect::new(types::Fd(descriptor), raw.pointer(), raw.length()).build();
        self.submit(Operation::Connect { connection: id, _address: raw }, entry);
        Ok(id)
    }

    /// Connects to the abstract Unix socket of this name. An error says at once that no process of this host listens
    /// there, or one of a user who is neither this process's nor root.
    pub fn connect_local(&mut self, name: &str) -> io::Result<ConnectionId> {
        let socket = local_socket::connect_to(name)?;
        let id = self.add_connected(socket);
        self.events.push_back(Event::Connected(id));
        Ok(id)
    }

    pub(crate) fn add_connected(&mut self, socket: OwnedFd) -> ConnectionId {
        let id = ConnectionId(self.next_id());
        self.connections.insert(id, Connection::new(socket, true));
        self.touched.insert(id);
        id
    }
}

/// Returns true if a connection within the host failed because it is not offered there: the peer is on another
/// host, or this loop shares memory with the largest number of peers.
pub fn is_not_offered(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::QuotaExceeded)
}

/// Sets a socket up for short messages, and for its peer: between two processes of one host nothing is lost and
/// there is no bandwidth to probe, so the congestion control that a system has chosen for its network does harm
/// there. (BBR paces, takes segments that two processors deliver out of order for lost ones, and goes down to four
/// segments for 200 ms now and then.) An option that a socket refuses does no harm.
pub(crate) fn prepare_socket(socket: &OwnedFd, peer: PeerAddress) {
    match peer {
        PeerAddress::Process(_) | PeerAddress::Foreign(_) => local_socket::widen(socket),
        PeerAddress::Host(address) => {
            let _ = rustix::net::sockopt::set_tcp_nodelay(socket, true);
            if address.is_loopback() {
                let _ = rustix::net::sockopt::set_tcp_congestion(socket, "reno");
            }
        }
        PeerAddress::Unknown => {}
    }
}
