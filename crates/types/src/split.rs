//! Which PG an object belongs to, and how PGs split: the object's hash, cut to as many bits as the pool's number
//! of PGs has. A PG that splits keeps the objects whose next bit is zero. The part of a name behind an `@` does
//! not count, so that all states of an object are in one PG and can share their data. Names of objects that a PG
//! keeps for itself have the PG's number in place of a hash.

use crate::operation::PRE_IMAGE_PREFIX;
use crate::{ObjectName, PgId, PoolId};

/// The mixing function of SplitMix64 (Steele, Lea, Flood 2014).
pub fn mix(mut value: u64) -> u64 {
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// FNV-1a (64 bits), then mixed.
fn hash_bytes(bytes: &[u8]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in bytes {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    }
    mix(hash)
}

/// Returns the part of a name that places the object: everything before the first `@`, or all of it if it begins
/// with one, as the names of a PG's own objects do.
fn placed_part(name: &str) -> &str {
    match name.split_once('@') {
        Some((before, _)) if !before.is_empty() => before,
        _ => name,
    }
}

/// The number of the PG that made a name for something that it keeps for itself.
fn keeper(name: &str) -> Option<u32> {
    let (index, _) = name.strip_prefix(PRE_IMAGE_PREFIX)?.split_once('.')?;
    u32::from_str_radix(index, 16).ok()
}

/// The PG of an object, if its pool has `pg_num`, a power of two.
pub fn pg_of_object(pool: PoolId, object: &ObjectName, pg_num: u32) -> PgId {
    assert!(pg_num.is_power_of_two(), "pg_num is a power of two");
    let name = object.as_str();
    let number = keeper(name).unwrap_or_else(|| hash_bytes(placed_part(name).as_bytes()) as u32);
    PgId { pool, index: number & (pg_num - 1) }
}

impl PgId {
    /// Returns true if an object belongs to this PG when it is one of `pg_num`, a power of two.
    pub fn holds(self, object: &ObjectName, pg_num: u32) -> bool {
        pg_of_object(self.pool, object, pg_num) == self
    }

    /// The pool's number of PGs when this PG was created, in a pool that was made with
    /// `pg_num_first`.
    pub fn first_pg_num(self, pg_num_first: u32) -> u32 {
        pg_num_first.max((self.index + 1).next_power_of_two())
    }

    /// The PG that is split off when this one of `pg_num` becomes one of twice as many.
    pub fn split_off(self, pg_num: u32) -> PgId {
        PgId { index: self.index + pg_num, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_spread_over_pgs() {
        let mut counts = [0; 32];
        for number in 0..32_000 {
            let name = ObjectName::new(&format!("img.0123456789abcdef.{number:08x}")).unwrap();
            counts[pg_of_object(PoolId(1), &name, 32).index as usize] += 1;
        }
        assert!(counts.iter().all(|count| (850..1150).contains(count)), "{counts:?}");
    }

    #[test]
    fn a_split_divides_the_objects_of_one_pg_between_two() {
        for number in 0..1_000 {
            let name = ObjectName::new(&format!("object{number}")).unwrap();
            let pg = pg_of_object(PoolId(1), &name, 16);
            let halves = [pg, pg.split_off(16)];
            assert_eq!(halves.iter().filter(|half| half.holds(&name, 32)).count(), 1);
            assert_eq!(halves.map(|half| half.first_pg_num(16)), [16, 32]);
        }
    }

    #[test]
    fn states_of_an_object_are_in_its_group() {
        let group = |name: &str| pg_of_object(PoolId(1), &ObjectName::new(name).unwrap(), 1 << 16);
        assert_eq!(group("img.1.00000000"), group("img.1.00000000@0000000000000007"));
        assert_ne!(group("img.1.00000000"), group("img.1.00000001"));
    }

    #[test]
    fn kept_objects_belong_to_the_pg_that_made_them() {
        for (name, index) in [("@kept/1.1", 1), ("@kept/1.2", 1), ("@kept/2f.new.3", 0x2f)] {
            let name = ObjectName::new(name).unwrap();
            assert_eq!(pg_of_object(PoolId(1), &name, 64).index, index);
            // A split that is undone gives it back with everything else.
            assert_eq!(pg_of_object(PoolId(1), &name, 16).index, index & 15);
        }
    }
}
