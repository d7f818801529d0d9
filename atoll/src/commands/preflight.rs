//! The command that checks a host before deployment.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use atoll_preflight::{
    Facts, Finding, PORT_DEFAULT, PeerAddress, Report, Request, Responder, ResponderLimits, Stop, Verdict,
    run as check,
};
use atoll_terminal::{print_line, print_note};
use clap::Args;

use super::open_cluster::tokio_runtime;
use super::output::print_json;

const HELP: &str = "\
Examples:
  atoll preflight                                                    this host, without touching its drives
  atoll preflight --device /dev/nvme0n1 --device /dev/sda            and read tests of two drives
  atoll preflight --device /srv --write-test                         durable writes in a file that is made and removed
  atoll preflight --device /dev/nvme0n1 --write-test --wipe --toggle-write-cache
  atoll preflight --listen 10.0.0.2                                  on one host, until Ctrl-C, and then on another:
  atoll preflight --peer 10.0.0.2 --json | jq '.findings[] | select(.verdict == \"problem\")'

Each finding is ok, not visible (common in virtual machines), advice, a warning or a problem, with its meaning
and remedy; docs/guide/preflight.md explains them all. Exit codes: 0 deployable, 1 problems were found or
it failed, 2 wrong usage.";

#[derive(Args)]
#[command(after_help = HELP)]
pub struct PreflightArguments {
    /// A block device, or a file or directory on it; may be given several times. Block devices are read for some
    /// seconds [default: only the settings of all disks]
    #[arg(long, value_name = "PATH")]
    pub device: Vec<PathBuf>,
    /// Measure durable writes, too: in a new file in the directory or beside the file; on a block device, over its
    /// content
    #[arg(long, requires = "device")]
    pub write_test: bool,
    /// Let the write test destroy the content of block devices
    #[arg(long, requires = "write_test")]
    pub wipe: bool,
    /// Switch each drive's volatile write cache off (or on), measure again, and switch it back
    #[arg(long, requires = "write_test")]
    pub toggle_write_cache: bool,
    /// A host on which 'atoll preflight --listen' runs; may be given several times
    #[arg(long, value_name = "HOST[:PORT]")]
    pub peer: Vec<PeerAddress>,
    /// Check nothing; answer the probes of other hosts on TCP and UDP of this address [port: 7477]
    #[arg(long, value_name = "IP[:PORT]", value_parser = parse_listen, conflicts_with_all = ["device", "peer"])]
    pub listen: Option<SocketAddr>,
    /// Check the requirements of RDMA, too, for OSDs that use this provider of libfabric [default: do not]
    #[arg(long, value_name = "NAME", env = "ATOLL_RDMA_PROVIDER", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub rdma_provider: Option<String>,
    /// How long each measurement takes [default: 3]; with --listen, when to end [default: 3600]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub seconds: Option<u64>,
    /// Print JSON instead of text
    #[arg(long)]
    pub json: bool,
}

fn parse_listen(text: &str) -> Result<SocketAddr, String> {
    if let Ok(ip) = text.parse::<IpAddr>() {
        return Ok((ip, PORT_DEFAULT).into());
    }
    text.parse()
        .map_err(|_| format!("'{text}' is not an address: use IP or IP:PORT, such as 10.0.0.2:{PORT_DEFAULT}"))
}

const SECONDS_DEFAULT: u64 = 3;

/// Longer runs would keep more latencies in memory than they are worth.
const SECONDS_MAX: u64 = 300;

const LISTEN_SECONDS_DEFAULT: u64 = 3_600;

/// Runs `atoll preflight`.
pub fn run(arguments: PreflightArguments) -> anyhow::Result<ExitCode> {
    let stop = stop_on_ctrl_c()?;
    if let Some(address) = arguments.listen {
        let seconds = arguments.seconds.unwrap_or(LISTEN_SECONDS_DEFAULT);
        return listen(address, Duration::from_secs(seconds), &stop);
    }
    let seconds = arguments.seconds.unwrap_or(SECONDS_DEFAULT);
    anyhow::ensure!(
        seconds <= SECONDS_MAX,
        "--seconds {seconds}: a measurement takes {SECONDS_MAX} s at the most"
    );
    let request = Request {
        devices: arguments.device,
        peers: arguments.peer,
        duration: Duration::from_secs(seconds),
        write_test: arguments.write_test,
        wipe: arguments.wipe,
        toggle_write_cache: arguments.toggle_write_cache,
        rdma_provider: arguments.rdma_provider,
    };
    let report = check(&Facts::of_this_host(), &request, &stop, &|what| print_note!("looking at {what} ..."))?;
    if arguments.json {
        print_json(&report)?;
    } else {
        print_report(&report);
    }
    Ok(if report.deployable { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Asks a run to end on Ctrl-C, so that it switches its changes of devices back.
fn stop_on_ctrl_c() -> anyhow::Result<Stop> {
    let stop = Stop::default();
    let (runtime, asked) = (tokio_runtime()?, stop.clone());
    std::thread::Builder::new().name("ctrl-c".into()).spawn(move || {
        runtime.block_on(async {
            use tokio::signal::unix::{SignalKind, signal};
            let Ok(mut terminate) = signal(SignalKind::terminate()) else { return };
            tokio::select! {
                _ = tokio::signal::ctrl_c() => {}
                _ = terminate.recv() => {}
            }
            asked.set();
        });
    })?;
    Ok(stop)
}

fn listen(address: SocketAddr, duration: Duration, stop: &Stop) -> anyhow::Result<ExitCode> {
    let responder = Responder::bind(address, ResponderLimits::for_duration(duration))
        .with_context(|| format!("cannot listen on {address} (TCP and UDP); name an address of this host"))?;
    print_line!(
        "answering probes on {} for {} s; on another host: atoll preflight --peer {}",
        responder.address(),
        duration.as_secs(),
        responder.address()
    );
    responder.run(stop, &|peer| print_note!("{peer} connects"))?;
    Ok(ExitCode::SUCCESS)
}

fn print_report(report: &Report) {
    for finding in &report.findings {
        print_finding(finding);
    }
    let counted: Vec<String> =
        report.counts.iter().map(|(verdict, count)| format!("{count} {}", word(*verdict))).collect();
    let outcome = if report.deployable { "deployable" } else { "NOT deployable" };
    print_line!("\n{outcome}: {}", counted.join(", "));
}

fn print_finding(finding: &Finding) {
    let subject = finding.subject.as_ref().map_or(String::new(), |subject| format!(" {subject}"));
    print_line!("{:<12}{}{subject}: {}", word(finding.verdict), finding.check, finding.found);
    print_line!("            {}", finding.meaning);
    if let Some(fix) = &finding.fix {
        print_line!("            fix: {fix}");
    }
}

fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Ok => "ok",
        Verdict::NotVisible => "not visible",
        Verdict::Advice => "advice",
        Verdict::Warning => "warning",
        Verdict::Problem => "PROBLEM",
    }
}
