//! The audit logs of processes: where they are, and the uses of keys that come to be in them.

use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use atoll_audit::{
    AuditLog, LogConfig, OnFailure, OwnRooms, ProcessLog, RoomSizes, SPOOL_BYTES_MAX, Target, note, note_change,
    of_process,
};
use atoll_keys::take_uses;
use atoll_node::DataDir;
use atoll_types::size::parse_size_bytes;
use clap::{Args, ValueEnum};

use super::open_cluster::OpenCluster;

/// Interval for which uses of keys are summed.
const USES_PAUSE: Duration = Duration::from_secs(10);

/// In place of a collector of commands: files in the data directory.
const COMMAND_FILES: &str = "file";

/// Handling of lines that find no room.
#[derive(Args, Clone)]
pub struct AuditRoomArguments {
    /// When lines can be neither written nor spooled: 'lose' loses and counts them, 'refuse' refuses requests until they
    /// can
    #[arg(long, value_name = "WHAT", env = "ATOLL_AUDIT_ON_FAILURE", default_value = "lose")]
    pub audit_on_failure: OnFailureArgument,
    /// Largest spool of lines that a collector has not accepted, in DIR/audit-spool
    #[arg(long, value_name = "SIZE", env = "ATOLL_AUDIT_SPOOL", default_value = "1G", value_parser = parse_room_bytes)]
    pub audit_spool: u64,
    /// Largest size of the files with allowed changes. Other requests never push these lines out
    #[arg(
        long,
        value_name = "SIZE",
        env = "ATOLL_AUDIT_CHANGES_ROOM",
        default_value = "576M",
        value_parser = parse_room_bytes
    )]
    pub audit_changes_room: u64,
    /// Largest size of the files with other requests of authenticated users
    #[arg(
        long,
        value_name = "SIZE",
        env = "ATOLL_AUDIT_REQUESTS_ROOM",
        default_value = "576M",
        value_parser = parse_room_bytes
    )]
    pub audit_requests_room: u64,
    /// Largest size of the files with requests of strangers
    #[arg(
        long,
        value_name = "SIZE",
        env = "ATOLL_AUDIT_STRANGERS_ROOM",
        default_value = "80M",
        value_parser = parse_room_bytes
    )]
    pub audit_strangers_room: u64,
}

impl AuditRoomArguments {
    fn sizes(&self) -> RoomSizes {
        RoomSizes {
            changes_bytes: self.audit_changes_room,
            requests_bytes: self.audit_requests_room,
            strangers_bytes: self.audit_strangers_room,
        }
    }
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
        // All that is in it are attachments, so these need no room of their own.
        let own_rooms = OwnRooms { changes: false, strangers: true };
        let room = (&self.audit_room, own_rooms);
        open_log(cluster, (name, process, "images"), self.audit_log.as_ref(), room).map(drop)
    }
}

fn parse_room_bytes(text: &str) -> Result<u64, String> {
    let bytes = parse_size_bytes(text)?;
    if bytes < 1 << 20 { Err("give 1M or more".into()) } else { Ok(bytes) }
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

/// Where lines go that are about no client: those of commands, and of keys that processes use. `file` is the default, files
/// in the data directory.
pub fn parse_command_target(text: &str) -> Result<String, String> {
    match text.parse::<Target>() {
        Ok(Target::File(_)) if text != COMMAND_FILES => {
            Err("give the URL of a collector, 'file', or 'off'".into())
        }
        Ok(_) => Ok(text.to_owned()),
        Err(error) => Err(error),
    }
}

/// The log of a process that is about no client, in the data directory or where `atoll up --command-audit-log` has said.
pub fn own_log(directory: &DataDir, process: &str, source: &'static str) -> LogConfig {
    let file = || Target::File(directory.logs().join(format!("{process}-audit.jsonl")));
    let chosen = directory.cluster().ok().and_then(|cluster| cluster.command_audit_log);
    let chosen = chosen.filter(|chosen| chosen != COMMAND_FILES).and_then(|chosen| chosen.parse().ok());
    LogConfig {
        source,
        target: chosen.unwrap_or_else(file),
        spool: directory.root().join("audit-spool").join(process),
        spool_bytes_max: SPOOL_BYTES_MAX,
        on_failure: OnFailure::Lose,
        own_rooms: OwnRooms::default(),
        sizes: RoomSizes::default(),
        is_short_lived: false,
    }
}

/// Opens the log of a daemon whose clients make changes and other requests.
pub fn open(
    open: &OpenCluster,
    names: (&str, &str, &'static str),
    target: Option<&Target>,
    room: &AuditRoomArguments,
) -> anyhow::Result<Option<AuditLog>> {
    open_log(open, names, target, (room, OwnRooms { changes: true, strangers: true }))
}

/// Opens the log of a daemon, which is that of its process from now on. `name` is that of its files. Without a target it
/// is in the data directory.
fn open_log(
    open: &OpenCluster,
    (name, process, source): (&str, &str, &'static str),
    target: Option<&Target>,
    (room, own_rooms): (&AuditRoomArguments, OwnRooms),
) -> anyhow::Result<Option<AuditLog>> {
    let own = LogConfig {
        spool_bytes_max: room.audit_spool,
        on_failure: room.audit_on_failure.into(),
        own_rooms,
        sizes: room.sizes(),
        ..own_log(&open.directory, name, source)
    };
    let file = Target::File(open.directory.logs().join(format!("{name}-audit.jsonl")));
    let opened = match target {
        Some(target) => AuditLog::open(&LogConfig { target: target.clone(), ..own }),
        None => AuditLog::open_own(&LogConfig { target: file, ..own }),
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
        // Reads and writes wrap and unwrap keys, so any client can make these lines.
        match one.use_of_key {
            "wrap" | "unwrap" | "rewrap" => note("keys", "UseKey", &one),
            _ => note_change("keys", "UseKey", &one),
        }
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
