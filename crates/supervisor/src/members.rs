//! OSDs that join or leave a cluster that is there already.

use atoll_base::OsdId;
use atoll_base::records::{OsdRecord, RECORD_FORMAT};
use atoll_cluster::ClusterClient;
use atoll_coordinator::admin::{self, AdminError};

use crate::data_dir::DataDir;
use crate::devices::device_bytes;
use crate::error::SupervisorError;

/// What an OSD's record says besides its number. What is `None` is chosen.
#[derive(Clone, Debug)]
pub struct OsdPlace {
    /// The host; otherwise this one.
    pub host: Option<String>,
    /// The rack; empty for the default one.
    pub rack: String,
    /// The zone; empty for the default one.
    pub zone: String,
    /// `ssd`, `hdd`, ...
    pub device_class: String,
    /// Share of data; otherwise the size of the device in TiB.
    pub weight: Option<f64>,
}

impl Default for OsdPlace {
    fn default() -> Self {
        let (host, weight) = (None, None);
        OsdPlace { host, rack: String::new(), zone: String::new(), device_class: "ssd".into(), weight }
    }
}

/// The name of this host.
fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_else(|_| "localhost".into());
    name.trim().into()
}

/// The record of an OSD with this key and device.
pub fn osd_record(id: OsdId, public_key: String, device_bytes: u64, place: &OsdPlace) -> OsdRecord {
    OsdRecord {
        format: RECORD_FORMAT,
        id,
        host: place.host.clone().unwrap_or_else(host_name),
        public_key,
        weight: place.weight.unwrap_or(device_bytes as f64 / (1_u64 << 40) as f64),
        device_class: place.device_class.clone(),
        device_bytes,
        rack: place.rack.clone(),
        zone: place.zone.clone(),
        is_out: false,
    }
}

/// The record of an OSD of this data directory.
pub(crate) fn own_record(directory: &DataDir, id: OsdId, place: &OsdPlace) -> Result<OsdRecord, SupervisorError> {
    let public_key = hex::encode(directory.static_key(&id.to_string())?.public());
    Ok(osd_record(id, public_key, device_bytes(directory, id)?, place))
}

/// Makes an OSD that `atoll osd create` has made in this data directory a part of the cluster. A
/// supervisor that runs starts it within moments, another at its next start.
pub async fn add_own_osd(
    directory: &DataDir,
    state: &ClusterClient,
    id: OsdId,
    place: &OsdPlace,
) -> Result<OsdRecord, SupervisorError> {
    if !directory.has_device(id) {
        return Err(SupervisorError::Invalid(format!(
            "{id} has no device in {}; make it with 'atoll osd create --id {} --device PATH', or name its \
             --public-key if it was made on another host",
            directory.root().display(),
            id.0
        )));
    }
    let mut cluster = directory.cluster()?;
    let record = own_record(directory, id, place)?;
    admin::osds::add(state, &record).await?;
    if !cluster.osd_ids.contains(&id) {
        cluster.osd_ids.push(id);
        cluster.osd_ids.sort_unstable();
        directory.write_cluster(&cluster)?;
    }
    Ok(record)
}

/// Tells the supervisor of this data directory to run an OSD no longer, or again. Says whether
/// that changes anything.
pub fn keep_own_osd(directory: &DataDir, id: OsdId, is_kept: bool) -> Result<bool, SupervisorError> {
    let mut cluster = directory.cluster()?;
    if cluster.osd_ids.contains(&id) == is_kept {
        return Ok(false);
    }
    cluster.osd_ids.retain(|other| *other != id);
    if is_kept {
        cluster.osd_ids.push(id);
        cluster.osd_ids.sort_unstable();
    }
    directory.write_cluster(&cluster)?;
    Ok(true)
}

impl From<AdminError> for SupervisorError {
    fn from(error: AdminError) -> Self {
        match error {
            AdminError::Cluster(error) => SupervisorError::Cluster(error),
            other => SupervisorError::Invalid(other.to_string()),
        }
    }
}
