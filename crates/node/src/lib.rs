//! One host of a cluster, out of one data directory: where its files are, how a cluster is made at the first
//! start or joined with a token, which OSDs the host has, and how its processes are started, watched and
//! stopped (`atoll up`).
//!
//! This crate knows files, processes, and the records of this host in cluster state. It takes no part in
//! the data path: while the supervisor of the processes is slow, the cluster is not.

mod at_rest;
mod audit_health;
mod backup;
mod backup_seal;
mod bootstrap;
mod children;
mod choices;
mod data_dir;
mod device_space;
mod devices;
mod error;
mod first_records;
mod foreign_data;
mod health;
mod host_health;
mod host_login;
mod join;
mod json_files;
mod log_files;
mod login_health;
mod managed;
mod members;
mod osd_device;
mod osd_ends;
mod pools;
mod process_health;
mod processes;
mod progress;
mod raised_counters;
mod secret_ages;
mod secrets;
mod signing;
mod state_access;
mod state_restore;
mod state_space;
mod static_keys;
mod supervise;
mod tls_identity;

pub use at_rest::{UnlockWith, osd_of_device};
pub use audit_health::{NO_LOG, audit_run_of_process, silent_audit_problems};
pub use backup::{MadeBackup, back_up, note_backup, restore};
pub use backup_seal::{BackupOpener, BackupSeal};
pub use choices::{Choices, DEFAULT_OSD_BYTES, JOIN_TOKEN_VARIABLE};
pub use data_dir::{ClusterFile, Credentials, DataDir, FirstPools, LISTEN_OFF};
pub use device_space::{Overcommitted, free_bytes, overcommitted};
pub use devices::{CreatedOsd, OsdChoices};
pub use error::NodeError;
pub use health::wait_until_healthy;
pub use host_health::{host_problems, state_space_problem};
pub use host_login::{OtherLogin, login_source, random_password, rotate_login};
pub use join::{JoinToken, create_token, join, list_tokens, revoke_token};
pub use login_health::login_problems;
pub use members::{OsdPlace, add_osd, place_foreign_osd, place_osd, remove_osd};
pub use osd_device::{check_store, is_old_device, note_start, store_of};
pub use osd_ends::{note_end, tell_ends};
pub use process_health::process_problems;
pub use processes::{ChildStatus, ProcessesFile};
pub use progress::Progress;
pub use raised_counters::{RaisedCounters, raise_restored};
pub use secret_ages::{SecretAge, old_secret_problems, secret_ages};
pub use signing::{Pin, look_at_pin, pin, remember_signed, signature_problems};
pub use state_access::{EtcdChoices, check_identity};
pub use state_restore::{RestoredState, restore_state};
pub use state_space::StateSpace;
pub use static_keys::{RotatedKey, rotate_static_key};
pub use supervise::{STATE_FILES_CODE, stop, supervise};
pub use tls_identity::{authority_file, is_dns_name, renew_identity};
