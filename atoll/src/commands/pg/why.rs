//! `atoll pg why`: the reason why a PG does not serve, and the remedy.

use std::time::{Duration, Instant};

use atoll_admin::pg_copies::{self, CopyStatus, PgWhy};
use atoll_cluster::{ClusterClient, ClusterMap};
use atoll_console::Unanswered;
use atoll_terminal::print_line;
use atoll_types::PgId;
use atoll_types::pg_copies::PgCopy;
use clap::Args;
use serde::Serialize;

use crate::commands::arguments::OutputArguments;
use crate::commands::everywhere::{Lookout, WhereArguments, say_unanswered};
use crate::commands::open_cluster::{OpenCluster, connected};
use crate::commands::output::{print_json, print_table};

#[derive(Args)]
#[command(after_help = "\
Examples:
  atoll pg why                         all PGs that do not serve
  atoll pg why 1.2f                    the copies of one PG, the reason, and the remedy
  atoll pg why 1.2f --json | jq .accept_command

OSDs are asked through the admin servers of their hosts; their answers are at most a second old. PROMISED is the epoch below which the OSD ignores messages, HEAD the newest write of its history, COMMITTED the newest sequence that it knows all members to have. An ELECTOR was a member when the PG was last active, and had all acknowledged writes.

Exit codes: 0 shown, 1 failed, 2 wrong usage.")]
pub struct PgWhyArguments {
    #[command(flatten)]
    pub output: OutputArguments,
    /// Such as 1.2f; without it, all PGs that do not serve
    pub pg: Option<PgId>,
}

/// A little more than the time between two looks of an OSD at its copies.
const TOLD_EVERY: Duration = Duration::from_millis(1_100);

/// Reports of OSDs about PGs, and cluster state.
pub struct Told {
    pub map: ClusterMap,
    pub copies: Vec<PgCopy>,
    pub unanswered: Vec<Unanswered>,
}

impl Told {
    /// Looks at cluster state, and asks all OSDs.
    pub async fn ask(open: &OpenCluster, state: &ClusterClient) -> anyhow::Result<Told> {
        let map = pg_copies::read_map(state).await?;
        let everybody = WhereArguments { host: Vec::new(), process: None };
        let everywhere = Lookout::open(open, &everybody).await?.ask::<Vec<PgCopy>>().await?;
        let copies = everywhere.told.into_iter().flat_map(|(_, _, copies)| copies).collect();
        Ok(Told { map, copies, unanswered: everywhere.unanswered })
    }

    /// Asks like [`Self::ask`], and waits until all reports are newer than cluster state: a PG that has served by the
    /// record in force there reports so, and one that serves later has another record.
    pub async fn ask_for_decision(open: &OpenCluster, state: &ClusterClient) -> anyhow::Result<Told> {
        let map = pg_copies::read_map(state).await?;
        let since = Instant::now();
        let patience = Duration::from_secs(10);
        loop {
            tokio::time::sleep(TOLD_EVERY).await;
            let elapsed_ms = since.elapsed().as_millis() as u64;
            let told = Told::ask(open, state).await?;
            let old = told.copies.iter().find(|copy| copy.age_ms >= elapsed_ms);
            match old {
                None => return Ok(Told { map, ..told }),
                Some(copy) if since.elapsed() > patience => {
                    anyhow::bail!(
                        "{} has reported nothing new for {} s: is its device slow?",
                        copy.osd,
                        patience.as_secs()
                    )
                }
                Some(_) => {}
            }
        }
    }
}

#[derive(Serialize)]
struct Document<'a> {
    #[serde(flatten)]
    why: &'a PgWhy,
    unanswered: &'a [Unanswered],
}

/// `atoll pg why`.
pub fn run(arguments: &PgWhyArguments) -> anyhow::Result<()> {
    let told = connected(&arguments.output, async |open, state| Told::ask(open, &state).await)?;
    let Some(pg) = arguments.pg else { return all(&arguments.output, &told) };
    let why = pg_copies::why(&told.map, pg, &told.copies)?;
    if arguments.output.json {
        return print_json(&Document { why: &why, unanswered: &told.unanswered });
    }
    show(&why);
    say_unanswered(&told.unanswered);
    Ok(())
}

/// All PGs that do not serve.
fn all(output: &OutputArguments, told: &Told) -> anyhow::Result<()> {
    let all = pg_copies::not_serving(&told.map, &told.copies)?;
    if output.json {
        let documents = all.iter().map(|why| Document { why, unanswered: &told.unanswered });
        return print_json(&documents.collect::<Vec<_>>());
    }
    if all.is_empty() {
        print_line!("all PGs serve");
    } else {
        let row = |why: &PgWhy| {
            let first = why.waits_for.first().cloned().unwrap_or_default();
            vec![why.pg.to_string(), why.pool.clone(), first]
        };
        print_table(&["PG", "POOL", "WAITS FOR"], &all.iter().map(row).collect::<Vec<_>>());
        print_line!();
        print_line!("'atoll pg why PGID' shows the copies of one, and the remedy");
    }
    say_unanswered(&told.unanswered);
    Ok(())
}

fn show(why: &PgWhy) {
    let serves = if why.serves { "serves" } else { "does not serve" };
    print_line!("{}, of pool '{}', {serves}", why.pg, why.pool);
    print_line!();
    let headings = ["OSD", "HOST", "UP", "ROLE", "STATE", "PROMISED", "HEAD", "COMMITTED", "SHARD", "COPY"];
    print_table(&headings, &why.copies.iter().map(row).collect::<Vec<_>>());
    for (heading, lines) in [("waits for", &why.waits_for), ("remedy", &why.advice)] {
        if !lines.is_empty() {
            print_line!();
            print_line!("{heading}:");
        }
        for line in lines {
            print_line!("  {line}");
        }
    }
}

fn row(copy: &CopyStatus) -> Vec<String> {
    let roles = [
        (copy.is_primary, "primary"),
        (copy.is_member && !copy.is_primary, "member"),
        (copy.is_elector, "elector"),
    ];
    let roles: Vec<&str> = roles.iter().filter(|(is_so, _)| *is_so).map(|(_, role)| *role).collect();
    let of_copy = |text: &dyn Fn(&PgCopy) -> String| copy.told.as_ref().map_or("-".into(), text);
    let state = |told: &PgCopy| match &told.incomplete {
        Some(why) => format!("incomplete: {why}"),
        None if told.is_empty() => "empty".into(),
        None => "complete".into(),
    };
    let shard = |told: &PgCopy| match (copy.listed_shard, told.shard) {
        (None, _) => "-".into(),
        (Some(_), None) => "?".into(),
        (Some(listed), Some(shard)) if listed != shard => format!("{shard}, not {listed}"),
        (Some(_), Some(shard)) => shard.to_string(),
    };
    vec![
        copy.osd.to_string(),
        copy.host.clone().unwrap_or_else(|| "removed".into()),
        if copy.is_up { "yes" } else { "no" }.into(),
        if roles.is_empty() { "-".into() } else { roles.join(", ") },
        of_copy(&|told| told.state.clone()),
        of_copy(&|told| told.promised.to_string()),
        of_copy(&|told| told.head.to_string()),
        of_copy(&|told| told.committed_sequence.to_string()),
        of_copy(&shard),
        of_copy(&state),
    ]
}
