//! The controller's side of NVMe/TCP, without I/O: bytes and events in, actions out.
//!
//! The sources are the NVM Express Base Specification 1.4, NVM Express over Fabrics 1.1 and the NVMe/TCP Transport
//! Specification 1.0; doc comments name their sections. A host has one connection for each queue: the first is the
//! admin queue of a controller, the others are I/O queues of it.
//!
//! A shell owns the sockets and the images. It drives one [`QueueSession`] per connection:
//!
//! ```text
//! loop {
//!     session.receive(&mut buffer);
//!     while let Some(action) = session.next_action() { carry it out }
//!     if session.is_saturated() { wait for an event: a finished command, a connect that was decided }
//!     else { wait for session.needed_bytes() more bytes, or for an event }
//! }
//! ```
//!
//! and one [`Controller`] for each admin queue. The shell hands it the admin commands of the session, and carries
//! out its events after each call.

pub mod authentication;
mod command;
mod connect;
mod controller;
mod discovery;
mod fused;
mod identify;
mod io;
mod log_pages;
pub mod pdu;
mod queue;
mod status;
mod transfers;
mod types;

#[cfg(test)]
mod tests;

pub use authentication::{Authentication, Progress};
pub use command::{SubmissionEntry, admin, nvm};
pub use controller::{Controller, ControllerConfig, ControllerEvent, IO_QUEUES_MAX, Subject};
pub use discovery::{ChannelSecurity, DISCOVERY_SUBSYSTEM, DiscoveryEntry};
pub use queue::QueueSession;
pub use status::Status;
pub use types::{
    Action, ByteRange, CloseReason, CommandId, ConnectRefusal, ConnectRequest, IoKind, LBA_BYTES, Namespace, Nqn,
    QueueConfig, Response, connect_field,
};
