//! The OSDs of this host as members of the cluster: their numbers, records and keys in cluster
//! state.
//!
//! A number is taken before there is a device, with a record of weight 0, which holds nothing; the
//! record is completed when the OSD is ready to run. Every step may be repeated.

use std::time::{Duration, Instant};

use atoll_admin::AdminError;
use atoll_admin::osds::{self, NewLocation};
use atoll_cluster::process::is_gone;
use atoll_cluster::{ClusterClient, ClusterError, Transaction, keys};
use atoll_types::OsdId;
use atoll_types::hosts::HostChange;
use atoll_types::records::{OsdRecord, OsdUpRecord, PgRecord, RECORD_FORMAT};

use crate::choices::OSDS_MAX;
use crate::data_dir::{ClusterFile, DataDir};
use crate::devices::{CreatedOsd, OsdChoices, create_osd, device_bytes};
use crate::error::NodeError;
use crate::processes::ProcessesFile;
use crate::state_access::check_identity;

/// Longest wait for an OSD that stops, which may count as running: its lease is 10 s.
const STOP_PATIENCE: Duration = Duration::from_secs(30);
/// How often others may be faster in taking a number.
const ATTEMPTS: usize = 100;

/// Location of an OSD, its class and its weight. `None` keeps a value, or chooses one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OsdPlace {
    /// The host.
    pub host: Option<String>,
    /// The rack; empty for the default one.
    pub rack: Option<String>,
    /// The zone; empty for the default one.
    pub zone: Option<String>,
    /// `ssd`, `hdd`, ...; `ssd` by default.
    pub device_class: Option<String>,
    /// Share of data; by default the size of the device in TiB.
    pub weight: Option<f64>,
}

impl OsdPlace {
    /// The place of this host's OSDs.
    fn of_host(cluster: &ClusterFile) -> OsdPlace {
        OsdPlace {
            host: Some(cluster.host_name()),
            rack: Some(cluster.rack.clone()),
            zone: Some(cluster.zone.clone()),
            ..OsdPlace::default()
        }
    }

    fn location(&self) -> NewLocation {
        NewLocation { host: self.host.clone(), rack: self.rack.clone(), zone: self.zone.clone() }
    }
}

fn weight_of(device_bytes: u64) -> f64 {
    device_bytes as f64 / (1_u64 << 40) as f64
}

/// The record of an OSD with this key and device.
pub(crate) fn osd_record(id: OsdId, public_key: String, device_bytes: u64, place: &OsdPlace) -> OsdRecord {
    OsdRecord {
        format: RECORD_FORMAT,
        id,
        host: place.host.clone().unwrap_or_default(),
        public_key,
        weight: place.weight.unwrap_or(weight_of(device_bytes)),
        device_class: place.device_class.clone().unwrap_or_else(|| "ssd".into()),
        device_bytes,
        rack: place.rack.clone().unwrap_or_default(),
        zone: place.zone.clone().unwrap_or_default(),
        is_out: false,
        store_id: String::new(),
    }
}

fn public_key(directory: &DataDir, osd: OsdId) -> Result<String, NodeError> {
    Ok(hex::encode(directory.static_key(&osd.to_string())?.public()))
}

/// The record of one of this host's OSDs, without a device yet.
fn empty_record(directory: &DataDir, cluster: &ClusterFile, osd: OsdId) -> Result<OsdRecord, NodeError> {
    let public_key = hex::encode(directory.make_static_key(&osd.to_string())?.public());
    Ok(osd_record(osd, public_key, 0, &OsdPlace::of_host(cluster)))
}

/// Gives a record that only took the number its device.
fn complete(record: &mut OsdRecord, device_bytes: u64) {
    if record.device_bytes == 0 {
        (record.device_bytes, record.weight) = (device_bytes, weight_of(device_bytes));
    }
}

fn refuse_other_osd(directory: &DataDir, record: &OsdRecord) -> Result<(), NodeError> {
    if record.public_key == public_key(directory, record.id)? {
        return Ok(());
    }
    Err(NodeError::Invalid(format!(
        "cluster state says that {} is another OSD, on host '{}'; its key is not {}",
        record.id,
        record.host,
        directory.keys().join(format!("{}.key", record.id)).display()
    )))
}

