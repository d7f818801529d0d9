//! The first start: keys and devices on disk, then the first records of cluster state. Every step may be repeated,
//! so that an interrupted start resumes.

use std::net::Ipv4Addr;

use atoll_admin::peer_keys::host_key;
use atoll_admin::pools::check_redundancy;
use atoll_cluster::{ClusterClient, ClusterError, TlsFiles, keys};
use atoll_coordinator::unix_ms;
use atoll_keys::random_bytes;
use atoll_types::OsdId;
use atoll_types::coordination::SettingsRecord;
use atoll_types::frames::{FrameModes, FramesRecord};
use atoll_types::identities::FIRST_ACCOUNT;
use atoll_types::join::HostRole;
use atoll_types::records::{AuthorizedKeyRecord, ClusterRecord, FailureDomain, PeerRole, RECORD_FORMAT};
use atoll_types::transports::Transports;

use crate::choices::{Choices, OSDS_MAX};
use crate::data_dir::{ClusterFile, DEFAULT_S3_TLS_LISTEN, DataDir, FirstPools, LISTEN_OFF};
use crate::device_space::default_osd_bytes;
use crate::error::NodeError;
use crate::first_records::{ensure, is_there, write_user};
use crate::foreign_data::refuse_foreign_data;
use crate::members::{check_may_have_osds, register_osds};
use crate::secrets::{check_state_identity, check_state_is_there, place_of};
use crate::signing::found_signed;
use crate::state_access::{check_identity, expose_embedded, free_address};

const COPIES_MAX: u32 = 3;

const DEFAULT_OSDS: u32 = 3;
pub(crate) const DEFAULT_S3_LISTEN: &str = "127.0.0.1:9000";

/// Returns the content of `cluster.json` by the user's choices. Nothing is written yet.
pub(crate) fn plan(directory: &DataDir, choices: &Choices) -> Result<ClusterFile, NodeError> {
    if let Some(ec) = &choices.ec {
        check_redundancy(ec)?;
    }
    let mut cluster = if directory.has_cluster() {
        let mut cluster = directory.cluster()?;
        refuse_changed_choices(&cluster, choices)?;
        check_state_identity(directory, &cluster)?;
        check_state_is_there(directory, &cluster)?;
        choices.etcd.apply(&mut cluster)?;
        cluster
    } else {
        refuse_foreign_data(directory)?;
        new_cluster(directory, choices)?
    };
    if let Some(listen) = &choices.s3_listen {
        cluster.s3_listen = listen.clone();
    }
    if let Some(listen) = &choices.s3_tls_listen {
        cluster.s3_tls_listen = listen.clone();
    }
    cluster.admin_listen = choices.admin_listen.clone().or(cluster.admin_listen);
    cluster.command_audit_log = choices.command_audit_log.clone().or(cluster.command_audit_log);
    if cluster.s3_listeners().next().is_none() {
        return Err(NodeError::Invalid(
            "--s3-listen off and --s3-tls-listen off leave no address for the S3 gateway; give one of them".into(),
        ));
    }
    if !choices.tls_names.is_empty() {
        cluster.tls_names = choices.tls_names.clone();
    }
    if !choices.nbd_listen.is_empty() {
        cluster.nbd_listen = choices.nbd_listen.clone();
    }
    if !choices.nvme_listen.is_empty() {
        cluster.nvme_listen =
            choices.nvme_listen.iter().filter(|address| *address != LISTEN_OFF).cloned().collect();
    }
    cluster.listen = choices.listen.or(cluster.listen);
    cluster.advertise = choices.advertise.or(cluster.advertise);
    if cluster.osd_listen().is_unspecified() && cluster.advertise.is_none() {
        return Err(NodeError::Invalid(format!(
            "--listen {} does not name the address of this host for other hosts; name it, or give --advertise, \
             too",
            cluster.osd_listen()
        )));
    }
    if cluster.joined_by.is_some() {
        cluster.osd_bytes = choices.osd_bytes.unwrap_or(cluster.osd_bytes);
        check_joined(&cluster, choices)?;
    }
    Ok(cluster)
}

/// Makes the directory and the secrets of a new cluster, and writes `cluster.json`.
pub(crate) fn write_plan(
    directory: &DataDir,
    cluster: &mut ClusterFile,
    choices: &Choices,
) -> Result<(), NodeError> {
    directory.create()?;
    if !directory.has_cluster() {
        expose_embedded(directory, cluster)?;
        directory.make_key_service(choices.transit.as_ref())?;
        return directory.create_cluster(cluster);
    }
    if cluster.joined_by.is_none() {
        directory.check_transit(choices.transit.as_ref())?;
    }
    // Another command may have changed it since it was planned.
    *cluster = directory.change_cluster(|file| {
        *file = plan(directory, choices)?;
        expose_embedded(directory, file)
    })?;
    Ok(())
}

