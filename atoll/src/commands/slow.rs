//! Slow operations, and where their time went.

use anyhow::Context;
use atoll_admin_socket::{SLOW_ROUTE, ask};
use atoll_metrics::slow::SlowOperation;
use atoll_terminal::{print_line, print_note};
use atoll_types::size::format_size;
use clap::Args;
use serde::Serialize;

use super::arguments::OutputArguments;
use super::open_cluster::{OpenCluster, tokio_runtime};
use super::output::{ago, print_json, print_table};

#[derive(Args)]
#[command(after_help = "\
Examples:
  atoll slow                        the slowest operations of this host's processes in the last hour
  atoll slow --in-flight            what is not answered after a second, and what it waits for
  atoll slow --process osd.2 --min-ms 1000
  atoll slow --json | jq -r '.[] | [.duration_us, .object] | @tsv'

The steps say what an operation had reached, and after how long. An OSD's write is 'ordered' once its PG has taken it:
what comes before is waiting for earlier writes of its object, for metadata, or for the PG to peer; then it becomes
durable on each member, of which those are named that took more than 20 ms. A read leaves its PG's queue when its
metadata or the device is asked; if neither took 20 ms, its time went in the queue. An operation in flight has '>'
before its time, and says last what it waits for; OSDs and the NBD server tell of theirs once a second. A gateway counts until the client
has taken the answer, without the time that so much data may take.")]
pub struct SlowArguments {
    #[command(flatten)]
    pub output: OutputArguments,
    /// Only of this process: osd.N, gateway or nbd
    #[arg(long, value_name = "NAME")]
    pub process: Option<String>,
    /// Only those that took so long
    #[arg(long, value_name = "MS", default_value_t = 100)]
    pub min_ms: u64,
    /// Only those that are not answered yet
    #[arg(long)]
    pub in_flight: bool,
    /// Of those that are not answered yet, only those that have taken so long
    #[arg(long, value_name = "MS", default_value_t = 1_000)]
    pub in_flight_min_ms: u64,
    /// So many at most, the slowest first
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub limit: usize,
}

/// An operation, and who has served it.
#[derive(Serialize)]
struct Told {
    process: String,
    #[serde(flatten)]
    operation: SlowOperation,
}

/// `atoll slow`.
pub fn run(arguments: &SlowArguments) -> anyhow::Result<()> {
    let open = OpenCluster::open(&arguments.output.data)?;
    let mut told = tokio_runtime()?.block_on(gather(&open, arguments.process.as_deref()))?;
    told.retain(|told| is_wanted(&told.operation, arguments));
    told.sort_by_key(|told| std::cmp::Reverse(told.operation.duration_us));
    told.truncate(arguments.limit);
    if arguments.output.json {
        return print_json(&told);
    }
    if told.is_empty() {
        match arguments.in_flight {
            true => print_line!("no operation is in flight for {} ms or more", arguments.in_flight_min_ms),
            false => print_line!("no operation of the last hour took {} ms or more", arguments.min_ms),
        }
        return Ok(());
    }
    let row = |Told { process, operation }: &Told| {
        let steps = operation.steps.iter().map(|step| format!("{} {} ms", step.name, step.after_us / 1_000));
        let failed = operation.error.iter().map(|error| format!("failed: {error}"));
        let outcome = failed.chain(operation.waits_for.iter().map(|what| format!("waits for {what}")));
        let until_now = if operation.waits_for.is_some() { ">" } else { "" };
        vec![
            format!("{until_now}{}", operation.duration_us / 1_000),
            format!("{} ago", ago(operation.begun_unix_ms)),
            process.clone(),
            operation.kind.clone(),
            format_size(operation.size_bytes),
            of(operation),
            operation.client.clone(),
            steps.chain(outcome).collect::<Vec<_>>().join(", "),
        ]
    };
    let headings = ["MS", "BEGAN", "PROCESS", "OPERATION", "SIZE", "OF", "CLIENT", "STEPS"];
    print_table(&headings, &told.iter().map(row).collect::<Vec<_>>());
    Ok(())
}

fn is_wanted(operation: &SlowOperation, arguments: &SlowArguments) -> bool {
    let is_in_flight = operation.waits_for.is_some();
    let min_ms = if is_in_flight { arguments.in_flight_min_ms } else { arguments.min_ms };
    (is_in_flight || !arguments.in_flight) && operation.duration_us >= min_ms.saturating_mul(1_000)
}

/// What an operation is about.
fn of(operation: &SlowOperation) -> String {
    let pg = operation.pg.as_ref().map(|pg| format!("pg {pg}"));
    [&operation.pool, &pg, &operation.object].into_iter().flatten().cloned().collect::<Vec<_>>().join(" ")
}

async fn gather(open: &OpenCluster, only: Option<&str>) -> anyhow::Result<Vec<Told>> {
    let mut all = Vec::new();
    for process in open.processes_named(only)? {
        let answer = match ask(&open.directory.admin_socket(&process), SLOW_ROUTE, None).await {
            Ok(answer) => answer,
            Err(error) => {
                print_note!("{process} does not tell: {error}");
                continue;
            }
        };
        let operations: Vec<SlowOperation> =
            serde_json::from_slice(&answer.body).with_context(|| format!("what {process} tells is no list"))?;
        all.extend(operations.into_iter().map(|operation| Told { process: process.clone(), operation }));
    }
    Ok(all)
}