/// Takes numbers for OSDs of this host that are not in its cluster file yet.
pub(crate) async fn reserve_osds(
    directory: &DataDir,
    cluster: &ClusterFile,
    state: &ClusterClient,
    count: usize,
) -> Result<Vec<OsdId>, NodeError> {
    for _ in 0..ATTEMPTS {
        let (lowest, revision) = osds::lowest_number(state).await?;
        let listing = state.list::<OsdRecord>(keys::OSDS).await?;
        let mut mine = Vec::new();
        for (_, record, _) in &listing.entries {
            // What an earlier attempt took and did not finish.
            let is_unfinished = record.device_bytes == 0 && !directory.has_device(record.id);
            let is_new = !cluster.osd_ids.contains(&record.id) && directory.has_static_key(&record.id.to_string());
            if is_unfinished && is_new && public_key(directory, record.id)? == record.public_key {
                mine.push(record.id);
            }
        }
        mine.truncate(count);
        let is_free = |id: &OsdId| {
            !directory.has_device(*id) && listing.entries.iter().all(|(_, record, _)| record.id != *id)
        };
        let numbers = (lowest.0..).map(OsdId);
        let new: Vec<OsdId> = numbers.filter(is_free).take(count - mine.len()).collect();
        if new.is_empty() {
            return Ok(mine);
        }
        let records: Result<Vec<_>, NodeError> =
            new.iter().map(|&id| Ok((empty_record(directory, cluster, id)?, 0))).collect();
        match put_own(cluster, state, records?, Some(revision)).await {
            Ok(()) => return Ok(mine.into_iter().chain(new).collect()),
            // Others were faster, or it is not known who was: look again.
            Err(NodeError::Cluster(ClusterError::Conflict { .. } | ClusterError::Unclear { .. })) => {}
            Err(error) => return Err(error),
        }
    }
    Err(NodeError::Invalid("other hosts took every number for an OSD first; try again".into()))
}

/// Writes records of this host's OSDs in place of those of these revisions, all or none, if the number of the next OSD was
/// not changed since.
pub(crate) async fn put_own(
    cluster: &ClusterFile,
    state: &ClusterClient,
    records: Vec<(OsdRecord, i64)>,
    next_osd_revision: Option<i64>,
) -> Result<(), NodeError> {
    if cluster.has_osds_by_request() {
        let change = HostChange::Osds { osds: records, next_osd_revision };
        return Ok(ClusterClient::change_own(&cluster.connect_options(), change).await?);
    }
    let mut transaction = Transaction::new();
    if let Some(revision) = next_osd_revision {
        transaction = transaction.check(keys::NEXT_OSD, revision);
    }
    for (record, revision) in &records {
        transaction = osds::put(transaction, record, *revision)?;
    }
    state.transact(&transaction).await?;
    Ok(())
}

/// Gives a number back for which no OSD came to be.
async fn release_osd(directory: &DataDir, state: &ClusterClient, osd: OsdId) -> Result<(), NodeError> {
    let Some((record, revision)) = state.get::<OsdRecord>(&keys::osd(osd)).await? else { return Ok(()) };
    if record.device_bytes > 0 || record.public_key != public_key(directory, osd)? {
        return Ok(());
    }
    let key = keys::authorized_key(&record.public_key);
    let transaction = Transaction::new().check(&keys::osd(osd), revision).delete(&keys::osd(osd)).delete(&key);
    state.transact(&transaction).await?;
    Ok(())
}

