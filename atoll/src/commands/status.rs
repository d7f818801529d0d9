//! Commands that look at the cluster.

use std::path::PathBuf;

use atoll_admin::overview::{Overview, health_name, overview};
use atoll_coordinator::View;
use atoll_node::authority_file;
use atoll_terminal::print_line;
use atoll_types::records::OsdUsageRecord;
use atoll_types::size::format_size;
use serde::Serialize;
use serde_json::json;

use clap::Args;

use super::arguments::OutputArguments;
use super::open_cluster::{OpenCluster, tokio_runtime};
use super::output::{print_json, print_table, shell_word};

struct Seen {
    open: OpenCluster,
    view: View,
}

fn look(output: &OutputArguments) -> anyhow::Result<Seen> {
    let open = OpenCluster::open(&output.data)?;
    let view = tokio_runtime()?.block_on(async {
        let state = open.connect().await?;
        anyhow::Ok(View::read(&state).await?)
    })?;
    Ok(Seen { open, view })
}

#[derive(Serialize)]
struct Status {
    cluster_id: String,
    #[serde(flatten)]
    overview: Overview,
    s3_endpoint: String,
    s3_tls_endpoint: Option<String>,
    ca_file: Option<PathBuf>,
    nbd_listen: Vec<String>,
    nvme_listen: Vec<String>,
}

/// `atoll status`.
pub fn status(output: &OutputArguments) -> anyhow::Result<()> {
    let Seen { open, view } = look(output)?;
    let status = Status {
        cluster_id: open.cluster.cluster_id.clone(),
        overview: overview(&view),
        s3_endpoint: open.cluster.s3_endpoint(),
        s3_tls_endpoint: open.cluster.s3_tls_endpoint(),
        ca_file: authority_file(&open.directory),
        nbd_listen: open.cluster.nbd_listen.clone(),
        nvme_listen: open.cluster.nvme_listen.clone(),
    };
    if output.json { print_json(&status) } else { print_status(&status) }
}

fn print_status(status: &Status) -> anyhow::Result<()> {
    print_line!("cluster  {}", status.cluster_id);
    let overview = &status.overview;
    print_line!("health   {}", health_name(overview.health));
    for problem in &overview.problems {
        print_line!("         {problem}");
    }
    if !overview.problems.is_empty() {
        print_line!("         'atoll health' shows the remedy");
    }
    let coordinator = overview.coordinator.map_or_else(|| "none".into(), |osd| osd.to_string());
    print_line!("osds     {} of {} up; the coordinator is {coordinator}", overview.osds_up, overview.osds);
    let states = overview.placement_groups_by_state.iter().map(|(state, count)| format!("{count} {state}"));
    print_line!("pgs      {}: {}", overview.placement_groups, states.collect::<Vec<_>>().join(", "));
    print_line!(
        "space    {} of {} used (all copies and shards)",
        format_size(overview.used_bytes),
        format_size(overview.total_bytes)
    );
    print_line!("objects  {} (all copies and shards)", overview.object_count);
    print_line!("frames   {}; a new key every {} s", overview.frame_modes, overview.frame_rekey_seconds);
    if overview.links_in_other_mode > 0 {
        print_line!(
            "         {} connections are older than the last change of this, and in another mode until they end",
            overview.links_in_other_mode
        );
    }
    let links = overview.links_by_transport.iter().map(|(transport, count)| format!("{count} {transport}"));
    let links = links.collect::<Vec<_>>().join(", ");
    let providers = overview.rdma_providers.iter().map(|(provider, count)| format!("{provider} at {count} OSDs"));
    let providers = providers.collect::<Vec<_>>().join(", ");
    let rdma = if providers.is_empty() { providers } else { format!("; libfabric's providers: {providers}") };
    print_line!("links    {links} (connections to OSDs{rdma})");
    print_line!("S3       {}", status.s3_endpoint);
    if let Some(endpoint) = status.s3_tls_endpoint.as_ref().filter(|endpoint| **endpoint != status.s3_endpoint) {
        print_line!("S3, TLS  {endpoint}");
    }
    if let Some(file) = &status.ca_file {
        print_line!("CA       {}", file.display());
    }
    print_line!("NBD      {}", status.nbd_listen.join(", "));
    if !status.nvme_listen.is_empty() {
        print_line!("NVMe     {}", status.nvme_listen.join(", "));
    }
    Ok(())
}

