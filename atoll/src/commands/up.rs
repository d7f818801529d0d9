//! Starting and stopping a whole cluster.

use atoll_files::Access;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::str::FromStr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use atoll_cluster::{ClusterClient, keys};
use atoll_node::{
    Choices, ClusterFile, Credentials, DataDir, JOIN_TOKEN_VARIABLE, ProcessesFile, Progress, overcommitted, stop,
    supervise,
};
use atoll_reactor::ListenAddress;
use atoll_terminal::{print_line, print_note, write_status};
use atoll_types::OsdId;
use atoll_types::frames::{FrameMode, FrameModes, FrameScope};
use atoll_types::records::{OsdUsageRecord, PeerRole, Redundancy};
use atoll_types::size::{format_size, parse_size_bytes};
use atoll_types::transports::{Transport, Transports};
use clap::Args;

use super::arguments::{DataArgument, ErasureCode, FailureDomainArgument, parse_erasure_code};
use super::audit_log::parse_command_target;
use super::daemon::log_filter;
use super::gateway::{S3ListenArguments, parse_listen};
use super::join::{EtcdArguments, HostArguments, host_choices};
use super::join_token;
use super::key::{TransitArguments, transit_settings};
use super::open_cluster::tokio_runtime;
use super::output::shell_word;
use super::secret_file::STANDARD_INPUT;

#[derive(Args)]
#[command(after_help = "\
Examples:
  atoll up --data ./atoll-data
  atoll up --data ./atoll-data --ec 2+1           S3 data in 2 data and 1 parity shards
  atoll up --data ./atoll-data --frame-mode client=secure-128 --frame-mode gateway=secure-128
  atoll up --data ./atoll-data --s3-listen 127.0.0.1:9000 --nbd-listen 127.0.0.1:10809 --detach
  atoll up --data ./atoll-data --s3-listen off --s3-tls-listen 0.0.0.0:9443 --tls-name s3.example.org
  atoll up --data /srv/atoll --etcd https://10.0.0.1:2379 --etcd-ca ca.pem --listen 10.0.0.1 --failure-domain host
  atoll up --data /srv/atoll --join ./token --osds 2 --listen 10.0.0.2 --key-service ./kms.json

