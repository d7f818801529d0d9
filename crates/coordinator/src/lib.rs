//! Decisions for the cluster as a whole: the OSDs that count as lost, the balancer's targets of PGs, the PGs to be
//! created, and the problems ([`health`]). It knows cluster state and placement, and nothing of objects,
//! connections or devices.
//!
//! Decisions are pure functions over a [`View`], the records as they were at some moment. One
//! process of the cluster carries them out at a time ([`run`]); if two believe that they do, nothing
//! breaks, since every change is a compare-and-swap. The records of PGs that exist belong to their
//! primaries: they are never written here.

mod events;
pub mod health;
mod invariants;
mod leader;
mod membership;
mod pgs;
mod presence;
mod refused_changes;
mod round;
mod upkeep;
mod view;
mod words;

pub use leader::run;
pub use membership::{MembershipChange, membership_changes, track_down};
pub use pgs::{PgAvailability, PgStatus, is_settled, missing_pgs, pgs_by_osd, statuses};
pub use presence::Presence;
pub use view::View;

/// Unix time in milliseconds.
pub fn unix_ms() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |elapsed| elapsed.as_millis() as u64)
}

#[cfg(test)]
mod tests;
