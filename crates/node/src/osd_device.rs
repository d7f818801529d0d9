//! Checks that the device that an OSD finds is its own. Cluster state knows the store of each OSD; a device that
//! was made here for an OSD is marked until the OSD has started with it.

use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;

use atoll_admin::{AdminError, osds};
use atoll_cluster::{ClusterClient, ClusterError, keys};
use atoll_coordinator::unix_ms;
use atoll_osd::{FormatError, OpenError, StoreIdentity, store_identity};
use atoll_types::OsdId;
use atoll_types::records::{OsdFailureRecord, OsdRecord, OsdStoreRecord, RECORD_FORMAT};

use crate::at_rest::UnlockWith;
use crate::data_dir::DataDir;
use crate::error::NodeError;
use crate::json_files::write_secret;
use crate::members::put_own;

impl DataDir {
    fn new_store_file(&self, osd: OsdId) -> PathBuf {
        self.osd(osd).join("new-store")
    }

    /// A device with this store was made for an OSD, in place of any other.
    pub(crate) fn remember_new_store(&self, osd: OsdId, store_id: [u8; 16]) -> Result<(), NodeError> {
        write_secret(&self.new_store_file(osd), hex::encode(store_id).as_bytes())
    }

    /// Cluster state knows the store from now on.
    fn forget_new_store(&self, osd: OsdId) -> Result<(), NodeError> {
        let path = self.new_store_file(osd);
        match fs::remove_file(&path) {
            // The device was not made here.
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            removed => removed.map_err(NodeError::file(path)),
        }
    }
}

/// Which store is on an OSD's device.
pub(crate) fn identity(
    directory: &DataDir,
    id: OsdId,
    unlock_with: Option<&UnlockWith>,
) -> Result<StoreIdentity, NodeError> {
    let look = || {
        let key = unlock_with.map(|choice| choice.device_key(directory)).transpose()?;
        Ok(store_identity(&directory.device(id), directory.wal_device(id).as_deref(), key.as_ref())?)
    };
    // Asking the key service takes a runtime of its own, which cannot run within the caller's.
    std::thread::scope(|scope| scope.spawn(look).join().expect("reading a superblock returns errors"))
}

/// Which store is on the device of an OSD. Fails if the device is missing or cannot be unlocked.
pub fn store_of(
    directory: &DataDir,
    id: OsdId,
    unlock_with: Option<&UnlockWith>,
) -> Result<StoreIdentity, NodeError> {
    if !directory.has_device(id) {
        return Err(NodeError::Invalid(format!(
            "{id} has no device: {} is not there; put it back, or 'atoll up --new-device {}' makes an empty one, which the \
             others fill",
            directory.device(id).display(),
            id.0
        )));
    }
    match identity(directory, id, unlock_with) {
        Err(NodeError::Format(FormatError::Unreadable { reason: OpenError::NotAStore, .. })) => {
            let volume = if unlock_with.is_some() { " unlocks as a LUKS2 volume, but" } else { ":" };
            Err(NodeError::Invalid(format!(
                "{}{volume} there is no Atoll store in it; put the right device there. If that is lost, move this one away: \
                 'atoll up --new-device {}' makes an empty file, and 'atoll osd create --id {} --device' uses a device",
                directory.device(id).display(),
                id.0,
                id.0
            )))
        }
        found => found,
    }
}

/// Returns true if a device is older than the last report of its OSD: a copy was put back.
pub async fn is_old_device(state: &ClusterClient, id: OsdId, store: &StoreIdentity) -> Result<bool, NodeError> {
    let reported = state.get::<OsdStoreRecord>(&keys::osd_store(id)).await?;
    Ok(reported.is_some_and(|(reported, _)| {
        reported.store_id == hex::encode(store.store_id) && store.generation < reported.generation
    }))
}

/// Refuses a store that is another OSD's or another cluster's.
pub async fn check_store(
    directory: &DataDir,
    state: &ClusterClient,
    id: OsdId,
    store: &StoreIdentity,
) -> Result<(), NodeError> {
    let store_id = hex::encode(store.store_id);
    let record = state.get::<OsdRecord>(&keys::osd(id)).await?;
    let Some((record, _)) = record.filter(|(record, _)| record.store_id != store_id) else { return Ok(()) };
    let is_made_for_it = fs::read_to_string(directory.new_store_file(id)).is_ok_and(|made| made == store_id);
    if !record.store_id.is_empty() && !is_made_for_it {
        return Err(NodeError::Invalid(format!(
            "{} holds the store {store_id}, and that of {id} is {}: it is another OSD's or another cluster's. Put the right \
             device there; if it is lost, move this one away, and 'atoll up --new-device {}' makes an empty one",
            directory.device(id).display(),
            record.store_id,
            id.0
        )));
    }
    keep_store_id(directory, state, id, &store_id).await?;
    directory.forget_new_store(id)
}

async fn keep_store_id(
    directory: &DataDir,
    state: &ClusterClient,
    id: OsdId,
    store_id: &str,
) -> Result<(), NodeError> {
    let cluster = directory.cluster()?;
    if !cluster.has_osds_by_request() {
        osds::change(state, id, |record| store_id.clone_into(&mut record.store_id)).await?;
        return Ok(());
    }
    loop {
        let found = state.get::<OsdRecord>(&keys::osd(id)).await?;
        let (mut record, revision) = found.ok_or(AdminError::NoSuchOsd(id))?;
        store_id.clone_into(&mut record.store_id);
        match put_own(&cluster, state, vec![(record, revision)], None).await {
            // The coordinator has marked it out, or in.
            Err(NodeError::Cluster(ClusterError::Conflict { .. })) => {}
            done => return done,
        }
    }
}

/// Says in cluster state why an OSD cannot start, or that it could.
pub async fn note_start(state: &ClusterClient, id: OsdId, failure: Option<&str>) -> Result<(), NodeError> {
    let key = keys::osd_failure(id);
    match failure {
        Some(reason) => {
            let record = OsdFailureRecord { format: RECORD_FORMAT, reason: reason.into(), unix_ms: unix_ms() };
            state.put(&key, &record).await?;
        }
        None => drop(state.delete(&key).await?),
    }
    Ok(())
}
