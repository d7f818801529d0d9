//! The S3 gateway: buckets and objects on the object client. Protocol breadth comes from `s3s`; this crate decides
//! on stored data, its sealing and its visibility.
//!
//! This crate knows S3, HTTP, bucket indexes and data keys. It reaches the cluster's objects only
//! through [`DataStore`] and cluster state only through [`BucketDirectory`]; it may not know
//! PGs, OSDs or etcd (atoll-gateway does). The stored formats are in docs/reference/formats.md, "S3 objects".

mod access;
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
mod identity_token;
mod index;
mod issuer_keys;
mod key_cache;
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

pub use bucket::{bucket_key_context, named_key_context, unsealed_permit_context};
pub use clock::CLOCK_DIFFERENCE_MS_MAX;
pub use directory::{BucketDirectory, ChangeError, DirectoryError, IdentityOperation};
pub use error::GatewayError;
pub use gateway::{CollectorReport, Gateway, GatewayConfig};
pub use identity_token::{Claims, ExpectedToken, IdentityToken, TokenError};
pub use issuer_keys::IssuerKeys;
pub use observed::SOURCE as AUDIT_SOURCE;
pub use ops::check_data_pool;
pub use orphans::SearchReport;
pub use shell::{ClientAuthority, Listener, Tls, TlsError, TlsSettings, TrustedProxy, Workers};
pub use store::DataStore;
pub use temporary_credentials::{Credentials, STS_KEY_CONTEXT, make_sts_key, rotate_sts_key};
pub use users::{new_access_key, new_user, user_key_context};
pub use wiping::{WipesFreedMemory, is_freed_memory_wiped};
