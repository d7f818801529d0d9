//! Pools.

use std::time::{Duration, Instant};

use anyhow::bail;
use atoll_base::records::{FailureDomain, PgRecord, PoolRecord, Redundancy};
use atoll_cluster::{ClusterClient, keys};
use atoll_coordinator::admin::pools::{self, NewPool, PoolChange};
use atoll_supervisor::{POOL_IMAGES, POOL_OBJECTS};
use clap::ValueEnum;
use serde_json::{Value, json};

use super::{OpenCluster, print_json, print_table, tokio_runtime};
use crate::cli::{FailureDomainArgument, OutputArguments, PoolCommand, PoolCreateArguments, PoolKeyArgument};

const DEFAULT_COPIES: u32 = 3;
/// How long to wait for a pool's new groups, made by the coordinator or split off.
const GROUPS_PATIENCE: Duration = Duration::from_secs(20);

/// Runs a command about pools.
pub fn run(command: &PoolCommand) -> anyhow::Result<()> {
    match command {
        PoolCommand::Ls(output) => list(output),
        PoolCommand::Create(arguments) => create(arguments),
        PoolCommand::Set { output, name, key, value } => set(output, name, *key, value),
        PoolCommand::Rm { output, name, yes_destroy } => remove(output, name, yes_destroy.as_deref()),
    }
}

fn connected<T>(
    output: &OutputArguments,
    call: impl AsyncFnOnce(ClusterClient) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let open = OpenCluster::open(&output.data)?;
    tokio_runtime()?.block_on(async { call(open.connect().await?).await })
}

fn list(output: &OutputArguments) -> anyhow::Result<()> {
    let (pools, groups) = connected(output, async |state| {
        let groups = state.list::<PgRecord>(keys::PGS).await?.entries;
        Ok((state.list::<PoolRecord>(keys::POOLS).await?.entries, groups))
    })?;
    if output.json {
        return print_json(&pools.iter().map(|(_, pool, _)| as_json(pool)).collect::<Result<Vec<_>, _>>()?);
    }
    let row = |pool: &PoolRecord| {
        let made = groups.iter().filter_map(|(key, _, _)| keys::parse_pg(key));
        let made = made.filter(|pg| pg.pool == pool.id).count();
        vec![
            pool.id.to_string(),
            pool.name.clone(),
            format!("{}, at least {}", pool.redundancy, pool.redundancy.min_size()),
            space(pool),
            if made == pool.pg_num as usize { made.to_string() } else { format!("{made} of {}", pool.pg_num) },
            format!("{:?}", pool.failure_domain).to_lowercase(),
            pool.device_class.clone().unwrap_or_else(|| "any".into()),
        ]
    };
    let rows: Vec<_> = pools.iter().map(|(_, pool, _)| row(pool)).collect();
    print_table(&["ID", "NAME", "REDUNDANCY", "SPACE", "PGS", "FAILURE DOMAIN", "CLASS"], &rows);
    Ok(())
}

/// The record, and what follows from it.
fn as_json(pool: &PoolRecord) -> anyhow::Result<Value> {
    let mut value = serde_json::to_value(pool)?;
    value["space_factor"] = json!(pool.redundancy.space_factor());
    Ok(value)
}

/// What a byte takes on all devices together.
fn space(pool: &PoolRecord) -> String {
    let text = format!("{:.2}", pool.redundancy.space_factor());
    format!("x{}", text.trim_end_matches('0').trim_end_matches('.'))
}

fn print_pool(output: &OutputArguments, pool: &PoolRecord, what: &str) -> anyhow::Result<()> {
    if output.json {
        return print_json(&as_json(pool)?);
    }
    println!(
        "{what} pool '{}' ({}): {} on different {}s, at least {} for I/O, space {}, {} placement groups{}",
        pool.name,
        pool.id,
        pool.redundancy,
        format!("{:?}", pool.failure_domain).to_lowercase(),
        pool.redundancy.min_size(),
        space(pool),
        pool.pg_num,
        pool.device_class.as_ref().map_or_else(String::new, |class| format!(", on {class} only"))
    );
    Ok(())
}

