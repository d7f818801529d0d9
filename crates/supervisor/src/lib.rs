//! What one host has of a cluster, out of one data directory (`atoll up`): where its files are, how
//! the cluster is made at the first start or joined, and how the host's processes are started,
//! watched and stopped.
//!
//! This room knows files, processes and the first records of a cluster. It takes no part in the
//! data path: when the supervisor is slow, the cluster is not.

mod at_rest;
mod bootstrap;
mod bucket_sealing;
mod data_dir;
mod devices;
mod error;
mod health;
mod join;
mod members;
mod pools;
mod processes;
mod state_access;
mod supervise;
mod tls_identity;
mod wrapped_secrets;

pub use at_rest::UnlockWith;
pub use bootstrap::{Choices, DEFAULT_OSD_BYTES, POOL_DATA, POOL_IMAGES, POOL_OBJECTS};
pub use bucket_sealing::set_bucket_sealing;
pub use data_dir::{ClusterFile, Credentials, DataDir, FirstPools, LISTEN_OFF};
pub use devices::{CreatedOsd, OsdChoices};
pub use error::SupervisorError;
pub use health::wait_until_healthy;
pub use join::{JoinToken, create_token, join, list_tokens, revoke_token};
pub use members::{OsdPlace, add_osd, keep_own_osd, osd_record, place_osd};
pub use processes::{ChildStatus, ProcessesFile};
pub use state_access::{EtcdChoices, check_identity};
pub use supervise::{Progress, stop, supervise};
pub use tls_identity::{authority_file, is_dns_name};
pub use wrapped_secrets::{KeyUses, RewrapReport, UsesByVersion, forget_bucket_keys, rewrap_all};
