//! The audit logs of processes: where they are, and the uses of keys that come to be in them.

use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use atoll_audit::{AuditLog, LogConfig, OnFailure, ProcessLog, SPOOL_BYTES_MAX, Target, note, of_process};
use atoll_keys::take_uses;
use atoll_node::DataDir;
use atoll_types::size::parse_size_bytes;
use clap::{Args, ValueEnum};

use super::open_cluster::OpenCluster;

/// Interval for which uses of keys are summed.
const USES_PAUSE: Duration = Duration::from_secs(10);

/// Handling of lines that find no room.
#[derive(Args, Clone)]
pub struct AuditRoomArguments {
    /// When lines can be neither written nor spooled: 'lose' loses and counts them, 'refuse' refuses requests until they
    /// can
    #[arg(long, value_name = "WHAT", env = "ATOLL_AUDIT_ON_FAILURE", default_value = "lose")]
    pub audit_on_failure: OnFailureArgument,
    /// Largest spool of lines that a collector has not accepted, in DIR/audit-spool
    #[arg(long, value_name = "SIZE", env = "ATOLL_AUDIT_SPOOL", default_value = "1G", value_parser = parse_spool_bytes)]
    pub audit_spool: u64,
}

/// The log of a server of images.
#[derive(Args, Clone)]
pub struct ImageAuditArguments {
    /// Where a line of JSON for each attachment of an image goes: a file, or the URL of a collector that takes them by
    /// POST, or 'off' [default: DIR/log/nbd-audit.jsonl, DIR/log/nvme-audit.jsonl]
    #[arg(long, value_name = "FILE|URL|off", env = "ATOLL_IMAGE_AUDIT_LOG")]
    pub audit_log: Option<Target>,
    #[command(flatten)]
    pub audit_room: AuditRoomArguments,
}

impl ImageAuditArguments {
    /// Opens it, as that of the process from now on.
    pub fn open(&self, cluster: &OpenCluster, name: &str, process: &str) -> anyhow::Result<()> {
        open(cluster, (name, process, "images"), self.audit_log.as_ref(), &self.audit_room).map(drop)
    }
}

fn parse_spool_bytes(text: &str) -> Result<u64, String> {
    let bytes = parse_size_bytes(text)?;
    if bytes < 1 << 20 { Err("a spool has 1M or more".into()) } else { Ok(bytes) }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OnFailureArgument {
    /// Lines are lost and counted
    Lose,
    /// Requests are refused
    Refuse,
}

impl From<OnFailureArgument> for OnFailure {
    fn from(argument: OnFailureArgument) -> Self {
        match argument {
            OnFailureArgument::Lose => OnFailure::Lose,
            OnFailureArgument::Refuse => OnFailure::Refuse,
        }
    }
}

/// The log of a process in the data directory.
pub fn own_log(directory: &DataDir, process: &str, source: &'static str) -> LogConfig {
    LogConfig {
        source,
        target: Target::File(directory.logs().join(format!("{process}-audit.jsonl"))),
        spool: directory.root().join("audit-spool").join(process),
        spool_bytes_max: SPOOL_BYTES_MAX,
        on_failure: OnFailure::Lose,
        has_strangers: false,
    }
}

/// Opens the log of a daemon, which is that of its process from now on. `name` is that of its files. Without a target it
/// is in the data directory.
pub fn open(
    open: &OpenCluster,
    (name, process, source): (&str, &str, &'static str),
    target: Option<&Target>,
    room: &AuditRoomArguments,
) -> anyhow::Result<Option<AuditLog>> {
    let own = LogConfig {
        spool_bytes_max: room.audit_spool,
        on_failure: room.audit_on_failure.into(),
        has_strangers: true,
        ..own_log(&open.directory, name, source)
    };
    let opened = match target {
        Some(target) => AuditLog::open(&LogConfig { target: target.clone(), ..own }),
        None => AuditLog::open_own(&own),
    };
    let log = opened.context("the audit log cannot be opened (--audit-log)")?;
    atoll_audit::set_of_process(daemon_log(open, process), log.clone());
    Ok(log)
}

/// Returns the origin of a daemon's lines.
pub fn daemon_log(open: &OpenCluster, process: &str) -> ProcessLog {
    ProcessLog { host: open.cluster.host_name(), process: process.to_owned(), user: None }
}

/// Says in the log of this process which keys were used, now and then. A process that has none yet gets one with the first.
pub fn follow_key_uses(who: ProcessLog, own: LogConfig) {
    let follow = move || {
        loop {
            std::thread::sleep(USES_PAUSE);
            note_key_uses(|| {
                if of_process().is_none() {
                    match AuditLog::open_own(&own) {
                        Ok(log) => atoll_audit::set_of_process(who.clone(), log),
                        Err(error) => tracing::error!("there is no audit log for uses of keys: {error}"),
                    }
                }
            });
        }
    };
    if let Err(error) = std::thread::Builder::new().name("key-uses".into()).spawn(follow) {
        tracing::error!("uses of keys are in no audit log: {error}");
    }
}

/// Says which keys were used since the last time. `prepare` is called first, if there are some.
pub fn note_key_uses(prepare: impl FnOnce()) {
    let uses = take_uses();
    if uses.is_empty() {
        return;
    }
    prepare();
    for one in uses {
        note("keys", "UseKey", &one);
    }
}

/// The logs of a host, without the files that were set aside.
pub fn logs_of_host(directory: &DataDir) -> std::io::Result<Vec<std::path::PathBuf>> {
    let is_log = |path: &Path| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.ends_with(".jsonl") && name.contains("-audit")
    };
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory.logs())? {
        let path = entry?.path();
        if is_log(&path) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}
