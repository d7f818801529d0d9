//! A directory that holds the data or the secrets of a cluster must not become another one's.

use std::fs;
use std::path::PathBuf;

use crate::data_dir::DataDir;
use crate::error::NodeError;
use crate::osd_device::identity;

/// Refuses to make a cluster in a directory without `cluster.json` that was a cluster's. OSDs that 'atoll osd
/// create' has made and that were never used may be there.
pub(crate) fn refuse_foreign_data(directory: &DataDir) -> Result<(), NodeError> {
    let found = found(directory)?;
    if found.is_empty() {
        return Ok(());
    }
    Err(NodeError::Invalid(format!(
        "{} has files of a cluster, and its cluster.json is missing: {}. Put cluster.json back ('atoll key \
         restore FILE' from a backup), or name another directory for a new cluster. Nothing was changed",
        directory.root().display(),
        found.join(", ")
    )))
}

/// All that only a cluster that was started can have left.
fn found(directory: &DataDir) -> Result<Vec<String>, NodeError> {
    let secrets = [directory.static_key_file("client"), directory.static_key_file("gateway")];
    let files = secrets.into_iter().chain([directory.state_key_file(), directory.credentials_file()]);
    let state = fs::read_dir(directory.state()).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut found: Vec<PathBuf> = files.filter(|path| path.exists()).chain(state).collect();
    for osd in directory.prepared_osds() {
        let unlock_with = directory.unlock_with(osd)?;
        if identity(directory, osd, unlock_with.as_ref())?.was_opened {
            found.push(directory.device(osd));
        }
    }
    let name = |path: PathBuf| path.strip_prefix(directory.root()).unwrap_or(&path).display().to_string();
    Ok(found.into_iter().map(name).collect())
}
