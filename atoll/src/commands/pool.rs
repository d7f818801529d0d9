//! Pools.

use std::process::ExitCode;

use anyhow::bail;
use atoll_admin::pools::{self, NewPool, PoolChange, PoolStatus, is_built_in};
use atoll_terminal::{print_line, print_note};
use atoll_types::records::{FailureDomain, Redundancy};
use atoll_types::size::{format_size, parse_size_bytes};
use clap::{Args, Subcommand, ValueEnum};
use serde_json::json;

use super::arguments::{ErasureCode, FailureDomainArgument, OutputArguments, parse_erasure_code};
use super::open_cluster::connected;
use super::output::{print_json, print_table};

#[derive(Subcommand)]
pub enum PoolCommand {
    /// List pools
    Ls(OutputArguments),
    /// Create a pool
    Create(PoolCreateArguments),
    /// Change a pool; data moves automatically where needed
    #[command(after_help = "\
Examples:
  atoll pool set archive size 2
  atoll pool set archive failure_domain rack
  atoll pool set archive pg_num 128
  atoll pool set archive device_class any")]
    Set {
        #[command(flatten)]
        output: OutputArguments,
        /// The pool
        name: String,
        /// Property to change
        key: PoolKeyArgument,
        /// The new value
        value: String,
    },
    /// Remove a pool that holds no images and no buckets
    #[command(after_help = "Example:\n  atoll pool rm archive --yes-destroy archive")]
    Rm {
        #[command(flatten)]
        output: OutputArguments,
        /// The pool
        name: String,
        /// Confirm with the pool's name: all of its data is destroyed
        #[arg(long, value_name = "NAME")]
        yes_destroy: Option<String>,
    },
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  atoll pool create archive --size 3 --failure-domain rack --device-class hdd
  atoll pool create scratch --pg-num 128 --size 2 --min-size 1 --failure-domain osd
  atoll pool create cold --ec 4+2                     6 shards on 6 hosts; 2 may be lost; takes 1.5 times the space
  atoll pool create disks --ec 2+1 --chunk 16K --failure-domain osd

An erasure-coded pool holds data: of images ('atoll image create --pool'), and of S3 objects if the gateway uses
it for new buckets ('atoll gateway run --help'). Bucket indexes stay in a replicated pool.

Exit codes: 0 made, 3 made, but the OSDs that there are do not suffice for all of its PGs, 1 failed, 2 wrong usage.")]
pub struct PoolCreateArguments {
    #[command(flatten)]
    pub output: OutputArguments,
    /// Letters, digits, '-', '_' and '.'
    pub name: String,
    /// Number of PGs, a power of two: aim at about 100 copies or shards for each OSD in all pools together
    #[arg(long, value_name = "N", default_value_t = 32)]
    pub pg_num: u32,
    /// Copies [default: 3]
    #[arg(long, value_name = "N")]
    pub size: Option<u32>,
    /// Erasure code instead of copies: K data shards (2 to 16) and M parity shards (1 to 4). It needs K+M failure
    /// domains and cannot change later
    #[arg(long, value_name = "K+M", value_parser = parse_erasure_code, conflicts_with = "size")]
    pub ec: Option<ErasureCode>,
    /// Bytes of an object on one shard before the next shard follows: a power of two from 4K to 1M. It cannot
    /// change later; S3 data needs 64K or more [default: 64K]
    #[arg(long, value_name = "SIZE", value_parser = parse_chunk_bytes, requires = "ec")]
    pub chunk: Option<u32>,
    /// I/O stops with fewer copies or shards [default: half of the copies, rounded up; K+1 shards]
    #[arg(long, value_name = "N")]
    pub min_size: Option<u32>,
    /// Level over which the copies or shards are spread [default: host if there are as many hosts, otherwise osd]
    #[arg(long, value_name = "LEVEL")]
    pub failure_domain: Option<FailureDomainArgument>,
    /// Only OSDs of this class [default: all]
    #[arg(long, value_name = "CLASS")]
    pub device_class: Option<String>,
}

fn parse_chunk_bytes(text: &str) -> Result<u32, String> {
    let bytes = parse_size_bytes(text)?;
    bytes.try_into().map_err(|_| "a chunk is a power of two from 4K to 1M, such as 64K".into())
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum PoolKeyArgument {
    /// Its name
    Name,
    /// Copies, if the pool is not erasure-coded
    Size,
    /// I/O stops with fewer copies or shards
    MinSize,
    /// osd, host, rack or zone
    FailureDomain,
    /// ssd, hdd, ... or 'any'
    DeviceClass,
    /// Number of PGs, a power of two; it can only grow
    PgNum,
}

const DEFAULT_COPIES: u32 = 3;
/// The exit code of a pool that lacks PGs.
const PGS_MISSING: u8 = 3;

/// Runs a command about pools.
pub fn run(command: &PoolCommand) -> anyhow::Result<ExitCode> {
    match command {
        PoolCommand::Ls(output) => list(output)?,
        PoolCommand::Create(arguments) => return create(arguments),
        PoolCommand::Set { output, name, key, value } => set(output, name, *key, value)?,
        PoolCommand::Rm { output, name, yes_destroy } => remove(output, name, yes_destroy.as_deref())?,
    }
    Ok(ExitCode::SUCCESS)
}

fn list(output: &OutputArguments) -> anyhow::Result<()> {
    let pools = connected(output, async |_, state| Ok(pools::list(&state).await?))?;
    if output.json {
        return print_json(&json!(pools));
    }
    let row = |status: &PoolStatus| {
        let PoolStatus { pool, pgs_made, .. } = status;
        let is_whole = *pgs_made == pool.pg_num as usize;
        vec![
            pool.id.to_string(),
            pool.name.clone(),
            format!("{}, at least {}", pool.redundancy, pool.redundancy.min_size()),
            space(status),
            status.stored_bytes.map_or_else(|| "-".into(), format_size),
            status.used_bytes.map_or_else(|| "-".into(), format_size),
            if is_whole { pgs_made.to_string() } else { format!("{pgs_made} of {}", pool.pg_num) },
            format!("{:?}", pool.failure_domain).to_lowercase(),
            pool.device_class.clone().unwrap_or_else(|| "any".into()),
        ]
    };
    let rows: Vec<_> = pools.iter().map(row).collect();
    print_table(&["ID", "NAME", "REDUNDANCY", "SPACE", "STORED", "USED", "PGS", "FAILURE DOMAIN", "CLASS"], &rows);
    Ok(())
}

/// Returns the space that a byte takes on all devices together.
fn space(status: &PoolStatus) -> String {
    let text = format!("{:.2}", status.space_factor);
    format!("x{}", text.trim_end_matches('0').trim_end_matches('.'))
}

fn print_pool(output: &OutputArguments, status: &PoolStatus, what: &str) -> anyhow::Result<()> {
    if output.json {
        return print_json(&json!(status));
    }
    let pool = &status.pool;
    print_line!(
        "{what} pool '{}' ({}): {} on different {}s, at least {} for I/O, space {}, {} PGs{}",
        pool.name,
        pool.id,
        pool.redundancy,
        format!("{:?}", pool.failure_domain).to_lowercase(),
        pool.redundancy.min_size(),
        space(status),
        pool.pg_num,
        pool.device_class.as_ref().map_or_else(String::new, |class| format!(", on {class} only"))
    );
    Ok(())
}

fn create(arguments: &PoolCreateArguments) -> anyhow::Result<ExitCode> {
    let redundancy = match arguments.ec {
        Some(code) => Redundancy::erasure(code.data, code.parity, arguments.chunk, arguments.min_size),
        None => Redundancy::replicated(arguments.size.unwrap_or(DEFAULT_COPIES), arguments.min_size),
    };
    let device_class = arguments.device_class.clone();
    let status = connected(&arguments.output, async |_, state| {
        let failure_domain = match arguments.failure_domain {
            Some(chosen) => chosen.into(),
            None => pools::default_failure_domain(&state, &redundancy, device_class.as_deref()).await?,
        };
        let (name, pg_num) = (arguments.name.clone(), arguments.pg_num);
        let new = NewPool { name, pg_num, redundancy, failure_domain, device_class };
        Ok(pools::create_further(&state, &new).await?)
    })?;
    print_pool(&arguments.output, &status, "made")?;
    let PoolStatus { pool, pgs_made: made, .. } = status;
    if made < pool.pg_num as usize {
        print_note!(
            "atoll: {made} of its {} PGs were made: the present OSDs do not suffice for the others ('atoll \
             health' names the missing ones). They are made as soon as there are OSDs for them",
            pool.pg_num
        );
        return Ok(ExitCode::from(PGS_MISSING));
    }
    Ok(ExitCode::SUCCESS)
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
    let status = connected(output, async |_, state| {
        let pool = pools::change(&state, name, &change).await?;
        Ok(pools::wait_for_pgs(&state, pool).await?)
    })?;
    print_pool(output, &status, "changed")?;
    let PoolStatus { pool, pgs_made: made, .. } = status;
    if made < pool.pg_num as usize {
        print_note!(
            "atoll: {made} of {} PGs exist so far; each PG is split when it is active ('atoll health' shows the \
             obstacle)",
            pool.pg_num
        );
    }
    Ok(())
}

fn failure_domain(text: &str) -> anyhow::Result<FailureDomain> {
    let known = FailureDomainArgument::from_str(text, false);
    Ok(known
        .map_err(|_| anyhow::anyhow!("'{text}' is not a failure domain: choose osd, host, rack or zone"))?
        .into())
}

fn remove(output: &OutputArguments, name: &str, yes_destroy: Option<&str>) -> anyhow::Result<()> {
    if is_built_in(name) {
        bail!("the pool '{name}' belongs to every cluster: images or S3 objects are kept there");
    }
    if yes_destroy != Some(name) {
        bail!(
            "this destroys all data of the pool '{name}' permanently; to confirm, name the pool twice: atoll \
             pool rm {name} --yes-destroy {name}"
        );
    }
    let pool = connected(output, async |_, state| Ok(pools::remove(&state, name).await?))?;
    if output.json {
        return print_json(&json!({ "removed": pool.name, "id": pool.id }));
    }
    print_line!("removed pool '{}'", pool.name);
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Arguments {
        #[command(subcommand)]
        command: PoolCommand,
    }

    #[test]
    fn chunks() {
        assert_eq!(parse_chunk_bytes("16K"), Ok(16 << 10));
        assert!(parse_chunk_bytes("4G").unwrap_err().contains("64K"));
    }

    #[test]
    fn a_pool_has_copies_or_a_code() {
        let parse = |text: &str| {
            let words = format!("pool create p {text}");
            let parsed = Arguments::try_parse_from(words.split_whitespace());
            parsed.map(|arguments| arguments.command).map_err(|error| error.to_string())
        };
        for right in ["", "--size 2", "--ec 4+2", "--ec 4+2 --chunk 4K --min-size 4"] {
            assert!(parse(right).is_ok(), "{right}");
        }
        for (wrong, word) in [
            ("--ec 4+2 --size 3", "cannot be used with"),
            ("--chunk 4K", "--ec"),
            ("--ec 4", "K data shards"),
            ("--ec 4+2 --chunk lots", "not a size"),
        ] {
            assert!(parse(wrong).err().is_some_and(|text| text.contains(word)), "{wrong}");
        }
    }
}
