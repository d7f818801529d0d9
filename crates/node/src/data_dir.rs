//! The data directory: its paths, and the content of its files.

use std::fs;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use atoll_authority::{Authority, Verifier};
use atoll_cluster::{ConnectOptions, Proposer, TlsFiles};
use atoll_files::{Lock, check_private, create_directories, sync_directory_of};
use atoll_keys::random_bytes;
use atoll_types::OsdId;
use atoll_types::frames::{FrameMode, FrameModes};
use atoll_types::join::HostRole;
use atoll_types::records::{FailureDomain, Redundancy};
use atoll_types::transports::Transports;
use atoll_wire::KeyPair;
use serde::{Deserialize, Serialize};

use crate::NodeError;
use crate::host_login::login_source;
use crate::json_files::{change_json, create_json, create_secret, read_json, replace_held, text, write_secret};
use crate::state_access::EMBEDDED_NAME;

/// A data directory of `atoll up`.
#[derive(Clone, Debug)]
pub struct DataDir {
    root: PathBuf,
}

/// `cluster.json`: how the processes of this machine find each other.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ClusterFile {
    /// Version of this file's format.
    pub format: u32,
    /// The cluster's random id.
    pub cluster_id: String,
    /// Endpoints of cluster state.
    pub state_endpoints: Vec<String>,
    /// Where the embedded cluster-state server listens; absent when a real etcd is used.
    pub state_listen: Option<String>,
    /// User and password for cluster state, if it demands them.
    pub state_user: Option<String>,
    /// See `state_user`.
    pub state_password: Option<String>,
    /// Certificates for cluster state, if its endpoints are https.
    #[serde(default)]
    pub state_tls: TlsFiles,
    /// True if the cluster's records were there once: then they are never recreated.
    #[serde(default = "yes")]
    pub is_founded: bool,
    /// True if the cluster's records are signed: then unsigned ones are refused, for any content of cluster state.
    #[serde(default)]
    pub is_signed: bool,
    /// Public key of the cluster's signed records, with its id: records that all processes obey are accepted if it or a
    /// successor has signed them. Missing until the cluster signs for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signing_key: Option<String>,
    /// The pools that are made once there are enough OSDs, on the host that made the cluster.
    #[serde(default)]
    pub first_pools: Option<FirstPools>,
    /// The join token that this host has used; absent on the host that made the cluster.
    #[serde(default)]
    pub joined_by: Option<String>,
    /// Role of this host.
    #[serde(default)]
    pub role: HostRole,
    /// This host's name in the failure-domain tree.
    #[serde(default)]
    pub host: String,
    /// Its rack, if there is one.
    #[serde(default)]
    pub rack: String,
    /// Its zone, if there is one.
    #[serde(default)]
    pub zone: String,
    /// Where OSDs listen; loopback only if absent.
    #[serde(default)]
    pub listen: Option<IpAddr>,
    /// The address that OSDs announce, if it is not the one they listen on.
    #[serde(default)]
    pub advertise: Option<IpAddr>,
    /// Protection of frames when the cluster was made; the current one is in cluster state.
    pub frame_mode: FrameMode,
    /// The same, if it is not the same for everyone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_frame_modes: Option<FrameModes>,
    /// Transports of frames when the cluster was made.
    #[serde(default)]
    pub first_transports: Transports,
    /// True if cluster state has a key of its own for this host's gateway. Earlier releases used that of the other
    /// clients.
    #[serde(default)]
    pub has_gateway_key: bool,
    /// OSDs on this machine.
    pub osd_ids: Vec<OsdId>,
    /// Size of each OSD's device in bytes.
    pub osd_bytes: u64,
    /// True if devices that `atoll up` makes are LUKS2 volumes that the key service unlocks.
    #[serde(default)]
    pub encrypt_at_rest: bool,
    /// Where the S3 gateway listens for HTTP, or `off`.
    pub s3_listen: String,
    /// Where it listens for HTTPS, or `off`.
    #[serde(default = "default_s3_tls_listen")]
    pub s3_tls_listen: String,
    /// Where the admin server listens, with TLS, or `off`; at the OSDs' address if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admin_listen: Option<String>,
    /// Where lines of the audit log of commands go: the URL of a collector, `off`, or `file`; to files if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command_audit_log: Option<String>,
    /// Further names for the certificate that is made for this host.
    #[serde(default)]
    pub tls_names: Vec<String>,
    /// Where the NBD server listens: `unix:PATH` or `IP:PORT`.
    pub nbd_listen: Vec<String>,
    /// Where the NVMe/TCP target listens: `IP:PORT`. Without an address there is none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nvme_listen: Vec<String>,
    /// The data directory, in which there may be another password than this one later.
    #[serde(skip)]
    pub(crate) directory: Option<DataDir>,
}

