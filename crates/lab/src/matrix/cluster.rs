//! Clusters that a matrix starts, and stops whatever happens.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};

use atoll_bench::Processes;
use serde::Deserialize;

use super::command::{Atoll, free_port, run, run_json};
use super::definition::Cluster;
use super::record::Started;
use crate::error::LabError;

/// Facts that a driver reports about the cluster that it started.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Said {
    pub title: String,
    pub version: String,
    pub protections: String,
    pub servers: Processes,
    pub s3: Option<S3>,
    pub fio_rbd: Option<FioRbd>,
    pub fio_file: Option<FioFile>,
    pub atoll: Option<AtollData>,
    pub clients: Option<Clients>,
}

/// An S3 endpoint.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct S3 {
    pub endpoint: String,
    pub access_key: String,
    pub secret_key: String,
    pub ca_file: Option<PathBuf>,
}

/// RBD images, through fio.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct FioRbd {
    pub command: Vec<String>,
    pub pool: String,
    pub client: String,
    pub conf: String,
}

/// A plain file, through fio; it is filled already.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct FioFile {
    pub path: PathBuf,
    pub size_bytes: u64,
}

/// A data directory of Atoll.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct AtollData {
    pub data: PathBuf,
    /// Another release's program, whose clients go with its servers.
    pub binary: Option<PathBuf>,
}

/// Prefix of client commands, such as `ip netns exec client`.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Clients {
    pub wrap: Vec<String>,
}

/// A cluster that runs.
pub(super) struct Running {
    pub name: String,
    pub said: Said,
    pub started: Started,
    /// The program whose commands work on it.
    pub atoll: Atoll,
    /// Where its NBD server listens.
    pub nbd_port: u16,
}

/// Started processes that must be stopped, also when a signal ends the command.
#[derive(Clone, Default)]
pub struct Stops(Arc<Mutex<Vec<Stop>>>);

struct Stop {
    /// Ends it.
    commands: Vec<Command>,
    /// Is removed then.
    directory: Option<PathBuf>,
}

impl Stops {
    pub(super) fn add(&self, commands: Vec<Command>, directory: Option<PathBuf>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(Stop { commands, directory });
    }

    /// Stops everything, the newest first; returns the failures with their reasons.
    pub fn stop_all(&self) -> Vec<LabError> {
        let mut stops = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut errors = Vec::new();
        while let Some(stop) = stops.pop() {
            errors.extend(stop.commands.into_iter().filter_map(|command| run(command).err()));
            let Some(directory) = stop.directory.filter(|directory| directory.exists()) else { continue };
            let removed = std::fs::remove_dir_all(&directory);
            errors
                .extend(removed.err().map(|error| LabError::File { path: directory, detail: error.to_string() }));
        }
        errors
    }
}

/// Starts a cluster in a directory below `directory`.
pub(super) fn start(
    cluster: &Cluster,
    atoll: &Atoll,
    directory: &Path,
    transit: &[String],
    stops: &Stops,
) -> Result<Running, LabError> {
    let directory = directory.join(&cluster.name);
    match &cluster.driver {
        Some(driver) => drive(cluster, driver, atoll, directory, stops),
        None => start_atoll(cluster, atoll, directory, transit, stops),
    }
}

fn drive(
    cluster: &Cluster,
    driver: &Path,
    atoll: &Atoll,
    directory: PathBuf,
    stops: &Stops,
) -> Result<Running, LabError> {
    let driver = driver.canonicalize().map_err(|error| LabError::File {
        path: driver.into(),
        detail: format!(
            "{error}; this driver of cluster '{}' is in Atoll's repository: run the command there",
            cluster.name
        ),
    })?;
    let command = |word: &str| {
        let mut command = Command::new(&driver);
        command.arg(word).arg("--dir").arg(&directory);
        command
    };
    stops.add(vec![command("down")], None);
    let mut up = command("up");
    up.args(&cluster.options).envs(&cluster.environment);
    let said: Said = run_json(up)?;
    let binary = said.atoll.as_ref().and_then(|atoll| atoll.binary.clone());
    let atoll = binary.map_or_else(|| atoll.clone(), Atoll);
    if let Some(found) = &said.atoll {
        make_pools(cluster, &atoll, &found.data)?;
    }
    let started = Started {
        cluster: cluster.name.clone(),
        version: format!("{}, {}", said.title, said.version),
        how: format!("{} {}", driver.display(), cluster.options.join(" ")),
    };
    Ok(Running { name: cluster.name.clone(), said, started, atoll, nbd_port: 0 })
}

fn make_pools(cluster: &Cluster, atoll: &Atoll, data: &Path) -> Result<(), LabError> {
    for pool in &cluster.pools {
        let words: Vec<&str> = ["pool", "create"].into_iter().chain(pool.iter().map(String::as_str)).collect();
        run(atoll.command(&words, data))?;
    }
    Ok(())
}

fn start_atoll(
    cluster: &Cluster,
    atoll: &Atoll,
    directory: PathBuf,
    transit: &[String],
    stops: &Stops,
) -> Result<Running, LabError> {
    let nbd_port = free_port()?;
    let listen = |port: u16| format!("127.0.0.1:{port}");
    let mut up = atoll.command(&["up", "--detach"], &directory);
    up.args(["--s3-listen", &listen(free_port()?), "--s3-tls-listen", &listen(free_port()?)]);
    // A program to compare with may be older than the option.
    up.env("ATOLL_ADMIN_LISTEN", listen(free_port()?));
    up.args([
        "--nbd-listen",
        &listen(nbd_port),
        "--nbd-listen",
        &format!("unix:{}", socket(&directory).display()),
    ]);
    up.args(&cluster.up).envs(&cluster.environment);
    if cluster.transit {
        up.args(transit);
    }
    stops.add(vec![atoll.command(&["down"], &directory)], Some(directory.clone()));
    run(up)?;
    make_pools(cluster, atoll, &directory)?;
    let version = format!("Atoll {}", env!("CARGO_PKG_VERSION"));
    let environment: String = cluster.environment.iter().map(|(name, value)| format!("{name}={value} ")).collect();
    let transit = if cluster.transit { " --kms-address ..." } else { "" };
    let how = format!("{environment}atoll up {}{transit}", cluster.up.join(" "));
    let said = Said { atoll: Some(AtollData { data: directory.clone(), binary: None }), ..Said::default() };
    let started = Started { cluster: cluster.name.clone(), version, how: how.trim().to_owned() };
    Ok(Running { name: cluster.name.clone(), said, started, atoll: atoll.clone(), nbd_port })
}

/// Where the NBD server of a cluster that was started here listens.
pub(super) fn socket(directory: &Path) -> PathBuf {
    directory.join("nbd.sock")
}