/// Checks that a joined host has everything to run.
fn check_joined(cluster: &ClusterFile, choices: &Choices) -> Result<(), NodeError> {
    if choices.osd_count.is_some_and(|count| count > 0) || !cluster.osd_ids.is_empty() {
        check_may_have_osds(cluster)?;
    }
    if choices.osd_count.is_some_and(|count| count > OSDS_MAX) {
        return Err(NodeError::Invalid(format!("--osds: a host has at most {OSDS_MAX} OSDs")));
    }
    Ok(())
}

/// The NBD server's own address if none is chosen.
pub(crate) fn nbd_socket(directory: &DataDir) -> Result<String, NodeError> {
    // It may not be there yet.
    let root = match directory.root().canonicalize() {
        Ok(root) => root,
        Err(_) => std::path::absolute(directory.root()).map_err(NodeError::file(directory.root()))?,
    };
    Ok(format!("unix:{}", root.join("nbd.sock").display()))
}

fn refuse_changed_choices(cluster: &ClusterFile, choices: &Choices) -> Result<(), NodeError> {
    let fixed = |what: &str| {
        Err(NodeError::Invalid(format!(
            "{what} was chosen when the cluster was made and cannot be changed by 'atoll up'; leave the option out"
        )))
    };
    let has_joined = cluster.joined_by.is_some();
    match choices {
        // A host that has joined may get more of them, of any size.
        Choices { osd_count: Some(count), .. } if has_joined && (*count as usize) < cluster.osd_ids.len() => {
            fixed("--osds")
        }
        Choices { osd_count: Some(count), .. } if !has_joined && *count as usize != cluster.osd_ids.len() => {
            fixed("--osds")
        }
        Choices { osd_bytes: Some(bytes), .. } if !has_joined && *bytes != cluster.osd_bytes => {
            fixed("--osd-size")
        }
        Choices { frame_modes: Some(modes), .. } if *modes != cluster.first_frame_modes() => {
            Err(NodeError::Invalid(
                "--frame-mode is for the first start; 'atoll settings set frame_mode_client MODE' (and _cluster, _gateway, \
                 _unix) changes it later, so leave the option out"
                    .into(),
            ))
        }
        Choices { transports: Some(transports), .. } if *transports != cluster.first_transports => {
            Err(NodeError::Invalid(
                "--transport is for the first start; 'atoll settings set transport_client TRANSPORT' (and _cluster, \
                 _gateway) changes it later, so leave the option out"
                    .into(),
            ))
        }
        Choices { encrypt_at_rest: true, .. } if !cluster.encrypt_at_rest => fixed("--encrypt-at-rest"),
        Choices { host: Some(host), .. } if *host != cluster.host_name() => fixed("--host"),
        Choices { rack: Some(rack), .. } if *rack != cluster.rack => fixed("--rack"),
        Choices { zone: Some(zone), .. } if *zone != cluster.zone => fixed("--zone"),
        _ => match &cluster.first_pools {
            Some(pools) if choices.failure_domain.is_some_and(|domain| domain != pools.failure_domain) => {
                fixed("--failure-domain")
            }
            Some(pools) if choices.copies.is_some_and(|copies| copies != pools.copies) => fixed("--copies"),
            Some(pools) if choices.ec.is_some_and(|ec| Some(ec) != pools.ec) => fixed("--ec"),
            _ => Ok(()),
        },
    }
}

