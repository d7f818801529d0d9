//! Slow operations, and where their time went.

use atoll_console::Unanswered;
use atoll_metrics::slow::SlowOperation;
use atoll_terminal::print_line;
use atoll_types::size::format_size;
use clap::Args;
use serde::Serialize;

use super::arguments::OutputArguments;
use super::everywhere::{Lookout, WhereArguments, say_unanswered};
use super::open_cluster::{OpenCluster, tokio_runtime};
use super::output::{ago, print_json, print_table};

#[derive(Args)]
#[command(after_help = "\
Examples:
  atoll slow                        the slowest operations of the cluster in the last hour
  atoll slow --in-flight            operations unanswered after a second, and their reason
  atoll slow --process osd.2 --min-ms 1000
  atoll slow --host h1 --host h2
  atoll slow --json | jq -r '.operations[] | [.duration_us, .object] | @tsv'

Other hosts are asked through their admin servers. Hosts that do not answer within 4 seconds are named below the table, and in
the document as 'unanswered'.

The steps name the stages that an operation reached, each with its time. An OSD's write is 'ordered' once its PG has taken it:
the time before is waiting for earlier writes of its object, for metadata, or for the PG to peer; then it becomes
durable on each member; those that took more than 20 ms are named. A read leaves its PG's queue when its
metadata or the device is asked; if neither took 20 ms, its time went in the queue. An operation in flight has '>'
before its time, and ends with the reason for waiting; OSDs and the NBD server report once a second. A gateway counts until the client
has taken the answer, less a share for the size of the data.")]
pub struct SlowArguments {
    #[command(flatten)]
    pub output: OutputArguments,
    #[command(flatten)]
    pub of: WhereArguments,
    /// Shortest duration to show, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 100)]
    pub min_ms: u64,
    /// Only those that are not answered yet
    #[arg(long)]
    pub in_flight: bool,
    /// Shortest duration of unanswered operations to show, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 1_000)]
    pub in_flight_min_ms: u64,
    /// Largest number of operations, the slowest first
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub limit: usize,
}

/// An operation, and the process that served it.
#[derive(Serialize)]
struct Told {
    host: String,
    process: String,
    #[serde(flatten)]
    operation: SlowOperation,
}

#[derive(Serialize)]
struct Document {
    operations: Vec<Told>,
    unanswered: Vec<Unanswered>,
}

/// `atoll slow`.
pub fn run(arguments: &SlowArguments) -> anyhow::Result<()> {
    let open = OpenCluster::open(&arguments.output.data)?;
    let (mut told, unanswered) = tokio_runtime()?.block_on(gather(&open, &arguments.of))?;
    told.retain(|told| is_wanted(&told.operation, arguments));
    told.sort_by_key(|told| std::cmp::Reverse(told.operation.duration_us));
    told.truncate(arguments.limit);
    if arguments.output.json {
        return print_json(&Document { operations: told, unanswered });
    }
    match (told.is_empty(), arguments.in_flight) {
        (false, _) => show(&told),
        (true, true) => print_line!("no operation is in flight for {} ms or more", arguments.in_flight_min_ms),
        (true, false) => print_line!("no operation of the last hour took {} ms or more", arguments.min_ms),
    }
    say_unanswered(&unanswered);
    Ok(())
}

fn show(told: &[Told]) {
    let row = |Told { host, process, operation }: &Told| {
        let steps = operation.steps.iter().map(|step| format!("{} {} ms", step.name, step.after_us / 1_000));
        let failed = operation.error.iter().map(|error| format!("failed: {error}"));
        let outcome = failed.chain(operation.waits_for.iter().map(|what| format!("waits for {what}")));
        let until_now = if operation.waits_for.is_some() { ">" } else { "" };
        vec![
            format!("{until_now}{}", operation.duration_us / 1_000),
            format!("{} ago", ago(operation.begun_unix_ms)),
            host.clone(),
            process.clone(),
            operation.kind.clone(),
            format_size(operation.size_bytes),
            of(operation),
            operation.client.clone(),
            steps.chain(outcome).collect::<Vec<_>>().join(", "),
        ]
    };
    let headings = ["MS", "BEGAN", "HOST", "PROCESS", "OPERATION", "SIZE", "OF", "CLIENT", "STEPS"];
    print_table(&headings, &told.iter().map(row).collect::<Vec<_>>());
}

fn is_wanted(operation: &SlowOperation, arguments: &SlowArguments) -> bool {
    let is_in_flight = operation.waits_for.is_some();
    let min_ms = if is_in_flight { arguments.in_flight_min_ms } else { arguments.min_ms };
    (is_in_flight || !arguments.in_flight) && operation.duration_us >= min_ms.saturating_mul(1_000)
}

/// Returns the subject of an operation.
fn of(operation: &SlowOperation) -> String {
    let pg = operation.pg.as_ref().map(|pg| format!("pg {pg}"));
    [&operation.pool, &pg, &operation.object].into_iter().flatten().cloned().collect::<Vec<_>>().join(" ")
}

async fn gather(open: &OpenCluster, of: &WhereArguments) -> anyhow::Result<(Vec<Told>, Vec<Unanswered>)> {
    let everywhere = Lookout::open(open, of).await?.ask::<Vec<SlowOperation>>().await?;
    let mut all = Vec::new();
    for (host, process, operations) in everywhere.told {
        all.extend(operations.into_iter().map(|operation| Told {
            host: host.clone(),
            process: process.clone(),
            operation,
        }));
    }
    Ok((all, everywhere.unanswered))
}