fn create(arguments: &PoolCreateArguments) -> anyhow::Result<()> {
    let redundancy = match arguments.ec {
        Some(code) => Redundancy::erasure(code.data, code.parity, arguments.chunk, arguments.min_size),
        None => Redundancy::replicated(arguments.size.unwrap_or(DEFAULT_COPIES), arguments.min_size),
    };
    let new = NewPool {
        name: arguments.name.clone(),
        pg_num: arguments.pg_num,
        redundancy,
        failure_domain: arguments.failure_domain.into(),
        device_class: arguments.device_class.clone(),
    };
    let (pool, made) = connected(&arguments.output, async |state| {
        refuse_before_first_pools(&state).await?;
        let pool = pools::create(&state, &new).await?;
        let made = wait_for_groups(&state, &pool).await?;
        Ok((pool, made))
    })?;
    print_pool(&arguments.output, &pool, "made")?;
    if made < pool.pg_num as usize {
        eprintln!(
            "atoll: {made} of {} placement groups were made so far; the coordinator makes the others when there are \
             OSDs for them ('atoll health' says what is missing)",
            pool.pg_num
        );
    }
    Ok(())
}

/// The first pools have numbers of their own, which another one would take.
async fn refuse_before_first_pools(state: &ClusterClient) -> anyhow::Result<()> {
    let there = state.list::<PoolRecord>(keys::POOLS).await?.entries;
    let is_there = |name: &str| there.iter().any(|(_, pool, _)| pool.name == name);
    if let Some(missing) = [POOL_IMAGES, POOL_OBJECTS].into_iter().find(|name| !is_there(name)) {
        bail!(
            "the pool '{missing}' is made first, as soon as OSDs of enough hosts have joined ('atoll up' says what it waits for)"
        );
    }
    Ok(())
}

fn set(output: &OutputArguments, name: &str, key: PoolKeyArgument, value: &str) -> anyhow::Result<()> {
    let number = || value.parse().map_err(|_| anyhow::anyhow!("'{value}' is not a number, such as 4"));
    let change = match key {
        PoolKeyArgument::Name => PoolChange::Name(value.into()),
        PoolKeyArgument::Size => PoolChange::Size(number()?),
        PoolKeyArgument::MinSize => PoolChange::MinSize(number()?),
        PoolKeyArgument::FailureDomain => PoolChange::FailureDomain(failure_domain(value)?),
        PoolKeyArgument::DeviceClass => PoolChange::DeviceClass((value != "any").then(|| value.into())),
        PoolKeyArgument::PgNum => PoolChange::PgNum(number()?),
    };
    if key == PoolKeyArgument::Name && is_built_in(name) {
        bail!("the pool '{name}' is found by its name and keeps it");
    }
    let (pool, made) = connected(output, async |state| {
        let pool = pools::change(&state, name, &change).await?;
        let made = wait_for_groups(&state, &pool).await?;
        Ok((pool, made))
    })?;
    print_pool(output, &pool, "changed")?;
    if made < pool.pg_num as usize {
        eprintln!(
            "atoll: {made} of {} placement groups are there so far; each group is split when it is active \
             ('atoll health' says what keeps it from that)",
            pool.pg_num
        );
    }
    Ok(())
}

/// Waits for a while until all groups of a pool are there; returns how many are.
async fn wait_for_groups(state: &ClusterClient, pool: &PoolRecord) -> anyhow::Result<usize> {
    let deadline = Instant::now() + GROUPS_PATIENCE;
    loop {
        let made = state.list_raw(&keys::pgs_of_pool(pool.id)).await?.entries.len();
        if made >= pool.pg_num as usize || Instant::now() > deadline {
            return Ok(made);
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

fn failure_domain(text: &str) -> anyhow::Result<FailureDomain> {
    let known = FailureDomainArgument::from_str(text, false);
    Ok(known
        .map_err(|_| anyhow::anyhow!("'{text}' is not a failure domain: choose osd, host, rack or zone"))?
        .into())
}

/// The NBD server and the gateway look for these.
fn is_built_in(name: &str) -> bool {
    [POOL_IMAGES, POOL_OBJECTS].contains(&name)
}

fn remove(output: &OutputArguments, name: &str, yes_destroy: Option<&str>) -> anyhow::Result<()> {
    if is_built_in(name) {
        bail!("the pool '{name}' belongs to every cluster: images or S3 objects are kept there");
    }
    if yes_destroy != Some(name) {
        bail!(
            "this destroys everything in the pool '{name}', and nothing brings it back; if that is what you want, \
             name the pool twice: atoll pool rm {name} --yes-destroy {name}"
        );
    }
    let pool = connected(output, async |state| Ok(pools::remove(&state, name).await?))?;
    if output.json {
        return print_json(&json!({ "removed": pool.name, "id": pool.id }));
    }
    println!("removed pool '{}'", pool.name);
    Ok(())
}
