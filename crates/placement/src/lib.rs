//! Placement: which OSDs should hold a placement group (PG):
//! straw2 over the tree of zones, racks, hosts and OSDs (Weil et al., "CRUSH",
//! 2006, with the straw2 bucket of Ceph Hammer), and the balancer that evens out what chance leaves
//! uneven. Pure functions over records: what is in force is in cluster state, and this crate only says
//! what it should be. It may not know connections, stores or who is up.

mod balance;
mod invariants;
mod level;
mod straw2;
mod target;
mod tree;

pub use balance::{Balance, balance};
pub use target::{first_record, target};
pub use tree::{DEFAULT_PLACE, Location, Tree, is_usable, location};
