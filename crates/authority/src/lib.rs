//! Signed records: who can write cluster state can change none of the records that let somebody in or that decide how
//! data is protected. Each carries a MAC under a key that the key service has wrapped, with its name and its place in
//! the history of cluster state.
//!
//! This crate signs, verifies, and signs a whole cluster. Which kinds of records are signed is in
//! [`atoll_cluster::kinds`]; it may not know what they say.

mod authority;
mod envelope;
mod signing;
mod survey;

pub use authority::Authority;
pub use envelope::{SIGNATURE_BYTES, without_signature};
pub use signing::{SigningError, found, rewrap, rotate, sign_all, sign_anew, sign_records, wrapped_keys};
pub use survey::{Finding, RecordState, survey};
