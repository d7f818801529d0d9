//! Metrics: those of the processes of this host, and how Prometheus gets them.

mod token;

use anyhow::{Context, bail};
use atoll_admin_socket::ask;
use atoll_terminal::print_line;
use clap::{Args, Subcommand};

use self::token::TokenCommand;
use super::arguments::{DataArgument, OutputArguments};
use super::open_cluster::{OpenCluster, tokio_runtime};
use super::output::{print_json, print_table};

#[derive(Subcommand)]
pub enum MetricsCommand {
    /// List the processes of this host that have metrics
    Ls(OutputArguments),
    /// Show the metrics of a process of this host, as Prometheus reads them
    #[command(after_help = "\
Examples:
  atoll metrics show osd.0
  atoll metrics show gateway | grep atoll_s3_requests_total")]
    Show(ShowArguments),
    /// Print a configuration for Prometheus that scrapes all processes of all hosts
    #[command(after_help = "\
Examples:
  atoll metrics token create prometheus > /etc/prometheus/atoll-token
  atoll metrics config --token-file /etc/prometheus/atoll-token > /etc/prometheus/prometheus.yml")]
    Config(ConfigArguments),
    /// Create, list and remove the tokens with which metrics are read over the network
    #[command(subcommand)]
    Token(TokenCommand),
}

#[derive(Args)]
pub struct ShowArguments {
    #[command(flatten)]
    pub data: DataArgument,
    /// The process: osd.N, gateway, nbd, cluster-state or admin
    pub process: String,
}

#[derive(Args)]
pub struct ConfigArguments {
    #[command(flatten)]
    pub data: DataArgument,
    /// Where Prometheus finds the token
    #[arg(long, value_name = "FILE", default_value = "/etc/prometheus/atoll-token")]
    pub token_file: String,
    /// Where Prometheus finds the alert rules, monitoring/prometheus/atoll-alerts.yml [default: none]
    #[arg(long, value_name = "FILE")]
    pub rule_file: Option<String>,
    /// Where Prometheus finds the authority of the admin servers' certificates [default: DIR/tls/ca.crt]
    #[arg(long, value_name = "FILE")]
    pub ca_file: Option<String>,
}

/// `atoll metrics`.
pub fn run(command: &MetricsCommand) -> anyhow::Result<()> {
    match command {
        MetricsCommand::Ls(output) => list(output),
        MetricsCommand::Show(arguments) => show(arguments),
        MetricsCommand::Config(arguments) => print_config(arguments),
        MetricsCommand::Token(command) => token::run(command),
    }
}

fn list(output: &OutputArguments) -> anyhow::Result<()> {
    let open = OpenCluster::open(&output.data)?;
    let processes = open.processes()?;
    let socket = |process: &String| open.directory.admin_socket(process).display().to_string();
    if output.json {
        let row = |process| serde_json::json!({ "process": process, "admin_socket": socket(process) });
        return print_json(&processes.iter().map(row).collect::<Vec<_>>());
    }
    let rows: Vec<_> = processes.iter().map(|process| vec![process.clone(), socket(process)]).collect();
    print_table(&["PROCESS", "ADMIN SOCKET"], &rows);
    Ok(())
}

fn show(arguments: &ShowArguments) -> anyhow::Result<()> {
    let open = OpenCluster::open(&arguments.data)?;
    let socket = open.directory.admin_socket(&arguments.process);
    // A process that was started by hand is none of the supervisor's.
    if !socket.exists() {
        let known = open.processes()?.join(", ");
        bail!("there is no process '{}' on this host; there are {known}", arguments.process);
    }
    let answer = tokio_runtime()?.block_on(ask(&socket, "/metrics", None));
    let answer = answer.with_context(|| format!("{} does not answer", arguments.process))?;
    print_line!("{}", String::from_utf8_lossy(&answer.body).trim_end());
    Ok(())
}

fn print_config(arguments: &ConfigArguments) -> anyhow::Result<()> {
    let open = OpenCluster::open(&arguments.data)?;
    let listen = open.cluster.admin_listen().context(
        "this host has no admin server, from which Prometheus would read; 'atoll up --admin-listen IP:PORT' makes one",
    )?;
    let address = open.cluster.reached(listen.parse().context("admin_listen in cluster.json")?);
    let authority = match &arguments.ca_file {
        Some(file) => file.clone(),
        None => std::path::absolute(open.directory.tls().join("ca.crt"))?.display().to_string(),
    };
    let token = &arguments.token_file;
    print_line!(
        "# Made by 'atoll metrics config'. The token is made by 'atoll metrics token create NAME > {token}'."
    );
    print_line!("global:\n  scrape_interval: 15s\n  evaluation_interval: 15s");
    if let Some(file) = &arguments.rule_file {
        print_line!("rule_files:\n  - {file}");
    }
    print_line!("scrape_configs:\n  - job_name: atoll\n    scheme: https");
    print_line!(
        "    # Keeps the labels of the metrics themselves, such as the host of an OSD on another host.\n    \
         honor_labels: true"
    );
    print_access("    ", token, &authority);
    print_line!("    http_sd_configs:\n      - url: https://{address}/metrics/targets");
    print_access("        ", token, &authority);
    Ok(())
}

fn print_access(indent: &str, token: &str, authority: &str) {
    // Some versions of Prometheus send the bare token where the type is left out.
    print_line!("{indent}authorization:\n{indent}  type: Bearer\n{indent}  credentials_file: {token}");
    print_line!("{indent}tls_config:\n{indent}  ca_file: {authority}");
}
