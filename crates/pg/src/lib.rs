//! The protocol of one placement group (PG) on one OSD. The primary orders writes and answers when
//! every member has made them durable; after a restart or a lost connection, members agree on one
//! history by peering under a new epoch.
//!
//! A [`Pg`] takes events (messages, clients' requests, completions, ticks, records of cluster
//! state) and returns [`Action`]s. It looks at its object store, its leases and the time through
//! [`ObjectView`]. It may not know sockets, threads, clocks, devices or randomness, so one seed of
//! the simulator (`crates/sim`) repeats a run exactly.
//!
//! Where things are:
//!
//! - `group`, `events`: a [`Pg`] with its components, and the events that every role handles.
//! - `actions`, `outbox`, `submissions`: the PG's requests to its shell, and the shell's answers.
//! - `context`: the inputs of a component, and the outbox for its requests to others.
//! - `config`, `own_object`, `intake`, `primary_requests`: the configuration in force, the durable state of this
//!   copy, and the requests of a primary to it.
//! - `peering`: membership, promises, leases, and the comparison of heads.
//! - `staging`: objects of a member that catches up, until all are there.
//! - `replication`: clients' requests, from admission to the answer.
//! - `backfill`: learners, and the objects on their way to them.
//! - `scrub`, `split`, `stray`: comparing copies, splitting the PG, deleting stray copies.
//! - `erasure`: the differences when each member holds a shard.
//! - `idle`, `waits_for`, `progress`: the PG's need of ticks, and the reasons for which it and clients' requests
//!   wait.
//! - `copy_told`: the report of the copy for operators.
//! - `invariants`: requirements that are asserted in release builds too.

mod actions;
mod backfill;
mod config;
mod context;
mod copy_told;
mod erasure;
mod events;
mod group;
mod idle;
mod intake;
mod invariants;
mod outbox;
mod own_object;
mod peering;
mod primary_requests;
mod progress;
mod replication;
mod scrub;
mod split;
mod staging;
mod stray;
mod submissions;
mod waits_for;

pub use actions::{
    Action, ClientId, Examined, Lookup, ObjectParts, ObjectView, ReadFailure, Sender, Token, WholeObject,
};
pub use config::{CodeShape, PgState, PoolPolicy};
pub use erasure::is_hidden;
pub use group::Pg;
pub use own_object::{
    BEHIND_KEY, EPOCH_KEY, INCOMPLETE_KEY, KEYS_AT_START, SHARD_KEY, SPLIT_KEY, STAGED_KEY, mark_incomplete,
};
pub use peering::leases::{LEASE_RENEWAL_MS, Leases};
pub use progress::{Progress, Reached};
pub use scrub::ScrubReport;
