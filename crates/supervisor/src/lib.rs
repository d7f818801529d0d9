//! A whole cluster on one machine out of one data directory (`atoll up`): where its files are, how
//! it is made at the first start, and how its processes are started, watched and stopped.
//!
//! This room knows files, processes and the first records of a cluster. It takes no part in the
//! data path: when the supervisor is slow, the cluster is not.

mod at_rest;
mod bootstrap;
mod data_dir;
mod devices;
mod error;
mod health;
mod members;
mod processes;
mod supervise;

pub use at_rest::UnlockWith;
pub use bootstrap::{Choices, DEFAULT_OSD_BYTES, POOL_IMAGES, POOL_OBJECTS};
pub use data_dir::{ClusterFile, Credentials, DataDir};
pub use devices::{CreatedOsd, OsdChoices, create_osd};
pub use error::SupervisorError;
pub use health::wait_until_healthy;
pub use members::{OsdPlace, add_own_osd, keep_own_osd, osd_record};
pub use processes::{ChildStatus, ProcessesFile};
pub use supervise::{Progress, stop, supervise};
