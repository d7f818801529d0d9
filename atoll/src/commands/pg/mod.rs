//! PGs.

mod accept;
mod scrub;
mod why;

use atoll_admin::pgs::{self, PgFilter, PgStatus};
use atoll_coordinator::PgAvailability;
use atoll_terminal::print_line;
use atoll_types::records::PgScrubRecord;
use atoll_types::{ObjectName, OsdId, PgId};
use clap::Subcommand;
use serde_json::json;

use self::accept::PgAcceptArguments;
use self::scrub::PgScrubArguments;
use self::why::PgWhyArguments;
use super::arguments::{OutputArguments, parse_object_name, parse_osd_id};
use super::open_cluster::connected;
use super::output::{ago, print_json, print_table};

#[derive(Subcommand)]
pub enum PgCommand {
    /// List PGs
    #[command(after_help = "\
Examples:
  atoll pg ls --pool images
  atoll pg ls --not-clean                     PGs that are not active, lack a copy, or are to move
  atoll pg ls --json | jq '.[] | select(.primary == 2).pg'")]
    Ls {
        #[command(flatten)]
        output: OutputArguments,
        /// Only this pool
        #[arg(long, value_name = "NAME")]
        pool: Option<String>,
        /// Only PGs with this OSD as a member, as 3 or osd.3
        #[arg(long, value_name = "OSD", value_parser = parse_osd_id)]
        osd: Option<OsdId>,
        /// Only PGs that are not clean
        #[arg(long)]
        not_clean: bool,
    },
    /// Show one PG
    #[command(after_help = "Example:\n  atoll pg query 1.1f")]
    Query {
        #[command(flatten)]
        output: OutputArguments,
        /// Such as 1.1f
        pg: PgId,
    },
    /// Show where an object is, or would be
    #[command(after_help = "Example:\n  atoll pg map img.0123456789abcdef.00000000 --pool images")]
    Map {
        #[command(flatten)]
        output: OutputArguments,
        /// The object
        #[arg(value_parser = parse_object_name)]
        object: ObjectName,
        /// Its pool
        #[arg(long, value_name = "NAME")]
        pool: String,
    },
    /// Show why a PG does not serve, and the remedy
    Why(PgWhyArguments),
    /// Resume a PG from copies that do not count by themselves; this may lose writes
    Accept(PgAcceptArguments),
    /// Compare all copies or shards of the objects of PGs, and repair bad ones
    Scrub(PgScrubArguments),
}

/// Runs a command about PGs.
pub fn run(command: &PgCommand) -> anyhow::Result<()> {
    match command {
        PgCommand::Ls { output, pool, osd, not_clean } => {
            list(output, &PgFilter { pool: pool.clone(), osd: *osd, not_clean: *not_clean })
        }
        PgCommand::Query { output, pg } => query(output, *pg),
        PgCommand::Map { output, object, pool } => map_object(output, object, pool),
        PgCommand::Why(arguments) => why::run(arguments),
        PgCommand::Accept(arguments) => accept::run(arguments),
        PgCommand::Scrub(arguments) => scrub::scrub(arguments),
    }
}

fn list(output: &OutputArguments, filter: &PgFilter) -> anyhow::Result<()> {
    let all = connected(output, async |_, state| Ok(pgs::list(&state, filter).await?))?;
    if output.json {
        return print_json(&json!(all));
    }
    let row = |pg: &PgStatus| {
        vec![
            pg.pg.to_string(),
            state(pg),
            numbers(&pg.members),
            if pg.is_misplaced { numbers(&pg.target) } else { "=".into() },
            pg.primary.to_string(),
            pg.epoch.to_string(),
        ]
    };
    let rows: Vec<_> = all.iter().map(row).collect();
    print_table(&["PG", "STATE", "MEMBERS", "TARGET", "PRIMARY", "EPOCH"], &rows);
    Ok(())
}

fn state_name(pg: &PgStatus) -> &'static str {
    match pg.state {
        PgAvailability::Active => "active",
        PgAvailability::Peering => "peering",
        PgAvailability::Inactive => "inactive",
    }
}

fn state(pg: &PgStatus) -> String {
    let mut text = state_name(pg).to_owned();
    for (holds, word) in
        [(pg.is_undersized, "+undersized"), (pg.is_degraded, "+degraded"), (pg.is_misplaced, "+misplaced")]
    {
        text += if holds { word } else { "" };
    }
    text
}

fn numbers(osds: &[OsdId]) -> String {
    let numbers: Vec<String> = osds.iter().map(|osd| osd.0.to_string()).collect();
    if numbers.is_empty() { "-".into() } else { numbers.join(",") }
}

fn query(output: &OutputArguments, pg: PgId) -> anyhow::Result<()> {
    let details = connected(output, async |_, state| Ok(pgs::query(&state, pg).await?))?;
    if output.json {
        return print_json(&json!(details));
    }
    let status = &details.status;
    print_line!("pg           {pg}, of pool '{}'", details.pool.as_deref().unwrap_or_default());
    print_line!("state        {}", state(status));
    let described = |id: &OsdId| {
        let osd = details.osds.iter().find(|osd| osd.id == *id);
        let host = osd.and_then(|osd| osd.host.as_deref()).unwrap_or("removed");
        let up = if osd.is_some_and(|osd| osd.is_up) { "up" } else { "down" };
        format!("{id} ({host}, {up})")
    };
    let list = |osds: &[OsdId]| osds.iter().map(described).collect::<Vec<_>>().join(", ");
    print_line!("members      {}", list(&status.members));
    if !status.shards.is_empty() {
        let shards: Vec<String> = status.shards.iter().map(u8::to_string).collect();
        print_line!("shards       {}   in the order of the members", shards.join(", "));
    }
    print_line!("primary      {}", status.primary);
    let by = if details.balancer_members.is_some() { "   by the balancer's wish" } else { "" };
    print_line!("target       {}{by}", list(&status.target));
    print_line!("epoch        {}, last active {}", status.epoch, status.activated_epoch);
    print_line!("last active  {}", list(&details.last_active_members));
    if let Some(scrub) = &details.scrub {
        let kind = if scrub.is_deep { "deep" } else { "light" };
        let PgScrubRecord { objects, repaired, unrepaired, .. } = scrub;
        let since = ago(if scrub.is_deep { scrub.deep_unix_ms } else { scrub.light_unix_ms });
        print_line!(
            "last scrub   {since} ago, {kind}: {objects} objects, {repaired} repaired, {unrepaired} left bad"
        );
    }
    Ok(())
}

fn map_object(output: &OutputArguments, object: &ObjectName, pool: &str) -> anyhow::Result<()> {
    let status = connected(output, async |_, state| Ok(pgs::map_object(&state, object, pool).await?))?;
    if output.json {
        let mut value = json!(status);
        value["object"] = json!(object.as_str());
        return print_json(&value);
    }
    print_line!("'{object}' of pool '{pool}' is in {}, {}", status.pg, state(&status));
    print_line!("on {}; the primary is {}", numbers(&status.members), status.primary);
    Ok(())
}
