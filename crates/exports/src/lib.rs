//! Common parts of the servers of images: allowed clients and their number, images that are opened for the first
//! connection and closed after the last, the order of requests of broken connections and later ones, a bound on
//! memory, metrics, and sockets with or without TLS.
//!
//! This crate knows images and clients. It may not know how clients speak: that is atoll-nbd's and atoll-nvme's.

mod audit;
mod byte_budget;
mod clients;
mod drain;
mod exports;
mod metrics;
mod open_error;
mod places;
mod questions;
mod request_memory;
mod requests;
mod rights;
mod transport;

pub use byte_budget::{ByteBudget, ByteGrant};
pub use clients::Client;
pub use drain::{ConnectionRequests, InFlight};
pub use exports::{Description, Exports, OpenedExport};
pub use metrics::{ImageMetrics, Operation, register_all};
pub use open_error::{OpenError, OpenErrorKind};
pub use places::enter;
pub use questions::Questions;
pub use request_memory::{PATIENCE_MS, REQUEST_BYTES_ALL, RequestMemory, UNGRANTED_BYTES_MAX};
pub use requests::{Running, follow_in_flight};
pub use rights::Attached;
pub use transport::{Channel, Transport};