Exit codes with --detach: 0 it serves, 3 it serves and some OSDs of this host did not start, 1 it does not.")]
pub struct UpArguments {
    #[command(flatten)]
    pub data: DataArgument,
    /// Number of OSD processes [default: 3, fixed at the first start]
    #[arg(long, value_name = "N")]
    pub osds: Option<u32>,
    /// Size of each OSD's device file, which is sparse [default: 32G, or as large as fits; fixed at the first
    /// start]
    #[arg(long, value_name = "SIZE", value_parser = parse_size_bytes)]
    pub osd_size: Option<u64>,
    #[command(flatten)]
    pub s3: S3ListenArguments,
    /// Where the admin server listens, with TLS: console, admin API and metrics [default: port 8443 of the address of --listen]
    #[arg(long, value_name = "IP:PORT|off", env = "ATOLL_ADMIN_LISTEN", value_parser = parse_listen)]
    pub admin_listen: Option<String>,
    /// Where a line of JSON for each command on this host goes that may change something, and for uses of keys by
    /// processes without a log of their own: the URL of a collector that takes them by POST, 'file' for DIR/log, or
    /// 'off'; remembered [default: file]
    #[arg(long, value_name = "URL|file|off", env = "ATOLL_COMMAND_AUDIT_LOG", value_parser = parse_command_target)]
    pub command_audit_log: Option<String>,
    /// Where the NBD server listens; may be given several times [default: unix:DIR/nbd.sock].
    /// Anyone who can reach a TCP address can read and write every image, unless client certificates are
    /// required: see 'atoll nbd run --help'
    #[arg(long, value_name = "unix:PATH|IP:PORT")]
    pub nbd_listen: Vec<ListenAddress>,
    /// Where the NVMe/TCP target listens, usually at port 4420; may be given several times [default: off]. It serves an
    /// image only to hosts that 'atoll image access' names
    #[arg(long, value_name = "IP:PORT|off", value_parser = parse_listen)]
    pub nvme_listen: Vec<String>,
    #[command(flatten)]
    pub etcd: EtcdArguments,
    #[command(flatten)]
    pub host: HostArguments,
    /// Level on which no two copies or shards share an item [default: osd; fixed at the first start]. With host,
    /// rack or zone the first pools are made as soon as OSDs of enough of them have joined
    #[arg(long, value_name = "KIND")]
    pub failure_domain: Option<FailureDomainArgument>,
    /// Copies of each object [default: 3, or as many as there are OSDs; fixed at the first start]
    #[arg(long, value_name = "N")]
    pub copies: Option<u32>,
    /// Keep the data of S3 objects erasure-coded, in K data and M parity shards on different OSDs (or hosts: see
    /// --failure-domain) in a pool 'data' of its own; any M may be lost [fixed at the first start]. Without --osds
    /// there are as many OSDs as it takes
    #[arg(long, value_name = "K+M", value_parser = parse_erasure_code, conflicts_with = "join")]
    pub ec: Option<ErasureCode>,
    /// Join a cluster that runs on other hosts, with a token of 'atoll cluster token create': a file with it, or - for
    /// standard input; the token itself may be in ATOLL_JOIN_TOKEN instead. Later starts ignore it
    #[arg(long, value_name = "FILE")]
    pub join: Option<PathBuf>,
    /// Protection of frames between Atoll's processes: secure (AES-256-GCM), secure-128 or crc (checksums only; the
    /// handshake still authenticates), for all or for one of the roles cluster (OSDs among themselves), client (NBD
    /// server, benches, command line) and gateway, or for unix (all of them within a host, over Unix sockets and shared
    /// memory); may be given several times [default: secure, and crc within a host; if any is given, that of the role
    /// is used within a host, too, unless unix is named. For the first start: 'atoll settings set frame_mode_ROLE' changes it later]
    #[arg(long, value_name = "[ROLE=]MODE", value_parser = parse_frame_mode)]
    pub frame_mode: Vec<FrameModeChoice>,
    /// Preferred transport to OSDs: shm (shared memory within a host, TCP to others), unix (Unix sockets within a
    /// host), tcp, or rdma (RDMA to OSDs that have ATOLL_RDMA_PROVIDER in their environment, TCP to others), for
    /// all or for one of the roles cluster, client and gateway; may be given several times [default: shm; for the
    /// first start: 'atoll settings set transport_ROLE' changes it later]
    #[arg(long, value_name = "[ROLE=]TRANSPORT", value_parser = parse_transport)]
    pub transport: Vec<TransportChoice>,
    #[command(flatten)]
    pub transit: TransitArguments,
    /// Make the OSDs' device files LUKS2 volumes that the key service unlocks [fixed at the first start]
    #[arg(long)]
    pub encrypt_at_rest: bool,
    /// Recreate a lost secret of this host: 'client', 'gateway', 'osd.N', or, in a cluster without sealed data,
    /// 'kms'; may be given several times. Existing secrets stay
    #[arg(long, value_name = "NAME")]
    pub new_key: Vec<String>,
    /// Give this OSD an empty device file in place of a device that is lost; the others fill it. May be given several
    /// times; a device that is there stays
    #[arg(long, value_name = "N")]
    pub new_device: Vec<u32>,
    /// Go to the background; return when everything serves
    #[arg(long)]
    pub detach: bool,
}

/// `[ROLE=]MODE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameModeChoice {
    /// All if absent.
    pub scope: Option<FrameScope>,
    pub mode: FrameMode,
}

/// `[ROLE=]TRANSPORT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransportChoice {
    /// All if absent.
    pub role: Option<PeerRole>,
    pub transport: Transport,
}

fn parse_role(text: &str) -> Option<PeerRole> {
    match text {
        "cluster" => Some(PeerRole::Osd),
        "client" => Some(PeerRole::Client),
        "gateway" => Some(PeerRole::Gateway),
        _ => None,
    }
}

