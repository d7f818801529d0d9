//! The event loop of one thread on one io_uring: sockets, disk files, timers and wake-ups. All I/O that needs
//! `unsafe` code is here. It moves bytes and reports events; it does not know protocols, formats or keys (a
//! [`SectorCipher`] is given to it).
//!
//! Buffers belong to the ring from submission until the operation's terminal completion; only
//! then are they given back or freed. [`LocalExecutor`] runs futures on the same thread for shells
//! that are easier to write as tasks, and [`GuestTurns`] run the loop on a thread of tokio.

mod at_rest;
mod clock_watch;
mod completions;
mod connection;
mod executor;
mod file;
mod guest;
mod local_socket;
mod opening;
mod raw_address;
mod reactor;
mod runtime;
mod transport;
mod waiting;
mod wake;

pub use at_rest::SectorCipher;
pub use clock_watch::ClockWatch;
pub use connection::{ConnectionId, ListenAddress, ListenerId, PeerAddress};
pub use executor::LocalExecutor;
pub use file::DirectFile;
pub use guest::GuestTurns;
pub use local_socket::ForeignProcess;
pub use opening::is_not_offered;
pub use reactor::{CloseCause, Event, FileId, FileOperation, Reactor, ReactorError};
pub use runtime::{Listener, LocalFile, LocalRuntime, Stream};
pub use transport::rdma::RdmaAddress;
pub use transport::{Awaited, Carrier};
pub use wake::Wake;
