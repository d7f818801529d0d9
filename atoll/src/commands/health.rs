//! What is wrong.

use std::process::ExitCode;
use std::time::Duration;

use atoll_coordinator::health::{Health, HealthStatus, Severity, evaluate};
use atoll_coordinator::{View, unix_ms};

use super::{OpenCluster, print_json, tokio_runtime};
use crate::cli::HealthArguments;

const WATCH_PAUSE: Duration = Duration::from_secs(1);
const SUBJECTS_MAX: usize = 8;

/// `atoll health`.
pub fn health(arguments: &HealthArguments) -> anyhow::Result<ExitCode> {
    let open = OpenCluster::open(&arguments.output.data)?;
    let runtime = tokio_runtime()?;
    let mut shown = None;
    loop {
        let health = runtime.block_on(look(&open));
        if shown.as_ref() != Some(&health) {
            if arguments.output.json {
                print_json(&health)?;
            } else {
                if shown.is_some() {
                    println!();
                }
                print_health(&health);
            }
        }
        if !arguments.watch {
            return Ok(exit_code(health.status));
        }
        shown = Some(health);
        std::thread::sleep(WATCH_PAUSE);
    }
}

async fn look(open: &OpenCluster) -> Health {
    let view = async {
        let state = open.connect().await?;
        anyhow::Ok(View::read(&state).await?)
    };
    match view.await {
        Ok(view) => evaluate(&view, unix_ms()),
        Err(error) => Health::unreachable(&format!("{error:#}")),
    }
}

fn exit_code(status: HealthStatus) -> ExitCode {
    match status {
        HealthStatus::Ok => ExitCode::SUCCESS,
        HealthStatus::Warning => ExitCode::from(1),
        HealthStatus::Error => ExitCode::from(2),
    }
}

/// A status as people read it.
pub fn status_name(status: HealthStatus) -> &'static str {
    match status {
        HealthStatus::Ok => "ok",
        HealthStatus::Warning => "warning",
        HealthStatus::Error => "error",
    }
}

fn print_health(health: &Health) {
    println!("{}", status_name(health.status));
    for problem in &health.problems {
        let severity = match problem.severity {
            Severity::Error => "error  ",
            Severity::Warning => "warning",
            Severity::Note => "note   ",
        };
        let since = problem.since_unix_ms.map_or_else(String::new, |since| format!(", for {}", ago(since)));
        println!("{severity}  {}: {}{since}", problem.code, problem.summary);
        if !problem.subjects.is_empty() {
            let more = problem.subjects.len().saturating_sub(SUBJECTS_MAX);
            let first: Vec<&str> = problem.subjects.iter().take(SUBJECTS_MAX).map(String::as_str).collect();
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            println!("         {}{more}", first.join(", "));
        }
        println!("         -> {}", problem.action);
    }
}

/// How long ago that was.
pub fn ago(since_unix_ms: u64) -> String {
    let seconds = unix_ms().saturating_sub(since_unix_ms) / 1000;
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} days", seconds / 86_400),
    }
}