fn yes() -> bool {
    true
}

/// Where the S3 gateway listens for HTTPS unless something else is chosen.
pub(crate) const DEFAULT_S3_TLS_LISTEN: &str = "127.0.0.1:9443";
/// In place of an address: nothing listens.
pub const LISTEN_OFF: &str = "off";

fn default_s3_tls_listen() -> String {
    DEFAULT_S3_TLS_LISTEN.into()
}

/// The pools of a new cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FirstPools {
    /// Copies of each object.
    pub copies: u32,
    /// Level on which no two copies or shards share an item.
    pub failure_domain: FailureDomain,
    /// The erasure code of the pool for S3 data; absent if there is none beside the pool of objects.
    #[serde(default)]
    pub ec: Option<Redundancy>,
}

/// `credentials.json`: for S3 clients.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Credentials {
    /// The public half.
    pub access_key: String,
    /// The secret half.
    pub secret_key: String,
    /// `http://HOST:PORT` of the gateway; with `https` if that is all it speaks.
    pub endpoint: String,
    /// `https://HOST:PORT` of the gateway; absent if it speaks plain HTTP only.
    #[serde(default)]
    pub tls_endpoint: Option<String>,
    /// Authority of the gateway's certificate; absent if clients trust it anyway.
    pub ca_file: Option<PathBuf>,
}

impl DataDir {
    /// The directory at `root`, existing or not.
    pub fn new(root: &Path) -> Self {
        DataDir { root: root.to_owned() }
    }

    /// Makes the directory, readable by its owner only.
    pub fn create(&self) -> Result<(), NodeError> {
        for path in [self.root.clone(), self.keys(), self.tls(), self.logs(), self.state()] {
            create_directories(&path).map_err(NodeError::file(path))?;
        }
        self.check_private()
    }

    /// Checks that no other user can enter it: it has all secrets of the host, and sockets that obey every process
    /// that reaches them.
    fn check_private(&self) -> Result<(), NodeError> {
        Ok(check_private(&self.root)?)
    }

    /// Removes all of it, unless a cluster was made or joined in it.
    pub fn remove_if_not_founded(&self) -> Result<(), NodeError> {
        let is_founded = self.has_cluster() && self.cluster()?.is_founded;
        if is_founded || !self.root.exists() {
            return Ok(());
        }
        fs::remove_dir_all(&self.root).map_err(NodeError::file(&self.root))
    }

    /// The directory itself.
    pub fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn keys(&self) -> PathBuf {
        self.root.join("keys")
    }

    /// Certificate and private key of the embedded cluster-state server, if it serves other hosts.
    pub fn state_identity(&self) -> Option<(PathBuf, PathBuf)> {
        let key = self.state_key_file();
        key.exists().then(|| (self.keys().join("state.pem"), key))
    }

    pub(crate) fn state_key_file(&self) -> PathBuf {
        self.keys().join("state.key")
    }

    /// Certificates of this host's servers and their authority.
    pub fn tls(&self) -> PathBuf {
        self.root.join("tls")
    }

    /// Logs of all processes.
    pub fn logs(&self) -> PathBuf {
        self.root.join("log")
    }

    /// The log of a process: `osd.0`, `gateway`, ...
    pub(crate) fn log_file(&self, process: &str) -> PathBuf {
        self.logs().join(format!("{process}.log"))
    }

    /// The embedded cluster-state server's directory.
    pub fn state(&self) -> PathBuf {
        self.root.join("state")
    }

    /// The password with which this host is to log in to cluster state, while it joins.
    pub(crate) fn joining_file(&self) -> PathBuf {
        self.keys().join("joining.json")
    }

    /// The password that this host is about to have in cluster state.
    pub(crate) fn rotating_file(&self) -> PathBuf {
        self.keys().join("rotating.json")
    }

    pub(crate) fn state_file(&self) -> PathBuf {
        self.state().join("state.redb")
    }

    /// Returns true if there is cluster state in it: either of the server's two files is as good as both.
    pub(crate) fn has_state(&self) -> bool {
        self.state_file().exists() || self.state().join("state.copy.redb").exists()
    }

    /// The key-management service's key file.
    pub fn key_service_file(&self) -> PathBuf {
        self.keys().join("kms.json")
    }

