//! Signed records: a writer of cluster state can change none of the records that grant access or that decide about
//! the protection of data. Each carries a MAC under a key that the key service has wrapped, with its name and its
//! place in the history of cluster state.
//! Records that processes without the key service obey have an Ed25519 signature instead, which these verify.
//!
//! This crate signs, verifies, and signs a whole cluster. [`atoll_cluster::kinds`] has the signed kinds of
//! records; this crate does not know their content.

mod authority;
mod envelope;
mod pins;
mod signing;
mod survey;
mod verifier;

pub use authority::Authority;
pub use envelope::{SIGNATURE_BYTES, without_signature};
pub use pins::{Published, fingerprint, published};
pub use signing::{SigningError, found, rewrap, rotate, sign_all, sign_anew, sign_records, wrapped_keys};
pub use survey::{Finding, RecordState, survey};
pub use verifier::{Pin, Verifier};
