//! The state and the load of the cluster, on one page.

use std::collections::BTreeMap;

use atoll_coordinator::health::{HealthStatus, Severity, evaluate};
use atoll_coordinator::{View, unix_ms};
use atoll_types::OsdId;
use atoll_types::frames::FrameModes;
use atoll_types::records::OsdUsageRecord;
use atoll_types::transports::Transport;
use serde::Serialize;

/// The cluster at a glance.
#[derive(Clone, Debug, Serialize)]
pub struct Overview {
    /// Overall health.
    pub health: HealthStatus,
    /// Health problems: code and summary.
    pub problems: Vec<String>,
    /// How frames on new connections are protected.
    pub frame_modes: FrameModes,
    /// A connection that is so old gets its next key.
    pub frame_rekey_seconds: u64,
    /// Connections that are older than the last change of the modes.
    pub links_in_other_mode: u32,
    /// Connections to OSDs, by transport.
    pub links_by_transport: BTreeMap<Transport, u32>,
    /// OSDs that listen over RDMA, by the provider of libfabric that they do it with: that of all RDMA links to them.
    pub rdma_providers: BTreeMap<String, u32>,
    /// OSDs.
    pub osds: usize,
    /// Those of them that are up.
    pub osds_up: usize,
    /// The OSD whose process coordinates.
    pub coordinator: Option<OsdId>,
    /// PGs.
    pub placement_groups: usize,
    /// Their states, as their primaries report them.
    pub placement_groups_by_state: BTreeMap<String, u32>,
    /// Bytes of all devices.
    pub total_bytes: u64,
    /// Bytes in use on them.
    pub used_bytes: u64,
    /// Copies and shards of objects.
    pub object_count: u64,
    /// Blocks that fail their checksum.
    pub corrupt_block_count: u64,
}

/// A status in a word.
pub fn health_name(status: HealthStatus) -> &'static str {
    match status {
        HealthStatus::Ok => "ok",
        HealthStatus::Warning => "warning",
        HealthStatus::Error => "error",
    }
}

fn rdma_providers(view: &View) -> BTreeMap<String, u32> {
    let mut count_by_provider = BTreeMap::new();
    let providers = view.map.up.values().filter_map(|up| up.rdma_address.split_once(':'));
    for (provider, _) in providers {
        *count_by_provider.entry(provider.to_owned()).or_default() += 1;
    }
    count_by_provider
}

/// The cluster at a glance.
pub fn overview(view: &View) -> Overview {
    let is_up = |id: &OsdId| view.map.up.contains_key(id);
    let health = evaluate(view, unix_ms());
    let problems = health.problems.iter().filter(|problem| problem.severity > Severity::Note);
    let mut states: BTreeMap<String, u32> = BTreeMap::new();
    for (_, usage) in view.usage.iter().filter(|(id, _)| is_up(id)) {
        for (state, count) in &usage.primary_pg_states {
            *states.entry(state.clone()).or_default() += count;
        }
    }
    let mut links_by_transport: BTreeMap<Transport, u32> = BTreeMap::new();
    for (_, usage) in view.usage.iter().filter(|(id, _)| is_up(id)) {
        for (transport, count) in &usage.links_by_transport {
            *links_by_transport.entry(*transport).or_default() += count;
        }
    }
    let known: u32 = states.values().sum();
    if let Some(missing) = (view.map.pgs.len() as u32).checked_sub(known).filter(|missing| *missing > 0) {
        states.insert("unknown".into(), missing);
    }
    let sum = |field: fn(&OsdUsageRecord) -> u64| view.usage.values().map(field).sum();
    Overview {
        health: health.status,
        problems: problems.map(|problem| format!("{}: {}", problem.code, problem.summary)).collect(),
        frame_modes: view.map.frames.modes,
        frame_rekey_seconds: view.map.frames.rekey_seconds,
        links_in_other_mode: view.usage.values().map(|usage| usage.links_in_other_mode).sum(),
        links_by_transport,
        rdma_providers: rdma_providers(view),
        osds: view.map.osds.len(),
        osds_up: view.map.osds.keys().filter(|id| is_up(id)).count(),
        coordinator: view.coordinator.as_ref().map(|record| record.osd),
        placement_groups: view.map.pgs.len(),
        placement_groups_by_state: states,
        total_bytes: sum(|usage| usage.total_bytes),
        used_bytes: sum(|usage| usage.used_bytes),
        object_count: sum(|usage| usage.object_count),
        corrupt_block_count: sum(|usage| usage.corrupt_block_count),
    }
}