/// Completes the records of this host's OSDs, all at once, so that cluster state never shows a part
/// of a host.
pub(crate) async fn register_osds(
    directory: &DataDir,
    cluster: &ClusterFile,
    state: &ClusterClient,
) -> Result<(), NodeError> {
    loop {
        let mut records = Vec::new();
        for &id in &cluster.osd_ids {
            let (mut record, revision) = match state.get::<OsdRecord>(&keys::osd(id)).await? {
                Some(found) => found,
                // An OSD that was removed from the cluster does not come back by itself.
                None if cluster.is_founded => continue,
                None => (empty_record(directory, cluster, id)?, 0),
            };
            refuse_other_osd(directory, &record)?;
            if record.device_bytes == 0 {
                complete(&mut record, device_bytes(directory, id)?);
                records.push((record, revision));
            }
        }
        if records.is_empty() {
            return Ok(());
        }
        match put_own(cluster, state, records, None).await {
            Ok(()) => return Ok(()),
            Err(NodeError::Cluster(ClusterError::Conflict { .. } | ClusterError::Unclear { .. })) => {}
            Err(error) => return Err(error),
        }
    }
}

/// OSDs of this host that never had a device, and those that are to have a new one. One that has lost its device
/// has none of these: its data may be the last copy.
pub(crate) async fn osds_without_device(
    cluster: &ClusterFile,
    state: &ClusterClient,
    new_devices: &[OsdId],
) -> Result<Vec<OsdId>, NodeError> {
    if let Some(other) = new_devices.iter().find(|id| !cluster.osd_ids.contains(id)) {
        return Err(NodeError::Invalid(format!("--new-device {}: {other} is no OSD of this host", other.0)));
    }
    let mut without = new_devices.to_vec();
    for &id in &cluster.osd_ids {
        let record = state.get::<OsdRecord>(&keys::osd(id)).await?;
        let never_had_one = match record {
            Some((record, _)) => record.device_bytes == 0,
            None => !cluster.is_founded,
        };
        if never_had_one && !without.contains(&id) {
            without.push(id);
        }
    }
    Ok(without)
}

