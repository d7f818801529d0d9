//! The first start: keys and devices on disk, then the first records of cluster state. Every step
//! may be repeated, so that a start that was cut short goes on where it was.

use std::collections::BTreeMap;
use std::net::TcpListener;

use atoll_base::records::{
    AuthorizedKeyRecord, ClusterRecord, FailureDomain, FrameMode, OsdRecord, PeerRole, PoolRecord, RECORD_FORMAT,
    Redundancy, UserRecord,
};
use atoll_base::{OsdId, PgId, PoolId};
use atoll_cluster::{ClusterClient, ClusterError, keys};
use atoll_coordinator::admin::{self, AdminError};
use atoll_crypto::{KeyService, LocalKeyFile, random_bytes};
use atoll_placement::{Tree, first_record};
use serde::Serialize;

use crate::data_dir::{ClusterFile, Credentials, DataDir};
use crate::error::SupervisorError;
use crate::members::{OsdPlace, own_record};

/// The pool of images.
pub const POOL_IMAGES: &str = "images";
/// The pool of S3 objects and bucket indexes.
pub const POOL_OBJECTS: &str = "objects";
/// Size of an OSD's device file if none is chosen. The file is sparse.
pub const DEFAULT_OSD_BYTES: u64 = 32 << 30;
/// Most OSDs of one machine.
pub(crate) const OSDS_MAX: u32 = 64;
const PG_NUM: u32 = 32;
const COPIES_MAX: u32 = 3;

/// What the user chose for `atoll up`.
#[derive(Clone, Debug)]
pub struct Choices {
    /// Number of OSDs, for the first start.
    pub osd_count: Option<u32>,
    /// Size of each OSD's device in bytes, for the first start.
    pub osd_bytes: Option<u64>,
    /// Where the S3 gateway listens.
    pub s3_listen: Option<String>,
    /// Where the NBD server listens.
    pub nbd_listen: Vec<String>,
    /// Endpoints of a real etcd instead of the embedded server, for the first start.
    pub etcd: Vec<String>,
    /// Protection of frames, for the first start.
    pub frame_mode: Option<FrameMode>,
    /// Whether device files are LUKS2 volumes that the key service unlocks, for the first start.
    pub encrypt_at_rest: bool,
}

const DEFAULT_OSDS: u32 = 3;
const DEFAULT_S3_LISTEN: &str = "127.0.0.1:9000";

/// Makes or updates `cluster.json` from the user's choices, and the keys beside it.
pub(crate) fn prepare(directory: &DataDir, choices: &Choices) -> Result<ClusterFile, SupervisorError> {
    let mut cluster = if directory.has_cluster() {
        let cluster = directory.cluster()?;
        refuse_changed_choices(&cluster, choices)?;
        cluster
    } else {
        new_cluster(directory, choices)?
    };
    if let Some(listen) = &choices.s3_listen {
        cluster.s3_listen = listen.clone();
    }
    if !choices.nbd_listen.is_empty() {
        cluster.nbd_listen = choices.nbd_listen.clone();
    }
    directory.create()?;
    directory.ensure_key_service()?;
    directory.write_cluster(&cluster)?;
    Ok(cluster)
}

fn refuse_changed_choices(cluster: &ClusterFile, choices: &Choices) -> Result<(), SupervisorError> {
    let fixed = |what: &str| {
        Err(SupervisorError::Invalid(format!(
            "{what} was chosen when the cluster was made and cannot be changed by 'atoll up'; leave the option out"
        )))
    };
    match choices {
        Choices { osd_count: Some(count), .. } if *count as usize != cluster.osd_ids.len() => fixed("--osds"),
        Choices { osd_bytes: Some(bytes), .. } if *bytes != cluster.osd_bytes => fixed("--osd-size"),
        Choices { frame_mode: Some(mode), .. } if *mode != cluster.frame_mode => fixed("--frame-mode"),
        Choices { etcd, .. } if !etcd.is_empty() && *etcd != cluster.state_endpoints => fixed("--etcd"),
        Choices { encrypt_at_rest: true, .. } if !cluster.encrypt_at_rest => fixed("--encrypt-at-rest"),
        _ => Ok(()),
    }
}

fn new_cluster(directory: &DataDir, choices: &Choices) -> Result<ClusterFile, SupervisorError> {
    let osd_ids = choose_osds(directory, choices)?;
    let osd_bytes = choices.osd_bytes.unwrap_or(DEFAULT_OSD_BYTES);
    if osd_bytes < 1 << 30 {
        return Err(SupervisorError::Invalid("--osd-size: an OSD needs at least 1G".into()));
    }
    directory.create()?;
    let socket =
        directory.root().canonicalize().map_err(SupervisorError::file(directory.root()))?.join("nbd.sock");
    let (state_endpoints, state_listen) = if choices.etcd.is_empty() {
        let address = free_address()?;
        (vec![format!("http://{address}")], Some(address))
    } else {
        (choices.etcd.clone(), None)
    };
    let password = state_listen.as_ref().map(|_| hex::encode(random_bytes::<16>()));
    Ok(ClusterFile {
        format: RECORD_FORMAT,
        cluster_id: hex::encode(random_bytes::<16>()),
        state_endpoints,
        state_user: password.as_ref().map(|_| "root".into()),
        state_password: password,
        state_listen,
        frame_mode: choices.frame_mode.unwrap_or_default(),
        osd_ids,
        osd_bytes,
        encrypt_at_rest: choices.encrypt_at_rest,
        s3_listen: DEFAULT_S3_LISTEN.into(),
        nbd_listen: vec![format!("unix:{}", socket.display())],
    })
}

