//! Health problems that this host's processes report: of their audit logs, and of the clock.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use atoll_admin_socket::{AUDIT_ROUTE, CLOCK_ROUTE, ask};
use atoll_audit::LogStatus;
use atoll_coordinator::health::{Problem, Severity};
use atoll_types::coordination::CLOCK_DIFFERENCE_MS_MAX;
use serde::de::DeserializeOwned;

use crate::data_dir::DataDir;
use crate::processes::ProcessesFile;

const GATEWAY: &str = "gateway";
/// Time after which a silent process is left to others to report.
const PROCESS_LIMIT: Duration = Duration::from_secs(2);
/// Time for which lost lines are reported.
const LOST_TOLD_MS: u64 = 24 * 60 * 60 * 1_000;
/// Time for which a collector may be away.
const AWAY_MS: u64 = 60_000;

/// A process signs its log at least every half an hour, and says so in cluster state soon after.
pub(crate) const SILENT_MS: u64 = 75 * 60 * 1_000;

/// Asks the processes of this host for their problems.
pub async fn process_problems(directory: &DataDir) -> Vec<Problem> {
    let mut problems = Vec::new();
    let now_unix_ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64;
    for child in ProcessesFile::running(directory).unwrap_or_default().children {
        let name = &child.name;
        if let Some(statuses) = told::<Vec<LogStatus>>(directory, name, AUDIT_ROUTE).await {
            problems.extend(statuses.iter().flat_map(|status| of_log(name, status, now_unix_ms)));
        }
        if name == GATEWAY
            && let Some(ahead_ms) = told::<u64>(directory, name, CLOCK_ROUTE).await
        {
            problems.extend(of_clock(name, ahead_ms));
        }
    }
    problems
}

/// Returns the answer of a process. A silent process is reported elsewhere.
async fn told<T: DeserializeOwned>(directory: &DataDir, process: &str, route: &str) -> Option<T> {
    let socket = directory.admin_socket(process);
    let asked = tokio::time::timeout(PROCESS_LIMIT, ask(&socket, route, None)).await;
    serde_json::from_slice(&asked.ok()?.ok()?.body).ok()
}

fn of_clock(process: &str, ahead_ms: u64) -> Option<Problem> {
    let summary = format!(
        "the clock of {process}'s host is {} s ahead of the cluster's: retention of objects lapses by the cluster's",
        ahead_ms / 1_000
    );
    let action =
        "set the clocks of all hosts ('chronyc tracking', 'timedatectl'); objects stay retained meanwhile";
    (ahead_ms > CLOCK_DIFFERENCE_MS_MAX)
        .then(|| problem("CLOCK_AHEAD", Severity::Warning, process, summary, action))
}

fn problem(code: &'static str, severity: Severity, process: &str, summary: String, action: &str) -> Problem {
    Problem {
        code,
        severity,
        summary,
        subjects: vec![process.to_owned()],
        action: action.to_owned(),
        since_unix_ms: None,
    }
}

fn of_log(process: &str, status: &LogStatus, now_unix_ms: u64) -> Vec<Problem> {
    let mut problems = Vec::new();
    if let Some(reason) = &status.failure {
        let (code, severity, what) = match status.is_refusing {
            true => ("AUDIT_REFUSING", Severity::Error, "requests are refused until it can"),
            false => ("AUDIT_FAILING", Severity::Warning, "lines are lost"),
        };
        let summary = format!("{process} cannot write its audit log {}, and {what}: {reason}", status.log);
        let action = "restore the collector, or free space on the file system of the log and the spool";
        problems.push(problem(code, severity, process, summary, action));
    }
    if status.lost_unix_ms.is_some_and(|lost| now_unix_ms.saturating_sub(lost) < LOST_TOLD_MS) {
        let summary = format!("{} lines of the audit log {} of {process} are lost", status.lost_lines, status.log);
        let action = "the log has the place ('LostLines'); 'ATOLL_AUDIT_ON_FAILURE=refuse' refuses requests \
            rather than lose lines. This is reported for a day";
        problems.push(problem("AUDIT_LOST", Severity::Warning, process, summary, action));
    }
    if let Some(away) = &status.collector_away
        && now_unix_ms.saturating_sub(away.since_unix_ms) > AWAY_MS
    {
        let summary = format!(
            "{process} has had no answer of its collector for {} s; {} of {} bytes of its spool are taken: {}",
            now_unix_ms.saturating_sub(away.since_unix_ms) / 1_000,
            status.waiting_bytes,
            status.waiting_bytes_max,
            away.reason
        );
        let action = "bring the collector back; waiting lines are sent when it answers";
        problems.push(problem("AUDIT_COLLECTOR_AWAY", Severity::Warning, process, summary, action));
    }
    problems.extend(silent(process, status, now_unix_ms));
    problems
}