/// Deletes announcements of this host's OSDs whose processes are known to have ended: others would wait for them
/// until their leases end.
pub(crate) async fn forget_gone_osds(cluster: &ClusterFile, state: &ClusterClient) -> Result<(), NodeError> {
    for &id in &cluster.osd_ids {
        let Some((up, revision)) = state.get::<OsdUpRecord>(&keys::osd_up(id)).await? else { continue };
        if !is_gone(up.process_id, up.process.as_ref()) {
            continue;
        }
        let transaction = Transaction::new()
            .check(&keys::osd_up(id), revision)
            .delete(&keys::osd_up(id))
            .delete(&keys::osd_usage(id));
        match state.transact(&transaction).await {
            // Its lease has ended in this moment.
            Ok(_) | Err(ClusterError::Conflict { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Refuses OSDs where they may not be, or where no other host could reach them.
pub(crate) fn check_may_have_osds(cluster: &ClusterFile) -> Result<(), NodeError> {
    if !cluster.role.has_osds() {
        return Err(NodeError::Invalid(
            "this host joined with a token for clients and may not have OSDs; make a token with '--role host'"
                .into(),
        ));
    }
    if cluster.joined_by.is_some() && !cluster.is_reachable() {
        return Err(NodeError::Invalid(
            "OSDs here would listen on loopback only; give --listen IP, the address of this host for other hosts"
                .into(),
        ));
    }
    Ok(())
}

/// `atoll osd create`: in a new directory, in place of a lost device, or as a further OSD of a
/// cluster that runs.
pub async fn add_osd(directory: &DataDir, choices: &OsdChoices) -> Result<CreatedOsd, NodeError> {
    directory.create()?;
    let _alone = directory.lock_devices()?;
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
        return Err(NodeError::Invalid(format!(
            "{id} is no OSD of this host; the numbers of further OSDs are given by the cluster, so leave --id out"
        )));
    }
    let mut cluster = directory.cluster()?;
    check_may_have_osds(&cluster)?;
    if cluster.osd_ids.len() >= OSDS_MAX as usize {
        return Err(NodeError::Invalid(format!("a host has at most {OSDS_MAX} OSDs")));
    }
    let state = ClusterClient::connect(&directory.connect_options(&cluster)).await?;
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
    keep_own_osd(directory, id, true)?;
    Ok(created)
}

async fn create(
    directory: &DataDir,
    choices: OsdChoices,
    reserved: Option<OsdId>,
) -> Result<CreatedOsd, NodeError> {
    let directory = directory.clone();
    let created = tokio::task::spawn_blocking(move || create_osd(&directory, &choices, reserved)).await;
    created.expect("making an OSD does not panic")
}

/// `atoll osd add` of an OSD with a device in this data directory: says where it is, and makes it a
/// part of the cluster if it is none, as when `atoll osd create` was cut short.
pub async fn place_osd(
    directory: &DataDir,
    state: &ClusterClient,
    id: OsdId,
    place: &OsdPlace,
) -> Result<OsdRecord, NodeError> {
    let cluster = directory.cluster()?;
    check_may_have_osds(&cluster)?;
    let found = state.get::<OsdRecord>(&keys::osd(id)).await?.map(|(record, _)| record);
    if !directory.has_device(id) {
        let advice = match found {
            Some(record) => format!(
                "is a part of the cluster already, on host '{}'; 'atoll osd set-location' and 'atoll osd reweight' \
                 change it",
                record.host
            ),
            None => format!(
                "has no device in {}; make an OSD with 'atoll osd create --device PATH', or name its --public-key if it \
                 was made on another host",
                directory.root().display()
            ),
        };
        return Err(NodeError::Invalid(format!("{id} {advice}")));
    }
    match &found {
        Some(record) => {
            refuse_other_osd(directory, record)?;
            if record.device_bytes > 0 && *place == OsdPlace::default() {
                return Err(NodeError::Invalid(format!(
                    "{id} is a part of the cluster already; give the values to change with --host, --rack, \
                     --zone, --device-class or --weight"
                )));
            }
        }
        None => osds::add(state, &empty_record(directory, &cluster, id)?).await?,
    }
    // Before it has weight, so that nothing moves twice.
    osds::set_location(state, &[id], &place.location()).await?;
    let bytes = device_bytes(directory, id)?;
    let edit = |record: &mut OsdRecord| {
        complete(record, bytes);
        record.device_class = place.device_class.clone().unwrap_or(record.device_class.clone());
        record.weight = place.weight.unwrap_or(record.weight);
    };
    let record = osds::change(state, id, edit).await?;
    keep_own_osd(directory, id, true)?;
    Ok(record)
}

/// Makes an OSD that was made elsewhere, with this public key and a device of this size, a part of the cluster.
pub async fn place_foreign_osd(
    state: &ClusterClient,
    id: OsdId,
    public_key: &str,
    device_bytes: u64,
    place: &OsdPlace,
) -> Result<OsdRecord, NodeError> {
    if state.get::<OsdRecord>(&keys::osd(id)).await?.is_some() {
        return Err(NodeError::Invalid(format!(
            "{id} is a part of the cluster already ('atoll osd ls'); choose another number"
        )));
    }
    if public_key.len() != 64 || !public_key.chars().all(|digit| matches!(digit, '0'..='9' | 'a'..='f')) {
        return Err(NodeError::Invalid(format!(
            "--public-key {public_key}: a key has 64 hexadecimal digits, as 'atoll osd create' prints it"
        )));
    }
    let record = osd_record(id, public_key.to_owned(), device_bytes, place);
    osds::add(state, &record).await?;
    Ok(record)
}

/// Removes an OSD from the cluster. One that this data directory's `atoll up` runs is stopped first, and runs
/// again if it cannot be removed.
pub async fn remove_osd(
    directory: &DataDir,
    state: &ClusterClient,
    id: OsdId,
    is_lost: bool,
) -> Result<OsdRecord, NodeError> {
    let Some((record, _)) = state.get::<OsdRecord>(&keys::osd(id)).await? else {
        return forget_removed(directory, state, id).await;
    };
    osds::refuse_held(state, id, is_lost).await?;
    let is_ours = keep_own_osd(directory, id, false)?;
    let outcome = async {
        if is_ours && ProcessesFile::running(directory).is_some() {
            let deadline = Instant::now() + STOP_PATIENCE;
            while state.get::<OsdUpRecord>(&keys::osd_up(id)).await?.is_some() && Instant::now() < deadline {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
        Ok::<_, NodeError>(osds::remove(state, id, is_lost).await?)
    };
    let outcome = outcome.await;
    // The answer of cluster state may have been lost.
    if outcome.is_err() && matches!(state.get::<OsdRecord>(&keys::osd(id)).await, Ok(None)) {
        return Ok(record);
    }
    if is_ours && outcome.is_err() {
        keep_own_osd(directory, id, true)?;
    }
    outcome
}

/// Makes the supervisor of this data directory stop an OSD that was removed from the cluster before, by a command
/// that did not learn of it.
async fn forget_removed(directory: &DataDir, state: &ClusterClient, id: OsdId) -> Result<OsdRecord, NodeError> {
    let cluster = directory.cluster()?;
    let pgs = state.list::<PgRecord>(keys::PGS).await?.entries;
    let is_held = pgs.iter().any(|(_, pg, _)| pg.members.contains(&id) || pg.last_active_members.contains(&id));
    // Its record may be missing because cluster state is an older one.
    if is_held || !keep_own_osd(directory, id, false)? {
        return Err(AdminError::NoSuchOsd(id).into());
    }
    empty_record(directory, &cluster, id)
}

/// Makes the supervisor of this data directory stop an OSD, or run it again. Says whether that changes anything.
fn keep_own_osd(directory: &DataDir, id: OsdId, is_kept: bool) -> Result<bool, NodeError> {
    let mut is_change = false;
    directory.change_cluster(|cluster| {
        is_change = cluster.osd_ids.contains(&id) != is_kept;
        cluster.osd_ids.retain(|other| *other != id);
        if is_kept {
            cluster.osd_ids.push(id);
            cluster.osd_ids.sort_unstable();
        }
        Ok(())
    })?;
    Ok(is_change)
}

impl From<AdminError> for NodeError {
    fn from(error: AdminError) -> Self {
        match error {
            AdminError::Cluster(error) => NodeError::Cluster(error),
            other => NodeError::Admin(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use atoll_cluster::EmbeddedServer;
    use atoll_types::{PgId, PoolId};

    use super::*;

    /// A removal whose answer was lost has left it to the supervisor, which starts it for ever.
    #[tokio::test]
    async fn an_osd_that_the_cluster_has_removed_is_removed_here() {
        let temporary = tempfile::tempdir().unwrap();
        let directory = DataDir::new(&temporary.path().join("data"));
        directory.create().unwrap();
        let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let server = EmbeddedServer::start(server, &directory.state(), None).await.unwrap();
        let text = format!(
            r#"{{"format":1,"cluster_id":"c1","state_endpoints":["http://{}"],"frame_mode":"crc","osd_ids":[3,4],
            "osd_bytes":1073741824,"s3_listen":"","nbd_listen":[],"host":"h1"}}"#,
            server.local_addr()
        );
        let cluster: ClusterFile = serde_json::from_str(&text).unwrap();
        directory.create_cluster(&cluster).unwrap();
        let state = ClusterClient::connect(&cluster.connect_options()).await.unwrap();
        // A PG has osd.4: cluster state lost its record otherwise.
        let pg = serde_json::json!({
            "format": 1, "epoch": 1, "members": [4], "primary": 4, "activated_epoch": 0, "last_active_members": []
        });
        state.put(&keys::pg(PgId { pool: PoolId(1), index: 0 }), &pg).await.unwrap();

        assert_eq!(remove_osd(&directory, &state, OsdId(3), false).await.unwrap().id, OsdId(3));
        for id in [3, 4, 5].map(OsdId) {
            let error = remove_osd(&directory, &state, id, false).await.unwrap_err();
            assert!(matches!(error, NodeError::Admin(AdminError::NoSuchOsd(missing)) if missing == id), "{error}");
        }
        assert_eq!(directory.cluster().unwrap().osd_ids, [OsdId(4)]);
    }
}
