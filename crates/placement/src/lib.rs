//! Placement: the OSDs that should hold a placement group (PG), by straw2 over the tree of zones, racks, hosts and
//! OSDs (Weil et al., "CRUSH", 2006, with the straw2 bucket of Ceph Hammer), and the balancer that evens out
//! random differences. Pure functions over records: cluster state has the placement in force, and this crate only
//! computes the desired one. It does not know connections, stores or which OSDs are up.

mod balance;
mod invariants;
mod level;
mod straw2;
mod target;
mod tree;

pub use balance::{Balance, balance};
pub use target::{first_record, target};
pub use tree::{DEFAULT_PLACE, Location, Tree, is_usable, location};
