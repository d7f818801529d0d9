//! The devices of this machine's OSDs: those that `atoll up` makes as files, and those that the
//! user gives to `atoll osd create`.
//!
//! An OSD finds its device as `osd-N/device`, a file or a link to a file or block device, and its
//! log's device, if it has one, as the link `osd-N/wal-device`.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileTypeExt, symlink};
use std::path::{Path, PathBuf};

use atoll_files::sync_directory_of;
use atoll_keys::random_bytes;
use atoll_osd::{FormatRequest, format_device, make_file};
use atoll_types::OsdId;
use serde::Serialize;

use crate::at_rest::UnlockWith;
use crate::choices::OSDS_MAX;
use crate::data_dir::{ClusterFile, DataDir};
use crate::error::NodeError;
use crate::processes::ProcessesFile;

/// The user's choices for `atoll osd create`.
#[derive(Clone, Debug)]
pub struct OsdChoices {
    /// The OSD's number; otherwise the lowest that has no device.
    pub id: Option<OsdId>,
    /// The file or block device.
    pub device: PathBuf,
    /// Size in bytes, if `device` is a file to be made.
    pub device_bytes: Option<u64>,
    /// A file or block device for the log alone.
    pub wal_device: Option<PathBuf>,
    /// Size of the log there in bytes, and of the file if it is to be made; otherwise all of it.
    pub wal_bytes: Option<u64>,
    /// True if the content of the devices may be destroyed.
    pub wipe: bool,
    /// Makes the devices LUKS2 volumes that this unlocks; otherwise they are plain.
    pub encrypt: Option<UnlockWith>,
}

/// An OSD that is ready to be started.
#[derive(Clone, Debug, Serialize)]
pub struct CreatedOsd {
    /// Its number.
    pub id: OsdId,
    /// Its public key, in hexadecimal.
    pub public_key: String,
    /// The id in the superblocks of its devices.
    pub store_id: String,
    /// Its device, by the name that it is remembered by.
    pub device: PathBuf,
    /// Size in bytes, without a LUKS2 header.
    pub device_bytes: u64,
    /// The log's device.
    pub wal_device: Option<PathBuf>,
    /// Size in bytes, without a LUKS2 header.
    pub wal_device_bytes: Option<u64>,
    /// Secret that unlocks the devices; none if they are not encrypted.
    pub unlock_with: Option<UnlockWith>,
    /// The next step.
    pub next: String,
}

/// Makes the devices of these OSDs, which never had any, as files, encrypted if the cluster's are. A device or link
/// that is there stays, even if the link leads nowhere: the disk behind it may be back later, and a new file in its
/// place would look like an empty device.
pub(crate) fn make_devices(directory: &DataDir, cluster: &ClusterFile, osds: &[OsdId]) -> Result<(), NodeError> {
    for &osd in osds {
        if directory.has_device(osd) {
            continue;
        }
        let path = directory.device(osd);
        directory.create_osd(osd)?;
        // The device gets its name only when it is whole.
        let unfinished = path.with_extension("new");
        if unfinished.exists() {
            fs::remove_file(&unfinished).map_err(NodeError::file(&unfinished))?;
        }
        let remembered = directory.unlock_with(osd)?;
        let unlock_with = remembered.or(cluster.encrypt_at_rest.then_some(UnlockWith::Kms));
        let key = unlock_with.as_ref().map(|choice| choice.device_key(directory)).transpose()?;
        make_file(&unfinished, cluster.osd_bytes)?;
        let store_id = random_bytes();
        format_device(&FormatRequest {
            device: &unfinished,
            log_device: None,
            wal_bytes: None,
            store_id,
            wipe: false,
            encrypt: key.as_ref(),
        })?;
        directory.remember_unlock(osd, unlock_with.as_ref())?;
        directory.remember_new_store(osd, store_id)?;
        atoll_files::rename(&unfinished, &path).map_err(NodeError::file(&path))?;
    }
    Ok(())
}

/// Size of an OSD's device in bytes.
pub(crate) fn device_bytes(directory: &DataDir, osd: OsdId) -> Result<u64, NodeError> {
    let path = directory.device(osd);
    let size = File::open(&path).and_then(|mut device| io::Seek::seek(&mut device, io::SeekFrom::End(0)));
    size.map_err(NodeError::file(path))
}

/// Formats a device and makes it an OSD of this data directory: its key, and links for `atoll up` and `atoll osd
/// run`. Before the first `atoll up` this decides which OSDs the cluster has; afterwards it gives an OSD that has
/// lost its device a new one, or a further OSD, for which cluster state has reserved a number, its first.
pub(crate) fn create_osd(
    directory: &DataDir,
    choices: &OsdChoices,
    reserved: Option<OsdId>,
) -> Result<CreatedOsd, NodeError> {
    directory.create()?;
    let id = reserved.map_or_else(|| choose_id(directory, choices.id), Ok)?;
    if let Some(old) = directory.wal_device(id) {
        return Err(NodeError::Invalid(format!(
            "{id} still has the log device of its old device; remove the link {} first",
            old.display()
        )));
    }
    let unlock_with = choices.encrypt.clone().map(UnlockWith::with_absolute_paths).transpose()?;
    if unlock_with == Some(UnlockWith::Kms) {
        ensure_own_key_service(directory)?;
    }
    let key = unlock_with.as_ref().map(|choice| choice.device_key(directory)).transpose()?;
    let mut made = MadeFiles::default();
    made.make_if_missing(&choices.device, choices.device_bytes, "--size")?;
    if let Some(wal_device) = &choices.wal_device {
        made.make_if_missing(wal_device, choices.wal_bytes, "--wal-size")?;
    }
    let store_id = random_bytes();
    let formatted = format_device(&FormatRequest {
        device: &choices.device,
        log_device: choices.wal_device.as_deref(),
        wal_bytes: choices.wal_bytes,
        store_id,
        wipe: choices.wipe,
        encrypt: key.as_ref(),
    })?;
    let device = lasting_name(&choices.device)?;
    let wal_device = choices.wal_device.as_deref().map(lasting_name).transpose()?;
    let public_key = hex::encode(directory.make_static_key(&id.to_string())?.public());
    directory.create_osd(id)?;
    directory.remember_unlock(id, unlock_with.as_ref())?;
    directory.remember_new_store(id, store_id)?;
    if let Some(wal_device) = &wal_device {
        link(wal_device, &directory.wal_device_link(id))?;
    }
    // Last, because it is what makes the OSD count as created.
    link(&device, &directory.device(id))?;
    made.keep();
    Ok(CreatedOsd {
        id,
        public_key,
        store_id: hex::encode(store_id),
        device,
        device_bytes: formatted.device_bytes,
        wal_device,
        wal_device_bytes: formatted.log_device_bytes,
        unlock_with,
        next: next_step(directory, id),
    })
}