    /// Options to reach cluster state, and to sign and verify its records where this host has the key service. Elsewhere
    /// records that all processes obey are verified.
    pub fn connect_options(&self, cluster: &ClusterFile) -> ConnectOptions {
        match self.authority(cluster) {
            Some(authority) => ConnectOptions {
                guard: Some(Arc::new(authority)),
                proposer: Some(self.proposer()),
                ..cluster.connect_options()
            },
            None => self.verifying_options(cluster),
        }
    }

    /// Returns the signer of changes of PGs by this host: with the static key of its clients, once there is one.
    fn proposer(&self) -> Proposer {
        let directory = self.clone();
        Proposer::new(Arc::new(move || directory.static_key("client").ok()))
    }

    /// Options to reach cluster state without the key service, as OSDs do, and to verify records that all processes obey.
    pub fn verifying_options(&self, cluster: &ClusterFile) -> ConnectOptions {
        ConnectOptions {
            guard: Some(Arc::new(self.verifier(cluster))),
            proposer: Some(self.proposer()),
            ..cluster.connect_options()
        }
    }

    /// Returns the verifier of records that all processes obey. It has this host remember the key that signs them.
    pub fn verifier(&self, cluster: &ClusterFile) -> Verifier {
        let directory = self.clone();
        let pin = move |key: &str| {
            if let Err(error) = directory.pin_signing_key(key) {
                tracing::warn!("the key of signed records is not remembered: {error}");
            }
        };
        Verifier::new(cluster.signing_key.as_deref(), Arc::new(pin))
    }

    pub(crate) fn pin_signing_key(&self, key: &str) -> Result<(), NodeError> {
        let pin = |file: &mut ClusterFile| {
            file.signing_key = Some(key.to_owned());
            Ok(())
        };
        self.change_cluster(pin).map(drop)
    }

    /// Returns the authority that signs and verifies records of cluster state; none on hosts without the key
    /// service. Where it should be, nothing is read without.
    pub fn authority(&self, cluster: &ClusterFile) -> Option<Authority> {
        let path = self.key_service_file();
        let has_keys = path.exists() || (cluster.is_signed && cluster.role.has_clients());
        has_keys.then(|| Authority::of_file(&path, cluster.is_signed))
    }

    /// An OSD's directory.
    pub(crate) fn osd(&self, osd: OsdId) -> PathBuf {
        self.root.join(format!("osd-{}", osd.0))
    }

    /// Makes an OSD's directory.
    pub(crate) fn create_osd(&self, osd: OsdId) -> Result<(), NodeError> {
        let path = self.osd(osd);
        // One that an earlier attempt has made may not be durable yet.
        create_directories(&path).and_then(|()| sync_directory_of(&path)).map_err(NodeError::file(path))
    }

    /// Waits until no other process makes devices here or chooses their numbers.
    pub(crate) fn lock_devices(&self) -> Result<Lock, NodeError> {
        let path = self.root.join("devices.lock");
        Lock::take(&path).map_err(NodeError::file(path))
    }

    /// An OSD's device: a file, or a link to a file or block device.
    pub fn device(&self, osd: OsdId) -> PathBuf {
        self.osd(osd).join("device")
    }

    /// Returns true if an OSD was given a device, present at the moment or not.
    pub(crate) fn has_device(&self, osd: OsdId) -> bool {
        fs::symlink_metadata(self.device(osd)).is_ok()
    }

    /// OSDs that were given a device, in order.
    pub(crate) fn prepared_osds(&self) -> Vec<OsdId> {
        let entries = fs::read_dir(&self.root).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let mut osds: Vec<OsdId> =
            names.filter_map(|name| name.strip_prefix("osd-")?.parse().ok().map(OsdId)).collect();
        osds.retain(|osd| self.has_device(*osd));
        osds.sort_unstable();
        osds
    }

    pub(crate) fn wal_device_link(&self, osd: OsdId) -> PathBuf {
        self.osd(osd).join("wal-device")
    }

    /// The device of an OSD's log, if it has its own, be it there at the moment or not.
    pub fn wal_device(&self, osd: OsdId) -> Option<PathBuf> {
        Some(self.wal_device_link(osd)).filter(|link| fs::symlink_metadata(link).is_ok())
    }

    /// The admin socket of a process: `osd.0`, `gateway`, ...
    pub fn admin_socket(&self, process: &str) -> PathBuf {
        self.admin_sockets().join(format!("{process}.sock"))
    }