/// `[NAME=]VALUE`, where the name is one of `names`.
fn parse_choice<S, V: FromStr<Err = String>>(
    text: &str,
    scope: impl Fn(&str) -> Option<S>,
    names: &str,
) -> Result<(Option<S>, V), String> {
    let Some((name, value)) = text.split_once('=') else { return Ok((None, text.parse()?)) };
    let scope = scope(name).ok_or_else(|| format!("'{name}' is no role: choose {names}"))?;
    Ok((Some(scope), value.parse()?))
}

fn parse_frame_mode(text: &str) -> Result<FrameModeChoice, String> {
    let scope = |name: &str| match name {
        "unix" => Some(FrameScope::Unix),
        role => parse_role(role).map(FrameScope::Role),
    };
    let (scope, mode) = parse_choice(text, scope, "cluster, client, gateway or unix")?;
    Ok(FrameModeChoice { scope, mode })
}

fn parse_transport(text: &str) -> Result<TransportChoice, String> {
    let (role, transport) = parse_choice(text, parse_role, "cluster, client or gateway")?;
    Ok(TransportChoice { role, transport })
}

/// The exit code if everything serves, and not all OSDs are up.
const DEGRADED: u8 = 3;
const DETACH_LIMIT: Duration = Duration::from_secs(180);

fn choices(arguments: &UpArguments, join: Option<String>) -> anyhow::Result<Choices> {
    Ok(Choices {
        osd_count: arguments.osds,
        osd_bytes: arguments.osd_size,
        s3_listen: arguments.s3.s3_listen.clone(),
        s3_tls_listen: arguments.s3.s3_tls_listen.clone(),
        admin_listen: arguments.admin_listen.clone(),
        command_audit_log: arguments.command_audit_log.clone(),
        tls_names: arguments.s3.tls_name.clone(),
        nbd_listen: arguments.nbd_listen.iter().map(ToString::to_string).collect(),
        nvme_listen: arguments.nvme_listen.clone(),
        failure_domain: arguments.failure_domain.map(Into::into),
        copies: arguments.copies,
        ec: arguments.ec.map(|code| Redundancy::erasure(code.data, code.parity, None, None)),
        join,
        frame_modes: frame_modes(&arguments.frame_mode),
        transports: transports(&arguments.transport),
        encrypt_at_rest: arguments.encrypt_at_rest,
        new_keys: arguments.new_key.clone(),
        new_devices: arguments.new_device.iter().copied().map(OsdId).collect(),
        transit: transit_settings(&arguments.transit)?,
        ..host_choices(&arguments.etcd, &arguments.host)
    })
}

/// Those that were said, each for all roles or for one; the last word counts.
fn frame_modes(choices: &[FrameModeChoice]) -> Option<FrameModes> {
    let choose = |modes: FrameModes, choice: &FrameModeChoice| match choice.scope {
        None => FrameModes::all(choice.mode),
        Some(scope) => modes.with(scope, choice.mode),
    };
    (!choices.is_empty()).then(|| choices.iter().fold(FrameModes::default(), choose))
}

/// The same of transports.
fn transports(choices: &[TransportChoice]) -> Option<Transports> {
    let choose = |transports: Transports, choice: &TransportChoice| match choice.role {
        None => Transports::all(choice.transport),
        Some(role) => transports.with(role, choice.transport),
    };
    (!choices.is_empty()).then(|| choices.iter().fold(Transports::of_new_clusters(), choose))
}

/// `atoll up`.
pub fn up(arguments: &UpArguments) -> anyhow::Result<ExitCode> {
    // With a wrong one the daemons would end as soon as they are started.
    log_filter()?;
    let directory = DataDir::new(&arguments.data.data);
    // A host that has joined needs no token, and its file may be gone.
    let join = match directory.has_cluster() {
        true => None,
        false => join_token::read(arguments.join.as_deref())?,
    };
    let was_there = directory.root().exists();
    let outcome = match arguments.detach {
        true => detach(arguments, &directory, join),
        false => run_in_foreground(arguments, &directory, join),
    };
    if outcome.is_err() && !was_there && ProcessesFile::running(&directory).is_none() {
        // Choices that were refused must not be those of the next start.
        directory.remove_if_not_founded()?;
    }
    outcome
}

