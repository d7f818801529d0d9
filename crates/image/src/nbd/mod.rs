//! Images as network block devices: the protocol (a state machine without I/O) and, next to it, the
//! server that drives it.

mod byte_budget;
pub mod protocol;
mod server;

pub use server::NbdServer;
