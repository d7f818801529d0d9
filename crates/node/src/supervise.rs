//! Starting, watching, restarting and stopping the processes.

use atoll_files::{Access, open_or_make};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use atoll_cluster::{ClusterClient, ClusterError, keys};
use atoll_keys::KeyRing;
use atoll_tls::{Tls, TlsSettings};
use atoll_types::records::OsdUpRecord;
use tokio::process::Child;
use tokio::signal::unix::{SignalKind, signal};

use crate::backup::forget_outdated_backup;
use crate::bootstrap::{add_what_is_new, plan, write_plan, write_records};
use crate::children::Children;
use crate::choices::Choices;
use crate::data_dir::{ClusterFile, DataDir};
use crate::device_space::overcommitted;
use crate::devices::make_devices;
use crate::error::NodeError;
use crate::health::{wait_for_osds, wait_until_healthy};
use crate::host_login::finish_rotation;
use crate::join::{JoinToken, join, restore_credentials};
use crate::log_files::{last_lines, set_large_logs_aside};
use crate::managed::{Managed, ask_to_end};
use crate::members::{forget_gone_osds, osds_without_device, register_osds, reserve_osds};
use crate::pools::{has_pools, make_pools, refuse_other_code};
use crate::processes::ProcessesFile;
use crate::progress::Progress;
use crate::secrets::check_secrets;
use crate::signing::remember_signed;
use crate::state_access::check_identity;
use crate::tls_identity::{authority_file, ensure_identity};

const START_LIMIT: Duration = Duration::from_secs(120);
const POLL_PAUSE: Duration = Duration::from_millis(100);
const LOCK_PATIENCE: Duration = Duration::from_secs(1);
const ADDRESS_PATIENCE: Duration = Duration::from_secs(3);
/// How long an OSD may take until it is up, while the others serve.
const OSD_PATIENCE: Duration = Duration::from_secs(15);
/// Ends of an OSD after which it counts as unable to start.
const STARTS_MAX: u32 = 3;
/// The embedded server of cluster state, by its name as a process.
const STATE_SERVER: &str = "cluster-state";
/// Exit code of the server of cluster state when it cannot use its files, and never will.
pub const STATE_FILES_CODE: u8 = 4;
/// Ends of a server of cluster state after which it counts as unable to start. An earlier one may need a moment to
/// end.
const STATE_STARTS_MAX: u32 = 5;
const STOP_LIMIT: Duration = Duration::from_secs(8);
/// How often to look for hosts that have joined.
const LOOK_PAUSE: Duration = Duration::from_secs(1);
/// How often to look whether a certificate ends soon.
const RENEWAL_PAUSE: Duration = Duration::from_secs(3_600);

struct Supervisor<'a> {
    directory: &'a DataDir,
    children: Children<'a>,
    healthy: bool,
    waits_for: Option<String>,
    osds_down: Vec<String>,
    written: ProcessesFile,
}

