//! Starting and stopping a whole cluster.

use std::fs::File;
use std::io::IsTerminal;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use atoll_base::frames::FrameModes;
use atoll_base::records::{OsdUsageRecord, Redundancy};
use atoll_base::size::format_size;
use atoll_cluster::{ClusterClient, keys};
use atoll_supervisor::{Choices, ClusterFile, Credentials, DataDir, ProcessesFile, Progress, stop, supervise};

use super::daemons::log_filter;
use super::hosts::host_choices;
use super::key::transit_settings;
use super::tokio_runtime;
use crate::cli::{DataArgument, FrameModeChoice, UpArguments};

const DETACH_LIMIT: Duration = Duration::from_secs(180);

fn choices(arguments: &UpArguments) -> anyhow::Result<Choices> {
    Ok(Choices {
        osd_count: arguments.osds,
        osd_bytes: arguments.osd_size,
        s3_listen: arguments.s3.s3_listen.clone(),
        s3_tls_listen: arguments.s3.s3_tls_listen.clone(),
        tls_names: arguments.s3.tls_name.clone(),
        nbd_listen: arguments.nbd_listen.iter().map(ToString::to_string).collect(),
        failure_domain: arguments.failure_domain.map(Into::into),
        copies: arguments.copies,
        ec: arguments.ec.map(|code| Redundancy::erasure(code.data, code.parity, None, None)),
        join: arguments.join.clone(),
        frame_modes: frame_modes(&arguments.frame_mode),
        encrypt_at_rest: arguments.encrypt_at_rest,
        transit: transit_settings(&arguments.transit)?,
        ..host_choices(&arguments.etcd, &arguments.host)
    })
}

/// Those that were said, each for all roles or for one; the last word counts.
fn frame_modes(choices: &[FrameModeChoice]) -> Option<FrameModes> {
    let choose = |modes: FrameModes, choice: &FrameModeChoice| match choice.role {
        None => FrameModes::all(choice.mode),
        Some(role) => modes.with(role, choice.mode),
    };
    (!choices.is_empty()).then(|| choices.iter().fold(FrameModes::default(), choose))
}

/// `atoll up`.
pub fn up(arguments: &UpArguments) -> anyhow::Result<()> {
    // With a wrong one the daemons would end as soon as they are started.
    log_filter()?;
    let directory = DataDir::new(&arguments.data.data);
    if arguments.detach {
        return detach(arguments, &directory);
    }
    let executable = std::env::current_exe().context("cannot find this program's own file")?;
    let choices = choices(arguments)?;
    let live = LiveStatus::default();
    let show = |progress: Progress<'_>| live.show(&directory, progress);
    let runtime = tokio_runtime()?;
    let outcome = runtime.block_on(supervise(&directory, &executable, &choices, &show));
    // A health check may still be waiting on a thread; there is no need to wait for it.
    runtime.shutdown_background();
    outcome?;
    eprintln!("atoll: stopped; all data is in {}", directory.root().display());
    Ok(())
}

/// What the foreground process shows.
#[derive(Default)]
struct LiveStatus {
    usage: Arc<Mutex<String>>,
}

impl LiveStatus {
    fn show(&self, directory: &DataDir, progress: Progress<'_>) {
        let is_terminal = std::io::stderr().is_terminal();
        let clear = if is_terminal { "\r\x1b[K" } else { "" };
        match progress {
            Progress::Step(step) => eprintln!("{clear}atoll: {step}"),
            Progress::Died { name, how } => eprintln!("{clear}atoll: {name} died ({how}); restarting it"),
            Progress::Healthy(cluster) => {
                print_welcome(directory, cluster);
                self.follow_usage(cluster.clone());
            }
            Progress::Tick(processes) if is_terminal => {
                let usage = self.usage.lock().map(|text| text.clone()).unwrap_or_default();
                eprint!("{clear}{} {usage}", summary(processes));
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
    let data = directory.root().display();
    // Secrets belong on a screen, not in a log file.
    let secret_key = if std::io::stdout().is_terminal() {
        credentials.secret_key.clone()
    } else {
        format!("(see 'atoll credentials --data {data}')")
    };
    let place = if cluster.is_reachable() { " on this host" } else { "" };
    let osds = format!("{} OSDs{place}", cluster.osd_ids.len());
    let nbd = &cluster.nbd_listen[0];
    let uri = match nbd.strip_prefix("unix:") {
        Some(path) => format!("nbd+unix:///disk1?socket={path}"),
        None => format!("nbd://{nbd}/disk1"),
    };
    println!(
        "
Atoll serves: {osds}, every write on all copies before it is acknowledged,
frames {frames}; images and objects are sealed before they leave the client.

S3      {endpoint}
        access key {access_key}
        secret key {secret_key}
{tls}
    export AWS_ACCESS_KEY_ID={access_key} AWS_SECRET_ACCESS_KEY='{secret_key}' AWS_DEFAULT_REGION=us-east-1
    aws --endpoint-url {endpoint} s3 mb s3://first
    aws --endpoint-url {endpoint} s3 cp /etc/hostname s3://first/
    curl{trust} --aws-sigv4 aws:amz:us-east-1:s3 --user $AWS_ACCESS_KEY_ID:$AWS_SECRET_ACCESS_KEY \\
        -H 'x-amz-content-sha256: UNSIGNED-PAYLOAD' {endpoint}/first

Block   {nbd}

    atoll image create --data {data} disk1 --size 4G
    nbdinfo '{uri}'
    nbdcopy --progress disk.raw '{uri}'
    fio --name=try --ioengine=nbd --uri='{uri}' --rw=randwrite --bs=4k --iodepth=32 --size=256m

See     atoll status --data {data}; atoll bench block --data {data} --image disk1 --rw randwrite
Stop    Ctrl-C here, or atoll down --data {data}
",
        frames = cluster.first_frame_modes(),
        endpoint = credentials.endpoint,
        access_key = credentials.access_key,
        tls = tls_text(&credentials),
        trust = credentials
            .ca_file
            .as_ref()
            .filter(|_| credentials.endpoint.starts_with("https:"))
            .map_or_else(String::new, |file| format!(" --cacert {}", file.display())),
    );
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

/// Starts this program again in the background and waits until the cluster serves.
fn detach(arguments: &UpArguments, directory: &DataDir) -> anyhow::Result<()> {
    directory.create()?;
    let path = directory.logs().join("supervisor.log");
    let log = File::options().create(true).append(true).open(&path).context(path.display().to_string())?;
    let log_start = log.metadata()?.len();
    let executable = std::env::current_exe().context("cannot find this program's own file")?;
    let foreground = std::env::args_os().skip(1).filter(|argument| argument != "--detach");
    let mut child = std::os::unix::process::CommandExt::process_group(&mut Command::new(executable), 0)
        .args(foreground)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
        .context("cannot start in the background")?;
    let deadline = Instant::now() + DETACH_LIMIT;
    loop {
        let file = ProcessesFile::read(directory).filter(|file| file.supervisor == child.id());
        if let Some(missing) = file.as_ref().and_then(|file| file.waits_for.as_ref()) {
            println!("Atoll runs; process {}, log in {}", child.id(), path.display());
            println!("It will serve when there are {missing}.");
            return Ok(());
        }
        if file.is_some_and(|file| file.healthy) {
            println!("Atoll serves; process {}, log in {}", child.id(), path.display());
            println!("Credentials: atoll credentials --data {}", arguments.data.data.display());
            return Ok(());
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
    println!("stopped; all data is in {}", directory.root().display());
    Ok(())
}
