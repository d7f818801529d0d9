//! The event loop of one thread on one io_uring: sockets, disk files, timers and wake-ups. It is
//! the only room with `unsafe` I/O. It moves bytes and tells what happened; it knows no protocol.
//!
//! Buffers belong to the ring from submission until the operation's terminal completion; only
//! then are they given back or freed. [`LocalExecutor`] runs futures on the same thread for shells
//! that are easier to write as tasks.

mod at_rest;
mod buffers;
mod completions;
mod connection;
mod executor;
mod file;
mod reactor;
mod runtime;
mod wake;

pub use at_rest::SectorCipher;
pub use connection::{ConnectionId, ListenAddress, ListenerId};
pub use executor::LocalExecutor;
pub use file::DirectFile;
pub use reactor::{CloseCause, Event, FileId, FileOperation, Reactor, ReactorError};
pub use runtime::{Listener, LocalFile, LocalRuntime, Stream};
pub use wake::Wake;
