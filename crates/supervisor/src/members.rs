//! The OSDs of this host as members of the cluster: their numbers, records and keys in cluster
//! state.
//!
//! A number is taken before there is a device, with a record of weight 0, which holds nothing; the
//! record is completed when the OSD is ready to run. Every step may be repeated.

use atoll_base::OsdId;
use atoll_base::records::{AuthorizedKeyRecord, OsdRecord, PeerRole, RECORD_FORMAT};
use atoll_cluster::{ClusterClient, ClusterError, Transaction, keys};

use crate::bootstrap::OSDS_MAX;
use crate::data_dir::{ClusterFile, DataDir};
use crate::devices::{CreatedOsd, OsdChoices, create_osd, device_bytes};
use crate::error::SupervisorError;
use crate::state_access::check_identity;

/// How often others may be faster in taking a number.
const ATTEMPTS: usize = 100;

fn public_key(directory: &DataDir, osd: OsdId) -> Result<String, SupervisorError> {
    Ok(hex::encode(directory.static_key(&osd.to_string())?.public()))
}

/// The record of one of this host's OSDs, without a device yet.
fn empty_record(directory: &DataDir, cluster: &ClusterFile, osd: OsdId) -> Result<OsdRecord, SupervisorError> {
    Ok(OsdRecord {
        format: RECORD_FORMAT,
        id: osd,
        host: cluster.host_name(),
        public_key: public_key(directory, osd)?,
        weight: 0.0,
        rack: cluster.rack.clone(),
        zone: cluster.zone.clone(),
        is_out: false,
        device_class: "ssd".into(),
        device_bytes: 0,
    })
}

fn authorized_key(osd: OsdId) -> AuthorizedKeyRecord {
    AuthorizedKeyRecord { format: RECORD_FORMAT, role: PeerRole::Osd, osd: Some(osd), name: osd.to_string() }
}

