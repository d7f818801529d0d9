//! The command that checks a host before deployment.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use atoll_preflight::{Facts, Finding, Report, Request, Responder, ResponderLimits, Stop, Verdict, run as check};

use super::{print_json, tokio_runtime};
use crate::cli::PreflightArguments;

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
    };
    let report = check(&Facts::of_this_host(), &request, &stop, &|what| eprintln!("looking at {what} ..."))?;
    if arguments.json {
        print_json(&report)?;
    } else {
        print_report(&report);
    }
    Ok(if report.deployable { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What was switched must be switched back, so a run is asked to end.
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
    println!(
        "answering probes on {} for {} s; on another host: atoll preflight --peer {}",
        responder.address(),
        duration.as_secs(),
        responder.address()
    );
    responder.run(stop, &|peer| eprintln!("{peer} connects"))?;
    Ok(ExitCode::SUCCESS)
}

fn print_report(report: &Report) {
    for finding in &report.findings {
        print_finding(finding);
    }
    let counted: Vec<String> =
        report.counts.iter().map(|(verdict, count)| format!("{count} {}", word(*verdict))).collect();
    let outcome = if report.deployable { "deployable" } else { "NOT deployable" };
    println!("\n{outcome}: {}", counted.join(", "));
}

fn print_finding(finding: &Finding) {
    let subject = finding.subject.as_ref().map_or(String::new(), |subject| format!(" {subject}"));
    println!("{:<12}{}{subject}: {}", word(finding.verdict), finding.check, finding.found);
    println!("            {}", finding.meaning);
    if let Some(fix) = &finding.fix {
        println!("            fix: {fix}");
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
