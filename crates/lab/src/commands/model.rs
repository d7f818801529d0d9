//! The command that predicts the performance of a described cluster.

use std::collections::BTreeSet;
use std::io::Read;

use anyhow::{Context, bail};
use atoll_terminal::{print_json, print_line, print_table};
use atoll_types::size::format_size;
use clap::Args;

use crate::model::{
    BuiltIn, CALIBRATIONS, CLUSTERS, Calibration, ClusterDescription, Forecast, Prediction, forecast,
};

/// Examples, for the end of the help text.
pub const HELP: &str = "\
Examples:
  atoll bench model four-hosts --show > cluster.toml      begin with this, and describe your own
  atoll bench model cluster.toml
  atoll bench model cluster.toml --resources              all needs of operations, not only the bottleneck
  atoll bench model rgw-12-hosts --calibration ceph       a cluster in operation, and its measured figures
  atoll bench model cluster.toml --calibration mine.toml --json

It divides the cluster's resources (cores, network, drives) by the measured needs of one operation, and
names the resource that allows the fewest operations. The prediction is a ceiling; EXPECTED is the share of it that
was measured where the same resource was the bottleneck. tools/hosts/calibrate.py
measures a calibration. The format of the files, and the accuracy of the model: docs/internals/benchmark-model.md.";

/// Arguments of `atoll bench model`.
#[derive(Args)]
pub struct ModelArguments {
    /// A file that describes it, or one that is built in: four-hosts, rgw-12-hosts, capped-hosts
    #[arg(value_name = "CLUSTER")]
    pub cluster: String,
    /// Costs of operations: a file, or a built-in name: atoll, ceph
    #[arg(long, value_name = "CALIBRATION", default_value = "atoll")]
    pub calibration: String,
    /// List all that each operation needs
    #[arg(long, conflicts_with = "show")]
    pub resources: bool,
    /// Print the cluster's description and do nothing else
    #[arg(long, conflicts_with = "json")]
    pub show: bool,
    /// Print JSON instead of text
    #[arg(long)]
    pub json: bool,
}

/// Longer files are none that a person has written.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Runs `atoll bench model`.
pub fn run(arguments: &ModelArguments) -> anyhow::Result<()> {
    let text = text_of(&arguments.cluster, "cluster", CLUSTERS)?;
    if arguments.show {
        print_line!("{}", text.trim_end());
        return Ok(());
    }
    let cluster = ClusterDescription::parse(&arguments.cluster, &text)?;
    let text = text_of(&arguments.calibration, "calibration", CALIBRATIONS)?;
    let calibration = Calibration::parse(&arguments.calibration, &text)?;
    let forecast = forecast(&cluster, &calibration)?;
    if arguments.json {
        return print_json(&forecast);
    }
    print_forecast(&forecast, arguments.resources);
    Ok(())
}

/// A built-in name has no dot or slash; everything else is a file.
fn text_of(name: &str, what: &str, built_in: &[BuiltIn]) -> anyhow::Result<String> {
    if let Some(text) = BuiltIn::find(built_in, name) {
        return Ok(text.to_owned());
    }
    if !name.contains(['.', '/']) {
        let names: Vec<_> = built_in.iter().map(|built_in| built_in.name).collect();
        bail!("no {what} '{name}' is built in, only {}; a file's name has a dot or a slash", names.join(", "));
    }
    let cannot = || format!("cannot read the {what} {name}");
    let file = std::fs::File::open(name).with_context(cannot)?;
    let mut text = String::new();
    file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text).with_context(cannot)?;
    if text.len() as u64 > FILE_BYTES_MAX {
        bail!("the {what} {name} is longer than {}; is it the right file?", format_size(FILE_BYTES_MAX));
    }
    Ok(text)
}

fn print_forecast(forecast: &Forecast, with_resources: bool) {
    print_line!("{}", forecast.cluster);
    let date = forecast.calibration_date.as_deref().unwrap_or("an unknown day");
    let (calibration, machine) = (&forecast.calibration, &forecast.calibration_machine);
    print_line!("costs of {calibration}, measured on {date} on {machine}\n");
    let has_measured = forecast.predictions.iter().any(|prediction| prediction.measured_per_s.is_some());
    let mut head =
        vec!["", "HOSTS", "REDUNDANCY", "OP/S AT MOST", "EXPECTED", "GIB/S", "FLOOR US", "BOTTLENECK", "NEXT"];
    if has_measured {
        head.extend(["MEASURED OP/S", "OF PREDICTED"]);
    }
    let rows: Vec<_> = forecast.predictions.iter().map(|prediction| row(prediction, has_measured)).collect();
    print_table(&head, &rows);
    if with_resources {
        forecast.predictions.iter().for_each(print_resources);
    }
    let notes: BTreeSet<_> = forecast.predictions.iter().flat_map(|prediction| &prediction.notes).collect();
    if !notes.is_empty() {
        print_line!();
    }
    for note in notes {
        print_line!("Note: {note}.");
    }
}

fn title(prediction: &Prediction) -> String {
    let depth = prediction.concurrency.map_or(String::new(), |concurrency| format!(", {concurrency} at once"));
    format!("{} {}{depth}", prediction.operation, format_size(prediction.size_bytes))
}

fn row(prediction: &Prediction, has_measured: bool) -> Vec<String> {
    let next = prediction.next.as_ref().zip(prediction.next_allows);
    let mut row = vec![
        title(prediction),
        prediction.hosts.to_string(),
        prediction.redundancy.clone(),
        format!("{:.0}", prediction.operations_per_s),
        prediction.expected_per_s.map_or("-".into(), |(least, most)| format!("{least:.0} to {most:.0}")),
        format!("{:.1}", prediction.gib_per_s),
        format!("{:.0}", prediction.latency_floor_us),
        prediction.bottleneck.clone(),
        next.map_or(String::new(), |(name, factor)| format!("{name} at {factor:.2} x")),
    ];
    if has_measured {
        row.push(prediction.measured_per_s.map_or(String::new(), |measured| format!("{measured:.0}")));
        row.push(prediction.measured_share.map_or(String::new(), |share| format!("{share:.2}")));
    }
    row
}

fn print_resources(prediction: &Prediction) {
    print_line!("\n{} on {} hosts, {}", title(prediction), prediction.hosts, prediction.redundancy);
    let rows = prediction.resources.iter().map(|resource| {
        vec![
            format!("  {}", resource.name),
            format!("{:.1} {}", resource.per_operation, resource.unit),
            format!("{:.3e}", resource.available_per_s),
            format!("{:.0}", resource.operations_per_s),
            format!("{:.0}%", 100.0 * prediction.operations_per_s / resource.operations_per_s),
        ]
    });
    print_table(&["", "PER OPERATION", "AVAILABLE PER S", "ENOUGH FOR OP/S", "USED"], &rows.collect::<Vec<_>>());
    for source in &prediction.sources {
        print_line!("  from {source}");
    }
}
