//! Images as network block devices: the protocol (a state machine without I/O) and, next to it, the
//! server that drives it.

mod byte_budget;
mod connection;
pub mod protocol;
mod server;
mod tls;
mod transport;

pub use server::NbdServer;
pub use tls::{TlsChoice, TlsError, TlsFiles, TlsIdentity, TlsMode};