    /// The directory with the admin sockets of this host's processes.
    pub fn admin_sockets(&self) -> PathBuf {
        self.root.join("run")
    }

    /// The file with the processes that run now.
    pub fn processes_file(&self) -> PathBuf {
        self.root.join("processes.json")
    }

    /// Locked by the supervisor while it runs.
    pub fn lock_file(&self) -> PathBuf {
        self.root.join("supervisor.lock")
    }

    pub(crate) fn cluster_file(&self) -> PathBuf {
        self.root.join("cluster.json")
    }

    pub(crate) fn credentials_file(&self) -> PathBuf {
        self.root.join("credentials.json")
    }

    pub(crate) fn static_key_file(&self, holder: &str) -> PathBuf {
        self.keys().join(format!("{holder}.key"))
    }

    /// Returns true if a cluster was made here.
    pub fn has_cluster(&self) -> bool {
        self.cluster_file().exists()
    }

    /// Reads `cluster.json`.
    pub fn cluster(&self) -> Result<ClusterFile, NodeError> {
        if !self.has_cluster() {
            return Err(NodeError::NoCluster { path: self.root.clone() });
        }
        self.check_private()?;
        let mut cluster: ClusterFile = read_json(&self.cluster_file())?;
        cluster.directory = Some(self.clone());
        Ok(cluster)
    }

    /// Writes the `cluster.json` of a new cluster. One that is there is an error.
    pub(crate) fn create_cluster(&self, cluster: &ClusterFile) -> Result<(), NodeError> {
        create_json(&self.cluster_file(), cluster)
    }

    /// Changes the current `cluster.json`, and returns the new content. Other processes that change it wait
    /// meanwhile.
    pub(crate) fn change_cluster(
        &self,
        change: impl FnOnce(&mut ClusterFile) -> Result<(), NodeError>,
    ) -> Result<ClusterFile, NodeError> {
        if !self.has_cluster() {
            return Err(NodeError::NoCluster { path: self.root.clone() });
        }
        let mut changed = change_json(&self.cluster_file(), change)?;
        changed.directory = Some(self.clone());
        Ok(changed)
    }

    /// Returns true if there is a `credentials.json`.
    pub(crate) fn has_credentials(&self) -> bool {
        self.credentials_file().exists()
    }

    /// Reads `credentials.json`.
    pub fn credentials(&self) -> Result<Credentials, NodeError> {
        match (self.has_credentials(), self.has_cluster()) {
            (true, _) => read_json(&self.credentials_file()),
            (false, true) => Err(NodeError::NoCredentials { path: self.credentials_file() }),
            (false, false) => Err(NodeError::NoCluster { path: self.root.clone() }),
        }
    }

    /// Changes `credentials.json` as it is now.
    pub(crate) fn change_credentials(&self, change: impl FnOnce(&mut Credentials)) -> Result<(), NodeError> {
        let changed = change_json(&self.credentials_file(), |credentials| {
            change(credentials);
            Ok(())
        });
        changed.map(drop)
    }

    /// Writes `credentials.json`.
    pub fn write_credentials(&self, credentials: &Credentials) -> Result<(), NodeError> {
        replace_held(&self.credentials_file(), text(credentials).as_bytes())
    }

    /// Returns true if a process has a static key already.
    pub(crate) fn has_static_key(&self, holder: &str) -> bool {
        self.static_key_file(holder).exists()
    }

    /// Returns the static key of a process, made now if it is missing: for processes whose key the cluster does
    /// not know.
    pub(crate) fn make_static_key(&self, holder: &str) -> Result<KeyPair, NodeError> {
        if !self.has_static_key(holder) {
            // Another process may be faster: its key is the one.
            create_secret(&self.static_key_file(holder), hex::encode(random_bytes::<32>()).as_bytes())?;
        }
        self.static_key(holder)
    }

    pub(crate) fn write_static_key(&self, holder: &str, private: &[u8; 32]) -> Result<(), NodeError> {
        write_secret(&self.static_key_file(holder), hex::encode(private).as_bytes())
    }

    /// The static key of a process.
    pub fn static_key(&self, holder: &str) -> Result<KeyPair, NodeError> {
        let path = self.static_key_file(holder);
        let text = match fs::read_to_string(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Err(NodeError::Lost {
                    path,
                    what: format!("the other processes of the cluster know {holder} by it"),
                    remedy: format!(
                        ", or make a new one: 'atoll up --data {} --new-key {holder}'",
                        self.root.display()
                    ),
                });
            }
            read => read.map_err(NodeError::file(&path))?,
        };
        let mut private = [0; 32];
        hex::decode_to_slice(text.trim(), &mut private)
            .map_err(|error| NodeError::Malformed { path, detail: error.to_string() })?;
        Ok(KeyPair::from_private(private))
    }
}

