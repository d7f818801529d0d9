//! The protocol of one placement group, on one of its members (DESIGN section 6): the primary
//! orders writes and has every member make them durable before it answers; peering under a new
//! epoch brings all members level after a restart or a lost connection.
//!
//! Sans-IO: a [`Pg`] takes events (messages, client requests, completions) and gives out
//! [`Action`]s. It sees its object store only through [`ObjectView`]; it sees no sockets, no
//! clocks, no threads and no randomness.
//!
//! For now a group's membership is fixed: while a member is away, writes wait for it and reads of
//! committed data go on. Shrinking by compare-and-swap comes with the fail-over issue.

mod actions;
mod client_requests;
mod conflicts;
mod group;
mod peering;
mod retries;
mod sync;

pub use actions::{Action, ClientId, Lookup, ObjectView, ReadFailure, Token};
pub use group::{EPOCH_KEY, Pg, PgState};
