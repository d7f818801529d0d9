//! Stream sockets as the loop keeps them.

use std::collections::VecDeque;
use std::fmt;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::str::FromStr;

use atoll_buffers::Received;
use bytes::Bytes;

use crate::local_socket::{ForeignProcess, foreign_process, peer_credentials};
use crate::transport::Carrier;
use crate::transport::shared_memory::Opening;

/// Names a connection of one loop; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub(crate) u64);

impl ConnectionId {
    /// The id as a number, for keeping it elsewhere.
    pub fn number(self) -> u64 {
        self.0
    }
}

/// Names a listening socket of one loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ListenerId(pub(crate) u64);

/// Where to listen: `unix:PATH` or `IP:PORT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenAddress {
    /// A TCP address; port 0 lets the system choose.
    Tcp(SocketAddr),
    /// A Unix socket.
    Unix(PathBuf),
}

impl FromStr for ListenAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix("unix:") {
            Some("") => Err("'unix:' needs a path, such as unix:/run/atoll/nbd.sock".into()),
            Some(path) => Ok(ListenAddress::Unix(path.into())),
            None => text
                .parse()
                .map(ListenAddress::Tcp)
                .map_err(|_| format!("'{text}' is neither IP:PORT nor unix:PATH")),
        }
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ListenAddress::Tcp(address) => write!(f, "{address}"),
            ListenAddress::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// Address of the other end of a connection, as the system reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerAddress {
    /// A host.
    Host(std::net::IpAddr),
    /// A process of this host, over a Unix socket: the one that connected it.
    Process(i32),
    /// The same of a process that has no number here, because it is in another namespace of processes.
    Foreign(ForeignProcess),
    /// The system does not say.
    Unknown,
}

impl std::fmt::Display for PeerAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            PeerAddress::Host(address) => write!(f, "{address}"),
            PeerAddress::Process(process_id) => write!(f, "process {process_id}"),
            PeerAddress::Foreign(_) => write!(f, "a process of another container"),
            PeerAddress::Unknown => write!(f, "an unknown peer"),
        }
    }
}

impl PeerAddress {
    pub(crate) fn of(socket: &OwnedFd) -> Self {
        let address = rustix::net::getpeername(socket).ok().flatten();
        if let Some(address) = address.and_then(|address| SocketAddr::try_from(address).ok()) {
            return PeerAddress::Host(address.ip().to_canonical());
        }
        match peer_credentials(socket) {
            // Of a TCP socket whose peer is gone the system names no user.
            Ok(credentials) if credentials.uid == u32::MAX => PeerAddress::Unknown,
            Ok(credentials) if credentials.pid > 0 => PeerAddress::Process(credentials.pid),
            Ok(_) => foreign_process(socket).map_or(PeerAddress::Unknown, PeerAddress::Foreign),
            Err(_) => PeerAddress::Unknown,
        }
    }
}

pub(crate) struct Connection {
    /// Away if a carrier needs none.
    pub socket: Option<OwnedFd>,
    /// Step of the connection's opening, before its carrier is chosen.
    pub opening: Option<Opening>,
    /// Carrier of the bytes in place of the socket, if there is one.
    pub carrier: Option<Box<dyn Carrier>>,
    /// The socket beside a carrier has ended.
    pub is_ended: bool,
    /// Bytes received and not taken yet. Away while a receive is in flight.
    pub received: Received,
    pub is_receiving: bool,
    pub is_paused: bool,
    /// Bytes that are there are about to be reported; no receive may take the buffer away before.
    pub is_report_due: bool,
    /// Room to make for the next receive, in bytes.
    pub receive_bytes: usize,
    pub to_send: VecDeque<Bytes>,
    pub to_send_bytes: usize,
    pub is_sending: bool,
    /// Operations in flight; the socket is closed when the last one is complete.
    pub operations: u32,
    pub is_connected: bool,
    /// No more events are wanted or given.
    pub is_closed: bool,
    /// Close once everything queued is sent.
    pub close_after_send: bool,
}

impl Connection {
    /// The socket, of a connection that has one.
    pub fn socket(&self) -> &OwnedFd {
        self.socket.as_ref().expect("a connection without a socket has a carrier")
    }

    /// Returns true if everything is sent.
    pub fn is_sent(&self) -> bool {
        self.to_send.is_empty() && !self.is_sending
    }

    pub fn new(socket: OwnedFd, is_connected: bool) -> Self {
        Connection::with(Some(socket), None, is_connected)
    }

    /// A connection that is nothing but its carrier.
    pub fn carried(carrier: Box<dyn Carrier>, is_connected: bool) -> Self {
        Connection::with(None, Some(carrier), is_connected)
    }

    fn with(socket: Option<OwnedFd>, carrier: Option<Box<dyn Carrier>>, is_connected: bool) -> Self {
        Connection {
            socket,
            opening: None,
            carrier,
            is_ended: false,
            received: Received::default(),
            is_receiving: false,
            is_paused: false,
            is_report_due: false,
            receive_bytes: RECEIVE_BYTES_MIN,
            to_send: VecDeque::new(),
            to_send_bytes: 0,
            is_sending: false,
            operations: 0,
            is_connected,
            is_closed: false,
            close_after_send: false,
        }
    }
}

/// Least room for a receive: several small frames fit into one.
pub(crate) const RECEIVE_BYTES_MIN: usize = 32 << 10;
/// Bytes of one receive into a long run. A caller that watches whether the peer is alive sees it this often.
pub(crate) const RECEIVE_BYTES_AT_ONCE: usize = 256 << 10;
