//! What is decided for the cluster as a whole: which OSDs are taken for lost, where the balancer
//! wants groups, which groups are still to be made, what is wrong ([`health`]), and the changes that
//! operators make ([`admin`]).
//!
//! Decisions are pure functions over a [`View`], the records as they were at some moment. One
//! process of the cluster carries them out at a time ([`run`]); if two believe that they do, nothing
//! breaks, since every change is a compare-and-swap. The records of groups that exist belong to
//! their primaries: nobody here writes them.

pub mod admin;
mod groups;
pub mod health;
mod leader;
mod membership;
mod round;
mod view;

pub use groups::{GroupState, GroupStatus, groups_by_osd, is_settled, missing_groups, statuses};
pub use leader::run;
pub use membership::{MembershipChange, membership_changes, track_down};
pub use view::View;

/// Unix time in milliseconds.
pub fn unix_ms() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |elapsed| elapsed.as_millis() as u64)
}

#[cfg(test)]
mod tests;