fn new_cluster(directory: &DataDir, choices: &Choices) -> Result<ClusterFile, NodeError> {
    let osd_ids = choose_osds(directory, choices)?;
    let osd_bytes = choices.osd_bytes.unwrap_or_else(|| default_osd_bytes(directory, osd_ids.len() as u64));
    if osd_bytes < 1 << 30 {
        return Err(NodeError::Invalid("--osd-size: an OSD needs at least 1G".into()));
    }
    let (state_endpoints, state_listen) = if choices.etcd.endpoints.is_empty() {
        let address = free_address(Ipv4Addr::LOCALHOST.into())?;
        (vec![format!("http://{address}")], Some(address.to_string()))
    } else {
        (choices.etcd.endpoints.clone(), None)
    };
    let first_pools = first_pools(choices, osd_ids.len() as u32)?;
    let password = state_listen.as_ref().map(|_| hex::encode(random_bytes::<16>()));
    let mut cluster = ClusterFile {
        format: RECORD_FORMAT,
        cluster_id: hex::encode(random_bytes::<16>()),
        state_endpoints,
        state_user: password.as_ref().map(|_| "root".into()),
        state_password: password,
        state_listen,
        state_tls: TlsFiles::default(),
        is_founded: false,
        is_signed: false,
        signing_key: None,
        first_pools: Some(first_pools),
        joined_by: None,
        role: HostRole::Host,
        host: choices.host.clone().unwrap_or_default(),
        rack: choices.rack.clone().unwrap_or_default(),
        zone: choices.zone.clone().unwrap_or_default(),
        listen: None,
        advertise: None,
        frame_mode: choices.frame_modes.unwrap_or_default().cluster,
        first_frame_modes: choices.frame_modes.or(Some(FrameModes::of_new_clusters())),
        first_transports: choices.transports.unwrap_or_else(Transports::of_new_clusters),
        has_gateway_key: false,
        osd_ids,
        osd_bytes,
        encrypt_at_rest: choices.encrypt_at_rest,
        s3_listen: DEFAULT_S3_LISTEN.into(),
        s3_tls_listen: DEFAULT_S3_TLS_LISTEN.into(),
        admin_listen: None,
        command_audit_log: None,
        tls_names: Vec::new(),
        nbd_listen: vec![nbd_socket(directory)?],
        nvme_listen: Vec::new(),
        directory: None,
    };
    cluster.host = cluster.host_name();
    if !choices.etcd.endpoints.is_empty() {
        choices.etcd.apply(&mut cluster)?;
    }
    Ok(cluster)
}

fn first_pools(choices: &Choices, osd_count: u32) -> Result<FirstPools, NodeError> {
    // What one machine has is one host, so unless told otherwise copies are on different OSDs.
    let failure_domain = choices.failure_domain.unwrap_or(FailureDomain::Osd);
    let usual = if failure_domain == FailureDomain::Osd { COPIES_MAX.min(osd_count) } else { COPIES_MAX };
    let copies = choices.copies.unwrap_or(usual);
    if !(1..=COPIES_MAX).contains(&copies) {
        return Err(NodeError::Invalid(format!("--copies {copies}: choose 1 to {COPIES_MAX} copies")));
    }
    if failure_domain == FailureDomain::Osd && copies > osd_count {
        return Err(NodeError::Invalid(format!(
            "--copies {copies}: there are {osd_count} OSDs; make more, or spread copies over hosts with --failure-domain \
             host"
        )));
    }
    if let Some(ec) = choices.ec {
        let (data, parity, wanted) = (ec.copies_needed(), ec.size() - ec.copies_needed(), ec.size());
        if failure_domain == FailureDomain::Osd && wanted > osd_count {
            return Err(NodeError::Invalid(format!(
                "--ec {data}+{parity}: that takes {wanted} OSDs, and there are {osd_count}; give --osds {wanted}, or spread \
                 shards over hosts with --failure-domain host"
            )));
        }
    }
    Ok(FirstPools { copies, failure_domain, ec: choices.ec })
}

/// Enough for the code, if each shard needs an OSD of its own here.
fn default_osds(choices: &Choices) -> u32 {
    let is_on_osds = choices.failure_domain.unwrap_or(FailureDomain::Osd) == FailureDomain::Osd;
    let shards = choices.ec.filter(|_| is_on_osds).map_or(0, |ec| ec.size());
    DEFAULT_OSDS.max(shards)
}

/// Returns the OSDs of a new cluster: those that `atoll osd create` has made, or the chosen number of new ones.
fn choose_osds(directory: &DataDir, choices: &Choices) -> Result<Vec<OsdId>, NodeError> {
    let prepared = directory.prepared_osds();
    for &id in &prepared {
        if choices.encrypt_at_rest && directory.unlock_with(id)?.is_none() {
            return Err(NodeError::Invalid(format!(
                "--encrypt-at-rest is for device files that 'atoll up' makes, and {id} was created without \
                 encryption; create it again with 'atoll osd create --encrypt', or leave the option out"
            )));
        }
    }
    if choices.osd_count.is_none() && !prepared.is_empty() {
        return Ok(prepared);
    }
    let count = choices.osd_count.unwrap_or_else(|| default_osds(choices));
    if !(1..=OSDS_MAX).contains(&count) {
        return Err(NodeError::Invalid(format!("--osds {count}: choose 1 to {OSDS_MAX} OSDs for one machine")));
    }
    if let Some(left_out) = prepared.iter().find(|id| id.0 >= count) {
        return Err(NodeError::Invalid(format!(
            "--osds {count} leaves out {left_out}, which was made with 'atoll osd create'; leave --osds out to use \
             exactly the OSDs that were made"
        )));
    }
    Ok((0..count).map(OsdId).collect())
}

