//! An export of any NBD server, as its client: fixed newstyle negotiation, simple replies, no TLS.
//! Names of the protocol are those of `doc/proto.md` of NetworkBlockDevice/nbd.

mod address;
mod handshake;
mod target;

pub use address::NbdAddress;
pub use target::NbdTarget;
