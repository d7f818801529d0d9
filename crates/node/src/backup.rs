//! A copy of all that exists once on a host and is no data: `atoll key backup` and `atoll key restore`. Format in
//! docs/reference/formats.md, "Backup of keys".

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};

use atoll_cluster::{ClusterClient, ClusterError, keys};
use atoll_coordinator::unix_ms;
use atoll_files::{Access, create_directories, is_beside};
use atoll_keys::KeyFile;
use atoll_types::records::{KeyBackupRecord, RECORD_FORMAT};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::backup_seal::{BackupOpener, BackupSeal, open, seal};
use crate::data_dir::{ClusterFile, DataDir};
use crate::error::NodeError;
use crate::json_files::{create_missing, parse};
use crate::processes::ProcessesFile;

/// The key service's file, by its name in a backup.
const KEY_FILE: &str = "keys/kms.json";
/// Others may read files with these bits.
const PUBLIC: u32 = 0o044;

#[derive(Serialize, Deserialize)]
struct Backup {
    format: u32,
    cluster_id: String,
    host: String,
    made_unix_ms: u64,
    /// By their names in the data directory.
    files: BTreeMap<String, BackupFile>,
}

#[derive(Serialize, Deserialize)]
struct BackupFile {
    is_public: bool,
    text: String,
}

/// Content of a new backup.
#[derive(Clone, Debug)]
pub struct MadeBackup {
    /// Number of files.
    pub files: usize,
    /// Secrets of the key service in it; see [`KeyFile::holds`].
    holds: BTreeSet<String>,
}

/// Writes a backup of a data directory's secrets and settings to a new file that only its owner may read.
pub fn back_up(
    directory: &DataDir,
    cluster: &ClusterFile,
    to: &Path,
    protection: &BackupSeal,
) -> Result<MadeBackup, NodeError> {
    let mut files = BTreeMap::new();
    for path in backed_up(directory)? {
        let name = path.strip_prefix(directory.root()).expect("it is in the directory");
        let name = name.to_string_lossy().into_owned();
        let text = fs::read_to_string(&path).map_err(NodeError::file(&path))?;
        let mode = fs::metadata(&path).map_err(NodeError::file(&path))?.permissions().mode();
        files.insert(name, BackupFile { is_public: mode & PUBLIC != 0, text });
    }
    let of_service = files.get(KEY_FILE).map(|file| KeyFile::from_text(&directory.key_service_file(), &file.text));
    let holds = of_service.transpose()?.map(|file| file.holds()).unwrap_or_default();
    let made = MadeBackup { files: files.len(), holds };
    let backup = Backup {
        format: RECORD_FORMAT,
        cluster_id: cluster.cluster_id.clone(),
        host: cluster.host_name(),
        made_unix_ms: unix_ms(),
        files,
    };
    let text = Zeroizing::new(serde_json::to_string_pretty(&backup).expect("a backup is plain JSON"));
    let sealed = seal(text.as_bytes(), protection)?;
    atoll_files::create(to, &sealed, Access::Owner).map_err(NodeError::file(to))?;
    Ok(made)
}

/// Notes in cluster state the content of this host's backup. False if the host has more by now: then it counts for
/// nothing.
pub async fn note_backup(
    directory: &DataDir,
    cluster: &ClusterFile,
    state: &ClusterClient,
    made: &MadeBackup,
) -> Result<bool, NodeError> {
    let host = cluster.host_name();
    let holds = made.holds.clone();
    let record = KeyBackupRecord { format: RECORD_FORMAT, made_unix_ms: unix_ms(), holds };
    state.put(&keys::key_backup(&host), &record).await?;
    // Who makes a key changes the file first, and then forgets backups without it. So this or that sees it.
    Ok(!forget_outdated_backup(directory, cluster, state).await?)
}