fn run_in_foreground(
    arguments: &UpArguments,
    directory: &DataDir,
    join: Option<String>,
) -> anyhow::Result<ExitCode> {
    let executable = std::env::current_exe().context("cannot find this program's own file")?;
    let choices = choices(arguments, join)?;
    let live = LiveStatus::default();
    let show = |progress: Progress<'_>| live.show(directory, progress);
    let runtime = tokio_runtime()?;
    let outcome = runtime.block_on(supervise(directory, &executable, &choices, &show));
    // A health check may still be waiting on a thread; there is no need to wait for it.
    runtime.shutdown_background();
    outcome?;
    print_note!("atoll: stopped; all data is in {}", directory.root().display());
    Ok(ExitCode::SUCCESS)
}

/// Status lines of the foreground process.
#[derive(Default)]
struct LiveStatus {
    usage: Arc<Mutex<String>>,
}

impl LiveStatus {
    fn show(&self, directory: &DataDir, progress: Progress<'_>) {
        let is_terminal = std::io::stderr().is_terminal();
        if is_terminal && !matches!(progress, Progress::Healthy(..)) {
            write_status(format_args!("\r\x1b[K"));
        }
        match progress {
            Progress::Step(step) => print_note!("atoll: {step}"),
            Progress::Died { name, how } => print_note!("atoll: {name} died ({how}); restarting it"),
            Progress::Healthy(cluster, osds_down) => {
                print_welcome(directory, cluster);
                if !osds_down.is_empty() {
                    print_note!("atoll: {}", down_text(directory, osds_down));
                }
                self.follow_usage(cluster.clone());
            }
            Progress::Tick(processes) if is_terminal => {
                let usage = self.usage.lock().map(|text| text.clone()).unwrap_or_default();
                write_status(format_args!("{} {usage}", summary(processes)));
            }
            Progress::Tick(_) => {}
        }
    }

    /// Keeps the line about space current, from the OSDs' own reports.
    fn follow_usage(&self, cluster: ClusterFile) {
        let shared = Arc::clone(&self.usage);
        tokio::spawn(async move {
            loop {
                let text = usage_text(&cluster).await.unwrap_or_else(|| "cluster state does not answer".into());
                if let Ok(mut usage) = shared.lock() {
                    *usage = text;
                }
                tokio::time::sleep(Duration::from_secs(3)).await;
            }
        });
    }
}

async fn usage_text(cluster: &ClusterFile) -> Option<String> {
    let state = ClusterClient::connect(&cluster.connect_options()).await.ok()?;
    let usage = state.list::<OsdUsageRecord>(keys::OSD_USAGE).await.ok()?;
    let sum = |field: fn(&OsdUsageRecord) -> u64| usage.entries.iter().map(|(_, record, _)| field(record)).sum();
    let groups = |name: &str| -> u32 {
        usage.entries.iter().filter_map(|(_, record, _)| record.primary_pg_states.get(name)).sum()
    };
    Some(format!(
        "| {} PGs active, {} not | {} of {} used",
        groups("active"),
        groups("peering") + groups("inactive"),
        format_size(sum(|record| record.used_bytes)),
        format_size(sum(|record| record.total_bytes)),
    ))
}

fn summary(processes: &ProcessesFile) -> String {
    let up = processes.children.iter().filter(|child| child.pid.is_some()).count();
    let restarts: u32 = processes.children.iter().map(|child| child.restarts).sum();
    format!("{up}/{} processes up, {restarts} restarts", processes.children.len())
}

