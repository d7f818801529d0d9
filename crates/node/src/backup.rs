//! A copy of all that exists once on a host and is no data: `atoll key backup` and `atoll key restore`. Format in
//! docs/reference/formats.md, "Backup of keys".

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};

use atoll_cluster::{ClusterClient, keys};
use atoll_types::records::{KeyBackupRecord, RECORD_FORMAT};
use serde::{Deserialize, Serialize};

use crate::bootstrap::unix_ms;
use crate::data_dir::{ClusterFile, DataDir, read_json, write_public, write_secret};
use crate::error::NodeError;
use crate::processes::ProcessesFile;

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

/// Writes a backup of a data directory's secrets and settings to a new file that only its owner may read. Returns how
/// many files are in it.
pub fn back_up(directory: &DataDir, cluster: &ClusterFile, to: &Path) -> Result<usize, NodeError> {
    let mut files = BTreeMap::new();
    for path in backed_up(directory)? {
        let name = path.strip_prefix(directory.root()).expect("it is in the directory");
        let name = name.to_string_lossy().into_owned();
        let text = fs::read_to_string(&path).map_err(NodeError::file(&path))?;
        let mode = fs::metadata(&path).map_err(NodeError::file(&path))?.permissions().mode();
        files.insert(name, BackupFile { is_public: mode & PUBLIC != 0, text });
    }
    let count = files.len();
    let backup = Backup {
        format: RECORD_FORMAT,
        cluster_id: cluster.cluster_id.clone(),
        host: cluster.host_name(),
        made_unix_ms: unix_ms(),
        files,
    };
    let text = serde_json::to_string_pretty(&backup).expect("a backup is plain JSON");
    let write = || {
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(to)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()
    };
    write().map_err(NodeError::file(to))?;
    Ok(count)
}

/// Says in cluster state that this host has a backup of its keys.
pub async fn note_backup(cluster: &ClusterFile, state: &ClusterClient) -> Result<(), NodeError> {
    let host = cluster.host_name();
    let record = KeyBackupRecord { format: RECORD_FORMAT, made_unix_ms: unix_ms() };
    state.put(&keys::key_backup(&host), &record).await?;
    Ok(())
}

fn backed_up(directory: &DataDir) -> Result<Vec<PathBuf>, NodeError> {
    let mut paths = vec![directory.cluster_file(), directory.credentials_file()];
    for folder in [directory.keys(), directory.tls()] {
        let entries = fs::read_dir(&folder).map_err(NodeError::file(&folder))?;
        paths.extend(entries.flatten().map(|entry| entry.path()));
    }
    paths.extend(directory.prepared_osds().into_iter().map(|osd| directory.at_rest_file(osd)));
    // What a write that was cut short has left is no secret of its own.
    paths.retain(|path| path.is_file() && path.extension().is_none_or(|extension| extension != "new"));
    Ok(paths)
}

/// Puts back from a backup what a data directory lacks; what is there stays. Returns the names of the files.
pub fn restore(directory: &DataDir, from: &Path) -> Result<Vec<String>, NodeError> {
    let backup: Backup = read_json(from)?;
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
        if path.exists() {
            continue;
        }
        let folder = path.parent().unwrap_or(directory.root());
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
        made.map_err(NodeError::file(folder))?;
        match file.is_public {
            true => write_public(&path, file.text.as_bytes())?,
            false => write_secret(&path, file.text.as_bytes())?,
        }
        restored.push(name.clone());
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
