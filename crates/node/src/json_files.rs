//! Files of a data directory: read, made, replaced, and changed by several processes.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use atoll_files::{Access, Held, Previous};
use atoll_types::record_json::read_record;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::NodeError;

pub(crate) fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T, NodeError> {
    parse(path, &fs::read(path).map_err(NodeError::file(path))?)
}

pub(crate) fn parse<T: DeserializeOwned>(path: &Path, text: &[u8]) -> Result<T, NodeError> {
    read_record(text).map_err(|reason| NodeError::Record { path: path.into(), reason })
}

pub(crate) fn text(value: &impl Serialize) -> String {
    serde_json::to_string_pretty(value).expect("the records of this crate are plain JSON")
}

/// Changes the current content of a file, and returns the new content. The previous content stays beside it.
pub(crate) fn change_json<T: DeserializeOwned + Serialize>(
    path: &Path,
    change: impl FnOnce(&mut T) -> Result<(), NodeError>,
) -> Result<T, NodeError> {
    let held = Held::open(path).map_err(NodeError::file(path))?;
    let before = held.bytes().ok_or_else(|| NodeError::file(path)(ErrorKind::NotFound.into()))?;
    let mut value = parse(path, before)?;
    change(&mut value)?;
    let after = text(&value);
    if after.as_bytes() != before {
        held.replace(after.as_bytes(), Access::Owner, Previous::Kept).map_err(NodeError::file(path))?;
    }
    Ok(value)
}

/// Replaces a file that others change, or makes it. The previous content stays beside it.
pub(crate) fn replace_held(path: &Path, bytes: &[u8]) -> Result<(), NodeError> {
    let replaced = Held::open(path).and_then(|held| held.replace(bytes, Access::Owner, Previous::Kept));
    replaced.map_err(NodeError::file(path))
}

/// Replaces a file that one process alone writes, whole.
pub(crate) fn write_json(path: &Path, value: &impl Serialize) -> Result<(), NodeError> {
    write_secret(path, text(value).as_bytes())
}

/// Makes a file. One that is there is an error.
pub(crate) fn create_json(path: &Path, value: &impl Serialize) -> Result<(), NodeError> {
    atoll_files::create(path, text(value).as_bytes(), Access::Owner).map_err(NodeError::file(path))
}

/// Replaces a file, readable by its owner only.
pub(crate) fn write_secret(path: &Path, bytes: &[u8]) -> Result<(), NodeError> {
    atoll_files::replace(path, bytes, Access::Owner).map_err(NodeError::file(path))
}

/// Makes a file, readable by its owner only, unless there is one. Says whether it was made.
pub(crate) fn create_secret(path: &Path, bytes: &[u8]) -> Result<bool, NodeError> {
    create_missing(path, bytes, Access::Owner)
}

/// Makes a file unless there is one. Says whether it was made.
pub(crate) fn create_missing(path: &Path, bytes: &[u8], access: Access) -> Result<bool, NodeError> {
    match atoll_files::create(path, bytes, access) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
        made => made.map(|()| true).map_err(NodeError::file(path)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data_dir::{ClusterFile, DataDir};
    use atoll_types::OsdId;

    #[test]
    fn of_many_changes_at_once_none_is_lost() {
        let temporary = tempfile::tempdir().unwrap();
        let directory = DataDir::new(&temporary.path().join("data"));
        directory.create().unwrap();
        let text = r#"{"format":1,"cluster_id":"c","state_endpoints":[],"frame_mode":"secure","osd_ids":[],
            "osd_bytes":1073741824,"is_founded":false,"s3_listen":"","nbd_listen":[]}"#;
        let cluster: ClusterFile = serde_json::from_str(text).unwrap();
        assert!(directory.change_cluster(|_| Ok(())).is_err(), "there is none to change");
        directory.create_cluster(&cluster).unwrap();
        assert!(directory.create_cluster(&cluster).is_err());
        let change = |change: &dyn Fn(&mut ClusterFile)| {
            let changed = directory.change_cluster(|file| {
                change(file);
                Ok(())
            });
            changed.unwrap();
        };
        let change = &change;
        std::thread::scope(|scope| {
            for thread in 0..4 {
                scope.spawn(move || {
                    for count in 0..10 {
                        change(&|file| file.osd_ids.push(OsdId(thread * 10 + count)));
                    }
                });
            }
            scope.spawn(|| change(&|file| file.is_founded = true));
        });
        let mut cluster = directory.cluster().unwrap();
        cluster.osd_ids.sort_unstable();
        assert_eq!(cluster.osd_ids, (0..40).map(OsdId).collect::<Vec<_>>());
        assert!(cluster.is_founded);
    }

    #[test]
    fn a_refused_change_leaves_the_file_as_it_was() {
        let temporary = tempfile::tempdir().unwrap();
        let path = temporary.path().join("file.json");
        fs::write(&path, "[1]").unwrap();
        let refused = change_json(&path, |numbers: &mut Vec<u32>| {
            numbers.push(2);
            Err(NodeError::Invalid("no".into()))
        });
        assert!(refused.is_err());
        assert_eq!(fs::read(&path).unwrap(), b"[1]");
        fs::write(&path, "[").unwrap();
        assert!(change_json(&path, |_: &mut Vec<u32>| Ok(())).is_err());
        assert_eq!(fs::read(&path).unwrap(), b"[");
    }
}