/// Default port of the admin server.
const ADMIN_PORT: u16 = 8443;

impl ClusterFile {
    /// How to reach cluster state and to read it as it is, without verifying anything.
    pub fn connect_options(&self) -> ConnectOptions {
        let mut options = ConnectOptions::new(self.state_endpoints.clone()).with_tls(self.state_tls.clone());
        if let Some(directory) = &self.directory {
            options = options.with_login_source(login_source(directory));
        }
        match (&self.state_user, &self.state_password) {
            (Some(user), Some(password)) => options.with_user(user.clone(), password.clone()),
            _ => options,
        }
    }

    /// Where OSDs listen.
    pub fn osd_listen(&self) -> IpAddr {
        self.listen.unwrap_or(Ipv4Addr::LOCALHOST.into())
    }

    /// Returns true if other hosts can reach the processes here.
    pub fn is_reachable(&self) -> bool {
        !self.advertise.unwrap_or(self.osd_listen()).is_loopback()
    }

    /// Returns true if cluster state is in an embedded server, of this host or of another one.
    pub fn is_state_embedded(&self) -> bool {
        self.state_listen.is_some() || self.state_tls.server_name.as_deref() == Some(EMBEDDED_NAME)
    }

    /// Returns the addresses on which the S3 gateway listens, with their schemes.
    pub fn s3_listeners(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let all = [("http", self.s3_listen.as_str()), ("https", self.s3_tls_listen.as_str())];
        all.into_iter().filter(|(_, address)| *address != LISTEN_OFF)
    }

    /// The URL of the S3 gateway over plain HTTP, or over TLS if that is all there is.
    pub fn s3_endpoint(&self) -> String {
        let first = self.s3_listeners().next();
        first.map(|(scheme, address)| self.url(scheme, address)).unwrap_or_default()
    }

    /// Where the admin server listens, unless that is off.
    pub fn admin_listen(&self) -> Option<String> {
        let default = || SocketAddr::new(self.osd_listen(), ADMIN_PORT).to_string();
        Some(self.admin_listen.clone().unwrap_or_else(default)).filter(|address| address != LISTEN_OFF)
    }

    /// Returns true if servers of this host show a certificate.
    pub fn has_tls_servers(&self) -> bool {
        self.role.has_clients() || self.admin_listen().is_some()
    }

    /// An address of this host as others reach it.
    pub fn reached(&self, address: SocketAddr) -> SocketAddr {
        // "All addresses" is none that clients could use.
        let own = self.listen.filter(|ip| !ip.is_unspecified());
        let reached = self.advertise.or(own).unwrap_or(Ipv4Addr::LOCALHOST.into());
        if address.ip().is_unspecified() { SocketAddr::new(reached, address.port()) } else { address }
    }

    /// The URL of the S3 gateway over TLS.
    pub fn s3_tls_endpoint(&self) -> Option<String> {
        let found = self.s3_listeners().find(|(scheme, _)| *scheme == "https");
        found.map(|(scheme, address)| self.url(scheme, address))
    }

    fn url(&self, scheme: &str, address: &str) -> String {
        let reached = address.parse().ok().map(|parsed| self.reached(parsed).to_string());
        format!("{scheme}://{}", reached.as_deref().unwrap_or(address))
    }

    /// Returns true if other hosts reach this one, and its S3 gateway only from here.
    pub fn has_s3_for_this_host_only(&self) -> bool {
        let is_loopback =
            |address: &str| address.parse::<SocketAddr>().is_ok_and(|parsed| parsed.ip().is_loopback());
        self.is_reachable() && self.s3_listeners().all(|(_, address)| is_loopback(address))
    }

    /// Protection of frames as it was chosen when the cluster was made.
    pub fn first_frame_modes(&self) -> FrameModes {
        self.first_frame_modes.unwrap_or(FrameModes::all(self.frame_mode))
    }

    /// Returns the holder of the gateway's static key.
    pub fn gateway_key_holder(&self) -> &'static str {
        if self.has_gateway_key { "gateway" } else { "client" }
    }

    /// This host's name.
    pub fn host_name(&self) -> String {
        if !self.host.is_empty() {
            return self.host.clone();
        }
        let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        if name.trim().is_empty() { "localhost".into() } else { name.trim().into() }
    }
}