/// Takes numbers for OSDs of this host that are not in its cluster file yet.
pub(crate) async fn reserve_osds(
    directory: &DataDir,
    cluster: &ClusterFile,
    state: &ClusterClient,
    count: usize,
) -> Result<Vec<OsdId>, SupervisorError> {
    for _ in 0..ATTEMPTS {
        let listing = state.list::<OsdRecord>(keys::OSDS).await?;
        let mut mine = Vec::new();
        for (_, record, _) in &listing.entries {
            // What an earlier attempt took and did not finish.
            let is_new = !cluster.osd_ids.contains(&record.id) && directory.has_static_key(&record.id.to_string());
            if is_new && public_key(directory, record.id)? == record.public_key {
                mine.push(record.id);
            }
        }
        mine.truncate(count);
        let is_free = |id: &OsdId| listing.entries.iter().all(|(_, record, _)| record.id != *id);
        let new: Vec<OsdId> = (0..).map(OsdId).filter(is_free).take(count - mine.len()).collect();
        let mut transaction = Transaction::new();
        for &id in &new {
            let record = empty_record(directory, cluster, id)?;
            let key = keys::authorized_key(&record.public_key);
            transaction = transaction.check(&keys::osd(id), 0).put(&keys::osd(id), &record)?;
            transaction = transaction.put(&key, &authorized_key(id))?;
        }
        if new.is_empty() {
            return Ok(mine);
        }
        match state.transact(&transaction).await {
            Ok(_) => return Ok(mine.into_iter().chain(new).collect()),
            // Others were faster, or it is not known who was: look again.
            Err(ClusterError::Conflict { .. } | ClusterError::Unclear { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(SupervisorError::Invalid("other hosts took every number for an OSD first; try again".into()))
}

/// Gives numbers back for which no OSD came to be.
async fn release_osd(directory: &DataDir, state: &ClusterClient, osd: OsdId) -> Result<(), SupervisorError> {
    let Some((record, revision)) = state.get::<OsdRecord>(&keys::osd(osd)).await? else { return Ok(()) };
    if record.weight > 0.0 || record.public_key != public_key(directory, osd)? {
        return Ok(());
    }
    let key = keys::authorized_key(&record.public_key);
    let transaction = Transaction::new().check(&keys::osd(osd), revision).delete(&keys::osd(osd)).delete(&key);
    state.transact(&transaction).await?;
    Ok(())
}

/// Completes the records of this host's OSDs, all at once, so that nobody sees half a host.
pub(crate) async fn register_osds(
    directory: &DataDir,
    cluster: &ClusterFile,
    state: &ClusterClient,
) -> Result<(), SupervisorError> {
    loop {
        let mut transaction = Transaction::new();
        let mut is_complete = true;
        for &id in &cluster.osd_ids {
            let key = keys::osd(id);
            let found = state.get::<OsdRecord>(&key).await?;
            let revision = found.as_ref().map_or(0, |(_, revision)| *revision);
            let mut record = match found {
                Some((record, _)) if record.public_key != public_key(directory, id)? => {
                    return Err(SupervisorError::Invalid(format!(
                        "cluster state says that {id} is another OSD, on host '{}'; its key is not {}",
                        record.host,
                        directory.keys().join(format!("{id}.key")).display()
                    )));
                }
                Some((record, _)) if record.device_bytes > 0 => continue,
                Some((record, _)) => record,
                // An OSD that was removed from the cluster does not come back by itself.
                None if cluster.is_founded => continue,
                None => empty_record(directory, cluster, id)?,
            };
            record.device_bytes = device_bytes(directory, id)?;
            record.weight = record.device_bytes as f64 / (1_u64 << 40) as f64;
            transaction = transaction.check(&key, revision).put(&key, &record)?;
            transaction = transaction.put(&keys::authorized_key(&record.public_key), &authorized_key(id))?;
            is_complete = false;
        }
        if is_complete {
            return Ok(());
        }
        match state.transact(&transaction).await {
            Ok(_) => return Ok(()),
            Err(ClusterError::Conflict { .. } | ClusterError::Unclear { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Refuses OSDs where they may not be, or where nobody could reach them.
pub(crate) fn check_may_have_osds(cluster: &ClusterFile) -> Result<(), SupervisorError> {
    if !cluster.role.has_osds() {
        return Err(SupervisorError::Invalid(
            "this host joined with a token for clients and may not have OSDs; make a token with '--role host'"
                .into(),
        ));
    }
    if cluster.joined_by.is_some() && !cluster.is_reachable() {
        return Err(SupervisorError::Invalid(
            "OSDs here would listen on loopback only; give --listen IP, the address by which the other hosts reach this \
             one"
            .into(),
        ));
    }
    Ok(())
}

/// `atoll osd create`: in a new directory, in place of a lost device, or as a further OSD of a
/// cluster that runs.
pub async fn add_osd(directory: &DataDir, choices: &OsdChoices) -> Result<CreatedOsd, SupervisorError> {
    let is_further = directory.has_cluster() && {
        let cluster = directory.cluster()?;
        let lacks_device = |id: &OsdId| !directory.has_device(*id);
        match &choices.id {
            Some(id) => !cluster.osd_ids.contains(id),
            None => !cluster.osd_ids.iter().any(lacks_device),
        }
    };
    if !is_further {
        return create(directory, choices.clone(), None).await;
    }
    if let Some(id) = choices.id {
        return Err(SupervisorError::Invalid(format!(
            "{id} is no OSD of this host; the numbers of further OSDs are given by the cluster, so leave --id out"
        )));
    }
    let mut cluster = directory.cluster()?;
    check_may_have_osds(&cluster)?;
    if cluster.osd_ids.len() >= OSDS_MAX as usize {
        return Err(SupervisorError::Invalid(format!("a host has at most {OSDS_MAX} OSDs")));
    }
    let state = ClusterClient::connect(&cluster.connect_options()).await?;
    check_identity(&cluster, &state).await?;
    let id = reserve_osds(directory, &cluster, &state, 1).await?[0];
    let created = match create(directory, choices.clone(), Some(id)).await {
        Ok(created) => created,
        Err(error) => {
            if let Err(left_over) = release_osd(directory, &state, id).await {
                tracing::warn!("{id} is left in cluster state without a device: {left_over}");
            }
            return Err(error);
        }
    };
    cluster.osd_ids.push(id);
    register_osds(directory, &cluster, &state).await?;
    // A supervisor that runs sees it there and starts the OSD.
    directory.write_cluster(&cluster)?;
    Ok(created)
}

async fn create(
    directory: &DataDir,
    choices: OsdChoices,
    reserved: Option<OsdId>,
) -> Result<CreatedOsd, SupervisorError> {
    let directory = directory.clone();
    let created = tokio::task::spawn_blocking(move || create_osd(&directory, &choices, reserved)).await;
    created.expect("making an OSD does not panic")
}
