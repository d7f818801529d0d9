//! `atoll pg scrub`: asks the primaries of PGs, through cluster state.

use std::time::Duration;

use anyhow::bail;
use atoll_admin::pgs::{self, ScrubRequest};
use atoll_cluster::ClusterClient;
use atoll_terminal::print_line;
use atoll_types::PgId;
use atoll_types::records::PgScrubRecord;
use clap::Args;
use serde_json::json;

use crate::commands::arguments::OutputArguments;
use crate::commands::open_cluster::connected;
use crate::commands::output::{print_json, print_table};

#[derive(Args)]
#[command(after_help = "\
Examples:
  atoll pg scrub --data ./atoll-data 1.2f
  atoll pg scrub --data ./atoll-data all --deep --wait

Exit codes: 0 asked (with --wait: no bad copies are left), 1 failed, bad copies are left, or a PG lost a member before \
its copies were examined, 2 wrong usage.")]
pub struct PgScrubArguments {
    #[command(flatten)]
    pub output: OutputArguments,
    /// The PG, such as 1.2f, or 'all'
    #[arg(value_name = "PG|all")]
    pub pg: String,
    /// Also read all data and compare it with its checksums
    #[arg(long)]
    pub deep: bool,
    /// Wait until it is done, and print the result
    #[arg(long)]
    pub wait: bool,
}

const POLL_PAUSE: Duration = Duration::from_millis(500);

/// `atoll pg scrub`.
pub fn scrub(arguments: &PgScrubArguments) -> anyhow::Result<()> {
    connected(&arguments.output, async |_, state| {
        let requests = pgs::request_scrub(&state, wanted(&arguments.pg)?, arguments.deep).await?;
        if !arguments.wait {
            let what = if arguments.deep { "deep scrub" } else { "scrub" };
            if arguments.output.json {
                return print_json(&json!({ "requested": requests.len(), "deep": arguments.deep }));
            }
            print_line!("asked for a {what} of {} PGs", requests.len());
            return Ok(());
        }
        for request in &requests {
            while pgs::is_scrub_pending(&state, request).await? {
                tokio::time::sleep(POLL_PAUSE).await;
            }
        }
        show(arguments, &state, &requests).await
    })
}

/// One PG, or all.
fn wanted(pg: &str) -> anyhow::Result<Option<PgId>> {
    if pg == "all" {
        return Ok(None);
    }
    let pg = pg.parse().map_err(|_| anyhow::anyhow!("'{pg}' is neither a PG such as 1.2f nor 'all'"))?;
    Ok(Some(pg))
}

async fn show(
    arguments: &PgScrubArguments,
    state: &ClusterClient,
    requests: &[ScrubRequest],
) -> anyhow::Result<()> {
    let mut records: Vec<(PgId, PgScrubRecord)> = Vec::new();
    for request in requests {
        records.push((request.pg, pgs::scrub_result(state, request.pg).await?));
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
    let not_examined: Vec<String> = requests.iter().zip(&records).filter_map(not_examined).collect();
    let unrepaired: u64 = records.iter().map(|(_, record)| record.unrepaired).sum();
    if unrepaired > 0 {
        bail!("{unrepaired} objects have bad copies that could not be repaired; the primaries' logs name them");
    }
    if !not_examined.is_empty() {
        bail!(
            "the members of {} PGs changed, and their copies were not examined: {}; see 'atoll health', and \
             scrub again",
            not_examined.len(),
            not_examined.join(", ")
        );
    }
    Ok(())
}

/// A PG with the OSDs that it lost before their copies were examined; none if it lost none.
fn not_examined((request, (pg, record)): (&ScrubRequest, &(PgId, PgScrubRecord))) -> Option<String> {
    let lost: Vec<String> = request.not_examined(record).iter().map(ToString::to_string).collect();
    (!lost.is_empty()).then(|| format!("{pg} ({})", lost.join(" ")))
}
