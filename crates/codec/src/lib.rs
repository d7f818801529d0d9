//! How values become bytes, on the wire and in the store: [`Reader`], [`Writer`] and the checksums.
//!
//! This crate knows no type that it encodes: those encode themselves with it. It does no I/O and uses no other crate
//! of the workspace.

mod checksum;
mod codec;

pub use checksum::{Crc64, crc32c};
pub use codec::{CodecError, Reader, Writer};
