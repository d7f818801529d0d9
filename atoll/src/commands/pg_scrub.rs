//! `atoll pg scrub`: asks the primaries of placement groups, through cluster state.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use atoll_base::PgId;
use atoll_base::records::{PgRecord, PgScrubRecord, RECORD_FORMAT, ScrubRequestRecord};
use atoll_cluster::{ClusterClient, keys};
use serde_json::json;

use super::{OpenCluster, print_json, print_table, tokio_runtime};
use crate::cli::PgScrubArguments;

const POLL_PAUSE: Duration = Duration::from_millis(500);

/// `atoll pg scrub`.
pub fn scrub(arguments: &PgScrubArguments) -> anyhow::Result<()> {
    let open = OpenCluster::open(&arguments.output.data)?;
    tokio_runtime()?.block_on(async {
        let state = open.connect().await?;
        let pgs = wanted(&state, &arguments.pg).await?;
        let requested_unix_ms = SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis() as u64;
        let request = ScrubRequestRecord { format: RECORD_FORMAT, is_deep: arguments.deep, requested_unix_ms };
        let mut asked = Vec::new();
        for pg in pgs {
            asked.push((pg, state.put(&keys::scrub_request(pg), &request).await?));
        }
        if !arguments.wait {
            let what = if arguments.deep { "deep scrub" } else { "scrub" };
            if arguments.output.json {
                return print_json(&json!({ "requested": asked.len(), "deep": arguments.deep }));
            }
            println!("asked for a {what} of {} placement groups", asked.len());
            return Ok(());
        }
        for (pg, revision) in &asked {
            while is_pending(&state, *pg, *revision).await? {
                tokio::time::sleep(POLL_PAUSE).await;
            }
        }
        show(arguments, &state, &asked).await
    })
}

async fn wanted(state: &ClusterClient, pg: &str) -> anyhow::Result<Vec<PgId>> {
    let listing = state.list::<PgRecord>(keys::PGS).await?;
    let all: Vec<PgId> = listing.entries.iter().filter_map(|(key, ..)| keys::parse_pg(key)).collect();
    if pg == "all" {
        return Ok(all);
    }
    let pg: PgId =
        pg.parse().map_err(|_| anyhow::anyhow!("'{pg}' is no placement group such as 1.2f, nor 'all'"))?;
    if !all.contains(&pg) {
        bail!("there is no placement group {pg}");
    }
    Ok(vec![pg])
}

async fn is_pending(state: &ClusterClient, pg: PgId, revision: i64) -> anyhow::Result<bool> {
    let request = state.get::<ScrubRequestRecord>(&keys::scrub_request(pg)).await?;
    Ok(request.is_some_and(|(_, found)| found == revision))
}

async fn show(arguments: &PgScrubArguments, state: &ClusterClient, asked: &[(PgId, i64)]) -> anyhow::Result<()> {
    let mut records: Vec<(PgId, PgScrubRecord)> = Vec::new();
    for (pg, _) in asked {
        let found = state.get(&keys::pg_scrub(*pg)).await?;
        let (record, _) = found.with_context(|| format!("the scrub of {pg} has left no record"))?;
        records.push((*pg, record));
    }
    if arguments.output.json {
        let groups = records.iter().map(|(pg, record)| json!({ "pg": pg.to_string(), "scrub": record }));
        print_json(&groups.collect::<Vec<_>>())?;
    } else {
        let row = |(pg, record): &(PgId, PgScrubRecord)| {
            let numbers = [record.objects, record.errors, record.repaired, record.unrepaired];
            [pg.to_string(), record.osd.to_string()].into_iter().chain(numbers.map(|n| n.to_string())).collect()
        };
        let rows: Vec<Vec<String>> = records.iter().map(row).collect();
        print_table(&["PG", "PRIMARY", "OBJECTS", "ERRORS", "REPAIRED", "UNREPAIRED"], &rows);
    }
    let unrepaired: u64 = records.iter().map(|(_, record)| record.unrepaired).sum();
    if unrepaired > 0 {
        bail!("{unrepaired} objects have bad copies that could not be repaired; the primaries' logs name them");
    }
    Ok(())
}