/// `atoll df`.
pub fn df(output: &OutputArguments) -> anyhow::Result<()> {
    let seen = look(output)?;
    let rows: Vec<(String, &OsdUsageRecord)> =
        seen.view.usage.iter().map(|(id, usage)| (id.to_string(), usage)).collect();
    if output.json {
        let row = |(name, usage): &(String, &OsdUsageRecord)| {
            json!({
                "name": name, "total_bytes": usage.total_bytes, "used_bytes": usage.used_bytes,
                "free_bytes": usage.total_bytes - usage.used_bytes, "is_full": usage.is_full,
            })
        };
        return print_json(&rows.iter().map(row).collect::<Vec<_>>());
    }
    let cells = |name: String, total: u64, used: u64| {
        let percent = if total == 0 { 0.0 } else { used as f64 * 100.0 / total as f64 };
        vec![name, format_size(total), format_size(used), format_size(total - used), format!("{percent:.1}%")]
    };
    let mut table: Vec<_> =
        rows.iter().map(|(name, usage)| cells(name.clone(), usage.total_bytes, usage.used_bytes)).collect();
    let sum = |field: fn(&OsdUsageRecord) -> u64| rows.iter().map(|(_, usage)| field(usage)).sum();
    table.push(cells("all".into(), sum(|usage| usage.total_bytes), sum(|usage| usage.used_bytes)));
    print_table(&["OSD", "TOTAL", "USED", "FREE", "USE"], &table);
    Ok(())
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  atoll credentials
  eval \"$(atoll credentials --export)\"          then: aws s3 ls; also for boto3, rclone with env_auth, warp")]
pub struct CredentialsArguments {
    #[command(flatten)]
    pub output: OutputArguments,
    /// Print lines for a shell that set them for AWS's tools and libraries
    #[arg(long, conflicts_with = "json")]
    pub export: bool,
}

/// `atoll credentials`.
pub fn credentials(arguments: &CredentialsArguments) -> anyhow::Result<()> {
    let open = OpenCluster::open(&arguments.output.data)?;
    let credentials = open.directory.credentials()?;
    if arguments.output.json {
        return print_json(&credentials);
    }
    if arguments.export {
        print_line!("export AWS_ACCESS_KEY_ID={}", credentials.access_key);
        print_line!("export AWS_SECRET_ACCESS_KEY={}", credentials.secret_key);
        print_line!("export AWS_DEFAULT_REGION=us-east-1");
        print_line!("export AWS_ENDPOINT_URL={}", credentials.endpoint);
        if let Some(file) = credentials.ca_file.filter(|_| credentials.endpoint.starts_with("https:")) {
            print_line!("export AWS_CA_BUNDLE={}", shell_word(&file.display().to_string()));
        }
        return Ok(());
    }
    print_line!("endpoint    {}", credentials.endpoint);
    if let Some(endpoint) = credentials.tls_endpoint.as_ref().filter(|tls| **tls != credentials.endpoint) {
        print_line!("with TLS    {endpoint}");
    }
    if let Some(file) = &credentials.ca_file {
        print_line!("trust it    export AWS_CA_BUNDLE={}", file.display());
    }
    print_line!("access key  {}", credentials.access_key);
    print_line!("secret key  {}", credentials.secret_key);
    if open.cluster.has_s3_for_this_host_only() {
        print_line!(
            "note        the gateway is there for this host only; 'atoll up --s3-tls-listen IP:PORT' opens it to others"
        );
    }
    Ok(())
}
