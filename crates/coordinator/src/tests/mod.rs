//! Decisions over made-up clusters, and their execution against the embedded server.

mod changes;
mod health;
mod membership;
mod pgs;

use std::collections::BTreeMap;

use atoll_placement::first_record;
use atoll_types::records::{
    FailureDomain, OsdRecord, OsdUpRecord, OsdUsageRecord, PgRecord, PoolRecord, Redundancy,
};
use atoll_types::{Epoch, OsdId, PgId, PoolId};

use crate::{View, missing_pgs, pgs_by_osd};

const MINUTE_MS: u64 = 60_000;

fn osd(id: u32) -> OsdRecord {
    OsdRecord {
        format: 1,
        id: OsdId(id),
        host: format!("h{id}"),
        public_key: format!("{id:064x}"),
        weight: 1.0,
        device_class: "ssd".into(),
        device_bytes: 1 << 40,
        rack: String::new(),
        zone: String::new(),
        is_out: false,
        store_id: String::new(),
    }
}

fn up(id: u32) -> OsdUpRecord {
    OsdUpRecord {
        format: 1,
        id: OsdId(id),
        address: "127.0.0.1:1".into(),
        local_name: String::new(),
        rdma_address: String::new(),
        process_id: 1,
        process: None,
        incarnation: 1,
        signs_changes: true,
    }
}

fn pool(id: u32, size: u32, min_size: u32) -> PoolRecord {
    PoolRecord {
        format: 1,
        id: PoolId(id),
        name: format!("pool{id}"),
        redundancy: Redundancy::replicated(size, Some(min_size)),
        pg_num: 8,
        pg_num_first: 0,
        failure_domain: FailureDomain::Host,
        device_class: None,
    }
}

/// An erasure-coded pool, with I/O while all data shards and one more are up.
fn coded_pool(id: u32, data: u32, parity: u32) -> PoolRecord {
    PoolRecord { redundancy: Redundancy::erasure(data, parity, None, None), ..pool(id, 1, 1) }
}

/// Returns a view of `osds` OSDs on hosts of their own, all up, and a pool of three copies whose PGs are active on
/// their targets.
pub(crate) fn healthy(osds: u32) -> View {
    let mut view = View {
        coordinator: Some(atoll_types::coordination::CoordinatorRecord {
            format: 1,
            osd: OsdId(0),
            since_unix_ms: 1,
        }),
        ..View::default()
    };
    for id in 0..osds {
        view.map.osds.insert(OsdId(id), osd(id));
        view.map.up.insert(OsdId(id), up(id));
        let usage = OsdUsageRecord { format: 1, total_bytes: 1000, used_bytes: 10, ..OsdUsageRecord::default() };
        view.usage.insert(OsdId(id), usage);
    }
    view.map.pools.insert(PoolId(1), pool(1, 3, 2));
    for (pg, record) in missing_pgs(&view.map) {
        view.map.pgs.insert(pg, (PgRecord { activated_epoch: Epoch(1), ..record }, 1));
    }
    report(&mut view);
    view
}

/// Makes every OSD report as active all PGs whose records make it the primary.
fn report(view: &mut View) {
    let counts = pgs_by_osd(&view.map);
    for (id, usage) in &mut view.usage {
        let (_, primaries) = counts.get(id).copied().unwrap_or_default();
        usage.primary_pg_states = BTreeMap::from([("active".to_owned(), primaries as u32)]);
    }
}

/// Takes OSDs down.
pub(crate) fn stop(view: &mut View, ids: &[u32]) {
    ids.iter().for_each(|id| drop(view.map.up.remove(&OsdId(*id))));
}

pub(crate) fn pg(index: u32) -> PgId {
    PgId { pool: PoolId(1), index }
}

pub(crate) fn record(members: &[u32]) -> PgRecord {
    let members = members.iter().map(|id| OsdId(*id)).collect();
    PgRecord { activated_epoch: Epoch(1), ..first_record(members, &pool(1, 3, 2)).unwrap() }
}