/// Writes the first records of cluster state. The cluster record comes last and says that all
/// others are there, but for the pools, which may have to wait for other hosts.
pub(crate) async fn write_records(
    directory: &DataDir,
    cluster: &mut ClusterFile,
    state: &ClusterClient,
) -> Result<(), NodeError> {
    if !check_identity(cluster, state).await? {
        found_signed(directory, cluster, state).await?;
        register_osds(directory, cluster, state).await?;
        let client = host_key(PeerRole::Client, &cluster.host_name());
        ensure(state, &place_of(&directory.make_static_key("client")?), &client).await?;
        add_what_is_new(directory, cluster, state).await?;
        if !cluster.is_state_embedded() {
            // The embedded server refuses changes of others' PGs by itself. An etcd cannot.
            let settings = SettingsRecord { pg_signatures_required: true, ..SettingsRecord::default() };
            ensure(state, keys::SETTINGS, &settings).await?;
        }
        write_user(directory, cluster, state).await?;
        let record = ClusterRecord {
            format: RECORD_FORMAT,
            id: cluster.cluster_id.clone(),
            frame_mode: cluster.frame_mode,
            created_unix_ms: unix_ms(),
        };
        ensure(state, keys::CLUSTER, &record).await?;
        // Somebody else's record may have been faster.
        check_identity(cluster, state).await?;
    }
    if !cluster.is_founded {
        cluster.is_founded = true;
        directory.change_cluster(|file| {
            file.is_founded = true;
            Ok(())
        })?;
    }
    Ok(())
}

/// Adds the records that clusters of earlier releases lack: how frames are protected, the first account, and
/// the key of this host's gateway, unless the host has been shut out.
pub(crate) async fn add_what_is_new(
    directory: &DataDir,
    cluster: &mut ClusterFile,
    state: &ClusterClient,
) -> Result<(), NodeError> {
    // Other hosts may not, and come when one of these has.
    if cluster.role.is_admin() {
        add_records_of_cluster(cluster, state).await?;
    }
    if cluster.has_gateway_key || !cluster.role.has_clients() || cluster.has_own_login() {
        return Ok(());
    }
    add_gateway_key(directory, cluster, state).await
}

async fn add_records_of_cluster(cluster: &ClusterFile, state: &ClusterClient) -> Result<(), NodeError> {
    let frames =
        FramesRecord { transports: cluster.first_transports, ..FramesRecord::from(cluster.first_frame_modes()) };
    match ensure(state, keys::FRAMES, &frames).await {
        // Somebody has removed it, and the modes of before may have been others. Health says so.
        Err(NodeError::Cluster(error @ ClusterError::Untrusted { .. })) => tracing::error!("{error}"),
        done => done?,
    }
    ensure_first_account(state).await
}

async fn add_gateway_key(
    directory: &DataDir,
    cluster: &mut ClusterFile,
    state: &ClusterClient,
) -> Result<(), NodeError> {
    if state.get::<AuthorizedKeyRecord>(&place_of(&directory.static_key("client")?)).await?.is_some() {
        let record = host_key(PeerRole::Gateway, &cluster.host_name());
        ensure(state, &place_of(&directory.make_static_key("gateway")?), &record).await?;
        // From now on it does not come back by itself when it is revoked.
        cluster.has_gateway_key = true;
        directory.change_cluster(|file| {
            file.has_gateway_key = true;
            Ok(())
        })?;
    }
    Ok(())
}

/// Writes the record of the first account, which has the name of its first access key, as soon as there is one.
async fn ensure_first_account(state: &ClusterClient) -> Result<(), NodeError> {
    if is_there(state, &keys::account(FIRST_ACCOUNT)).await? {
        return Ok(());
    }
    let identities = atoll_admin::identities::current(state).await?;
    match identities.account(FIRST_ACCOUNT) {
        Some(account) => ensure(state, &keys::account(FIRST_ACCOUNT), &account.record).await,
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests;
