//! The latest signed lines of audit logs in cluster state, where the host of a log cannot take them back.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use atoll_audit::{AuditLog, Head, ProcessLog, of_process};
use atoll_cluster::{ClusterClient, ClusterError, ConnectOptions, keys};
use atoll_coordinator::unix_ms;
use atoll_node::{NO_LOG, audit_run_of_process};
use atoll_types::audit::AuditHeadRecord;
use atoll_types::records::RECORD_FORMAT;

use super::open_cluster::OpenCluster;

/// Pause between looks for a new signature; logs with new lines get one a minute.
const LOOK_PAUSE: Duration = Duration::from_secs(10);
/// Additional pause after cluster state did not take a signature.
const AGAIN_PAUSE: Duration = Duration::from_secs(50);
const HOUR_MS: u64 = 3_600_000;
/// How often a process says that it has no log.
const NONE_PAUSE: Duration = Duration::from_secs(1_800);
/// Age at which records are removed.
const KEPT_HOURS: u64 = 32 * 24;
/// How often that is looked at.
const TRIM_PAUSE: Duration = Duration::from_secs(6 * 3_600);

/// Says in cluster state how far logs are.
pub async fn publish(client: &ClusterClient, who: &ProcessLog, heads: &[Head]) -> Result<(), ClusterError> {
    let unix_ms = unix_ms();
    for head in heads {
        let Head { log, run, key, number, digest } = head.clone();
        let record = AuditHeadRecord {
            format: RECORD_FORMAT,
            host: who.host.clone(),
            process: who.process.clone(),
            log,
            run,
            key,
            number,
            digest,
            unix_ms,
        };
        client.put(&keys::audit_head(&who.host, &head.run, unix_ms / HOUR_MS), &record).await?;
    }
    Ok(())
}

/// Repeats the latest line under the name of the process, or that there is no log.
async fn publish_of_process(
    client: &ClusterClient,
    who: &ProcessLog,
    latest: Option<&Head>,
) -> Result<(), ClusterError> {
    let none =
        || Head { log: NO_LOG.into(), run: String::new(), key: String::new(), number: 0, digest: String::new() };
    let (Head { log, run, key, number, digest }, unix_ms) = (latest.cloned().unwrap_or_else(none), unix_ms());
    let (host, process) = (who.host.clone(), who.process.clone());
    let record = AuditHeadRecord { format: RECORD_FORMAT, host, process, log, run, key, number, digest, unix_ms };
    let run = audit_run_of_process(&who.process);
    client.put(&keys::audit_head(&who.host, &run, unix_ms / HOUR_MS), &record).await?;
    Ok(())
}

/// Removes records older than `KEPT_HOURS`.
async fn trim(client: &ClusterClient, host: &str) -> Result<(), ClusterError> {
    let oldest = (unix_ms() / HOUR_MS).saturating_sub(KEPT_HOURS);
    for (key, _, _) in client.list_raw(&keys::audit_heads_of(host)).await?.entries {
        if keys::parse_audit_head(&key).is_some_and(|(_, hour)| hour < oldest) {
            client.delete(&key).await?;
        }
    }
    Ok(())
}

/// Follows the log of this process, and says in cluster state how far it is.
pub fn follow(open: &OpenCluster, process: &str) {
    let who = ProcessLog { host: open.cluster.host_name(), process: process.to_owned(), user: None };
    let options = open.cluster.connect_options();
    let run = move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        match runtime {
            Ok(runtime) => runtime.block_on(publish_for_ever(&options, &who)),
            Err(error) => tracing::error!("cluster state does not hear of the audit log: {error}"),
        }
    };
    if let Err(error) = std::thread::Builder::new().name("audit-heads".into()).spawn(run) {
        tracing::error!("cluster state does not hear of the audit log: {error}");
    }
}

async fn publish_for_ever(options: &ConnectOptions, who: &ProcessLog) {
    let mut published: BTreeMap<String, u64> = BTreeMap::new();
    let mut client: Option<ClusterClient> = None;
    let mut trimmed = None;
    // When it was said last that there is no log, or none yet.
    let mut said_none: Option<Instant> = None;
    loop {
        let log = of_process();
        let is_none_due = said_none.is_none_or(|at| log.is_none() && at.elapsed() >= NONE_PAUSE);
        let heads = log.map(|log| log.heads()).unwrap_or_default();
        let is_new = |head: &Head| published.get(&head.run).is_none_or(|number| *number < head.number);
        let new: Vec<Head> = heads.into_iter().filter(is_new).collect();
        if new.is_empty() && !is_none_due {
            tokio::time::sleep(LOOK_PAUSE).await;
            continue;
        }
        let said = async {
            let connected = match client.take() {
                Some(client) => client,
                None => ClusterClient::connect(options).await?,
            };
            publish(&connected, who, &new).await?;
            publish_of_process(&connected, who, new.last()).await?;
            if trimmed.is_none_or(|at: Instant| at.elapsed() >= TRIM_PAUSE) {
                trim(&connected, &who.host).await?;
                trimmed = Some(Instant::now());
            }
            Ok::<_, ClusterError>(connected)
        };
        match said.await {
            Ok(connected) => {
                said_none = Some(Instant::now());
                if !new.is_empty() {
                    of_process().iter().for_each(AuditLog::is_heard);
                }
                client = Some(connected);
                published.extend(new.into_iter().map(|head| (head.run, head.number)));
            }
            // It is tried again.
            Err(error) => {
                tracing::warn!("cluster state does not hear of the audit log: {error}");
                tokio::time::sleep(AGAIN_PAUSE).await;
            }
        }
    }
}