/// Forgets the backup of this host if it lacks a key that the host has. Says whether it did.
pub(crate) async fn forget_outdated_backup(
    directory: &DataDir,
    cluster: &ClusterFile,
    state: &ClusterClient,
) -> Result<bool, NodeError> {
    let path = directory.key_service_file();
    let needed = if path.exists() { KeyFile::read(&path)?.holds() } else { BTreeSet::new() };
    let key = keys::key_backup(&cluster.host_name());
    let Some((record, revision)) = state.get::<KeyBackupRecord>(&key).await? else { return Ok(true) };
    if record.holds.is_superset(&needed) {
        return Ok(false);
    }
    match state.delete_if(&key, revision).await {
        // Another command has made a newer one, or forgotten this.
        Ok(_) | Err(ClusterError::Conflict { .. }) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

fn backed_up(directory: &DataDir) -> Result<Vec<PathBuf>, NodeError> {
    let mut paths = vec![directory.cluster_file(), directory.credentials_file()];
    for folder in [directory.keys(), directory.tls()] {
        let entries = fs::read_dir(&folder).map_err(NodeError::file(&folder))?;
        paths.extend(entries.flatten().map(|entry| entry.path()));
    }
    paths.extend(directory.prepared_osds().into_iter().map(|osd| directory.at_rest_file(osd)));
    // What is beside a file, such as the one before, is no secret of its own.
    paths.retain(|path| path.is_file() && !is_beside(path));
    Ok(paths)
}

/// Restores the missing files of a data directory from a backup; existing files stay. Returns the names of the
/// files.
pub fn restore(directory: &DataDir, from: &Path, opener: &BackupOpener) -> Result<Vec<String>, NodeError> {
    let text = open(from, fs::read(from).map_err(NodeError::file(from))?, opener)?;
    let backup: Backup = parse(from, &text)?;
    if ProcessesFile::running(directory).is_some() {
        return Err(NodeError::Invalid(format!(
            "the cluster in {} is running; stop it first ('atoll down')",
            directory.root().display()
        )));
    }
    if directory.has_cluster() && directory.cluster()?.cluster_id != backup.cluster_id {
        return Err(NodeError::Invalid(format!(
            "{} is a backup of another cluster, {}, of its host '{}'",
            from.display(),
            backup.cluster_id,
            backup.host
        )));
    }
    if let Some(name) = backup.files.keys().find(|name| !may_be_restored(name)) {
        let detail = format!("it has a file '{name}', which is no part of a backup");
        return Err(NodeError::Malformed { path: from.into(), detail });
    }
    directory.create()?;
    let mut restored = Vec::new();
    // The file that makes a directory a cluster's comes last.
    let last = |name: &&String| name.as_str() == "cluster.json";
    let names = backup.files.keys().filter(|name| !last(name)).chain(backup.files.keys().filter(last));
    for name in names {
        let (path, file) = (directory.root().join(name), &backup.files[name]);
        let folder = path.parent().unwrap_or(directory.root());
        create_directories(folder).map_err(NodeError::file(folder))?;
        let access = if file.is_public { Access::Everybody } else { Access::Owner };
        if create_missing(&path, file.text.as_bytes(), access)? {
            restored.push(name.clone());
        }
    }
    Ok(restored)
}

/// A name that a backup can have: nothing outside the data directory, and no device.
fn may_be_restored(name: &str) -> bool {
    let parts: Option<Vec<&str>> = Path::new(name)
        .components()
        .map(|part| match part {
            Component::Normal(part) => part.to_str(),
            _ => None,
        })
        .collect();
    match parts.as_deref() {
        Some(["cluster.json" | "credentials.json"]) => true,
        Some(["keys" | "tls", _]) => true,
        Some([osd, "at-rest.json"]) => {
            osd.strip_prefix("osd-").is_some_and(|number| number.parse::<u32>().is_ok())
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data_dir::Credentials;
    use atoll_cluster::EmbeddedServer;
    use atoll_keys::{DEFAULT_KEY, KeyService, LocalKeys};

    /// A backup is made, `then` happens, and the backup is noted. Says whether it counts.
    async fn counts(then: impl AsyncFnOnce(&DataDir, &ClusterClient)) -> bool {
        let temporary = tempfile::tempdir().unwrap();
        let directory = DataDir::new(&temporary.path().join("data"));
        directory.create().unwrap();
        directory.make_key_service(None).unwrap();
        let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let server = EmbeddedServer::start(server, &directory.state(), None).await.unwrap();
        let text = format!(
            r#"{{"format":1,"cluster_id":"c1","state_endpoints":["http://{}"],"frame_mode":"crc","osd_ids":[],
            "osd_bytes":1073741824,"s3_listen":"","nbd_listen":[],"host":"h1"}}"#,
            server.local_addr()
        );
        let cluster: ClusterFile = serde_json::from_str(&text).unwrap();
        directory.create_cluster(&cluster).unwrap();
        directory
            .write_credentials(&Credentials {
                access_key: "a".into(),
                secret_key: "s".into(),
                endpoint: String::new(),
                tls_endpoint: None,
                ca_file: None,
            })
            .unwrap();
        let state = ClusterClient::connect(&cluster.connect_options()).await.unwrap();
        let made = back_up(&directory, &cluster, &temporary.path().join("backup"), &BackupSeal::Clear).unwrap();
        then(&directory, &state).await;
        let is_told = note_backup(&directory, &cluster, &state, &made).await.unwrap();
        let record = state.get::<KeyBackupRecord>(&keys::key_backup("h1")).await.unwrap();
        assert_eq!(is_told, record.is_some());
        is_told
    }

    fn local_keys(directory: &DataDir) -> LocalKeys {
        LocalKeys::open(&directory.key_service_file()).unwrap()
    }

    #[tokio::test]
    async fn a_key_that_is_made_during_a_backup_is_not_backed_up() {
        assert!(counts(async |_, _| {}).await);
        let rotate = async |directory: &DataDir, state: &ClusterClient| {
            atoll_admin::keys::rotate(state, &local_keys(directory), DEFAULT_KEY, false).await.unwrap();
        };
        assert!(!counts(rotate).await);
        // The command that makes the key has been cut short before it says so.
        let create = async |directory: &DataDir, _: &ClusterClient| {
            local_keys(directory).create("project").await.unwrap();
        };
        assert!(!counts(create).await);
        // A key that the backup still has, and the host has no more.
        let destroy = async |directory: &DataDir, state: &ClusterClient| {
            let keys = local_keys(directory);
            keys.create("project").await.unwrap();
            atoll_admin::keys::destroy(state, &keys, "project", atoll_admin::keys::Consent::default())
                .await
                .unwrap();
        };
        assert!(counts(destroy).await);
    }

    #[test]
    fn nothing_outside_the_directory_is_written() {
        for name in ["cluster.json", "credentials.json", "keys/kms.json", "tls/ca.crt", "osd-12/at-rest.json"] {
            assert!(may_be_restored(name), "{name}");
        }
        for name in [
            "",
            "/etc/passwd",
            "../keys/kms.json",
            "keys/../../x",
            "osd-0/device",
            "state/state.redb",
            "osd-x/at-rest.json",
        ] {
            assert!(!may_be_restored(name), "{name}");
        }
    }
}
