//! The S3 gateway: buckets and objects on the object client. Protocol breadth comes from `s3s`; this crate decides
//! on stored data, its sealing and its visibility.
//!
//! This crate knows S3, HTTP, bucket indexes and data keys. It reaches the cluster's objects only
//! through [`DataStore`] and cluster state only through [`BucketDirectory`]; it may not know
//! PGs, OSDs or etcd (atoll-gateway does). The stored formats are in docs/reference/formats.md, "S3 objects".

mod access;
mod arrival;
mod asked;
mod audit;
mod authentication;
mod bucket;
mod clock;
mod collector;
mod cors;
mod data;
mod digest;
mod directory;
mod encryption;
mod entry_hints;
mod error;
mod form_upload;
#[cfg(test)]
mod fuzz;
mod gateway;
mod header_table;
mod index;
mod known_documents;
mod known_requests;
mod last_use;
mod listing;
mod look_ups;
mod metrics;
mod named;
mod names;
mod object_lock;
mod observed;
mod ops;
mod orphans;
mod query;
mod query_api;
mod record;
mod seen_buckets;
mod serve;
mod shell;
mod sightings;
mod signature_v2;
mod signing;
mod store;
mod temporary_credentials;
mod trailers;
mod users;
mod versions;
mod wiping;

pub use arrival::TrustedProxy;
pub use collector::CollectorReport;
pub use directory::{BucketDirectory, ChangeError, DirectoryError, IdentityOperation};
pub use error::GatewayError;
pub use gateway::{Gateway, GatewayConfig};
pub use observed::SOURCE as AUDIT_SOURCE;
pub use ops::check_data_pool;
pub use orphans::SearchReport;
pub use shell::{Listener, Workers};
pub use store::DataStore;
pub use wiping::{WipesFreedMemory, is_freed_memory_wiped};
