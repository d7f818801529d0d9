//! `atoll pg accept`: resumes a PG from copies that do not count by themselves.

use std::time::{Duration, Instant};

use anyhow::bail;
use atoll_admin::pg_copies::{self, Acceptance};
use atoll_terminal::{print_line, print_note};
use atoll_types::{OsdId, PgId};
use clap::Args;
use serde_json::json;

use super::why::Told;
use crate::commands::arguments::{OutputArguments, parse_osd_id};
use crate::commands::open_cluster::connected;
use crate::commands::output::print_json;

#[derive(Args)]
#[command(after_help = "\
Examples:
  atoll pg why 1.2f                                    the remaining copies, and the command that accepts one
  atoll pg accept 1.2f --from osd.3                    shows the loss, and changes nothing
  atoll pg accept 1.2f --from osd.3 --yes
  atoll pg accept 3.a --from osd.1 --from osd.4 --yes  as many shards as the pool has data shards

The PG resumes from the named copies, and all others are overwritten with these. In a replicated pool that is one copy: \
copies are not merged. In an erasure-coded pool they are different shards that end with the same write. It is refused \
while enough copies are whole. If the PG changed since its copies were read, the command changes nothing.

Exit codes: 0 accepted (or PG serves meanwhile), 1 refused, failed, or --yes is missing, 2 wrong usage.")]
pub struct PgAcceptArguments {
    #[command(flatten)]
    pub output: OutputArguments,
    /// Such as 1.2f
    pub pg: PgId,
    /// An OSD whose copy is accepted, as 3 or osd.3; may be given several times
    #[arg(long, value_name = "OSD", required = true, value_parser = parse_osd_id)]
    pub from: Vec<OsdId>,
    /// Confirm: the loss is permanent
    #[arg(long)]
    pub yes: bool,
}

/// Longest wait for the PG to serve.
const PATIENCE: Duration = Duration::from_secs(30);
const POLL_PAUSE: Duration = Duration::from_millis(300);

/// `atoll pg accept`.
pub fn run(arguments: &PgAcceptArguments) -> anyhow::Result<()> {
    let PgAcceptArguments { output, pg, from, yes } = arguments;
    let (plan, serves) = connected(output, async |open, state| {
        let told = Told::ask_for_decision(open, &state).await?;
        let plan = pg_copies::plan(&told.map, *pg, &told.copies, from)?;
        if !yes {
            return Ok((plan, false));
        }
        pg_copies::accept(&state, &plan).await?;
        let deadline = Instant::now() + PATIENCE;
        while !plan.is_done(&state).await? && Instant::now() < deadline {
            tokio::time::sleep(POLL_PAUSE).await;
        }
        let serves = plan.is_done(&state).await?;
        Ok((plan, serves))
    })?;
    if !yes {
        bail!("{}\nTo confirm, add --yes. Nothing was changed", told(&plan));
    }
    if output.json {
        let mut document = json!(plan);
        document["is_active"] = json!(serves);
        return print_json(&document);
    }
    print_line!("{}", told(&plan));
    if serves {
        print_line!("{pg} serves");
    } else {
        print_note!("atoll: {pg} does not serve yet; 'atoll pg why {pg}' shows why");
    }
    Ok(())
}

/// Describes the accepted copies and the loss.
fn told(plan: &Acceptance) -> String {
    let accepted: Vec<String> = plan.accepted.iter().map(OsdId::to_string).collect();
    let mut text = format!(
        "{} resumes from the copy of {}, and other copies are overwritten with it",
        plan.pg,
        accepted.join(" and ")
    );
    if plan.losses.is_empty() {
        text += "; as far as is known, nothing is lost";
    }
    for loss in &plan.losses {
        text += &format!("\n  {loss}");
    }
    text
}
