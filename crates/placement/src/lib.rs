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

use atoll_base::{ObjectName, PgId, PoolId};

pub use balance::{Balance, balance};
pub use target::{first_record, target};
pub use tree::{DEFAULT_PLACE, Location, Tree, is_usable, location};

/// FNV-1a (64 bits), then mixed.
fn hash_bytes(bytes: &[u8]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in bytes {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    }
    straw2::mix(hash)
}

/// The placement group of an object. `pg_num` must be a power of two.
pub fn pg_of_object(pool: PoolId, object: &ObjectName, pg_num: u32) -> PgId {
    assert!(pg_num.is_power_of_two(), "pg_num is a power of two");
    PgId { pool, index: hash_bytes(object.as_str().as_bytes()) as u32 & (pg_num - 1) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_spread_over_groups() {
        let mut counts = [0; 32];
        for number in 0..32_000 {
            let name = ObjectName::new(&format!("img.0123456789abcdef.{number:08x}")).unwrap();
            counts[pg_of_object(PoolId(1), &name, 32).index as usize] += 1;
        }
        assert!(counts.iter().all(|count| (850..1150).contains(count)), "{counts:?}");
    }
}
