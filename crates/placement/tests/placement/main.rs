//! Properties of placement over random trees.

mod balance;
mod target;

use std::collections::{BTreeMap, BTreeSet};

use atoll_types::records::{FailureDomain, OsdRecord, PoolRecord, Redundancy};
use atoll_types::{OsdId, PgId, PoolId};
use proptest::prelude::*;

type Osds = BTreeMap<OsdId, OsdRecord>;

fn osd(id: u32, place: [&str; 3], weight: f64) -> OsdRecord {
    let [zone, rack, host] = place.map(str::to_owned);
    OsdRecord {
        format: 1,
        id: OsdId(id),
        host,
        public_key: String::new(),
        weight,
        device_class: "ssd".into(),
        device_bytes: 1 << 40,
        rack,
        zone,
        is_out: false,
        store_id: String::new(),
    }
}

fn pool(id: u32, size: u32, pg_num: u32, failure_domain: FailureDomain) -> PoolRecord {
    PoolRecord {
        format: 1,
        id: PoolId(id),
        name: format!("pool{id}"),
        redundancy: Redundancy::Replicated { size, min_size: 1 },
        pg_num,
        pg_num_first: 0,
        failure_domain,
        device_class: None,
    }
}

fn pgs(pool: &PoolRecord) -> impl Iterator<Item = PgId> + use<> {
    let pool_id = pool.id;
    (0..pool.pg_num).map(move |index| PgId { pool: pool_id, index })
}

/// The failure domain of an OSD, by name.
fn domain(osd: &OsdRecord, level: FailureDomain) -> String {
    match level {
        FailureDomain::Osd => osd.id.to_string(),
        FailureDomain::Host => osd.host.clone(),
        FailureDomain::Rack => format!("{}/{}", osd.zone, osd.rack),
        FailureDomain::Zone => osd.zone.clone(),
    }
}

fn domains(members: &[OsdId], osds: &Osds, level: FailureDomain) -> BTreeSet<String> {
    members.iter().map(|member| domain(&osds[member], level)).collect()
}

fn failure_domain() -> impl Strategy<Value = FailureDomain> {
    prop::sample::select(vec![FailureDomain::Osd, FailureDomain::Host, FailureDomain::Rack, FailureDomain::Zone])
}

/// Zones of racks of hosts of OSDs, some out, some without weight, of two classes.
fn tree() -> impl Strategy<Value = Osds> {
    let leaf = (
        prop::sample::select(vec![0.0, 0.5, 1.0, 1.0, 1.0, 2.0, 4.0]),
        prop::bool::weighted(0.1),
        prop::bool::weighted(0.2),
    );
    let host = prop::collection::vec(leaf, 1..5);
    let rack = prop::collection::vec(host, 1..5);
    let zone = prop::collection::vec(rack, 1..4);
    prop::collection::vec(zone, 1..4).prop_map(|zones| {
        let mut osds = Osds::new();
        for (zone_number, racks) in zones.iter().enumerate() {
            for (rack_number, hosts) in racks.iter().enumerate() {
                for (host_number, leaves) in hosts.iter().enumerate() {
                    for (weight, is_out, is_disk) in leaves {
                        let host = format!("h{zone_number}-{rack_number}-{host_number}");
                        let place = [&format!("z{zone_number}"), &format!("r{rack_number}"), host.as_str()];
                        let mut record = osd(osds.len() as u32, place.map(|name| name as &str), *weight);
                        record.is_out = *is_out;
                        if *is_disk {
                            record.device_class = "hdd".into();
                        }
                        osds.insert(record.id, record);
                    }
                }
            }
        }
        osds
    })
}
