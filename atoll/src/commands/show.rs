//! Commands that look at the cluster.

use std::collections::BTreeMap;

use atoll_base::records::{OsdRecord, OsdUsageRecord, Redundancy};
use atoll_base::size::format_size;
use atoll_base::{OsdId, PoolId};
use atoll_cluster::{ClusterMap, MapWatch, keys};
use serde::Serialize;
use serde_json::json;

use super::{OpenCluster, print_json, print_table, tokio_runtime};
use crate::cli::OutputArguments;

struct Seen {
    open: OpenCluster,
    map: ClusterMap,
    usage: BTreeMap<OsdId, OsdUsageRecord>,
}

fn look(output: &OutputArguments) -> anyhow::Result<Seen> {
    let open = OpenCluster::open(&output.data)?;
    tokio_runtime()?.block_on(async {
        let state = open.connect().await?;
        let map = MapWatch::start(&state).await?.map().clone();
        let listing = state.list::<OsdUsageRecord>(keys::OSD_USAGE).await?;
        let entries = listing.entries.into_iter();
        let usage = entries.filter_map(|(key, record, _)| Some((keys::parse_osd(&key)?, record))).collect();
        Ok(Seen { open, map, usage })
    })
}

#[derive(Serialize)]
struct Status {
    cluster_id: String,
    health: &'static str,
    problems: Vec<String>,
    frame_mode: String,
    osds: usize,
    osds_up: usize,
    placement_groups: usize,
    placement_groups_by_state: BTreeMap<String, u32>,
    total_bytes: u64,
    used_bytes: u64,
    object_count: u64,
    corrupt_block_count: u64,
    s3_endpoint: String,
    nbd_listen: Vec<String>,
}

/// `atoll status`.
pub fn status(output: &OutputArguments) -> anyhow::Result<()> {
    let seen = look(output)?;
    let up = |id: &OsdId| seen.map.up.contains_key(id);
    let mut states: BTreeMap<String, u32> = BTreeMap::new();
    for (_, usage) in seen.usage.iter().filter(|(id, _)| up(id)) {
        for (state, count) in &usage.primary_pg_states {
            *states.entry(state.clone()).or_default() += count;
        }
    }
    let known: u32 = states.values().sum();
    if let Some(missing) = (seen.map.pgs.len() as u32).checked_sub(known).filter(|missing| *missing > 0) {
        states.insert("unknown".into(), missing);
    }
    let sum = |field: fn(&OsdUsageRecord) -> u64| seen.usage.values().map(field).sum();
    let status = Status {
        cluster_id: seen.open.cluster.cluster_id.clone(),
        health: "",
        problems: problems(&seen, &states),
        frame_mode: format!("{:?}", seen.open.cluster.frame_mode).to_lowercase(),
        osds: seen.map.osds.len(),
        osds_up: seen.map.osds.keys().filter(|id| up(id)).count(),
        placement_groups: seen.map.pgs.len(),
        placement_groups_by_state: states,
        total_bytes: sum(|usage| usage.total_bytes),
        used_bytes: sum(|usage| usage.used_bytes),
        object_count: sum(|usage| usage.object_count),
        corrupt_block_count: sum(|usage| usage.corrupt_block_count),
        s3_endpoint: format!("http://{}", seen.open.cluster.s3_listen),
        nbd_listen: seen.open.cluster.nbd_listen.clone(),
    };
    let status = Status { health: if status.problems.is_empty() { "ok" } else { "warning" }, ..status };
    if output.json { print_json(&status) } else { print_status(&status) }
}

fn problems(seen: &Seen, states: &BTreeMap<String, u32>) -> Vec<String> {
    let mut problems = Vec::new();
    for id in seen.map.osds.keys().filter(|id| !seen.map.up.contains_key(id)) {
        problems.push(format!("{id} is down: its placement groups take no writes until it is back"));
    }
    for (state, count) in states.iter().filter(|(state, _)| *state != "active") {
        problems.push(format!("{count} placement groups are {state}"));
    }
    for (id, usage) in &seen.usage {
        if usage.is_full {
            problems.push(format!("{id} is full: writes are refused; delete data or add OSDs"));
        }
        if usage.corrupt_block_count > 0 {
            problems.push(format!(
                "{id} has met {} damaged blocks since its start; they were read from other copies and written anew; \
                 watch this device",
                usage.corrupt_block_count
            ));
        }
    }
    problems
}

fn print_status(status: &Status) -> anyhow::Result<()> {
    println!("cluster  {}", status.cluster_id);
    println!("health   {}", status.health);
    for problem in &status.problems {
        println!("         {problem}");
    }
    println!("osds     {} of {} up", status.osds_up, status.osds);
    let states = status.placement_groups_by_state.iter().map(|(state, count)| format!("{count} {state}"));
    println!("pgs      {}: {}", status.placement_groups, states.collect::<Vec<_>>().join(", "));
    println!(
        "space    {} of {} used (all copies)",
        format_size(status.used_bytes),
        format_size(status.total_bytes)
    );
    println!("objects  {} (all copies)", status.object_count);
    println!("frames   {}", status.frame_mode);
    println!("S3       {}", status.s3_endpoint);
    println!("NBD      {}", status.nbd_listen.join(", "));
    Ok(())
}