/// Runs the cluster of a data directory until a signal asks to stop. `executable` is the program
/// with the subcommands of the daemons.
pub async fn supervise(
    directory: &DataDir,
    executable: &Path,
    choices: &Choices,
    show: &dyn Fn(Progress<'_>),
) -> Result<(), NodeError> {
    directory.create()?;
    let _lock = lock(directory).await?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(NodeError::file("signals"))?;
    let mut terminate = signal(SignalKind::terminate()).map_err(NodeError::file("signals"))?;
    if let Some(token) = &choices.join {
        join(directory, &JoinToken::from_text(token)?, choices).await?;
    }
    let mut cluster = plan(directory, choices)?;
    refuse_taken_addresses(&cluster).await?;
    write_plan(directory, &mut cluster, choices)?;
    if cluster.has_tls_servers() {
        keep_identity(directory, &cluster, show)?;
        if cluster.s3_tls_endpoint().is_some() || cluster.admin_listen().is_some() {
            try_identity(directory)?;
        }
    }
    let mut supervisor = Supervisor {
        directory,
        children: Children::new(directory, executable),
        healthy: false,
        waits_for: None,
        osds_down: Vec::new(),
        written: ProcessesFile::default(),
    };
    let outcome = tokio::select! {
        outcome = supervisor.run(&mut cluster, choices, show) => outcome,
        _ = interrupt.recv() => Ok(()),
        _ = terminate.recv() => Ok(()),
    };
    show(Progress::Step("stopping"));
    supervisor.stop_all().await;
    outcome
}

/// Makes or renews the certificate of this host's servers; the gateway notices that by itself.
fn keep_identity(
    directory: &DataDir,
    cluster: &ClusterFile,
    show: &dyn Fn(Progress<'_>),
) -> Result<(), NodeError> {
    if let Some(trouble) = ensure_identity(directory, cluster)? {
        show(Progress::Step(&trouble));
    }
    Ok(())
}

/// Loads an operator's certificate, which may be broken: an error now is better than one in the gateway's log.
fn try_identity(directory: &DataDir) -> Result<(), NodeError> {
    let settings = TlsSettings { certificates: directory.tls(), client_authority: None, only_version_13: false };
    let loaded = Tls::load(settings);
    loaded.map(drop).map_err(|error| NodeError::Invalid(format!("S3 cannot be served over TLS: {error}")))
}

/// An address that another program listens on would look as if the cluster served there.
async fn refuse_taken_addresses(cluster: &ClusterFile) -> Result<(), NodeError> {
    let admin = cluster.admin_listen();
    let admin = admin.iter().map(|address| (address.as_str(), "--admin-listen IP:PORT, or 'off'"));
    let nbd = cluster.nbd_listen.iter().map(|address| (address.as_str(), "--nbd-listen IP:PORT"));
    let s3 = cluster.s3_listeners().map(|(scheme, address)| match scheme {
        "https" => (address, "--s3-tls-listen IP:PORT, or serve S3 without TLS with --s3-tls-listen off"),
        _ => (address, "--s3-listen IP:PORT, or serve S3 over TLS only with --s3-listen off"),
    });
    let nvme = cluster.nvme_listen.iter().map(|address| (address.as_str(), "--nvme-listen IP:PORT, or 'off'"));
    let clients = nbd.chain(nvme).chain(s3).filter(|_| cluster.role.has_clients());
    for (address, option) in admin.chain(clients).filter(|(address, _)| !address.starts_with("unix:")) {
        let deadline = Instant::now() + ADDRESS_PATIENCE;
        while let Err(error) = std::net::TcpListener::bind(address) {
            // Processes of a supervisor that was just killed may need a moment to end.
            if Instant::now() > deadline {
                return Err(NodeError::Invalid(format!(
                    "cannot listen on {address} ({error}); end the program that does, or choose another address with \
                     {option}"
                )));
            }
            tokio::time::sleep(POLL_PAUSE).await;
        }
    }
    Ok(())
}

async fn lock(directory: &DataDir) -> Result<File, NodeError> {
    let path = directory.lock_file();
    let file = open_or_make(&path, Access::Owner);
    let file = file.map_err(NodeError::file(&path))?;
    let deadline = Instant::now() + LOCK_PATIENCE;
    while file.try_lock().is_err() {
        // A supervisor that was just killed holds the lock until it has ended.
        if Instant::now() > deadline {
            let process_id = ProcessesFile::read(directory).map_or(0, |file| file.supervisor);
            return Err(NodeError::Running { path: directory.root().into(), process_id });
        }
        tokio::time::sleep(POLL_PAUSE).await;
    }
    Ok(file)
}

impl Supervisor<'_> {
    async fn run(
        &mut self,
        cluster: &mut ClusterFile,
        choices: &Choices,
        show: &dyn Fn(Progress<'_>),
    ) -> Result<(), NodeError> {
        self.write_file();
        if cluster.admin_listen().is_some() {
            self.children.add("admin", &["admin", "run"]);
        }
        if cluster.state_listen.is_some() {
            self.children.add(STATE_SERVER, &["state", "run"]);
        }
        show(Progress::Step("waiting for cluster state"));
        if cluster.state_listen.is_none() && self.directory.rotating_file().exists() {
            finish_rotation(self.directory, cluster).await?;
        }
        let state = self.connect_state(cluster, show).await?;
        for said in check_secrets(self.directory, cluster, choices, &state).await? {
            show(Progress::Step(&said));
        }
        // A command that made a key or a backup may have been cut short.
        forget_outdated_backup(self.directory, cluster, &state).await?;
        if let Err(error) = remember_signed(self.directory, cluster, &state).await {
            show(Progress::Step(&error.to_string()));
        }
        show(Progress::Step("preparing devices and records"));
        forget_gone_osds(cluster, &state).await?;
        self.prepare_osds(cluster, choices, &state).await?;
        for found in overcommitted(self.directory, cluster) {
            show(Progress::Step(&format!("OSD_OVERCOMMITTED: {found}")));
        }
        if let Some(ec) = choices.ec.filter(|_| cluster.first_pools.is_none()) {
            refuse_other_code(&state, ec).await?;
        }
        if cluster.role.has_clients() && !self.directory.has_credentials() {
            let service = KeyRing::open(&self.directory.key_service_file())?;
            restore_credentials(self.directory, &state, cluster, &service).await?;
        }
        if self.directory.has_credentials() {
            self.directory.change_credentials(|credentials| {
                credentials.endpoint = cluster.s3_endpoint();
                credentials.tls_endpoint = cluster.s3_tls_endpoint();
                let authority = credentials.tls_endpoint.as_ref().and_then(|_| authority_file(self.directory));
                credentials.ca_file = authority;
            })?;
        }
        self.children.follow_members();
        self.wait_for_pools(cluster, &state, show).await?;
        drop(state);
        if cluster.role.has_clients() {
            self.children.add("gateway", &["gateway", "run"]);
            if cluster.role.is_admin() {
                self.children.add("nbd", &["nbd", "run"]);
            }
            if cluster.role.is_admin() && !cluster.nvme_listen.is_empty() {
                self.children.add("nvme", &["nvme", "run"]);
            }
            show(Progress::Step("waiting until all PGs serve"));
        } else {
            show(Progress::Step("waiting until the OSDs of this host are up"));
        }
        while !self.wait_until_healthy(cluster, show).await? {}
        show(Progress::Healthy(cluster, &self.osds_down));
        let (mut last_tick, mut last_renewal) = (Instant::now(), Instant::now());
        let mut log_trouble: Option<String> = None;
        loop {
            self.watch(show);
            if cluster.has_tls_servers() && last_renewal.elapsed() >= RENEWAL_PAUSE {
                last_renewal = Instant::now();
                if let Err(error) = keep_identity(self.directory, cluster, show) {
                    show(Progress::Step(&error.to_string()));
                }
            }
            if last_tick.elapsed() >= Duration::from_secs(1) {
                last_tick = Instant::now();
                let aside = set_large_logs_aside(self.directory).err().map(|error| error.to_string());
                if let Some(trouble) = aside.as_ref().filter(|_| aside != log_trouble) {
                    show(Progress::Step(&format!("a large log cannot be set aside: {trouble}")));
                }
                log_trouble = aside;
                self.children.follow_members();
                show(Progress::Tick(&self.written));
            }
            tokio::time::sleep(POLL_PAUSE).await;
        }
    }

    /// Everything that this host's OSDs need to be started.
    async fn prepare_osds(
        &mut self,
        cluster: &mut ClusterFile,
        choices: &Choices,
        state: &ClusterClient,
    ) -> Result<(), NodeError> {
        let has_joined = cluster.joined_by.is_some();
        let _alone = self.directory.lock_devices()?;
        if has_joined {
            check_identity(cluster, state).await?;
            let wanted = choices.osd_count.map_or(0, |count| count as usize);
            let missing = wanted.saturating_sub(cluster.osd_ids.len());
            if missing > 0 {
                let reserved = reserve_osds(self.directory, cluster, state, missing).await?;
                cluster.osd_ids.extend(&reserved);
                self.directory.change_cluster(|file| {
                    file.osd_ids.extend(&reserved);
                    Ok(())
                })?;
            }
        }
        let (for_devices, settings) = (self.directory.clone(), cluster.clone());
        let without = osds_without_device(cluster, state, &choices.new_devices).await?;
        let made = tokio::task::spawn_blocking(move || make_devices(&for_devices, &settings, &without)).await;
        made.expect("making devices does not panic")?;
        if has_joined {
            register_osds(self.directory, cluster, state).await?;
        } else {
            write_records(self.directory, cluster, state).await?;
        }
        add_what_is_new(self.directory, cluster, state).await
    }

    /// Makes the pools on the host that made the cluster, as soon as there are hosts enough; the
    /// others wait for it.
    async fn wait_for_pools(
        &mut self,
        cluster: &mut ClusterFile,
        state: &ClusterClient,
        show: &dyn Fn(Progress<'_>),
    ) -> Result<(), NodeError> {
        if cluster.joined_by.is_none() && cluster.first_pools.is_none() {
            return Ok(());
        }
        let mut last_look: Option<Instant> = None;
        loop {
            self.watch(show);
            if last_look.is_none_or(|last| last.elapsed() >= LOOK_PAUSE) {
                last_look = Some(Instant::now());
                self.children.follow_members();
                let missing = match (&cluster.first_pools, cluster.joined_by.is_some()) {
                    (Some(wanted), false) => make_pools(state, *wanted).await,
                    _ => has_pools(state).await.map(|has| (!has).then(|| "the first pools".to_owned())),
                };
                match missing {
                    Ok(None) => break,
                    Ok(missing) if missing != self.waits_for => {
                        let text = missing.clone().unwrap_or_default();
                        show(Progress::Step(&format!("waiting for {text}")));
                        self.waits_for = missing;
                        self.write_file();
                    }
                    Ok(_) => {}
                    Err(error) => show(Progress::Step(&format!("cannot look for pools: {error}"))),
                }
            }
            tokio::time::sleep(POLL_PAUSE).await;
        }
        self.waits_for = None;
        if cluster.first_pools.take().is_some() {
            let noted = self.directory.change_cluster(|file| {
                file.first_pools = None;
                Ok(())
            });
            if let Err(error) = noted {
                // The next start finds them made.
                show(Progress::Step(&format!("it cannot be noted that the first pools are made: {error}")));
            }
        }
        Ok(())
    }

    /// Refuses to wait for a server of cluster state that cannot start: its log says why.
    fn check_state_server(&self) -> Result<(), NodeError> {
        let Some(server) = self.children.get(STATE_SERVER) else { return Ok(()) };
        let cannot_open = server.ended.and_then(|status| status.code()) == Some(STATE_FILES_CODE.into());
        if !cannot_open && server.restarts < STATE_STARTS_MAX {
            return Ok(());
        }
        let said = last_lines(self.directory, STATE_SERVER);
        Err(NodeError::StateEnds { log: self.directory.log_file(STATE_SERVER), said })
    }

    async fn connect_state(
        &mut self,
        cluster: &ClusterFile,
        show: &dyn Fn(Progress<'_>),
    ) -> Result<ClusterClient, NodeError> {
        let deadline = Instant::now() + START_LIMIT;
        loop {
            self.watch(show);
            self.check_state_server()?;
            match ClusterClient::connect(&self.directory.connect_options(cluster)).await {
                Ok(client) => return Ok(client),
                // Waiting does not mend these.
                Err(
                    error @ (ClusterError::Tls { .. }
                    | ClusterError::Options { .. }
                    | ClusterError::Authentication { .. }),
                ) => {
                    return Err(error.into());
                }
                Err(error) if Instant::now() > deadline => return Err(error.into()),
                Err(_) => tokio::time::sleep(POLL_PAUSE).await,
            }
        }
    }

    async fn wait_until_healthy(
        &mut self,
        cluster: &ClusterFile,
        show: &dyn Fn(Progress<'_>),
    ) -> Result<bool, NodeError> {
        let (directory, settings) = (self.directory.clone(), cluster.clone());
        let mut check = if cluster.role.has_clients() {
            tokio::task::spawn_blocking(move || wait_until_healthy(&directory, &settings, START_LIMIT))
        } else {
            tokio::spawn(async move { wait_for_osds(&settings, START_LIMIT).await })
        };
        let result = loop {
            tokio::select! {
                result = &mut check => break result.expect("the check does not panic"),
                () = tokio::time::sleep(POLL_PAUSE) => self.watch(show),
            }
        };
        if let Err(detail) = result {
            // The backfill of a replaced device may take long. The cluster stays up and goes on.
            let logs = self.directory.logs();
            let problem = NodeError::NotHealthy { seconds: START_LIMIT.as_secs(), detail, logs };
            show(Progress::Step(&format!("{problem}; still waiting")));
            return Ok(false);
        }
        self.osds_down = self.wait_for_own_osds(cluster, show).await?;
        self.healthy = true;
        self.write_file();
        Ok(true)
    }

    /// Waits until each OSD of this host is up or has shown that it cannot start; returns those that are not up.
    /// Announcements of an earlier process do not count.
    async fn wait_for_own_osds(
        &mut self,
        cluster: &ClusterFile,
        show: &dyn Fn(Progress<'_>),
    ) -> Result<Vec<String>, NodeError> {
        let deadline = Instant::now() + OSD_PATIENCE;
        loop {
            self.watch(show);
            let announced = own_osds_up(cluster).await.unwrap_or_default();
            let is_up = |managed: &&Managed| {
                let pid = managed.child.as_ref().and_then(Child::id);
                pid.is_some_and(|pid| announced.contains(&(managed.name.clone(), pid)))
            };
            let down = self.children.osds().filter(|managed| !is_up(managed));
            let (hopeless, starting): (Vec<_>, Vec<_>) = down.partition(|managed| managed.restarts >= STARTS_MAX);
            if starting.is_empty() || Instant::now() > deadline {
                return Ok(hopeless.into_iter().chain(starting).map(|managed| managed.name.clone()).collect());
            }
            tokio::time::sleep(POLL_PAUSE).await;
        }
    }

    /// Watches the processes, and writes changes down.
    fn watch(&mut self, show: &dyn Fn(Progress<'_>)) {
        self.children.watch(show);
        self.write_file();
    }

    fn write_file(&mut self) {
        let file = ProcessesFile {
            supervisor: std::process::id(),
            healthy: self.healthy,
            waits_for: self.waits_for.clone(),
            osds_down: self.osds_down.clone(),
            children: self.children.statuses(),
        };
        if file == self.written {
            return;
        }
        match file.write(self.directory) {
            Ok(()) => self.written = file,
            // The cluster goes on without the file; tools that read it see an old state.
            Err(error) => tracing::warn!("{error}"),
        }
    }

    async fn stop_all(&mut self) {
        self.children.stop().await;
        // Without its lock the file means nothing; removing it is tidiness.
        let _ = std::fs::remove_file(self.directory.processes_file());
    }
}

/// The OSDs that are up, with their process ids.
async fn own_osds_up(cluster: &ClusterFile) -> Result<Vec<(String, u32)>, ClusterError> {
    let state = ClusterClient::connect(&cluster.connect_options()).await?;
    let up = state.list::<OsdUpRecord>(keys::OSD_UP).await?.entries;
    Ok(up.into_iter().map(|(_, record, _)| (record.id.to_string(), record.process_id)).collect())
}

/// Stops the cluster of a data directory and waits until it has stopped.
pub async fn stop(directory: &DataDir) -> Result<(), NodeError> {
    directory.cluster()?;
    let Some(file) = ProcessesFile::running(directory) else {
        return Err(NodeError::NotRunning { path: directory.root().into() });
    };
    let supervisor = match Process::open(file.supervisor) {
        Ok(supervisor) => supervisor,
        // It has ended in this moment.
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error()) => return Ok(()),
        Err(error) => {
            return Err(NodeError::Invalid(format!("cannot watch process {}: {error}", file.supervisor)));
        }
    };
    ask_to_end(file.supervisor);
    // The lock and the list of processes are gone a moment before the process is.
    match supervisor.ends_within(4 * STOP_LIMIT).await {
        Ok(true) => Ok(()),
        Ok(false) => Err(NodeError::Invalid(format!(
            "the supervisor (process {}) has not stopped; see {}",
            file.supervisor,
            directory.logs().display()
        ))),
        Err(error) => Err(NodeError::Invalid(format!("cannot watch process {}: {error}", file.supervisor))),
    }
}

/// A process that may be waited for without being its parent.
#[derive(Clone)]
struct Process(Arc<OwnedFd>);

impl Process {
    fn open(pid: u32) -> std::io::Result<Self> {
        let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
        let pid = pid.ok_or(rustix::io::Errno::SRCH)?;
        let process = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty())?;
        Ok(Self(Arc::new(process)))
    }

    /// Returns true if the process has ended, at the latest when `limit` is over.
    async fn ends_within(&self, limit: Duration) -> std::io::Result<bool> {
        let process = Self::clone(self);
        tokio::task::spawn_blocking(move || process.wait(limit)).await?
    }

    /// A process's descriptor can be read once it has ended (pidfd_open(2)).
    fn wait(&self, limit: Duration) -> std::io::Result<bool> {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let limit = Timespec::try_from(limit).map_err(|_| rustix::io::Errno::INVAL)?;
        let mut watched = [PollFd::new(&*self.0, PollFlags::IN)];
        Ok(rustix::io::retry_on_intr(|| poll(&mut watched, Some(&limit)))? > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_process_is_waited_for_until_it_has_ended() {
        let mut child = tokio::process::Command::new("sleep").arg("60").spawn().expect("sleep runs");
        let process = Process::open(child.id().expect("it runs")).expect("it can be watched");
        let has_ended = process.ends_within(Duration::from_millis(50)).await.expect("it is watched");
        assert!(!has_ended);
        child.start_kill().expect("it can be killed");
        let has_ended = process.ends_within(Duration::from_secs(60)).await.expect("it is watched");
        assert!(has_ended);
        child.wait().await.expect("it is gone");
    }
}
