//! The protocol of one placement group, on one of its members (DESIGN section 6): the primary
//! orders writes and has every member make them durable before it answers; peering under a new
//! epoch brings all members level after a restart or a lost connection.
//!
//! Sans-IO: a [`Pg`] takes events (messages, client requests, completions) and gives out
//! [`Action`]s. It sees its object store, the time and its leases only through [`ObjectView`]; it sees
//! no sockets, no clocks, no threads and no randomness.

mod actions;
mod client_answers;
mod client_requests;
mod coded;
mod conflicts;
mod copies;
mod group;
mod learners;
mod leases;
mod membership;
mod peering;
mod promises;
mod purge;
mod rest;
mod retries;
mod scrub;
mod scrub_verdict;
mod split;
mod submissions;
mod waiting;

pub use actions::{Action, ClientId, Lookup, ObjectParts, ObjectView, ReadFailure, Token, WholeObject};
pub use coded::{SHARD_KEY, is_hidden};
pub use group::{CodeShape, EPOCH_KEY, INCOMPLETE_KEY, Pg, PgState, PoolPolicy};
pub use leases::{LEASE_RENEWAL_MS, Leases};
pub use scrub::ScrubReport;
pub use split::SPLIT_KEY;