fn print_welcome(directory: &DataDir, cluster: &ClusterFile) {
    let Ok(credentials) = directory.credentials() else { return };
    let data = shell_word(&directory.root().display().to_string());
    let place = if cluster.is_reachable() { " on this host" } else { "" };
    let osds = format!("{} OSDs{place}", cluster.osd_ids.len());
    let nbd = &cluster.nbd_listen[0];
    let uri = match nbd.strip_prefix("unix:") {
        Some(path) => format!("nbd+unix:///disk1?socket={path}"),
        None => format!("nbd://{nbd}/disk1"),
    };
    print_line!(
        "
Atoll serves: {osds}, every write on all copies before it is acknowledged,
frames {frames}; images and objects are sealed before they leave the client.

S3      {endpoint}, access key {access_key}
{tls}
    eval \"$(atoll credentials --export --data {data})\"
    aws --endpoint-url {endpoint} s3 mb s3://first
    aws --endpoint-url {endpoint} s3 cp /etc/hostname s3://first/
    curl{trust} --aws-sigv4 aws:amz:us-east-1:s3 --user $AWS_ACCESS_KEY_ID:$AWS_SECRET_ACCESS_KEY \\
        -H 'x-amz-content-sha256: UNSIGNED-PAYLOAD' {endpoint}/first

Block   {nbd}

    atoll image create --data {data} disk1 --size 4G
    nbdinfo '{uri}'
    nbdcopy --progress disk.raw '{uri}'
    fio --name=try --ioengine=nbd --uri='{uri}' --rw=randwrite --bs=4k --iodepth=32 --size=256m

Keys    they exist once, in {data}/keys; keep a copy elsewhere

    atoll key backup ./atoll-keys.backup --data {data}

{console}See

    atoll status --data {data}
    atoll bench block --data {data} --image disk1 --rw randwrite

Stop    Ctrl-C here, or atoll down --data {data}
",
        frames = cluster.first_frame_modes(),
        endpoint = credentials.endpoint,
        access_key = credentials.access_key,
        tls = tls_text(&credentials),
        console = console_text(cluster, &data),
        trust = credentials
            .ca_file
            .as_ref()
            .filter(|_| credentials.endpoint.starts_with("https:"))
            .map_or_else(String::new, |file| format!(" --cacert {}", file.display())),
    );
}

/// Where the console is, if it is served.
fn console_address(cluster: &ClusterFile) -> Option<String> {
    let address = cluster.admin_listen()?.parse().ok()?;
    Some(format!("https://{}", cluster.reached(address)))
}

/// The lines about the console, each with its line feed.
fn console_text(cluster: &ClusterFile, data: &str) -> String {
    let Some(address) = console_address(cluster) else { return String::new() };
    format!(
        "Console {address}, for operators; at first there is none\n\n    atoll operator create admin --role \
         admin --data {data}\n\n"
    )
}

/// The lines about the TLS endpoint, each with its line feed.
fn tls_text(credentials: &Credentials) -> String {
    let Some(endpoint) = &credentials.tls_endpoint else { return String::new() };
    let over_tls = format!("        with TLS   {endpoint}\n");
    match &credentials.ca_file {
        Some(file) => format!("{over_tls}        trust it   export AWS_CA_BUNDLE={}\n", file.display()),
        None => over_tls,
    }
}

fn down_text(directory: &DataDir, osds: &[String]) -> String {
    format!(
        "not all is well: {} did not start; 'atoll health --data {}' says why",
        osds.join(", "),
        directory.root().display()
    )
}

