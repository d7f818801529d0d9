//! Health problems.

use std::process::ExitCode;
use std::time::Duration;

use atoll_admin::overview::health_name;
use atoll_admin::policies::policy_problems;
use atoll_cluster::ClusterClient;
use atoll_coordinator::health::{Health, HealthStatus, Problem, Severity, evaluate};
use atoll_coordinator::{View, unix_ms};
use atoll_node::{
    NodeError, host_problems, login_problems, old_secret_problems, process_problems, secret_ages,
    signature_problems, silent_audit_problems,
};
use atoll_terminal::print_line;
use clap::Args;

use super::arguments::OutputArguments;
use super::open_cluster::{OpenCluster, tokio_runtime};
use super::output::{ago, explain, print_json};

#[derive(Args)]
#[command(after_help = "\
Examples:
  atoll health                  problems, their age and their remedy
  atoll health --json | jq -r '.problems[].code'
  atoll health --watch          again whenever something changes, until Ctrl-C

Exit codes: 0 ok, 1 something is wrong but all is served, 2 something is not served, or the cluster does not answer.")]
pub struct HealthArguments {
    #[command(flatten)]
    pub output: OutputArguments,
    /// Show it again whenever it changes
    #[arg(long)]
    pub watch: bool,
}

const WATCH_PAUSE: Duration = Duration::from_secs(1);

const SUBJECTS_MAX: usize = 8;

/// `atoll health`.
pub fn run(arguments: &HealthArguments) -> anyhow::Result<ExitCode> {
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
                    print_line!();
                }
                print_health(&health);
            }
        }
        if !arguments.watch || atoll_terminal::is_closed() {
            return Ok(exit_code(health.status));
        }
        shown = Some(health);
        std::thread::sleep(WATCH_PAUSE);
    }
}

async fn look(open: &OpenCluster) -> Health {
    let view = async {
        let state = open.connect().await?;
        let view = View::read(&state).await?;
        let mut problems = signature_problems(&open.directory, &open.cluster, &state).await;
        problems.extend(login_problems(&state).await);
        problems.extend(policy_problems(&state).await);
        problems.extend(silent_audit_problems(&state, &open.cluster.host_name(), unix_ms()).await);
        problems.extend(secret_problems(open, &view, &state).await);
        anyhow::Ok((view, problems))
    };
    match view.await {
        Ok((view, problems)) => {
            let health = evaluate(&view, unix_ms()).and(host_problems(&open.directory, &open.cluster));
            health.and(process_problems(&open.directory).await).and(problems)
        }
        Err(error) if matches!(error.downcast_ref(), Some(NodeError::NotRunning { .. })) => {
            Health::stopped(&explain(&error))
        }
        Err(error) => Health::unreachable(&explain(&error)).and(host_problems(&open.directory, &open.cluster)),
    }
}

/// Secrets that are older than a setting allows.
async fn secret_problems(open: &OpenCluster, view: &View, state: &ClusterClient) -> Vec<Problem> {
    let days_max = view.settings.secret_age_days_max;
    if days_max == 0 {
        return Vec::new();
    }
    match secret_ages(&open.directory, &open.cluster, state).await {
        Ok(ages) => old_secret_problems(&ages, days_max, unix_ms()),
        Err(error) => vec![Problem {
            code: "SECRET_AGES_UNKNOWN",
            severity: Severity::Warning,
            summary: format!("it is not known how old secrets are: {error}"),
            subjects: Vec::new(),
            action: "see that the key service can be reached ('atoll key ls')".into(),
            since_unix_ms: None,
        }],
    }
}

fn exit_code(status: HealthStatus) -> ExitCode {
    match status {
        HealthStatus::Ok => ExitCode::SUCCESS,
        HealthStatus::Warning => ExitCode::from(1),
        HealthStatus::Error => ExitCode::from(2),
    }
}

fn print_health(health: &Health) {
    print_line!("{}", health_name(health.status));
    for problem in &health.problems {
        let since = problem.since_unix_ms.map_or_else(String::new, |since| format!(", for {}", ago(since)));
        print_line!("{:7}  {}: {}{since}", problem.severity.name(), problem.code, problem.summary);
        if !problem.subjects.is_empty() {
            let more = problem.subjects.len().saturating_sub(SUBJECTS_MAX);
            let first: Vec<&str> = problem.subjects.iter().take(SUBJECTS_MAX).map(String::as_str).collect();
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            print_line!("         {}{more}", first.join(", "));
        }
        print_line!("         -> {}", problem.action);
    }
}