/// A process that serves and of whose log cluster state hears nothing: a thief of its host could change that log unseen.
fn silent(process: &str, status: &LogStatus, now_unix_ms: u64) -> Option<Problem> {
    let silent_ms = now_unix_ms.saturating_sub(status.heard_unix_ms.unwrap_or(status.begun_unix_ms));
    let summary = format!(
        "cluster state has heard nothing of the audit log {} of {process} for {} minutes, while it serves",
        status.log,
        silent_ms / 60_000
    );
    let action = "log/ of the data directory says why ('cluster state does not hear of the audit log'); without these \
                  reports 'atoll audit verify' cannot find later changes";
    (status.begun_unix_ms > 0 && silent_ms > SILENT_MS)
        .then(|| problem("AUDIT_SILENT", Severity::Warning, process, summary, action))
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_audit::CollectorAway;

    #[test]
    fn a_clock_that_is_far_ahead_is_told() {
        assert_eq!(of_clock("gateway", 60_000), None);
        assert!(of_clock("gateway", 7_200_000).unwrap().summary.contains("7200 s ahead"));
    }

    #[test]
    fn a_log_of_which_cluster_state_hears_nothing_is_told() {
        let now = 1_000_000_000;
        let code = |begun_unix_ms, heard_unix_ms| {
            let status = LogStatus { begun_unix_ms, heard_unix_ms, ..LogStatus::default() };
            of_log("gateway", &status, now).first().map(|problem| problem.code)
        };
        let hours = |count: u64| now - count * 3_600_000;
        assert_eq!(code(hours(1), None), None, "it has just begun");
        assert_eq!(code(hours(2), None), Some("AUDIT_SILENT"));
        assert_eq!(code(hours(200), Some(hours(1))), None);
        assert_eq!(code(hours(200), Some(hours(2))), Some("AUDIT_SILENT"));
        assert_eq!(code(0, None), None, "a process of an earlier release does not say");
    }

    #[test]
    fn what_is_wrong_with_a_log_is_told() {
        let codes = |status: &LogStatus| {
            of_log("gateway", status, 1_000_000_000).into_iter().map(|problem| problem.code).collect::<Vec<_>>()
        };
        assert_eq!(codes(&LogStatus::default()), [""; 0]);
        let away = |since_unix_ms| Some(CollectorAway { since_unix_ms, reason: "status 503".into() });
        assert_eq!(codes(&LogStatus { collector_away: away(999_990_000), ..LogStatus::default() }), [""; 0]);
        let failing = LogStatus {
            failure: Some("the spool is full".into()),
            lost_lines: 3,
            lost_unix_ms: Some(999_999_000),
            collector_away: away(1),
            ..LogStatus::default()
        };
        assert_eq!(codes(&failing), ["AUDIT_FAILING", "AUDIT_LOST", "AUDIT_COLLECTOR_AWAY"]);
        let refusing = LogStatus { is_refusing: true, ..failing };
        assert_eq!(of_log("gateway", &refusing, 1_000_000_000)[0].severity, Severity::Error);
    }
}