/// `atoll osd tree`.
pub fn osd_tree(output: &OutputArguments) -> anyhow::Result<()> {
    let seen = look(output)?;
    let mut hosts: BTreeMap<&str, Vec<&OsdRecord>> = BTreeMap::new();
    for osd in seen.map.osds.values() {
        hosts.entry(&osd.host).or_default().push(osd);
    }
    let state = |id: OsdId| if seen.map.up.contains_key(&id) { "up" } else { "down" };
    if output.json {
        let osd = |osd: &&OsdRecord| {
            json!({
                "id": osd.id, "state": state(osd.id), "weight": osd.weight, "device_class": osd.device_class,
                "device_bytes": osd.device_bytes, "address": seen.map.up.get(&osd.id).map(|up| &up.address),
                "process_id": seen.map.up.get(&osd.id).map(|up| up.process_id),
            })
        };
        let tree: Vec<_> = hosts
            .iter()
            .map(|(host, osds)| json!({ "host": host, "osds": osds.iter().map(osd).collect::<Vec<_>>() }))
            .collect();
        return print_json(&tree);
    }
    let mut rows = Vec::new();
    for (host, osds) in &hosts {
        let weight: f64 = osds.iter().map(|osd| osd.weight).sum();
        rows.push(vec![
            format!("host {host}"),
            format!("{weight:.3}"),
            String::new(),
            String::new(),
            String::new(),
        ]);
        for osd in osds {
            let address = seen.map.up.get(&osd.id).map_or_else(String::new, |up| up.address.clone());
            let name = format!("  {}", osd.id);
            rows.push(vec![
                name,
                format!("{:.3}", osd.weight),
                osd.device_class.clone(),
                state(osd.id).into(),
                address,
            ]);
        }
    }
    print_table(&["NAME", "WEIGHT", "CLASS", "STATE", "ADDRESS"], &rows);
    Ok(())
}

/// `atoll pool ls`.
pub fn pool_ls(output: &OutputArguments) -> anyhow::Result<()> {
    let seen = look(output)?;
    if output.json {
        return print_json(&seen.map.pools.values().collect::<Vec<_>>());
    }
    let of_pool = |id: PoolId| seen.map.pgs.keys().filter(|pg| pg.pool == id).count();
    let rows: Vec<Vec<String>> = seen
        .map
        .pools
        .values()
        .map(|pool| {
            let Redundancy::Replicated { size, min_size } = pool.redundancy;
            let domain = format!("{:?}", pool.failure_domain).to_lowercase();
            let redundancy = format!("{size} copies, at least {min_size}");
            vec![pool.id.to_string(), pool.name.clone(), redundancy, of_pool(pool.id).to_string(), domain]
        })
        .collect();
    print_table(&["ID", "NAME", "REDUNDANCY", "PGS", "FAILURE DOMAIN"], &rows);
    Ok(())
}

/// `atoll df`.
pub fn df(output: &OutputArguments) -> anyhow::Result<()> {
    let seen = look(output)?;
    let rows: Vec<(String, &OsdUsageRecord)> =
        seen.usage.iter().map(|(id, usage)| (id.to_string(), usage)).collect();
    if output.json {
        let row = |(name, usage): &(String, &OsdUsageRecord)| {
            json!({
                "name": name, "total_bytes": usage.total_bytes, "used_bytes": usage.used_bytes,
                "free_bytes": usage.total_bytes - usage.used_bytes, "is_full": usage.is_full,
            })
        };
        return print_json(&rows.iter().map(row).collect::<Vec<_>>());
    }
    let cells = |name: String, total: u64, used: u64| {
        let percent = if total == 0 { 0.0 } else { used as f64 * 100.0 / total as f64 };
        vec![name, format_size(total), format_size(used), format_size(total - used), format!("{percent:.1}%")]
    };
    let mut table: Vec<_> =
        rows.iter().map(|(name, usage)| cells(name.clone(), usage.total_bytes, usage.used_bytes)).collect();
    let sum = |field: fn(&OsdUsageRecord) -> u64| rows.iter().map(|(_, usage)| field(usage)).sum();
    table.push(cells("all".into(), sum(|usage| usage.total_bytes), sum(|usage| usage.used_bytes)));
    print_table(&["OSD", "TOTAL", "USED", "FREE", "USE"], &table);
    Ok(())
}

/// `atoll credentials`.
pub fn credentials(output: &OutputArguments) -> anyhow::Result<()> {
    let open = OpenCluster::open(&output.data)?;
    let credentials = open.directory.credentials()?;
    if output.json {
        return print_json(&credentials);
    }
    println!("endpoint    {}", credentials.endpoint);
    println!("access key  {}", credentials.access_key);
    println!("secret key  {}", credentials.secret_key);
    Ok(())
}
