//! The vocabulary of Atoll: identifiers, versions, limits, the records kept in cluster state, and the
//! object operations that travel on the wire and end in the store.
//!
//! Everyone may use this crate. It uses only the encoding and the buffers, and does no I/O: no files, sockets,
//! threads, clocks or randomness.

pub mod access;
pub mod api_tokens;
pub mod approvals;
pub mod audit;
pub mod authority;
mod bucket_settings;
pub mod coordination;
pub mod cors;
pub mod events;
pub mod frames;
pub mod hosts;
pub mod identities;
pub mod ids;
pub mod image_key;
mod images;
pub mod join;
pub mod limits;
pub mod login_oidc;
pub mod monitoring;
pub mod nvme_hosts;
pub mod operation;
pub mod operators;
mod peer_keys;
pub mod pg_copies;
pub mod rdma_searches;
pub mod record_json;
pub mod records;
mod room;
pub mod size;
pub mod split;
mod trace;
pub mod transports;

pub use ids::{Epoch, ObjectName, OsdId, PgId, PoolId, RequestId, Version};
pub use operation::{
    Condition, ListedObject, LogEntry, Mutation, PreImage, ReadOutcome, ReadRequest, Refusal, Seals,
    SharedTransaction, Touched, Transaction, WriteRequest,
};
pub use room::Room;
pub use split::{mix, pg_of_object};
pub use trace::TraceContext;
