//! Block I/O on anything that has blocks: an image, an NBD export, a file or device.

mod file;
mod fio;
mod image;
mod nbd;
mod operations;
mod pattern;
mod prefill;
mod stamp;

use std::future::Future;

use bytes::Bytes;

use crate::error::BenchError;

pub use file::{Durability, FileTarget};
pub use fio::{FioBench, FioTarget};
pub use nbd::{NbdAddress, NbdTarget};
pub use operations::{BlockOperations, BlockWorkload, Verifier};
pub use pattern::AccessPattern;
pub use prefill::{Prefill, prefill};
pub(crate) use stamp::{STAMP_BYTES, Stamp};

/// Something that has blocks.
pub trait BlockTarget {
    /// Size in bytes.
    fn size_bytes(&self) -> u64;

    /// Reads; offset and length are whole sectors of 512 bytes at least.
    fn read(&self, offset: u64, length: u32) -> impl Future<Output = Result<Bytes, BenchError>>;

    /// Writes; done when the bytes are durable.
    fn write(&self, offset: u64, data: Bytes) -> impl Future<Output = Result<(), BenchError>>;

    /// Parts of a range in order, each with its length in bytes and whether nothing was ever written there. A
    /// target without this knowledge reports all as written.
    fn extents(&self, offset: u64, length: u64) -> impl Future<Output = Result<Vec<(u64, bool)>, BenchError>>;
}