/// Starts this program again in the background and waits until the cluster serves.
fn detach(arguments: &UpArguments, directory: &DataDir, join: Option<String>) -> anyhow::Result<ExitCode> {
    let is_first = !directory.has_cluster();
    directory.create()?;
    let path = directory.logs().join("supervisor.log");
    let log = atoll_files::append(&path, Access::Owner).context(path.display().to_string())?;
    let log_start = log.metadata()?.len();
    let executable = std::env::current_exe().context("cannot find this program's own file")?;
    let mut foreground = join_token::without_token(std::env::args_os().skip(1));
    foreground.retain(|argument| argument != "--detach");
    let mut command = Command::new(executable);
    command.args(foreground).env_remove(JOIN_TOKEN_VARIABLE).stdin(Stdio::null());
    if join.is_some() {
        command.args(["--join", STANDARD_INPUT]).stdin(Stdio::piped());
    }
    let mut child = std::os::unix::process::CommandExt::process_group(&mut command, 0)
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
        .context("cannot start in the background")?;
    if let (Some(token), Some(mut pipe)) = (join, child.stdin.take()) {
        pipe.write_all(token.as_bytes()).context("cannot hand the join token over")?;
    }
    let deadline = Instant::now() + DETACH_LIMIT;
    loop {
        let file = ProcessesFile::read(directory).filter(|file| file.supervisor == child.id());
        if let Some(missing) = file.as_ref().and_then(|file| file.waits_for.as_ref()) {
            print_line!("Atoll runs; process {}, log in {}", child.id(), path.display());
            print_line!("It will serve when there are {missing}.");
            return Ok(ExitCode::SUCCESS);
        }
        if let Some(file) = file.filter(|file| file.healthy) {
            print_line!("Atoll serves; process {}, log in {}", child.id(), path.display());
            if let Some(step) = overcommitted(directory, &directory.cluster()?).first() {
                print_note!("OSD_OVERCOMMITTED: {step}");
            }
            let data = shell_word(&arguments.data.data.display().to_string());
            print_line!("\n    eval \"$(atoll credentials --export --data {data})\"");
            if is_first {
                print_line!("    atoll key backup ./atoll-keys.backup --data {data}      # its keys exist once");
                if let Some(address) = console_address(&directory.cluster()?) {
                    print_line!("    atoll operator create admin --role admin --data {data}      # for {address}");
                }
            }
            if !file.osds_down.is_empty() {
                print_note!("atoll: {}", down_text(directory, &file.osds_down));
                return Ok(ExitCode::from(DEGRADED));
            }
            return Ok(ExitCode::SUCCESS);
        }
        if let Some(status) = child.try_wait()? {
            let text = std::fs::read(&path).unwrap_or_default();
            let said = String::from_utf8_lossy(text.get(log_start as usize..).unwrap_or_default()).into_owned();
            bail!("the cluster did not start ({status}):\n{}", said.trim_end());
        }
        if Instant::now() > deadline {
            bail!("the cluster is not healthy after {} s; see {}", DETACH_LIMIT.as_secs(), path.display());
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// `atoll down`.
pub fn down(data: &DataArgument) -> anyhow::Result<()> {
    let directory = DataDir::new(&data.data);
    tokio_runtime()?.block_on(stop(&directory))?;
    print_line!("stopped; all data is in {}", directory.root().display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frame_modes() {
        let choice = |scope, mode| Ok(FrameModeChoice { scope, mode });
        assert_eq!(parse_frame_mode("crc"), choice(None, FrameMode::Crc));
        assert_eq!(parse_frame_mode("unix=crc"), choice(Some(FrameScope::Unix), FrameMode::Crc));
        let of_osds = Some(FrameScope::Role(PeerRole::Osd));
        assert_eq!(parse_frame_mode("cluster=secure-128"), choice(of_osds, FrameMode::Secure128));
        for (wrong, words) in
            [("", "secure-128"), ("aes", "secure-128"), ("osd=crc", "cluster"), ("client=", "crc")]
        {
            assert!(parse_frame_mode(wrong).unwrap_err().contains(words), "{wrong}");
        }
    }

    #[test]
    fn transport_choices() {
        let choice = |role, transport| TransportChoice { role, transport };
        assert_eq!(parse_transport("tcp"), Ok(choice(None, Transport::Tcp)));
        assert_eq!(parse_transport("shm"), Ok(choice(None, Transport::SharedMemory)));
        assert_eq!(parse_transport("client=unix"), Ok(choice(Some(PeerRole::Client), Transport::Unix)));
        for (wrong, words) in [("", "unix, tcp or rdma"), ("ib", "unix, tcp or rdma"), ("unix=tcp", "cluster")] {
            assert!(parse_transport(wrong).unwrap_err().contains(words), "{wrong}");
        }
        let chosen = transports(&[choice(None, Transport::Tcp), choice(Some(PeerRole::Gateway), Transport::Unix)]);
        assert_eq!(chosen, Some(Transports::all(Transport::Tcp).with(PeerRole::Gateway, Transport::Unix)));
        assert_eq!(transports(&[]), None);
    }
}
