//! Current load of the processes of all hosts.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::time::Duration;

use atoll_console::{Point, Samples, Subject, Unanswered, rates};
use atoll_coordinator::unix_ms;
use atoll_terminal::{clear, print_line};
use atoll_types::size::format_size;
use clap::Args;
use serde_json::json;

use super::arguments::OutputArguments;
use super::everywhere::{Lookout, WhereArguments, say_unanswered};
use super::open_cluster::{OpenCluster, tokio_runtime};
use super::output::print_table;

#[derive(Args)]
#[command(after_help = "\
Examples:
  atoll top                     load of OSDs, gateways and NBD servers of all hosts, every 2 s, until Ctrl-C
  atoll top --kind image --kind bucket
  atoll top --kind client --process osd.2       the clients of one OSD
  atoll top --host h2           load of the processes of one host
  atoll top --count 1 --json | jq '.figures[] | select(.kind == \"osd\")'

Pools, OSDs and clients count clients' operations where they are answered: a client is the NBD server (client@HOST) or the
gateway (gateway@HOST) of a host, by the name of its key. An image counts operations of NBD servers, a bucket and an
account those of gateways. P50 and P99 are of the last interval.

Other hosts are asked through their admin servers. Hosts that do not answer within 4 seconds are named below the table,
and in the document as 'unanswered'; their figures are left out.")]
pub struct TopArguments {
    #[command(flatten)]
    pub output: OutputArguments,
    /// Only osd, pool, client, image, gateway, bucket, account or cluster; may be given several times
    #[arg(
        long,
        value_name = "KIND",
        value_parser = ["cluster", "osd", "pool", "client", "image", "gateway", "bucket", "account"]
    )]
    pub kind: Vec<String>,
    #[command(flatten)]
    pub of: WhereArguments,
    /// Pause between two looks
    #[arg(long, value_name = "SECONDS", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    pub interval: u64,
    /// End after N refreshes
    #[arg(long, value_name = "N")]
    pub count: Option<u64>,
    /// Largest number of each kind, the busiest first
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub limit: usize,
}

/// `atoll top`.
pub fn run(arguments: &TopArguments) -> anyhow::Result<()> {
    let open = OpenCluster::open(&arguments.output.data)?;
    tokio_runtime()?.block_on(async {
        let lookout = Lookout::open(&open, &arguments.of).await?;
        let (mut before, _) = look(&lookout).await?;
        let mut looks = 0;
        while arguments.count.is_none_or(|count| looks < count) && !atoll_terminal::is_closed() {
            tokio::time::sleep(Duration::from_secs(arguments.interval)).await;
            let (now, unanswered) = look(&lookout).await?;
            let points = rates(&before, &now).into_iter().map(|(subject, rates)| (subject, rates.point()));
            show(arguments, &busiest(arguments, points.collect()), &unanswered)?;
            (before, looks) = (now, looks + 1);
        }
        Ok(())
    })
}

async fn look(lookout: &Lookout<'_>) -> anyhow::Result<(Samples, Vec<Unanswered>)> {
    let begun_unix_ms = unix_ms();
    let everywhere = lookout.ask::<String>().await?;
    Ok((Samples::read(begun_unix_ms, everywhere.told), everywhere.unanswered))
}

fn operations(point: &Point) -> f64 {
    point.reads_per_second.unwrap_or(0.0) + point.writes_per_second.unwrap_or(0.0)
}

/// Returns the busiest of each wanted kind.
fn busiest(arguments: &TopArguments, points: BTreeMap<Subject, Point>) -> Vec<(Subject, Point)> {
    let wanted =
        |subject: &Subject| arguments.kind.is_empty() || arguments.kind.iter().any(|kind| kind == subject.kind);
    let mut all: Vec<(Subject, Point)> = points.into_iter().filter(|(subject, _)| wanted(subject)).collect();
    all.sort_by(|(one, left), (other, right)| {
        one.kind
            .cmp(other.kind)
            .then(operations(right).total_cmp(&operations(left)))
            .then(one.name.cmp(&other.name))
    });
    let mut kept: BTreeMap<&'static str, usize> = BTreeMap::new();
    all.retain(|(subject, _)| {
        let count = kept.entry(subject.kind).or_default();
        *count += 1;
        *count <= arguments.limit
    });
    all
}

fn show(arguments: &TopArguments, busiest: &[(Subject, Point)], unanswered: &[Unanswered]) -> anyhow::Result<()> {
    if arguments.output.json {
        let told = busiest.iter().map(|(subject, point)| {
            let mut row = json!({ "kind": subject.kind, "name": subject.name });
            if let (Some(row), Ok(serde_json::Value::Object(fields))) =
                (row.as_object_mut(), serde_json::to_value(point))
            {
                row.extend(fields);
            }
            row
        });
        // A line for each look.
        let figures = told.collect::<Vec<_>>();
        print_line!("{}", json!({ "figures": figures, "unanswered": unanswered }));
        return Ok(());
    }
    if std::io::stdout().is_terminal() {
        clear();
    }
    let count = |value: Option<f64>| value.map_or_else(|| "-".into(), |value| format!("{value:.0}"));
    let size = |value: Option<f64>| value.map_or_else(|| "-".into(), |value| format_size(value as u64));
    let time = |value: Option<f64>| value.map_or_else(|| "-".into(), |us| format!("{:.2}", us / 1_000.0));
    let row = |(subject, point): &(Subject, Point)| {
        vec![
            subject.kind.to_owned(),
            subject.name.clone(),
            count(point.reads_per_second),
            count(point.writes_per_second),
            size(point.read_bytes_per_second),
            size(point.write_bytes_per_second),
            time(point.read_p50_us),
            time(point.read_p99_us),
            time(point.write_p50_us),
            time(point.write_p99_us),
        ]
    };
    let headings = [
        "KIND",
        "NAME",
        "READS/S",
        "WRITES/S",
        "READ/S",
        "WRITTEN/S",
        "READ MS P50",
        "P99",
        "WRITE MS P50",
        "P99",
    ];
    print_table(&headings, &busiest.iter().map(row).collect::<Vec<_>>());
    say_unanswered(unanswered);
    Ok(())
}