/// A key service is made with the cluster; a host that joins has to be given its file.
fn ensure_own_key_service(directory: &DataDir) -> Result<(), NodeError> {
    if !directory.has_cluster() {
        return directory.make_key_service(None);
    }
    if !directory.key_service_file().exists() {
        return Err(NodeError::Invalid(format!(
            "--kms needs the cluster's key file; put {} back from a backup or from another host, or give --key-file",
            directory.key_service_file().display()
        )));
    }
    Ok(())
}

/// The number of an OSD to be made: before there is a cluster any, afterwards that of one that has
/// lost its device.
fn choose_id(directory: &DataDir, wanted: Option<OsdId>) -> Result<OsdId, NodeError> {
    let may_be: Vec<OsdId> = match directory.has_cluster() {
        true => directory.cluster()?.osd_ids,
        false => (0..OSDS_MAX).map(OsdId).collect(),
    };
    match wanted {
        Some(id) if !may_be.contains(&id) => Err(NodeError::Invalid(format!(
            "--id {}: choose one of {}",
            id.0,
            may_be.iter().map(|id| id.0.to_string()).collect::<Vec<_>>().join(", ")
        ))),
        Some(id) if directory.has_device(id) => Err(NodeError::Invalid(format!(
            "{id} has a device already; choose another --id, or stop the OSD and move {} away to replace it",
            directory.device(id).display()
        ))),
        Some(id) => Ok(id),
        None => may_be.into_iter().find(|id| !directory.has_device(*id)).ok_or_else(|| {
            NodeError::Invalid(format!("all OSDs of {} have their devices", directory.root().display()))
        }),
    }
}

/// Files that were made for an OSD; they are removed again if it does not come to be.
#[derive(Default)]
struct MadeFiles(Vec<PathBuf>);

impl MadeFiles {
    fn make_if_missing(&mut self, path: &Path, bytes: Option<u64>, option: &str) -> Result<(), NodeError> {
        match (path.exists(), bytes) {
            (false, Some(bytes)) if !path.starts_with("/dev") => {
                make_file(path, bytes)?;
                self.0.push(path.to_owned());
                Ok(())
            }
            (false, _) => Err(NodeError::Invalid(format!(
                "there is no {}; look for the device with 'lsblk', or give {option} to make a file (not in /dev)",
                path.display()
            ))),
            (true, Some(_)) if option == "--size" => Err(NodeError::Invalid(format!(
                "{} exists already, and a device is used whole; leave {option} out",
                path.display()
            ))),
            (true, _) => Ok(()),
        }
    }

    fn keep(&mut self) {
        self.0.clear();
    }
}

impl Drop for MadeFiles {
    fn drop(&mut self) {
        for path in &self.0 {
            // The error that ends the command says more than one about a file that is left over.
            let _ = fs::remove_file(path);
        }
    }
}

/// Returns the name of a device that stays after the next boot: `/dev/sdb` may be another disk then, the links in
/// `/dev/disk/by-id` are not.
fn lasting_name(path: &Path) -> Result<PathBuf, NodeError> {
    let absolute = std::path::absolute(path).map_err(NodeError::file(path))?;
    let is_device = fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_block_device());
    if !is_device || absolute.starts_with("/dev/disk") {
        return Ok(absolute);
    }
    let device = fs::canonicalize(path).map_err(NodeError::file(path))?;
    let links = fs::read_dir("/dev/disk/by-id").into_iter().flatten().flatten().map(|entry| entry.path());
    let of_device = links.filter(|link| fs::canonicalize(link).is_ok_and(|target| target == device));
    Ok(of_device.min().unwrap_or(absolute))
}

fn link(target: &Path, name: &Path) -> Result<(), NodeError> {
    // The name must survive a power cut as well as what it names.
    symlink(target, name).and_then(|()| sync_directory_of(name)).map_err(NodeError::file(name))
}

fn next_step(directory: &DataDir, id: OsdId) -> String {
    if ProcessesFile::running(directory).is_some() {
        return format!("nothing: the running cluster starts {id} within seconds and backfills it");
    }
    let up = format!("atoll up --data {}", directory.root().display());
    if directory.has_cluster() {
        return up;
    }
    let prepared: Vec<String> = directory.prepared_osds().iter().map(ToString::to_string).collect();
    format!("{up}   (makes a cluster of {}; create further OSDs before)", prepared.join(", "))
}

#[cfg(test)]
mod tests;
