//! One module per command or family of commands: its arguments, what it calls, and what it prints.
//! Modules here know nothing of [`crate::cli`].

pub mod admin;
pub mod arguments;
pub mod audit;
pub mod bench;
pub mod bucket;
pub mod cluster;
mod daemon;
pub mod events;
mod everywhere;
pub mod flag;
pub mod gateway;
pub mod health;
pub mod host;
pub mod identity;
pub mod image;
pub mod join;
mod join_token;
pub mod key;
pub mod metrics;
pub mod nbd;
pub mod nvme;
mod nvme_host;
mod nvme_tls;
mod open_cluster;
pub mod operator;
pub mod osd;
mod output;
pub mod pg;
pub mod pool;
pub mod preflight;
mod secret_file;
pub mod settings;
pub mod sim;
pub mod slow;
pub mod state;
pub mod status;
pub mod store;
pub mod top;
pub mod up;

pub use events::Author;
pub use open_cluster::note_changes;
pub use output::explain;
