//! Placement: from an object's name to its placement group, and from a placement group to the OSDs
//! that should hold it (straw2 over the tree of zones, racks, hosts and OSDs; Weil et al., "CRUSH",
//! 2006, with the straw2 bucket of Ceph Hammer), and the balancer that evens out what chance leaves
//! uneven. Pure functions: what is in force is the configuration stored in cluster state; this room
//! only says what it should be.

mod balance;
mod level;
mod straw2;
mod target;
mod tree;

pub use balance::{Balance, balance};
pub use target::{first_record, target};
pub use tree::{DEFAULT_PLACE, Location, Tree, is_usable, location};
