//! Health problems of the audit logs of other hosts, by the reports of their processes in cluster state.

use std::time::Duration;

use atoll_cluster::{ClusterClient, keys};
use atoll_coordinator::health::{Problem, Severity};
use atoll_types::audit::AuditHeadRecord;
use atoll_types::monitoring::AdminServerRecord;

use crate::process_health::SILENT_MS;

/// Name of the log of a process that has none.
pub const NO_LOG: &str = "none";

const HOUR_MS: u64 = 3_600_000;
/// Time after which the processes of a report have said something. It is written whenever there are others.
const NEW_MS: u64 = 60_000;
/// Age at which the report of a host's processes is out of date; it is written every ten minutes.
const REPORT_MS: u64 = 25 * 60 * 1_000;
/// Longest time for all the reads: health is asked for when cluster state is slow, too.
const READ_LIMIT: Duration = Duration::from_secs(5);

/// Reports processes of other hosts that serve, and of whose audit logs cluster state hears nothing. The processes of
/// `own_host` are asked themselves. A record that cannot be read is no problem of audit logs.
pub async fn silent_audit_problems(state: &ClusterClient, own_host: &str, now_unix_ms: u64) -> Vec<Problem> {
    let silent = tokio::time::timeout(READ_LIMIT, silent_processes(state, own_host, now_unix_ms)).await;
    let Ok(Ok(silent)) = silent else { return Vec::new() };
    if silent.is_empty() {
        return Vec::new();
    }
    vec![Problem {
        code: "AUDIT_SILENT",
        severity: Severity::Warning,
        summary: format!(
            "{} of other hosts serve, and cluster state has heard nothing of their audit logs for {} minutes",
            if silent.len() == 1 { "1 process".into() } else { format!("{} processes", silent.len()) },
            SILENT_MS / 60_000
        ),
        subjects: silent,
        action:
            "'atoll health' on that host says whether its processes write their logs; 'atoll audit verify --host \
                 NAME' there, on a copy of log/, says whether lines are missing"
                .into(),
        since_unix_ms: None,
    }]
}

async fn silent_processes(
    state: &ClusterClient,
    own_host: &str,
    now_unix_ms: u64,
) -> Result<Vec<String>, atoll_cluster::ClusterError> {
    let servers = state.list::<AdminServerRecord>(keys::ADMIN_SERVERS).await?.entries;
    let mut silent = Vec::new();
    let is_judged = |server: &AdminServerRecord| server.host != own_host && is_current(server, now_unix_ms);
    for (_, server, _) in servers.into_iter().filter(|(_, server, _)| is_judged(server)) {
        for process in &server.processes {
            if !is_heard(state, &server.host, process, now_unix_ms).await? {
                silent.push(format!("{process}@{}", server.host));
            }
        }
    }
    Ok(silent)
}

/// Returns true if the processes of a host have been there long enough to have said something, and still are there.
fn is_current(server: &AdminServerRecord, now_unix_ms: u64) -> bool {
    (NEW_MS..=REPORT_MS).contains(&now_unix_ms.saturating_sub(server.seen_unix_ms))
}

/// In place of a run the process, which repeats the latest line of its logs there: readers need not know its runs.
pub fn audit_run_of_process(process: &str) -> String {
    format!("of-{process}")
}

async fn is_heard(
    state: &ClusterClient,
    host: &str,
    process: &str,
    now_unix_ms: u64,
) -> Result<bool, atoll_cluster::ClusterError> {
    let run = audit_run_of_process(process);
    let hour = now_unix_ms / HOUR_MS;
    let oldest = now_unix_ms.saturating_sub(SILENT_MS) / HOUR_MS;
    for hour in (oldest..=hour).rev() {
        if let Some((record, _)) = state.get::<AuditHeadRecord>(&keys::audit_head(host, &run, hour)).await? {
            return Ok(now_unix_ms.saturating_sub(record.unix_ms) <= SILENT_MS);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use atoll_cluster::{ConnectOptions, EmbeddedServer};
    use atoll_types::records::RECORD_FORMAT;

    use super::*;

    const NOW: u64 = 1_000 * HOUR_MS;

    fn server(host: &str) -> AdminServerRecord {
        AdminServerRecord {
            format: RECORD_FORMAT,
            host: host.into(),
            address: String::new(),
            processes: vec!["gateway".into()],
            public_key_sha256: String::new(),
            seen_unix_ms: NOW - 600_000,
        }
    }

    #[test]
    fn hosts_are_judged_while_their_reports_are_neither_new_nor_old() {
        let minutes = |ago: u64| AdminServerRecord { seen_unix_ms: NOW - ago * 60_000, ..server("h2") };
        let judged = [0, 1, 10, 25, 26].map(|ago| is_current(&minutes(ago), NOW));
        assert_eq!(judged, [false, true, true, true, false]);
    }

    #[tokio::test]
    async fn a_silent_process_of_another_host_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let embedded = EmbeddedServer::start(listener, directory.path(), None).await.unwrap();
        let options = ConnectOptions::new([format!("http://{}", embedded.local_addr())]);
        let state = ClusterClient::connect(&options).await.unwrap();
        for host in ["h1", "h2", "h3"] {
            state.put(&keys::admin_server(host), &server(host)).await.unwrap();
        }
        let subjects = async || {
            let problems = silent_audit_problems(&state, "h1", NOW).await;
            problems.into_iter().flat_map(|problem| problem.subjects).collect::<Vec<_>>()
        };
        assert_eq!(subjects().await, ["gateway@h2", "gateway@h3"], "h1 is asked itself");
        let say = async |host: &str, log: &str, minutes_ago: u64| {
            let unix_ms = NOW - minutes_ago * 60_000;
            let (process, run) = ("gateway", audit_run_of_process("gateway"));
            let record = AuditHeadRecord {
                format: RECORD_FORMAT,
                host: host.into(),
                process: process.into(),
                log: log.into(),
                run: String::new(),
                key: String::new(),
                number: 1,
                digest: String::new(),
                unix_ms,
            };
            state.put(&keys::audit_head(host, &run, unix_ms / HOUR_MS), &record).await.unwrap();
        };
        say("h2", "s3-audit.jsonl", 70).await;
        say("h3", "s3-audit.jsonl", 76).await;
        assert_eq!(subjects().await, ["gateway@h3"]);
        say("h3", NO_LOG, 20).await;
        assert_eq!(subjects().await, [""; 0], "who says that it has no log is not silent");
    }
}
