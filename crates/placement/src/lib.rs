//! Placement: from an object's name to its placement group, and from a placement group to the OSDs
//! that should hold it (straw2 over the failure-domain tree; Weil et al., "CRUSH", 2006, with the
//! straw2 bucket of Ceph Hammer). Pure functions: what is in force is the configuration stored in
//! cluster state; this room only says what it should be.

use std::collections::BTreeMap;

use atoll_base::records::{FailureDomain, OsdRecord, PgTargetRecord, PoolRecord, Redundancy};
use atoll_base::{ObjectName, OsdId, PgId, PoolId};

/// Why no set of OSDs can be chosen.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlacementError {
    /// There are fewer failure domains with usable OSDs than copies.
    #[error(
        "the pool wants {wanted} copies on different {domain:?}s, but there are {available}; add OSDs or choose \
         a smaller size or failure domain"
    )]
    TooFewDomains {
        /// Copies wanted.
        wanted: u32,
        /// Failure domains that have OSDs.
        available: u32,
        /// The kind of failure domain.
        domain: FailureDomain,
    },
}

/// The mixing function of SplitMix64 (Steele, Lea, Flood 2014).
fn mix(mut value: u64) -> u64 {
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

/// The placement group of an object. `pg_num` must be a power of two.
pub fn pg_of_object(pool: PoolId, object: &ObjectName, pg_num: u32) -> PgId {
    assert!(pg_num.is_power_of_two(), "pg_num is a power of two");
    PgId { pool, index: hash_bytes(object.as_str().as_bytes()) as u32 & (pg_num - 1) }
}

/// straw2: the longest straw wins, and a straw's length is the logarithm of a uniform draw divided
/// by the weight. Changing one weight moves only data to or from that item.
fn straw(key: u64, item: u64, weight: f64) -> f64 {
    let draw = mix(key ^ mix(item));
    let uniform = ((draw >> 11) as f64 + 1.0) / (1_u64 << 53) as f64;
    uniform.ln() / weight
}

fn choose<'a, T>(key: u64, items: impl Iterator<Item = (u64, f64, &'a T)>) -> Option<&'a T> {
    items
        .filter(|(_, weight, _)| *weight > 0.0)
        .map(|(item, weight, value)| (straw(key, item, weight), value))
        .max_by(|left, right| left.0.total_cmp(&right.0))
        .map(|(_, value)| value)
}

/// The OSDs that should hold a placement group, `size` of them in different failure domains; the
/// first is the one that should be primary.
pub fn target_set(
    pg: PgId,
    size: u32,
    failure_domain: FailureDomain,
    osds: &[OsdRecord],
) -> Result<Vec<OsdId>, PlacementError> {
    let mut domains: BTreeMap<String, Vec<&OsdRecord>> = BTreeMap::new();
    for osd in osds.iter().filter(|osd| osd.weight > 0.0) {
        let name = match failure_domain {
            FailureDomain::Osd => osd.id.to_string(),
            FailureDomain::Host => osd.host.clone(),
            FailureDomain::Rack => osd.rack.clone(),
            FailureDomain::Zone => osd.zone.clone(),
        };
        domains.entry(name).or_default().push(osd);
    }
    let available = domains.len() as u32;
    if available < size {
        return Err(PlacementError::TooFewDomains { wanted: size, available, domain: failure_domain });
    }
    let key = mix(u64::from(pg.pool.0) << 32 | u64::from(pg.index));
    let mut chosen = Vec::new();
    for rank in 0..u64::from(size) {
        let weighed = domains.iter().map(|(name, osds)| {
            (hash_bytes(name.as_bytes()), osds.iter().map(|osd| osd.weight).sum::<f64>(), name)
        });
        let domain = choose(mix(key + rank), weighed).expect("there are more domains than copies").clone();
        let members = domains.remove(&domain).expect("it was just chosen");
        let weighed = members.iter().map(|osd| (u64::from(osd.id.0), osd.weight, *osd));
        chosen.push(choose(mix(key + rank), weighed).expect("domains have OSDs with weight").id);
    }
    Ok(chosen)
}

/// The members that a placement group should have now, the primary first: what the balancer wants,
/// or else what the CRUSH tree says. Fewer than the pool's size if there are too few failure
/// domains.
pub fn target(
    pg: PgId,
    pool: &PoolRecord,
    osds: &BTreeMap<OsdId, OsdRecord>,
    wanted: Option<&PgTargetRecord>,
) -> Vec<OsdId> {
    let is_usable = |osd: &&OsdRecord| {
        let class_fits = pool.device_class.as_ref().is_none_or(|class| *class == osd.device_class);
        !osd.is_out && osd.weight > 0.0 && class_fits
    };
    let usable: Vec<OsdRecord> = osds.values().filter(is_usable).cloned().collect();
    let Redundancy::Replicated { size, .. } = pool.redundancy;
    if let Some(wanted) = wanted
        && wanted.members.iter().all(|member| usable.iter().any(|osd| osd.id == *member))
    {
        return wanted.members.clone();
    }
    match target_set(pg, size, pool.failure_domain, &usable) {
        Ok(members) => members,
        Err(PlacementError::TooFewDomains { available, .. }) => {
            target_set(pg, available, pool.failure_domain, &usable).unwrap_or_default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn osd(id: u32, host: &str, weight: f64) -> OsdRecord {
        OsdRecord {
            format: 1,
            id: OsdId(id),
            host: host.into(),
            public_key: String::new(),
            weight,
            device_class: "ssd".into(),
            device_bytes: 1 << 40,
            rack: String::new(),
            zone: String::new(),
            is_out: false,
        }
    }

    fn pg(index: u32) -> PgId {
        PgId { pool: PoolId(1), index }
    }

    #[test]
    fn copies_sit_in_different_domains() {
        let osds: Vec<_> = (0..12).map(|id| osd(id, &format!("host{}", id / 3), 1.0)).collect();
        for index in 0..200 {
            let set = target_set(pg(index), 3, FailureDomain::Host, &osds).unwrap();
            let mut hosts: Vec<u32> = set.iter().map(|osd| osd.0 / 3).collect();
            hosts.sort_unstable();
            hosts.dedup();
            assert_eq!(hosts.len(), 3);
        }
        let error = target_set(pg(0), 5, FailureDomain::Host, &osds).unwrap_err();
        assert!(matches!(error, PlacementError::TooFewDomains { wanted: 5, available: 4, .. }));
        assert_eq!(target_set(pg(0), 5, FailureDomain::Osd, &osds).unwrap().len(), 5);
    }

    #[test]
    fn shares_follow_weights_and_growth_moves_little() {
        let mut osds: Vec<_> = (0..6).map(|id| osd(id, &format!("host{id}"), 1.0)).collect();
        osds[0].weight = 2.0;
        let primaries = |osds: &[OsdRecord]| -> Vec<OsdId> {
            (0..7000).map(|index| target_set(pg(index), 1, FailureDomain::Osd, osds).unwrap()[0]).collect()
        };
        let before = primaries(&osds);
        let heavy = before.iter().filter(|osd| osd.0 == 0).count();
        assert!((1800..2200).contains(&heavy), "{heavy} of 7000 for 2/7 of the weight");
        osds.push(osd(6, "host6", 1.0));
        let after = primaries(&osds);
        let moved: Vec<_> = before.iter().zip(&after).filter(|(old, new)| old != new).collect();
        assert!(moved.iter().all(|(_, new)| new.0 == 6), "data moves only to the new OSD");
        assert!((700..1050).contains(&moved.len()), "{} of 7000 for 1/8 of the weight", moved.len());
    }

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
