//! Placement groups.

use anyhow::Context;
use atoll_base::{ObjectName, OsdId, PgId};
use atoll_cluster::MapWatch;
use atoll_coordinator::{GroupState, GroupStatus, statuses};
use serde_json::{Value, json};

use super::{OpenCluster, print_json, print_table, tokio_runtime};
use crate::cli::{OutputArguments, PgCommand};

/// Runs a command about placement groups.
pub fn run(command: &PgCommand) -> anyhow::Result<()> {
    match command {
        PgCommand::Ls { output, pool, osd, not_clean } => list(output, pool.as_deref(), *osd, *not_clean),
        PgCommand::Query { output, pg } => query(output, *pg),
        PgCommand::Map { output, object, pool } => map_object(output, object, pool),
        PgCommand::Scrub(arguments) => super::pg_scrub::scrub(arguments),
    }
}

fn read_map(output: &OutputArguments) -> anyhow::Result<atoll_cluster::ClusterMap> {
    let open = OpenCluster::open(&output.data)?;
    tokio_runtime()?.block_on(async {
        let state = open.connect().await?;
        Ok(MapWatch::start(&state).await?.map().clone())
    })
}

fn list(output: &OutputArguments, pool: Option<&str>, osd: Option<OsdId>, not_clean: bool) -> anyhow::Result<()> {
    let map = read_map(output)?;
    let pool = pool.map(|name| find_pool(&map, name)).transpose()?.map(|pool| pool.id);
    let groups: Vec<GroupStatus> = statuses(&map)
        .into_iter()
        .filter(|group| pool.is_none_or(|pool| group.pg.pool == pool))
        .filter(|group| osd.is_none_or(|osd| group.members.contains(&osd)))
        .filter(|group| !not_clean || !group.is_clean())
        .collect();
    if output.json {
        return print_json(&groups.iter().map(as_json).collect::<Vec<_>>());
    }
    let row = |group: &GroupStatus| {
        vec![
            group.pg.to_string(),
            state(group),
            numbers(&group.members),
            if group.is_misplaced { numbers(&group.target) } else { "=".into() },
            group.primary.to_string(),
            group.epoch.to_string(),
        ]
    };
    let rows: Vec<_> = groups.iter().map(row).collect();
    print_table(&["PG", "STATE", "MEMBERS", "TARGET", "PRIMARY", "EPOCH"], &rows);
    Ok(())
}

fn state_name(group: &GroupStatus) -> &'static str {
    match group.state {
        GroupState::Active => "active",
        GroupState::Peering => "peering",
        GroupState::Inactive => "inactive",
    }
}

fn state(group: &GroupStatus) -> String {
    let mut text = state_name(group).to_owned();
    for (holds, word) in [
        (group.is_undersized, "+undersized"),
        (group.is_degraded, "+degraded"),
        (group.is_misplaced, "+misplaced"),
    ] {
        text += if holds { word } else { "" };
    }
    text
}

fn numbers(osds: &[OsdId]) -> String {
    let numbers: Vec<String> = osds.iter().map(|osd| osd.0.to_string()).collect();
    if numbers.is_empty() { "-".into() } else { numbers.join(",") }
}

fn as_json(group: &GroupStatus) -> Value {
    json!({
        "pg": group.pg.to_string(), "state": state_name(group), "members": group.members,
        "shards": group.shards, "members_down": group.members_down, "target": group.target, "primary": group.primary,
        "epoch": group.epoch, "activated_epoch": group.activated_epoch, "is_undersized": group.is_undersized,
        "is_degraded": group.is_degraded, "is_misplaced": group.is_misplaced,
    })
}

fn query(output: &OutputArguments, pg: PgId) -> anyhow::Result<()> {
    let map = read_map(output)?;
    let group = statuses(&map).into_iter().find(|group| group.pg == pg);
    let group = group.with_context(|| format!("there is no placement group {pg}; 'atoll pg ls' names them"))?;
    let (record, _) = map.pgs.get(&pg).context("the group's record is gone")?;
    let wish = map.pg_targets.get(&pg);
    if output.json {
        let mut value = as_json(&group);
        value["last_active_members"] = json!(record.last_active_members);
        value["last_active_shards"] = json!(record.last_active_shards);
        value["pool"] = json!(map.pools.get(&pg.pool).map(|pool| &pool.name));
        value["balancer_members"] = json!(wish.map(|wish| &wish.members));
        return print_json(&value);
    }
    let name = map.pools.get(&pg.pool).map_or("", |pool| pool.name.as_str());
    println!("pg           {pg}, of pool '{name}'");
    println!("state        {}", state(&group));
    let described = |osd: &OsdId| {
        let host = map.osds.get(osd).map_or("removed", |osd| osd.host.as_str());
        let up = if map.up.contains_key(osd) { "up" } else { "down" };
        format!("{osd} ({host}, {up})")
    };
    let list = |osds: &[OsdId]| osds.iter().map(described).collect::<Vec<_>>().join(", ");
    println!("members      {}", list(&group.members));
    if !group.shards.is_empty() {
        let shards: Vec<String> = group.shards.iter().map(u8::to_string).collect();
        println!("shards       {}   in the order of the members", shards.join(", "));
    }
    println!("primary      {}", group.primary);
    let by = if wish.is_some() { "   by the balancer's wish" } else { "" };
    println!("target       {}{by}", list(&group.target));
    println!("epoch        {}, last active {}", group.epoch, group.activated_epoch);
    println!("last active  {}", list(&record.last_active_members));
    Ok(())
}

fn find_pool<'a>(
    map: &'a atoll_cluster::ClusterMap,
    name: &str,
) -> anyhow::Result<&'a atoll_base::records::PoolRecord> {
    let found = map.pools.values().find(|pool| pool.name == name);
    found.with_context(|| format!("there is no pool '{name}'; 'atoll pool ls' names all pools"))
}

fn map_object(output: &OutputArguments, object: &ObjectName, pool: &str) -> anyhow::Result<()> {
    let map = read_map(output)?;
    let pool = find_pool(&map, pool)?;
    let pg = pool.pg_of_object(object, |pg| map.pgs.contains_key(&pg));
    let group = statuses(&map).into_iter().find(|group| group.pg == pg);
    let group = group.with_context(|| format!("the placement group {pg} was not made yet; see 'atoll health'"))?;
    if output.json {
        let mut value = as_json(&group);
        value["object"] = json!(object.as_str());
        return print_json(&value);
    }
    println!("'{object}' of pool '{}' is in {pg}, {}", pool.name, state(&group));
    println!("on {}; the primary is {}", numbers(&group.members), group.primary);
    Ok(())
}