/// The OSDs of a new cluster: those that `atoll osd create` has made, or so many new ones.
fn choose_osds(directory: &DataDir, choices: &Choices) -> Result<Vec<OsdId>, SupervisorError> {
    let prepared = directory.prepared_osds();
    for &id in &prepared {
        if choices.encrypt_at_rest && directory.unlock_with(id)?.is_none() {
            return Err(SupervisorError::Invalid(format!(
                "--encrypt-at-rest is for device files that 'atoll up' makes, and {id} was created without encryption;                  create it anew with 'atoll osd create --encrypt', or leave the option out"
            )));
        }
    }
    if choices.osd_count.is_none() && !prepared.is_empty() {
        return Ok(prepared);
    }
    let count = choices.osd_count.unwrap_or(DEFAULT_OSDS);
    if !(1..=OSDS_MAX).contains(&count) {
        return Err(SupervisorError::Invalid(format!(
            "--osds {count}: choose 1 to {OSDS_MAX} OSDs for one machine"
        )));
    }
    if let Some(left_out) = prepared.iter().find(|id| id.0 >= count) {
        return Err(SupervisorError::Invalid(format!(
            "--osds {count} leaves out {left_out}, which was made with 'atoll osd create'; leave --osds out to use \
             exactly the OSDs that were made"
        )));
    }
    Ok((0..count).map(OsdId).collect())
}

/// A free port for the embedded cluster-state server, remembered from then on.
fn free_address() -> Result<String, SupervisorError> {
    let listener = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    let address = listener.map_err(SupervisorError::file("127.0.0.1"))?;
    Ok(address.to_string())
}

/// Writes a record unless it is there; what is there stays.
async fn ensure<T: Serialize>(state: &ClusterClient, key: &str, record: &T) -> Result<(), SupervisorError> {
    match state.create(key, record).await {
        Ok(_) | Err(ClusterError::AlreadyExists { .. }) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Writes the first records of cluster state. The cluster record comes last and says that all
/// others are there.
pub(crate) async fn write_records(
    directory: &DataDir,
    cluster: &ClusterFile,
    state: &ClusterClient,
) -> Result<(), SupervisorError> {
    if let Some((record, _)) = state.get::<ClusterRecord>(keys::CLUSTER).await? {
        if record.id != cluster.cluster_id {
            return Err(SupervisorError::Invalid(format!(
                "cluster state at {:?} belongs to another cluster ({}); use an etcd of its own",
                cluster.state_endpoints, record.id
            )));
        }
        return Ok(());
    }
    let osds = write_osds(directory, cluster, state).await?;
    let client = AuthorizedKeyRecord {
        format: RECORD_FORMAT,
        role: PeerRole::Client,
        osd: None,
        name: "gateway, NBD server and tools of this machine".into(),
    };
    let client_key = hex::encode(directory.static_key("client")?.public());
    ensure(state, &keys::authorized_key(&client_key), &client).await?;
    for (number, name) in [(1, POOL_IMAGES), (2, POOL_OBJECTS)] {
        write_pool(state, PoolId(number), name, &osds).await?;
    }
    write_user(directory, cluster, state).await?;
    let record = ClusterRecord {
        format: RECORD_FORMAT,
        id: cluster.cluster_id.clone(),
        frame_mode: cluster.frame_mode,
        created_unix_ms: unix_ms(),
    };
    ensure(state, keys::CLUSTER, &record).await
}

async fn write_osds(
    directory: &DataDir,
    cluster: &ClusterFile,
    state: &ClusterClient,
) -> Result<BTreeMap<OsdId, OsdRecord>, SupervisorError> {
    let mut osds = BTreeMap::new();
    for &id in &cluster.osd_ids {
        let record = own_record(directory, id, &OsdPlace::default())?;
        match admin::osds::add(state, &record).await {
            Ok(()) | Err(AdminError::Cluster(ClusterError::Conflict { .. })) => {}
            Err(error) => return Err(error.into()),
        }
        osds.insert(id, record);
    }
    Ok(osds)
}

async fn write_pool(
    state: &ClusterClient,
    id: PoolId,
    name: &str,
    osds: &BTreeMap<OsdId, OsdRecord>,
) -> Result<(), SupervisorError> {
    let size = COPIES_MAX.min(osds.len() as u32);
    let pool = PoolRecord {
        format: RECORD_FORMAT,
        id,
        name: name.into(),
        // More than half, as Ceph has it: one of three may fail while writes go on.
        redundancy: Redundancy::Replicated { size, min_size: size - size / 2 },
        pg_num: PG_NUM,
        // One machine is one host, so copies can only be on different OSDs.
        failure_domain: FailureDomain::Osd,
        device_class: None,
    };
    let tree = Tree::of_pool(&pool, osds);
    for index in 0..pool.pg_num {
        let pg = PgId { pool: id, index };
        if let Some(record) = first_record(tree.target(pg, None)) {
            ensure(state, &keys::pg(pg), &record).await?;
        }
    }
    ensure(state, &keys::pool(id), &pool).await
}

async fn write_user(
    directory: &DataDir,
    cluster: &ClusterFile,
    state: &ClusterClient,
) -> Result<(), SupervisorError> {
    let keys_service: &dyn KeyService = &LocalKeyFile::open(&directory.key_service_file())?;
    let access_key = format!("ATOLL{}", hex::encode_upper(random_bytes::<8>()));
    let (record, secret_key): (UserRecord, String) =
        atoll_s3::new_user(keys_service, &access_key, "admin").await?;
    ensure(state, &keys::user(&access_key), &record).await?;
    let endpoint = format!("http://{}", cluster.s3_listen);
    directory.write_credentials(&Credentials { access_key, secret_key, endpoint, ca_file: None })
}

fn unix_ms() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |elapsed| elapsed.as_millis() as u64)
}
